"""A whole control plane on virtual time: real store, real control, simulated engine; it can be killed."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Awaitable, Callable, Iterable
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

from support import virtual
from support.builders import a_complete_job, a_node
from support.simulated import SimulatedBackend, World
from weft.backends.api import EngineUnavailable
from weft.control.control import Control
from weft.control.live import KIND, LiveJob
from weft.model.cluster import ClusterSpec
from weft.model.lifecycle import EDGES
from weft.model.node import Node
from weft.model.status import Desire, JobStatus, State
from weft.store.changes import Change, Happened
from weft.store.database import open_database
from weft.store.store import Store

STEP = 0.25


@cache
def new_database() -> bytes:
    """A migrated database without rows: migrating anew would be half of every test's time."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "weft.db"
        open_database(path).close()
        return path.read_bytes()


class WatchedStore(Store):
    """The store, with virtual time standing still while its thread works, and a way to die."""

    def __init__(self, path: Path, machine: Machine):
        self._machine = machine
        self.dead = False
        super().__init__(path)

    def write(self, changes: Iterable[Change], *, refusable: bool = False) -> asyncio.Future[None]:
        if self.dead:
            return self._loop.create_future()
        written = super().write(changes, refusable=refusable)
        self._machine.loop.await_outside(written)
        self._machine.touch("write")
        return written

    def kill(self, *, keep: bool) -> None:
        """As kill -9: what waits for its commit is lost, or just made it."""
        if keep:
            self._flush()
        elif self._tick is not None:
            self._tick.cancel()
        self._updates, self._others, self._tick = {}, [], None
        self.dead = True
        with self._writer._wake:
            if not keep:
                for write in self._writer._queue:
                    write.done.cancel()
                self._writer._queue.clear()
        self._writer.close()
        self._database.close()


Tell = Callable[..., None]
"""Tells a story, `async def story(machine)`, on virtual time; also on `nodes` of one's own."""


def told_in(folder: Path) -> Tell:
    """Stories on a machine whose database lies in this folder. It is up when they begin, and let go at the end."""

    def tell(story: Callable[[Machine], Awaitable[None]], nodes: Iterable[Node] | None = None) -> None:
        async def whole() -> None:
            machine = await Machine(folder, nodes).up()
            try:
                await story(machine)
            finally:
                if not machine.crashed:
                    await machine.down()

        virtual.run(whole)

    return tell


def workers(count: int, **role: Any) -> dict[str, Any]:
    return {"worker": {"replicas": count, **role}}


class Machine:
    """One machine whose server comes and goes."""

    def __init__(self, folder: Path, nodes: Iterable[Node] | None = None):
        self.loop: Any = asyncio.get_running_loop()
        self.path = folder / "weft.db"
        self.world = World(nodes or [a_node(cpu=4, memory=16)], folder)
        self.clusters: dict[str, World] = {}
        """Those that can be added, by name; one that is not here does not answer."""
        self.crashed = False
        self._countdown: int | None = None
        self._keep = False
        self.touched: list[str] = []

    # ── the server's life ──

    async def up(self) -> Machine:
        self.crashed = False
        if not self.path.exists():
            self.path.write_bytes(new_database())
        self.store = WatchedStore(self.path, self)
        self.backend = SimulatedBackend(self.world, self.touch)
        self.control = Control(self.store, self.backend, clock=self.loop.time, connect=self._connect)
        await self.control.start()
        return self

    def _connect(self, name: str, spec: ClusterSpec) -> SimulatedBackend:
        if name not in self.clusters:
            raise EngineUnavailable(f"{name} does not answer")
        return SimulatedBackend(self.clusters[name], self.touch)

    async def down(self) -> None:
        await self.control.close()
        self.store.close()

    def crash_after(self, touches: int, *, keep: bool) -> None:
        """Die at the n-th effect from now on: a write, an order to the engine, or news from it."""
        self._countdown, self._keep = touches, keep

    def touch(self, what: str) -> bool:
        if self.crashed:
            return False
        self.touched.append(what)
        if self._countdown is not None:
            self._countdown -= 1
            if self._countdown <= 0:
                self.kill(keep=self._keep)
                return False
        return True

    def kill(self, *, keep: bool = False) -> None:
        self._countdown = None
        self.crashed = True
        fleet = self.control.backend
        for member in fleet._members.values():
            if member.work is not None:
                member.work.cancel()
            if isinstance(member.backend, SimulatedBackend):
                member.backend.detach()
        self.backend.detach()
        self.store.kill(keep=keep)
        for task in (*self.control._background, *self.control.guardian._work):
            task.cancel()
        for job in self.control.jobs.values():
            if job.timer is not None:
                job.timer.cancel()

    # ── what a person does ──

    async def submit(self, name: str, **spec: Any) -> LiveJob:
        job, _ = await self.control.submit(a_complete_job(name, **spec), "ann", key=f"key-{name}")
        return job

    async def ask(self, name: str, desire: Desire) -> None:
        await self.control.ask(name, desire, "ann")

    async def passes(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    async def until(self, name: str, *states: State, within: float = 1000.0) -> JobStatus:
        """Let time pass until the job is in one of these states (or idle, if none is given)."""
        end = self.loop.time() + within
        while self.loop.time() < end:
            status = self.status(name)
            if status.state in states or (not states and status.state.idle):
                await self.store.write(())
                return status
            await asyncio.sleep(STEP)
        raise AssertionError(f"{name} is still {self.status(name)} after {within:g} s")

    # ── what can be seen ──

    def status(self, name: str) -> JobStatus:
        return self.control.find(name).status

    def exists(self, name: str) -> bool:
        return self.store.resource(KIND, name) is not None

    def events(self, name: str) -> list[Happened]:
        row = self.store.resource(KIND, name)
        assert row is not None
        return self.store.events(uid=row.uid)

    def history(self, name: str) -> list[str]:
        """The job's states, after checking that each followed from the one before."""
        changes = [event for event in self.events(name) if event.type == "state"]
        for before, after in pairwise(changes):
            assert after.previous == before.state, f"{name}: a transition is missing in {changes}"
            assert State(str(after.state)) in EDGES[State(str(before.state))]
            assert after.seq > before.seq
            assert after.time >= before.time
        row = self.store.resource(KIND, name)
        assert row is not None
        assert changes[-1].state == row.state
        return [str(event.state) for event in changes]

    def nothing_is_held(self) -> bool:
        rooms = self.control.books.cluster.rooms.values()
        return not self.world.processes and all(
            (room.cpu, room.memory, len(room.gpus), room.tasks)
            == (room.node.cpu, room.node.memory, len(room.node.gpus), 0)
            and room.cpu_ids == list(room.node.cpu_ids)
            for room in rooms
        )
