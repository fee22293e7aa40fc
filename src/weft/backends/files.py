"""What jobs have on the control plane's disk, their code and what they leave: the same for every engine."""

from __future__ import annotations

import asyncio
import os
import threading
from pathlib import Path

from weft.backends import code
from weft.backends.api import Assignment, Tell
from weft.backends.folders import JobFolder
from weft.backends.logs import TaskLogReader

LOG_TAIL = 20
LOG_TAIL_WIDTH = 500


class JobFiles:
    """`WEFT_HOME/jobs`, a folder a job."""

    def __init__(self, home: Path):
        self.jobs = f"{home}/jobs"
        self.packages = home / "packages"

    def folder(self, uid: str) -> JobFolder:
        return JobFolder(self.jobs, uid)

    async def fetch(self, job: Assignment, tell: Tell) -> None:
        if job.spec.code is None:
            return
        stop = threading.Event()
        try:
            await asyncio.to_thread(code.bring, job.spec.code, self.packages, self.folder(job.uid), stop)
        finally:
            stop.set()

    def kept_folders(self) -> list[str]:
        return [entry.name for entry in os.scandir(self.jobs) if entry.is_dir(follow_symlinks=False)]

    def remove(self, uid: str) -> None:
        self.folder(uid).remove()

    def result_folder(self, uid: str) -> str:
        return self.folder(uid).results

    def checkpoint_folder(self, uid: str) -> str:
        return self.folder(uid).checkpoints

    def saved(self, uid: str) -> float | None:
        """Names that begin with a dot are none: shards keep their books there."""
        try:
            with os.scandir(self.folder(uid).checkpoints) as entries:
                kept = (entry for entry in entries if not entry.name.startswith("."))
                return max((entry.stat(follow_symlinks=False).st_mtime for entry in kept), default=None)
        except OSError:
            return None

    def metrics_file(self, uid: str, task: str) -> str:
        return f"{self.folder(uid).task(task)}/metrics.jsonl"

    def usage_file(self, uid: str, task: str) -> str:
        return f"{self.folder(uid).task(task)}/usage.bin"

    def log(self, uid: str, task: str) -> TaskLogReader:
        return TaskLogReader(self.folder(uid).task(task), task)

    def log_tail(self, uid: str, task: str) -> list[str]:
        lines, _ = self.log(uid, task).tail(LOG_TAIL, final=True)
        return [line.text[:LOG_TAIL_WIDTH] for line in lines]
