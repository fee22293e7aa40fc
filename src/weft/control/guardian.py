"""The guardian: events in, transitions written, instructions carried out.

There is no coroutine per job to lose: a guardian is its job's journaled status and the next event. What
must survive a crash is written before it is acted on (`Provision` waits for its commit, so no process ever
starts that the store does not know of); everything else can be found again from the launch journals.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

from weft.backends.api import Backend, Tell
from weft.control import results
from weft.control.live import LiveJob, status_row
from weft.control.metrics import MetricsIntake
from weft.model.changed import changed
from weft.model.events import (
    Admitted,
    Asked,
    Event,
    Exited,
    Fetched,
    Pinned,
    Progressed,
    Provisioned,
    ResultsStored,
    StoringFailed,
    Undone,
    Woke,
)
from weft.model.failures import Code, Failure, Permanent, Temporary
from weft.model.instructions import (
    Dequeue,
    Enqueue,
    Fetch,
    Instruction,
    Launch,
    Provision,
    Readmit,
    Regroup,
    Release,
    ReleaseTasks,
    Retire,
    Stop,
)
from weft.model.instructions import Store as StoreResults
from weft.model.lifecycle import Outcome, advance, next_wake
from weft.model.status import Progress, State, Stored
from weft.store.changes import Happened, Update
from weft.store.database import StoreFull
from weft.store.store import Store

FETCH_TRIES = 3
STOP_PATIENCE = 2.0
ROOM_AGAIN = 5.0
"""Seconds until it is tried again to keep what there was no room for."""
log = logging.getLogger("weft.control")


class Guardian:
    """Carries events through the state machine for every live job."""

    def __init__(
        self,
        store: Store,
        backend: Backend,
        metrics: MetricsIntake,
        clock: Callable[[], float],
        queue: Callable[[LiveJob], None],
        unqueue: Callable[[LiveJob], None],
        release: Callable[[LiveJob], None],
        release_tasks: Callable[[LiveJob, tuple[str, ...], bool], None],
        retired: Callable[[LiveJob, asyncio.Future[None] | None], None],
        why_waiting: Callable[[LiveJob], str],
        log_tail: Callable[[str, str], list[str]],
        bring_data: Callable[[LiveJob, Tell], Awaitable[tuple[tuple[str, str], ...]]],
        keep_outputs: Callable[[LiveJob], Awaitable[None]],
        keep: Callable[[LiveJob], Awaitable[bool]] | None = None,
    ):
        self._store = store
        self._backend = backend
        self._metrics = metrics
        self._clock = clock
        self._queue = queue
        self._unqueue = unqueue
        self._release = release
        self._release_tasks = release_tasks
        self._retired = retired
        self._why_waiting = why_waiting
        self._log_tail = log_tail
        self._bring_data = bring_data
        """Makes sure that the versions of its datasets are stored; says how far it is."""
        self._keep_outputs = keep_outputs
        """Makes datasets of what a job declares of its results."""
        self._keep = keep
        """Copies what a job leaves to the results store, where there is one."""
        self._loop = asyncio.get_running_loop()
        self._work: set[asyncio.Future[Any]] = set()
        self._closing = False
        self.stepped: Callable[[LiveJob], None] | None = None
        """Told of every job whose new status is on disk."""

    # ── one event ──

    def handle(self, job: LiveJob, event: Event, actor: str = "weft") -> asyncio.Future[None] | None:
        """Take the job one step. The future, if any, is done when the step is on disk."""
        if isinstance(event, Exited) and not self._metrics.drain(job, event.task):
            self._spawn(self._drain_then(job, event, actor))
            return None
        return self._step(job, event, actor)

    async def _drain_then(self, job: LiveJob, event: Exited, actor: str) -> None:
        await self._metrics.drain_much(job, event.task)
        self._step(job, event, actor)

    def _step(self, job: LiveJob, event: Event, actor: str) -> asyncio.Future[None] | None:
        now = self._clock()
        outcome = advance(job.status, event, job.gang, now)
        if isinstance(event, Asked) and job.fetching is not None:
            job.fetching.cancel()  # what it would bring is no longer wanted
        if outcome.status is job.status and not outcome.instructions:
            return None
        written = None
        if outcome.status is not job.status:
            written = self._write(job, outcome, actor, now)
        for instruction in outcome.instructions:
            self.carry_out(job, instruction, written)
        self.set_timer(job)
        return written

    def _write(self, job: LiveJob, outcome: Outcome, actor: str, now: float) -> asyncio.Future[None]:
        previous, status = job.status.state, outcome.status
        if (
            status.state is State.FAILED
            and previous is not State.FAILED
            and status.failure
            and status.failure.task
        ):
            status = changed(status, log_tail=tuple(self._log_tail(job.uid, status.failure.task)))
        job.status = status
        changes: list[Any] = [Update(job.uid, partial(status_row, job))]
        if status.state is not previous or outcome.cause:
            kind, before = ("note", None) if status.state is previous else ("state", previous.value)
            now_in, code = status.state.value, outcome.code
            changes.append(
                Happened(now, job.uid, job.name, kind, outcome.cause, actor, now_in, before, code=code)
            )
        written = self._store.write(changes)
        if self.stepped is not None:
            written.add_done_callback(partial(self._tell, job))
        return written

    def _tell(self, job: LiveJob, written: asyncio.Future[None]) -> None:
        if self.stepped is not None and not written.cancelled() and written.exception() is None:
            self.stepped(job)

    def set_timer(self, job: LiveJob) -> None:
        wake = next_wake(job.status, job.gang)
        if wake is None and job.timer is None:
            return
        if job.timer is not None:
            job.timer.cancel()
            job.timer = None
        if wake is not None:
            job.timer = self._loop.call_later(max(0.0, wake - self._clock()), self._wake, job)

    def _wake(self, job: LiveJob) -> None:
        job.timer = None
        waiting = job.status.state is State.QUEUED
        self.handle(job, Woke(self._why_waiting(job) if waiting else ""))
        if job.timer is None:
            self.set_timer(job)

    # ── instructions ──

    def carry_out(self, job: LiveJob, instruction: Instruction, written: asyncio.Future[None] | None) -> None:
        match instruction:
            case Enqueue():
                self._queue(job)
            case Dequeue():
                self._unqueue(job)
            case Provision():
                if written is None:
                    self._provision(job)
                else:
                    written.add_done_callback(partial(self._provision_once_written, job))
            case Fetch():
                job.fetching = self._spawn(self._fetch(job))
            case Launch(launch, tasks):
                self._backend.launch(job, launch, tasks)
            case Stop(tasks, grace):
                if written is None:
                    self._backend.stop(job, tasks, grace)
                else:
                    self._spawn(self._stop(job, tasks, grace, written))
            case Release():
                self._release(job)
            case ReleaseTasks(tasks, replaced):
                self._release_tasks(job, tasks, replaced)
            case Regroup():
                self._backend.regroup(job)
            case Readmit():
                self.handle(job, Admitted())
            case StoreResults():
                self._store_results(job)
            case Retire():
                self._retire(job, written)

    def _provision_once_written(self, job: LiveJob, written: asyncio.Future[None]) -> None:
        if not written.cancelled() and written.exception() is None:
            self._provision(job)

    def _provision(self, job: LiveJob) -> None:
        if job.status.state is not State.DEPLOYING:
            return
        try:
            self._backend.provision(job)
        except Permanent as problem:
            self.handle(job, Undone(job.status.launch, problem.failure))
        else:
            self.handle(job, Provisioned())

    async def _fetch(self, job: LiveJob) -> None:
        launch = job.status.launch
        try:
            await self._fetch_code(job, launch)
        except asyncio.CancelledError:
            if self._closing:
                raise
            self.handle(job, Undone(launch, Failure(Code.BAD_CODE, "fetching the code was stopped")))
        finally:
            job.fetching = None

    async def _pin(self, job: LiveJob, launch: int) -> None:
        """Before anything is read: a start that is repeated reads the same."""
        versions = await self._bring_data(job, self._tell_of(job, launch))
        written = self.handle(job, Pinned(versions))
        if written is not None:
            await asyncio.shield(written)

    def _tell_of(self, job: LiveJob, launch: int) -> Tell:
        def tell(far: Progress) -> None:
            self.handle(job, Progressed(launch, far))

        return tell

    async def _fetch_code(self, job: LiveJob, launch: int) -> None:
        for attempt in range(1, FETCH_TRIES + 1):
            try:
                if job.spec.datasets:
                    await self._pin(job, launch)
                await self._backend.fetch(job, self._tell_of(job, launch))
            except Permanent as problem:
                self.handle(job, Undone(launch, problem.failure))
                return
            except Temporary as problem:
                if attempt == FETCH_TRIES:
                    self.handle(job, Undone(launch, Failure(Code.BAD_CODE, str(problem))))
                    return
                await asyncio.sleep(problem.delay)
            except Exception as problem:
                log.exception("job %s: fetching its code", job.name)
                self.handle(
                    job, Undone(launch, Failure(Code.BAD_CODE, f"fetching the code failed: {problem}"))
                )
                return
            else:
                self.handle(job, Fetched())
                return

    def _store_results(self, job: LiveJob) -> None:
        folder = self._backend.result_folder(job.uid)
        if self._keep is None and not job.spec.outputs and results.is_empty(folder):
            self.handle(job, ResultsStored(Stored(0, 0)))
        else:
            self._spawn(self._count_results(job, folder))

    async def _count_results(self, job: LiveJob, folder: str) -> None:
        try:
            found = await self._kept_results(job, folder)
        except Permanent as problem:
            self.handle(job, StoringFailed(problem.failure))
        except Exception as problem:
            if not isinstance(problem, OSError):
                log.exception("job %s: keeping its results", job.name)
            self.handle(job, StoringFailed(Failure(Code.RESULTS, f"cannot keep the results: {problem}")))
        else:
            self.handle(job, ResultsStored(Stored(len(found), sum(item.size for item in found))))

    async def _kept_results(self, job: LiveJob, folder: str) -> list[results.ResultFile]:
        while True:
            try:
                if self._keep is not None:
                    await self._keep(job)
                found = await asyncio.to_thread(results.listing, folder, job.spec.results.include)
                if job.spec.outputs:
                    await self._keep_outputs(job)
                return found
            except StoreFull as problem:  # nor could its end be written
                log.warning("job %s: its results wait for room: %s", job.name, problem)
                await asyncio.sleep(ROOM_AGAIN)

    async def _stop(
        self, job: LiveJob, tasks: tuple[str, ...], grace: float, written: asyncio.Future[None]
    ) -> None:
        """The wish first, then the signal: else a crash between the two would turn a halt into a failure.

        A full disk must not keep a job from being stopped (it may be what fills it), so patience ends.
        """
        await asyncio.wait({written}, timeout=STOP_PATIENCE)
        self._backend.stop(job, tasks, grace)

    def _retire(self, job: LiveJob, written: asyncio.Future[None] | None) -> None:
        if job.timer is not None:
            job.timer.cancel()
            job.timer = None
        self._backend.retire(job)
        self._retired(job, written)

    def _spawn(self, work: Any) -> asyncio.Task[Any]:
        task = self._loop.create_task(work)
        self._work.add(task)
        task.add_done_callback(self._done)
        return task

    def _done(self, task: asyncio.Task[Any]) -> None:
        self._work.discard(task)
        if not task.cancelled() and (problem := task.exception()) is not None:
            log.error("what was to be done for a job failed", exc_info=problem)

    async def close(self) -> None:
        self._closing = True
        for task in list(self._work):
            task.cancel()
        await asyncio.gather(*self._work, return_exceptions=True)
