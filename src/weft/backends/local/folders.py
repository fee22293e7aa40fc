"""Where a job's files lie under WEFT_HOME."""

from __future__ import annotations

import shutil
from pathlib import Path


class JobFolder:
    """`jobs/<uid>/`: everything of one job, so that deleting it is deleting one folder."""

    __slots__ = ("root",)

    MADE = ("code", "results", "checkpoints", "logs", "data", "launches", "tasks")

    def __init__(self, jobs: str, uid: str):
        self.root = f"{jobs}/{uid}"

    @property
    def code(self) -> str:
        return f"{self.root}/code"

    @property
    def results(self) -> str:
        return f"{self.root}/results"

    @property
    def checkpoints(self) -> str:
        return f"{self.root}/checkpoints"

    @property
    def logs(self) -> str:
        return f"{self.root}/logs"

    @property
    def data(self) -> str:
        return f"{self.root}/data"

    @property
    def ports(self) -> str:
        return f"{self.root}/ports.json"

    def task(self, name: str) -> str:
        return f"{self.root}/tasks/{name}"

    def launch(self, number: int) -> str:
        return f"{self.root}/launches/{number}"

    def journal(self, number: int) -> str:
        return f"{self.root}/launches/{number}/journal"

    def make(self, tasks: tuple[str, ...]) -> None:
        """All folders of the job; those that stand already stay as they are."""
        import os

        try:
            os.mkdir(self.root, 0o700)
        except FileExistsError:
            for name in self.MADE:
                os.makedirs(f"{self.root}/{name}", exist_ok=True)  # noqa: PTH103
        else:
            for name in self.MADE:
                os.mkdir(f"{self.root}/{name}")  # noqa: PTH102
        for task in tasks:
            try:
                os.mkdir(self.task(task))  # noqa: PTH102
            except FileExistsError:
                pass

    def remove(self) -> None:
        shutil.rmtree(self.root, ignore_errors=True)

    def exists(self) -> bool:
        return Path(self.root).is_dir()
