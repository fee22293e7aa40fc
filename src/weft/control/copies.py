"""The results store: checkpoints and results of jobs a second time, on another disk than the one they work on.

Checkpoints are copied in the background while their job runs, and once more when it has stopped; results before it is
COMPLETED. A store that is full or away harms no job: it is told once as a note, and tried again. A job that is resumed
and finds no checkpoint of its own gets back those that were copied.
"""

from __future__ import annotations

import asyncio
import logging
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from weft.control.checkpoints import steps
from weft.control.live import LiveJob
from weft.control.mirror import Mirrored, mirror
from weft.control.results import matcher
from weft.store.changes import Happened

if TYPE_CHECKING:
    from weft.control.control import Control

EVERY = 5.0
log = logging.getLogger("weft.control")


class Copies:
    """Knows the results store's folder; without one, `control.copies` is None."""

    def __init__(self, control: Control, root: Path):
        self._control = control
        self.root = root
        self._ended: dict[str, LiveJob] = {}
        """Jobs that stopped since the last round, to be copied once more."""
        self._told: dict[str, str] = {}
        """What was said of a job last: the same trouble is told once."""
        self._busy = asyncio.Lock()

    async def run(self) -> None:
        while True:
            await asyncio.sleep(EVERY)
            for job in list(self._control.jobs.values()):
                if job.status.started is not None:
                    await self._copy_checkpoints(job)
            for job in list(self._ended.values()):
                if await self.keep(job) and self._ended.get(job.uid) is job:
                    del self._ended[job.uid]

    def ended(self, job: LiveJob) -> None:
        """The job has stopped; what it saved last is copied in the next round."""
        if job.status.started is not None:
            self._ended[job.uid] = job

    async def keep(self, job: LiveJob) -> bool:
        """All that a job which has stopped leaves; of one that succeeded, before that is said of it."""
        kept = await self._copy_checkpoints(job, final=True)
        if not job.status.succeeded:
            return kept
        source, target = Path(self._control.backend.result_folder(job.uid)), self._place(job, "results")
        wanted = matcher(job.spec.results.include)
        return (
            await self._try(job, "results", lambda: mirror(source, target, final=True, wanted=wanted))
            and kept
        )

    async def bring_back(self, job: LiveJob, step: int | None = None) -> None:
        """What the job is to go on from and does not have any more: this step, or all if it has none."""
        source, target = self.checkpoints(job), self._own(job)
        async with self._busy:
            await asyncio.to_thread(_bring_back, source, target, step)

    def checkpoints(self, job: LiveJob) -> Path:
        """Where they are copied to."""
        return self._place(job, "checkpoints")

    def remove(self, uid: str) -> None:
        """Of a job that was deleted. Also called in threads."""
        self._ended.pop(uid, None)
        self._told.pop(uid, None)
        for folder in self.root.glob(f"*.{uid}"):
            shutil.rmtree(folder, ignore_errors=True)

    def _place(self, job: LiveJob, what: str) -> Path:
        return self.root / f"{job.name}.{job.uid}" / what

    def _own(self, job: LiveJob) -> Path:
        return Path(self._control.backend.checkpoint_folder(job.uid))

    async def _copy_checkpoints(self, job: LiveJob, *, final: bool = False) -> bool:
        source, target = self._own(job), self.checkpoints(job)
        return await self._try(job, "checkpoints", lambda: mirror(source, target, final=final))

    async def _try(self, job: LiveJob, what: str, work: Callable[[], Mirrored]) -> bool:
        async with self._busy:
            try:
                await asyncio.to_thread(work)
            except OSError as problem:
                self._tell(
                    job, f"{what} are not copied to {self.root}: {problem.strerror or problem}; tried again"
                )
                return False
        if self._told.pop(job.uid, None) is not None:
            self._tell(job, f"{what} are copied to {self.root} again")
            del self._told[job.uid]
        return True

    def _tell(self, job: LiveJob, text: str) -> None:
        if self._told.get(job.uid) == text:
            return
        self._told[job.uid] = text
        log.warning("job %s: %s", job.name, text)
        now, state = self._control.clock(), job.status.state.value
        self._control.store.write([Happened(now, job.uid, job.name, "note", text, "weft", state)])


def _bring_back(source: Path, target: Path, step: int | None) -> None:
    if step is None:
        if target.is_dir() and any(not path.name.startswith(".") for path in target.iterdir()):
            return
        mirror(source, target, final=True)
    elif step not in steps(target) and (copied := steps(source).get(step)) is not None:
        mirror(copied, target / copied.name, final=True)
