"""Several engines as one: the server's own, and the clusters that were added to it.

A job runs in one of them, and the names of its nodes say in which (`prod:gpu-7`). A cluster that cannot be reached is
away: it has no nodes, what runs there is left alone, and it is tried again until it answers. What jobs leave is kept in
one place, whichever engine ran them.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Sequence

from weft.backends.api import (
    Assignment,
    Backend,
    Cached,
    EngineUnavailable,
    Listener,
    Surroundings,
    TaskLog,
    TaskUsage,
    Tell,
)
from weft.model.cluster import ANY, ClusterSpec, cluster_of
from weft.model.failures import Failure, Temporary
from weft.model.gang import Gang
from weft.model.job import TrainingJobSpec
from weft.model.node import Node

FIRST_PAUSE, LONGEST_PAUSE = 1.0, 30.0
log = logging.getLogger("weft.fleet")

Connect = Callable[[str, ClusterSpec], Backend]
"""Makes the engine of a cluster of this name; raises EngineUnavailable."""


def no_clusters(name: str, spec: ClusterSpec) -> Backend:
    raise EngineUnavailable("this server uses no clusters")


class Member:
    """A cluster that was added."""

    def __init__(self, name: str, make: Callable[[], Backend]):
        self.name = name
        self.make = make
        self.backend: Backend | None = None
        """Once it has been reached."""
        self.asked: Backend | None = None
        """While it is being reached."""
        self.failure: str | None = None
        self.work: asyncio.Task[None] | None = None
        self.tried = asyncio.Event()
        """Reached, or found not to be."""

    @property
    def problem(self) -> str | None:
        """Why it is away, if it is."""
        if self.backend is not None:
            return None
        notes = self.asked.notes() if self.asked is not None else ()
        return notes[0] if notes else self.failure or "it has not answered yet"


class Fleet:
    def __init__(self, home: Backend, connect: Connect, joined: Callable[[str], None]):
        self.home = home
        self._connect = connect
        self._joined = joined
        self._members: dict[str, Member] = {}
        self._last: dict[str, str] = {}
        """Where jobs were last, by uid: when they are retired they have no places any more."""
        self._listener: Listener
        self._surroundings: Surroundings
        self.name = home.name
        self.one_machine = home.one_machine
        self.keeps_secrets = home.keeps_secrets

    # ── clusters come and go ──

    def add(self, name: str, spec: ClusterSpec) -> Member:
        """Begin to use a cluster, now if it answers, or once it does."""
        member = Member(name, lambda: self._connect(name, spec))
        self._members[name] = member
        member.work = asyncio.get_running_loop().create_task(self._join(member))
        return member

    async def leave(self, name: str) -> None:
        """Let go of a cluster, and of whatever still runs there."""
        member = self._members.pop(name)
        await self._leave(member)
        self._surroundings.nodes_changed()

    async def _join(self, member: Member) -> None:
        pause = FIRST_PAUSE
        while True:
            try:
                member.asked = member.make()
                await member.asked.start(self._listener, self._surroundings)
            except EngineUnavailable as problem:
                if member.failure != str(problem):
                    log.warning("cluster %s is away: %s", member.name, problem)
                member.failure = str(problem)
                member.tried.set()
                await self._let_go(member)
                await asyncio.sleep(pause)
                pause = min(2 * pause, LONGEST_PAUSE)
                continue
            member.backend, member.asked = member.asked, None
            log.info("cluster %s: %d nodes", member.name, len(member.backend.nodes()))
            self._surroundings.nodes_changed()
            self._joined(member.name)
            member.tried.set()
            return

    async def _leave(self, member: Member) -> None:
        if member.work is not None:
            member.work.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await member.work
        await self._let_go(member)

    async def _let_go(self, member: Member) -> None:
        engine, member.backend, member.asked = member.backend or member.asked, None, None
        if engine is not None:
            await engine.stop_engine()

    def problem(self, name: str) -> str | None:
        """Why a cluster is away, if it is."""
        member = self._members.get(name)
        return member.problem if member is not None else "there is no such cluster"

    def engine(self, name: str | None) -> Backend:
        """That of a cluster of this name, once it was reached; else the server's own."""
        return self._called(name or "") or self.home

    def nodes_of(self, name: str) -> tuple[Node, ...]:
        member = self._members.get(name)
        return member.backend.nodes() if member is not None and member.backend is not None else ()

    def cluster_of(self, job: Assignment) -> str:
        """The added cluster that a job has its places in, or had last; empty: the server's own engine."""
        for task in job.status.tasks:
            if task.binding is not None:
                return cluster_of(task.binding.node)
        return self._last.get(job.uid, "")

    def _of(self, job: Assignment) -> Backend | None:
        """The engine that a job runs on; None: it is away."""
        if not self._members:
            return self.home
        name = self.cluster_of(job)
        self._last[job.uid] = name
        return self._called(name)

    def _called(self, name: str) -> Backend | None:
        if not name:
            return self.home
        member = self._members.get(name)
        return member.backend if member is not None else None

    def _present(self) -> list[Backend]:
        return [self.home, *(member.backend for member in self._members.values() if member.backend)]

    def keeps_secrets_of(self, spec: TrainingJobSpec) -> bool:
        """Whether a job's secrets are those of the cluster that it asks for, not the server's."""
        return spec.placement.cluster not in (None, ANY) or self.keeps_secrets

    # ── the engine that all of them are ──

    def nodes(self) -> tuple[Node, ...]:
        return tuple(node for engine in self._present() for node in engine.nodes())

    def notes(self) -> tuple[str, ...]:
        away = [f"cluster {m.name} is away: {m.problem}" for m in self._members.values() if m.problem]
        said = [
            f"cluster {m.name}: {note}"
            for m in self._members.values()
            if m.backend
            for note in m.backend.notes()
        ]
        return (*self.home.notes(), *said, *away)

    async def start(self, listener: Listener, surroundings: Surroundings) -> None:
        self._listener, self._surroundings = listener, surroundings
        await self.home.start(listener, surroundings)

    async def stop_engine(self) -> None:
        for member in list(self._members.values()):
            await self._leave(member)
        await self.home.stop_engine()

    def counted(self, job: Assignment) -> Gang:
        """As the engine counts it that it runs on or asks for; if any will do, as the one does that counts most."""
        asked = job.spec.placement.cluster
        if not asked or not self._members:
            return self.home.counted(job)
        if asked == ANY:
            return max((engine.counted(job) for engine in self._present()), key=_size)
        engine = self._called(asked)
        return engine.counted(job) if engine is not None else job.gang

    def provision(self, job: Assignment) -> None:
        if (engine := self._of(job)) is not None:
            engine.provision(job)

    async def fetch(self, job: Assignment, tell: Tell) -> None:
        await (self._of(job) or self.home).fetch(job, tell)

    def launch(self, job: Assignment, launch: int, tasks: tuple[str, ...]) -> None:
        if (engine := self._of(job)) is not None:
            engine.launch(job, launch, tasks)

    def adopt(self, job: Assignment, launch: int) -> bool:
        engine = self._of(job)
        return engine is None or engine.adopt(job, launch)

    def forbid(self, job: Assignment, launch: int) -> bool:
        engine = self._of(job)
        return engine is not None and engine.forbid(job, launch)

    def stop(self, job: Assignment, tasks: tuple[str, ...], grace: float) -> None:
        if (engine := self._of(job)) is not None:
            engine.stop(job, tasks, grace)

    def regroup(self, job: Assignment) -> None:
        if (engine := self._of(job)) is not None:
            engine.regroup(job)

    def lose(self, job: Assignment, node: str, tasks: tuple[str, ...]) -> None:
        if (engine := self._of(job)) is not None:
            engine.lose(job, node, tasks)

    def heard(self, uid: str, tasks: Sequence[str]) -> dict[str, float]:
        engine = self._called(self._last.get(uid, ""))
        return engine.heard(uid, tasks) if engine is not None else dict.fromkeys(tasks, 0.0)

    def active(self, uid: str, tasks: Sequence[str]) -> dict[str, float]:
        engine = self._called(self._last.get(uid, ""))
        return engine.active(uid, tasks) if engine is not None else dict.fromkeys(tasks, 0.0)

    def urls(self, job: Assignment) -> dict[str, str]:
        engine = self._of(job)
        return engine.urls(job) if engine is not None else {}

    def forwards(self, job: Assignment) -> dict[str, str]:
        engine = self._of(job)
        return engine.forwards(job) if engine is not None else {}

    async def dump(self, job: Assignment, name: str) -> bool:
        engine = self._of(job)
        return engine is not None and await engine.dump(job, name)

    def fail(self, job: Assignment, task: str, failure: Failure) -> None:
        if (engine := self._of(job)) is not None:
            engine.fail(job, task, failure)

    def retire(self, job: Assignment) -> None:
        if (engine := self._of(job)) is not None:
            engine.retire(job)
        self._last.pop(job.uid, None)

    def usage(self, jobs: list[Assignment]) -> list[TaskUsage]:
        by_engine: dict[int, tuple[Backend, list[Assignment]]] = {}
        for job in jobs:
            if (engine := self._of(job)) is not None:
                by_engine.setdefault(id(engine), (engine, []))[1].append(job)
        return [used for engine, own in by_engine.values() for used in engine.usage(own)]

    async def cached(self) -> list[Cached]:
        return [each for engine in self._present() for each in await engine.cached()]

    async def warm(self, dataset: str, version: str, nodes: Sequence[str]) -> None:
        for cluster in dict.fromkeys(cluster_of(node) for node in nodes):
            engine = self._called(cluster)
            if engine is None:
                raise Temporary(f"cluster {cluster} is away: {self.problem(cluster)}")
            await engine.warm(dataset, version, [node for node in nodes if cluster_of(node) == cluster])

    # ── what jobs leave: one place for all ──

    def remove(self, uid: str) -> None:
        self.home.remove(uid)

    def kept_folders(self) -> list[str]:
        return self.home.kept_folders()

    def result_folder(self, uid: str) -> str:
        return self.home.result_folder(uid)

    def checkpoint_folder(self, uid: str) -> str:
        return self.home.checkpoint_folder(uid)

    def saved(self, uid: str) -> float | None:
        return self.home.saved(uid)

    def metrics_file(self, uid: str, task: str) -> str:
        return self.home.metrics_file(uid, task)

    def usage_file(self, uid: str, task: str) -> str:
        return self.home.usage_file(uid, task)

    def log(self, uid: str, task: str) -> TaskLog:
        return self.home.log(uid, task)

    def log_tail(self, uid: str, task: str) -> list[str]:
        return self.home.log_tail(uid, task)


def _size(gang: Gang) -> tuple[int, int]:
    return sum(task.request.cpu for task in gang.tasks), sum(task.request.memory for task in gang.tasks)
