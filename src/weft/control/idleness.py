"""Jobs that nobody uses: when no task was active for their `idleTimeout`, they are halted, to be resumed at will."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from weft.control.awake import CHECK, Awake
from weft.control.live import LiveJob
from weft.model.events import Asked
from weft.model.lifecycle import ending
from weft.model.quantities import format_duration
from weft.model.status import Desire, State

if TYPE_CHECKING:
    from weft.control.control import Control

LATE = 10.0
"""So late, or a tenth of the timeout, a task may say that it is active: a look in between must not end its work."""
log = logging.getLogger("weft.control")


class Idleness:
    """Watches the jobs that have an `idleTimeout`; the others cost nothing.

    A job is as active as the most active of its tasks, and a start counts as activity. What activity is, the tasks
    know: they call `weft.active()`.
    """

    def __init__(self, control: Control):
        self._control = control
        self._due: dict[str, float] = {}
        """Nobody of the job, by uid, can have been idle for too long before."""

    async def run(self) -> None:
        awake = Awake(self._control.clock())
        while True:
            await asyncio.sleep(CHECK)
            now = self._control.clock()
            awake.look(now)
            jobs = [job for job in self._control.jobs.values() if job.spec.idle_timeout]
            self._due = {job.uid: self._due.get(job.uid, 0.0) for job in jobs}
            for job in jobs:
                if now >= self._due[job.uid]:
                    await self._look(job, awake.since)

    async def _look(self, job: LiveJob, since: float) -> None:
        try:
            if await self._idle(job, since):
                assert job.spec.idle_timeout is not None
                why = f"nothing was done in it for {format_duration(job.spec.idle_timeout)} (idleTimeout)"
                self._control.guardian.handle(job, Asked(Desire.HALT, why=why))
        except Exception:
            log.exception("job %s: cannot see whether it is idle", job.name)

    async def _idle(self, job: LiveJob, since: float) -> bool:
        timeout = job.spec.idle_timeout
        assert timeout is not None
        if not _runs(job):
            return False
        names = [task.name for task in job.status.tasks]
        active = await asyncio.to_thread(self._control.backend.active, job.uid, names)
        last = max(since, *active.values(), *(task.started or 0.0 for task in job.status.tasks))
        now = self._control.clock()
        self._due[job.uid] = min(now, last) + timeout + min(LATE, timeout / 10)
        return _runs(job) and now >= self._due[job.uid]


def _runs(job: LiveJob) -> bool:
    return job.status.state is State.PROCESSING and not ending(job.status)
