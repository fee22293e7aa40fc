"""Tasks that hang: silent for longer than their job's `stallTimeout`, they are looked into, killed and count as failed."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from weft.backends.api import STALLS
from weft.control.awake import CHECK, Awake
from weft.control.live import LiveJob
from weft.model.failures import Code, Failure
from weft.model.lifecycle import ending
from weft.model.quantities import format_duration
from weft.model.status import TaskState, TaskStatus

if TYPE_CHECKING:
    from weft.control.control import Control

log = logging.getLogger("weft.control")


@dataclass(slots=True)
class Watch:
    """What is known of a job's silence."""

    due: float = 0.0
    """Nobody of it can have been silent for too long before."""
    busy: bool = False
    given_up: set[tuple[str, int]] = field(default_factory=set)
    """Tasks and launches whose kill was ordered. One that does not die of it is not looked into again."""


class Stalls:
    """Watches the jobs that have a `stallTimeout`; the others cost nothing.

    A task that is given up is killed, and its exit says STALLED: what follows is the restart policy's. Of tasks that
    start again together only the one that fell silent first is given up, for the others merely wait for it.
    """

    def __init__(self, control: Control):
        self._control = control
        self._watches: dict[str, Watch] = {}
        self._awake = Awake(control.clock())

    async def run(self) -> None:
        async with asyncio.TaskGroup() as work:
            while True:
                await asyncio.sleep(CHECK)
                now = self._control.clock()
                self._awake.look(now)
                for job, watch in self._due(now):
                    watch.busy = True
                    work.create_task(self._look(job, watch))

    def _due(self, now: float) -> list[tuple[LiveJob, Watch]]:
        jobs = [job for job in self._control.jobs.values() if job.spec.stall_timeout]
        self._watches = {job.uid: self._watches.get(job.uid) or Watch() for job in jobs}
        watched = [(job, self._watches[job.uid]) for job in jobs]
        return [(job, watch) for job, watch in watched if not watch.busy and now >= watch.due]

    async def _look(self, job: LiveJob, watch: Watch) -> None:
        try:
            silent = _one_of_each_group(job, await self._silent(job, watch))
            if silent:
                await self._give_up(job, watch, silent)
        except Exception:
            log.exception("job %s: cannot see whether it hangs", job.name)
        finally:
            watch.busy = False

    async def _silent(self, job: LiveJob, watch: Watch) -> list[TaskStatus]:
        """The tasks that were last heard of too long ago, the longest silent first."""
        timeout = job.spec.stall_timeout
        assert timeout is not None
        watch.due = self._control.clock() + timeout
        tasks = [task for task in _watched(job) if (task.name, task.launch) not in watch.given_up]
        if not tasks:
            return []
        heard = await asyncio.to_thread(self._control.backend.heard, job.uid, [task.name for task in tasks])
        last = {task.name: max(heard[task.name], task.started or 0.0, self._awake.since) for task in tasks}
        now = self._control.clock()
        watch.due = min(now, *last.values()) + timeout
        silent = [task for task in tasks if last[task.name] + timeout <= now]
        return sorted(silent, key=lambda task: last[task.name])

    async def _give_up(self, job: LiveJob, watch: Watch, silent: list[TaskStatus]) -> None:
        name = f"{silent[0].name}-launch-{silent[0].launch}.txt"
        kept = await self._control.backend.dump(job, name)
        still = {(task.name, task.launch) for task in await self._silent(job, watch)}
        for task in silent:
            if (task.name, task.launch) not in still:
                log.info("job %s: %s spoke again, or ended, while its stack was taken", job.name, task.name)
                continue
            watch.given_up.add((task.name, task.launch))
            self._control.backend.fail(job, task.name, _stalled(job, task.name, name if kept else None))


def _watched(job: LiveJob) -> list[TaskStatus]:
    """All that run and are meant to. Who serves others may have nothing to say."""
    if ending(job.status):
        return []
    return [
        task
        for task in job.status.tasks
        if task.state is TaskState.RUNNING
        and not (task.leaving or task.again or job.gang.task(task.name).service)
    ]


def _one_of_each_group(job: LiveJob, silent: list[TaskStatus]) -> list[TaskStatus]:
    chosen: list[TaskStatus] = []
    together: set[str] = set()
    for task in silent:
        if task.name not in together:
            chosen.append(task)
            together |= job.gang.together(job.gang.task(task.name))
    return chosen


def _stalled(job: LiveJob, task: str, dump: str | None) -> Failure:
    assert job.spec.stall_timeout is not None
    silence = (
        f"{task} has been silent for {format_duration(job.spec.stall_timeout)}: no log, metric or heartbeat"
    )
    where = f" (stacks of all its tasks: {STALLS}/{dump} in weft results {job.name})" if dump else ""
    return Failure(Code.STALLED, f"{silence}{where}", task)
