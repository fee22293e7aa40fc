"""Control: the live jobs, the scheduling cycle, and everything a person can ask of a job."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import secrets
import time
from collections.abc import Awaitable, Callable
from dataclasses import replace
from difflib import get_close_matches
from functools import partial
from pathlib import Path
from typing import Any

from weft.backends.api import Backend, TaskUsage
from weft.backends.fleet import Connect, Fleet, no_clusters
from weft.control import durations, live, recovery
from weft.control.badnodes import BadNodes
from weft.control.checkpoints import steps
from weft.control.clusters import OperatorClusters
from weft.control.copies import Copies
from weft.control.cordons import Cordons
from weft.control.datasets import Credentials, OperatorDatasets
from weft.control.foresight import Estimates, Foresight
from weft.control.guardian import Guardian
from weft.control.idleness import Idleness
from weft.control.jobtypes import JobTypes
from weft.control.live import KIND, LiveJob
from weft.control.metrics import MetricsIntake
from weft.control.neighbourhood import Neighbourhood
from weft.control.nosuch import NoJob
from weft.control.queues import Asking, OperatorQueues, Use
from weft.control.shares import Shares
from weft.control.sizes import OperatorSizes
from weft.control.stalls import Stalls
from weft.model.changed import changed
from weft.model.cluster import HOME, cluster_of
from weft.model.events import Admitted, Asked, Event, Joined, Placed, Preempted, Scaled, Shrunk
from weft.model.gang import Gang, Request, gang_of, sized
from weft.model.job import TrainingJob
from weft.model.lifecycle import Refused, advance
from weft.model.status import Binding, Desire, JobStatus, State, TaskState
from weft.scheduler.explain import Explanation, describe, explain, explain_waiting
from weft.scheduler.line import line
from weft.scheduler.pending import Waiting
from weft.scheduler.policy import DEFAULT, Policy
from weft.scheduler.queues import QueueRule, plus
from weft.scheduler.running import Running
from weft.scheduler.schedule import schedule
from weft.scheduler.state import State as Books
from weft.store.changes import Create, Delete, Happened
from weft.store.store import Store
from weft.store.writer import Conflict

EXPIRY_CHECK = 30.0
HOLD_CHECK = 1.0
NAME_TRIES = 8
SETTLE_PATIENCE = 1.0
AFTER_A_FAULT = 5.0
log = logging.getLogger("weft.control")


class NameTaken(Exception):
    def __init__(self, name: str):
        super().__init__(f"a job {name} exists already")
        self.name = name


class Control:
    """Drives every live job. Finished jobs are in the store alone."""

    def __init__(
        self,
        store: Store,
        backend: Backend,
        clock: Callable[[], float] = time.time,
        policy: Policy = DEFAULT,
        results_store: Path | None = None,
        connect: Connect = no_clusters,
        data: Path | None = None,
        credentials: Credentials = lambda _: {},
    ):
        self.store = store
        self.backend = backend = Fleet(backend, connect, partial(recovery.resume_in, self))
        self.clock = clock
        self.jobs: dict[str, LiveJob] = {}
        """By uid: everything that runs, waits or is halted being stopped; not what is idle."""
        self._names: dict[str, LiveJob] = {}
        self._arriving: dict[str, LiveJob] = {}
        """By name: submitted, but not on disk yet; nobody may see them, and nobody else may have their names."""
        self.books = Books(backend.nodes(), policy=policy)
        self.queues = OperatorQueues(store, clock, _new_uid, self._ruled)
        self.shares = Shares(self)
        self._foresight = Foresight(self.books, clock)
        self._strays: dict[str, list[tuple[Binding, Request]]] = {}
        """GPUs of jobs that run on, on nodes that were carved anew."""
        self._loop = asyncio.get_running_loop()
        self._metrics = MetricsIntake(store, backend.metrics_file)
        self.copies = Copies(self, results_store) if results_store is not None else None
        self.datasets = OperatorDatasets(self, _new_uid, data, credentials)
        self.guardian = Guardian(
            store,
            backend,
            self._metrics,
            clock,
            queue=self.enqueue,
            unqueue=self._dequeue,
            release=self._release,
            release_tasks=self._release_tasks,
            retired=self._retired,
            why_waiting=self.why_waiting,
            log_tail=backend.log_tail,
            bring_data=self.datasets.bring,
            keep_outputs=self.datasets.keep_outputs,
            keep=self.copies.keep if self.copies is not None else None,
        )
        self._cycle: asyncio.Handle | None = None
        self._reasons: dict[object, str] = {}
        self._reasons_of: tuple[object, ...] = ()
        self.cordons = Cordons(self, _new_uid)
        self._bad_nodes = BadNodes(self)
        self.job_types = JobTypes(store, clock, _new_uid)
        self.sizes = OperatorSizes(store, clock, _new_uid)
        self.clusters = OperatorClusters(self, _new_uid)
        self._expiry = asyncio.Event()
        self._background: list[asyncio.Task[None]] = []

    # ── life ──

    async def start(self) -> None:
        """Begin, taking over whatever an earlier server left behind."""
        await self.backend.start(self._heard, Neighbourhood(self))
        await self.clusters.load()
        recovery.recover(self)
        self._get_ready()
        always: list[Callable[[], Awaitable[None]]] = [
            partial(self._metrics.run, self.jobs.values),
            self._expire,
            self._watch_patience,
            partial(durations.learn, self),
            partial(durations.watch_checkpoints, self),
            Stalls(self).run,
            Idleness(self).run,
            self._bad_nodes.run,
            self.datasets.run,
            self.shares.run,
            *([self.copies.run] if self.copies is not None else []),
        ]
        self._background = [self._loop.create_task(_again_and_again(work)) for work in always]

    def _get_ready(self) -> None:
        """What the first job would else wait for: the types that come with Weft are read, the form of a status is known."""
        self.job_types.load_built_in()
        JobStatus(State.PENDING, ()).dump()

    async def close(self) -> None:
        """Let go; what runs goes on running."""
        self.shares.keep()
        for task in self._background:
            task.cancel()
        for job in self.jobs.values():
            if job.timer is not None:
                job.timer.cancel()
        await self.guardian.close()
        await self.datasets.close()
        await self.backend.stop_engine()

    def _heard(self, uid: str, event: Event) -> None:
        job = self.jobs.get(uid)
        if job is not None:
            self.guardian.handle(job, event)

    # ── submitting ──

    def prepare(
        self, job: TrainingJob, owner: str, uid: str | None = None, created: float | None = None
    ) -> TrainingJob:
        """A complete job as it would be kept, its name made if it has none."""
        metadata = job.metadata
        name = metadata.name
        if name is None:
            name = f"{(metadata.generate_name or job.spec.type).rstrip('-')}-{secrets.token_hex(3)}"
        own = {"name": name, "generate_name": None, "owner": owner, "uid": uid, "created": created}
        return job.model_copy(update={"metadata": metadata.model_copy(update=own), "status": None})

    async def submit(self, job: TrainingJob, owner: str, key: str | None = None) -> tuple[LiveJob, bool]:
        """Keep a complete job and let it wait for its place. True if it is new, False if the key was seen before."""
        for _ in range(NAME_TRIES):
            try:
                return await self._submit(job, owner, key)
            except NameTaken:
                if job.metadata.name is not None:
                    raise
        return await self._submit(job, owner, key)  # a name made up here clashed again and again

    async def _submit(self, job: TrainingJob, owner: str, key: str | None) -> tuple[LiveJob, bool]:
        now = self.clock()
        entry = live.live_job(self.prepare(job, owner, _new_uid(now), now))
        if entry.name in self._names or entry.name in self._arriving:
            if key is not None and (known := await self._submitted_before(key)) is not None:
                return known, False
            raise NameTaken(entry.name)
        pending = Happened(now, entry.uid, entry.name, "state", "submitted", owner, State.PENDING.value)
        outcome = advance(entry.status, Admitted(), entry.gang, now)
        entry.status = outcome.status
        queued = Happened(
            now,
            entry.uid,
            entry.name,
            "state",
            outcome.cause,
            "weft",
            State.QUEUED.value,
            State.PENDING.value,
        )
        self._arriving[entry.name] = entry
        kept = self.store.write([Create(live.creation_row(entry, key)), pending, queued], refusable=True)
        kept.add_done_callback(partial(self._kept, entry))  # also when whoever submitted has gone away
        try:
            await asyncio.shield(kept)
        except Conflict:
            if key is not None and (known := await self._submitted_before(key)) is not None:
                return known, False
            raise NameTaken(entry.name) from None
        return entry, True

    def _kept(self, entry: LiveJob, written: asyncio.Future[None]) -> None:
        if written.cancelled() or written.exception() is not None:
            self._arriving.pop(entry.name, None)
        else:
            self._arrived(entry)

    def _arrived(self, entry: LiveJob) -> None:
        if self._arriving.get(entry.name) is not entry:
            return  # somebody asked for it before its submit was told
        del self._arriving[entry.name]
        self.track(entry)
        self.enqueue(entry)
        self.guardian.set_timer(entry)

    async def _submitted_before(self, key: str) -> LiveJob | None:
        """The job that this key made. The empty write waits for whatever is still being committed."""
        await asyncio.shield(self.store.write(()))
        row = self.store.by_submit_key(KIND, key)
        return None if row is None else self.jobs.get(row.uid) or live.from_row(row)

    def track(self, job: LiveJob) -> None:
        self.jobs[job.uid] = job
        self._names[job.name] = job

    # ── asking ──

    def find(self, name: str) -> LiveJob:
        """A job by name, live or stored: one that is not on disk yet, a crash could still take back."""
        job = self._names.get(name)
        if job is not None:
            return job
        row = self.store.resource(KIND, name)
        if row is None:
            raise NoJob(name, self.store.names(KIND))
        arriving = self._arriving.get(name)
        if arriving is not None and arriving.uid == row.uid:
            self._arrived(arriving)
            return arriving
        return live.from_row(row)

    async def settled(self, job: LiveJob) -> None:
        """Wait until an end is on disk, so that no reader hears of one that a crash could take back."""
        if self._names.get(job.name) is job:
            await self.written()

    async def written(self) -> None:
        """Wait until all that has happened so far is on disk, or longer than a reader should."""
        await asyncio.wait({self.store.write(())}, timeout=SETTLE_PATIENCE)

    async def ask(self, name: str, desire: Desire, actor: str, checkpoint: int | None = None) -> LiveJob:
        """Halt, resume, cancel or delete. Raises Refused when it does not fit the job's state."""
        job = self.find(name)
        if desire is Desire.RUN and self.copies is not None:
            try:
                await self.copies.bring_back(job, checkpoint)
            except OSError as problem:
                why = problem.strerror or problem
                raise Refused(
                    f"job {name}: its checkpoints cannot be brought back from {self.copies.root}: {why}"
                ) from None
            before, job = job, self.find(name)  # others may have asked meanwhile
            if job.uid != before.uid:
                raise Refused(f"job {name} was deleted meanwhile, and another has its name")
        if checkpoint is not None and checkpoint not in (
            kept := steps(Path(self.backend.checkpoint_folder(job.uid)))
        ):
            there = (
                f"there are {', '.join(map(str, kept))}" if kept else "it has none that weft.checkpoint saved"
            )
            raise Refused(f"job {name} has no checkpoint {checkpoint}; {there}")
        if job.status.desire is Desire.DELETE and desire is not Desire.DELETE:
            raise Refused(f"job {name} is being deleted")
        if desire is Desire.RUN and job.spec.queue not in self.queues:
            raise Refused(
                f"job {name} belongs to queue {job.spec.queue}, which no longer exists (weft queues)"
            )
        stored = name not in self._names
        if stored:
            job.metric_offsets = self.store.metric_offsets(job.uid)
        self.track(job)
        try:
            written = self.guardian.handle(job, Asked(desire, checkpoint), actor)
        except Refused as refusal:
            self._untrack_idle(job, stored)
            raise Refused(f"job {name} {refusal}") from None
        if written is not None:
            await asyncio.shield(written)
        else:
            self._untrack_idle(job, stored)
        return job

    async def scale(self, name: str, sizes: dict[str, int], actor: str) -> LiveJob:
        """So many tasks of these roles from now on. Raises Refused when the job cannot be so."""
        job = self.find(name)
        for role, size in sizes.items():
            if (wrong := _unfit(job, role, size)) is not None:
                raise Refused(f"job {name}: {wrong}")
        if name not in self._names:
            raise Refused(f"job {name} is {job.status.state}; only a job that waits or runs can be scaled")
        try:
            written = self.guardian.handle(job, Scaled(tuple(sorted(sizes.items()))), actor)
        except Refused as refusal:
            raise Refused(f"job {name} {refusal}") from None
        if written is not None:
            await asyncio.shield(written)
        job.gang = sized(gang_of(job.spec), dict(job.status.sizes))
        if job.uid in self.books.pending:
            self.enqueue(job)
        self.resize(job, actor)
        return job

    def resize(self, job: LiveJob, actor: str) -> None:
        """Let tasks go that the job has beyond what a person asked for; more come when there is room."""
        running = self.books.running.jobs.get(job.uid)
        if running is None or not job.status.sizes:
            return
        self.books.running.resize(running, self.counted(job))
        running.resized = 0.0  # a person's wish does not wait
        going = tuple(name for name in running.beyond() if name not in running.shrinking)
        if going:
            running.shrinking |= {*going}
            self.books.running.told(running)
            self.guardian.handle(job, Shrunk(going, None), actor)
        self.wake_scheduler()

    async def remove(self, name: str, actor: str) -> bool:
        """Delete a job and its files: True when it is gone, False when it is first being stopped."""
        job = self.find(name)
        if not job.status.state.idle:
            await self.ask(name, Desire.DELETE, actor)
            return job.uid not in self.jobs
        job.status = changed(job.status, desire=Desire.DELETE)
        self._names[name] = job  # until it is gone, nobody may resume it from what is still stored
        await asyncio.shield(self.delete(job.uid, name, actor))
        return True

    def _untrack_idle(self, job: LiveJob, stored: bool) -> None:
        if job.status.state.idle:
            self.jobs.pop(job.uid, None)
            if stored:
                self._forget(job)

    def _retired(self, job: LiveJob, written: asyncio.Future[None] | None) -> None:
        """The job is idle: once that is on disk the store alone knows it, or, if that was asked, nobody."""
        self.jobs.pop(job.uid, None)
        self._bad_nodes.ended(job)
        if self.copies is not None:
            self.copies.ended(job)
        if job.status.desire is Desire.DELETE:
            self.delete(job.uid, job.name, "weft")
        elif written is None:
            self._forget(job)
        else:
            written.add_done_callback(lambda _: self._forget(job))

    def _forget(self, job: LiveJob) -> None:
        if job.spec.ttl_after_finished is not None:
            self._expiry.set()
        if self._names.get(job.name) is job and job.uid not in self.jobs:
            del self._names[job.name]

    def delete(self, uid: str, name: str, actor: str) -> asyncio.Future[None]:
        written = self.store.write(
            [Delete(uid), Happened(self.clock(), uid, name, "deleted", "deleted", actor)]
        )

        def removed(_: Any) -> None:
            if (entry := self._names.get(name)) is not None and entry.uid == uid:
                del self._names[name]
            self._loop.run_in_executor(None, self.remove_files, uid)

        written.add_done_callback(removed)
        return written

    def remove_files(self, uid: str) -> None:
        self.backend.remove(uid)
        if self.copies is not None:
            self.copies.remove(uid)

    # ── scheduling ──

    def enqueue(self, job: LiveJob) -> None:
        since = job.status.queued or self.clock()
        self.books.submit(
            Waiting(
                job.uid,
                job.name,
                self.counted(job),
                job.priority,
                since,
                job.spec.queue,
                job.metadata.owner or "",
                waited=job.status.waited,
                attained=self._kept_work(job),
            )
        )
        self.wake_scheduler()

    def counted(self, job: LiveJob) -> Gang:
        """As its engine counts it on nodes, with the data that it would rather find there."""
        gang = self.backend.counted(job)
        return replace(gang, wants=(*gang.wants, *self.datasets.wants(job))) if job.spec.datasets else gang

    def _kept_work(self, job: LiveJob) -> float:
        """Seconds that it ran before it gave way, if it saved anything of them."""
        return job.status.ran if job.status.ran and self.backend.saved(job.uid) is not None else 0.0

    def _dequeue(self, job: LiveJob) -> None:
        self.books.withdraw(job.uid)
        self.wake_scheduler()

    def _release(self, job: LiveJob) -> None:
        now = self.clock()
        for stray in self._strays.pop(job.uid, ()):
            self.books.cluster.release(*stray)
        left = self.books.leave(job.uid, now)
        if left is not None:
            if job.status.state in (State.COMPLETED, State.FAILED):
                self.books.ended(left, left.ran(now), completed=job.status.state is State.COMPLETED)
            self.wake_scheduler()

    def _release_tasks(self, job: LiveJob, tasks: tuple[str, ...], replaced: bool) -> None:
        if job.uid in self.books.running:
            self.books.leave_tasks(job.uid, tasks, self.clock(), missing=replaced)
            self.wake_scheduler()

    def take(self, job: LiveJob) -> None:
        """Take the job's place in the cluster as its status has it."""
        bindings = [
            self._as_carved_now(job.uid, task.binding)
            for task in job.status.tasks
            if task.binding is not None
        ]
        self.books.restore(
            Running(
                job.uid,
                job.name,
                self.counted(job),
                job.priority,
                job.spec.queue,
                job.metadata.owner or "",
                job.status.started or self.clock(),
                {binding.task: binding for binding in bindings},
                attained=job.status.ran,
                waited=job.status.waited,
                leaving=job.status.giving_way is not None,
                shrinking=frozenset(task.name for task in job.status.tasks if task.leaving),
            ),
            self.clock(),
        )
        lost = tuple(task.name for task in job.status.tasks if task.state is TaskState.LOST)
        if lost:  # it has as long to be made whole as if they were lost now
            self.books.running[job.uid].missing = lost
            self.books.running[job.uid].broken = self.clock()
            self.books.running.broken[job.uid] = None

    def _as_carved_now(self, uid: str, binding: Binding) -> Binding:
        """Where a task that runs on counts, if the machine was carved anew: on the node of its name, or the one that has
        its GPUs now, or the roomiest. GPUs of it that are on yet other nodes are taken there until it ends."""
        rooms = self.books.cluster.rooms
        owners: dict[str, list[int]] = {}
        for name, room in rooms.items():
            for gpu in room.node.gpus if room.node.cluster == HOME else ():
                if gpu.index in binding.gpus:
                    owners.setdefault(name, []).append(gpu.index)
        elsewhere = not self.backend.one_machine or cluster_of(binding.node)
        if elsewhere or (binding.node in rooms and [*owners] in ([], [binding.node])):
            return binding
        own = [name for name in rooms if not cluster_of(name)]
        roomiest = max(own, key=lambda name: (len(owners.get(name, ())), rooms[name].cpu))
        node = binding.node if binding.node in rooms else roomiest
        for name, indexes in owners.items():
            if name != node:
                stray = (Binding(binding.task, name, (), tuple(indexes)), Request(cpu=0, gpu=len(indexes)))
                self.books.cluster.take(*stray)
                self._strays.setdefault(uid, []).append(stray)
        return Binding(binding.task, node, (), tuple(owners.get(node, ())))

    def wake_scheduler(self) -> None:
        """One cycle soon, however many ask for it."""
        if self._cycle is None:
            self._cycle = self._loop.call_soon(self._schedule)

    def _schedule(self) -> None:
        self._cycle = None
        books = self.books
        if not (len(books.pending) or books.running.elastic or books.running.broken):
            return
        now = self.clock()
        plan = schedule(books.snapshot(now), books.policy)
        books.decided(plan)
        for placement in plan.placements:
            books.start(placement.uid, placement.bindings, now)
            self._carry_out(placement.uid, Placed(placement.bindings))
        for change in (*plan.repairs, *plan.growths):
            if self.jobs[change.uid].status.state not in (State.PROCESSING, State.RESTARTING):
                continue  # a start of it is under way, and it could only decline
            books.join(change.uid, change.bindings, now)
            self._carry_out(change.uid, Joined(change.bindings))
        for uid in plan.given_up:
            books.running.tell_to_leave(uid)
            self._carry_out(uid, Preempted("others: no room for its lost tasks"))
        for preemption in plan.preemptions:
            name = self.jobs[preemption.uid].name
            for uid in preemption.evicted:
                self._carry_out(uid, Preempted(name))
            for shrink in preemption.shrunk:
                self._carry_out(shrink.uid, Shrunk(shrink.tasks, name))

    def _carry_out(self, uid: str, event: Event) -> None:
        """One decision. That one job cannot follow must not keep the others from theirs."""
        try:
            self.guardian.handle(self.jobs[uid], event, "scheduler")
        except Exception:
            log.exception("job %s: cannot carry out %s", uid, event)
            if uid in self.books.running:
                self.books.running[uid].leaving = False
                self.books.running[uid].shrinking = frozenset()
                self.books.running.told(self.books.running[uid])

    def explain(self, job: LiveJob) -> Explanation:
        waiting = self.books.pending.get(job.uid)
        if waiting is None:
            return explain(self.books.cluster, self.counted(job), self.books.running)
        return explain_waiting(self.books, waiting)

    def why_waiting(self, job: LiveJob) -> str:
        """The reason alone, worked out once for all jobs that ask for the same at the same time."""
        if job.uid in self.books.holds or job.uid in self.books.promises:
            return self.explain(job).reason  # its own
        state = (self.clock() // 1.0, self.books.cluster.freed, len(self.books.running))
        if state != self._reasons_of:
            self._reasons_of, self._reasons = state, {}
        alike = (job.gang.signature, job.spec.queue, job.metadata.owner)
        if alike not in self._reasons:
            self._reasons[alike] = self.explain(job).reason
        return self._reasons[alike]

    def waiting(self) -> list[Waiting]:
        """All that wait, in the order in which they would start."""
        return line(self.books, self.clock())

    async def estimates(self, uid: str | None = None) -> Estimates:
        """When waiting jobs should start, by uid."""
        return await self._foresight.estimates(uid)

    def likely_end(self, job: Running) -> float:
        """When a running job should have ended, by those that were like it."""
        return self._foresight.likely_end(job)

    def likely_length(self, job: Waiting) -> float:
        """How long a waiting job should run, by those that were like it."""
        return self._foresight.likely_length(job)

    # ── queues ──

    def _ruled(self, rules: list[QueueRule]) -> None:
        self.books.rules(rules, self.clock())
        self.look_again()

    def look_again(self) -> None:
        """An operator has changed what may start: why jobs wait is worked out anew, and so is what starts."""
        self._reasons_of = ()
        self.wake_scheduler()

    def asking(self) -> dict[str, Asking]:
        """What waits and runs in each queue and those in it, also while a submit is being written."""
        accounts = self.books.queues.accounts
        found = {name: Asking() for name in accounts}
        for job in (*self._names.values(), *self._arriving.values()):
            account = accounts.get(job.spec.queue)
            if account is not None and not job.status.state.idle:
                waits = job.status.state in (State.PENDING, State.QUEUED, State.PREEMPTED)
                for name in account.path:
                    use = found[name].users.setdefault(job.metadata.owner or "", Use())
                    use.waiting += waits
                    use.running += not waits
        for holder in self.books.running:
            held = holder.held()
            for name in accounts[holder.queue].path if holder.queue in accounts else ():
                use = found[name].users.setdefault(holder.owner, Use())
                use.held = plus(use.held, held)
        return found

    def needs(self, job: Waiting) -> str:
        return describe(job.gang)

    def usage(self) -> list[TaskUsage]:
        return self.backend.usage(list(self.jobs.values()))

    # ── in the background ──

    async def _expire(self) -> None:
        """Delete finished jobs whose time to live is over."""
        while True:
            for row in self.store.expired(self.clock()):
                with contextlib.suppress(NoJob):
                    if row.uid in self.jobs or self.find(row.name).uid != row.uid:
                        continue  # resumed this very moment, or another that has its name
                    log.info("job %s: its ttlAfterFinished is over; deleting it", row.name)
                    await self.remove(row.name, "ttl")
            upcoming = self.store.next_expiry()
            delay = EXPIRY_CHECK if upcoming is None else upcoming - self.clock()
            self._expiry.clear()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._expiry.wait(), min(max(delay, 0.05), EXPIRY_CHECK))

    async def _watch_patience(self) -> None:
        """A job runs out of patience without anything else happening: look now and then."""
        while True:
            await asyncio.sleep(HOLD_CHECK)
            if len(self.books.pending) or self.books.running.elastic or self.books.running.broken:
                self.wake_scheduler()


async def _again_and_again(work: Callable[[], Awaitable[None]]) -> None:
    """Whatever fails in it: the rest of the server's life would have to do without."""
    while True:
        try:
            return await work()
        except Exception:
            log.exception("begins again in %g s", AFTER_A_FAULT)
        await asyncio.sleep(AFTER_A_FAULT)


def _unfit(job: LiveJob, role: str, size: int) -> str | None:
    """Why a role cannot have so many tasks."""
    said = job.spec.roles.get(role)
    if said is None:
        near = get_close_matches(role, job.spec.roles, n=1)
        hint = f"did you mean {near[0]}?" if near else f"its roles are {', '.join(job.spec.roles)}"
        return f"there is no role {role}; {hint}"
    least = said.replicas if said.min_replicas is None else said.min_replicas
    most = said.max_replicas or said.replicas
    if least == most:
        return f"role {role} is always {most}; a job whose size may change has minReplicas and maxReplicas"
    if not least <= size <= most:
        return f"role {role} has {least} to {most} tasks, not {size}"
    return None


_INSTANCE = secrets.token_hex(4)
_COUNTER = itertools.count()


def _new_uid(now: float) -> str:
    """Sorts by time of creation; the rest tells servers and the jobs of one millisecond apart."""
    return f"{int(now * 1000):011x}{_INSTANCE}{next(_COUNTER) & 0xFFFF:04x}"
