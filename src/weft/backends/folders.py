"""Where a job's files lie under WEFT_HOME."""

from __future__ import annotations

import shutil
from pathlib import Path

from weft.backends.tasks import Paths


class JobFolder:
    """`jobs/<uid>/`: everything of one job, so that deleting it is deleting one folder.

    Supervisors make the folders at launch (`for_tasks`); the first to make a launch's journal runs it.
    """

    __slots__ = ("root",)

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
        """DATA_DIR of a job that reads datasets: a link for each that is laid out as files."""
        return f"{self.root}/data"

    @property
    def data_token(self) -> str:
        return f"{self.root}/data.token"

    @property
    def ports(self) -> str:
        return f"{self.root}/ports.json"

    @property
    def hosts(self) -> str:
        return f"{self.root}/hosts.json"

    def task(self, name: str) -> str:
        return f"{self.root}/task-{name}"

    def metrics(self, task: str) -> str:
        return f"{self.task(task)}/metrics.jsonl"

    def activity(self, task: str) -> str:
        """Its time is when the task last was in use."""
        return f"{self.task(task)}/active"

    def url(self, task: str, launch: int) -> str:
        """What the task has announced; of each launch, so that none is taken for that of the next."""
        return f"{self.task(task)}/url-{launch}"

    def paths(self, task: str, launch: int, data: str) -> Paths:
        """What the task is told of all this; `data` is the machine's."""
        return Paths(
            code=self.code,
            results=self.results,
            checkpoints=self.checkpoints,
            logs=self.logs,
            data=data,
            metrics=self.metrics(task),
            activity=self.activity(task),
            url=self.url(task, launch),
        )

    def journal(self, number: int) -> str:
        return f"{self.root}/launch-{number}.journal"

    def for_tasks(self, tasks: list[str]) -> list[str]:
        """What must stand before these tasks start, outermost first."""
        shared = [self.root, self.code, self.results, self.checkpoints, self.logs]
        return [*shared, *(self.task(name) for name in tasks)]

    def remove(self) -> None:
        shutil.rmtree(self.root, ignore_errors=True)


def replace_file(path: str, text: str) -> None:
    """Whole or not at all; makes the folder it is in."""
    temporary = Path(f"{path}.tmp")
    temporary.parent.mkdir(exist_ok=True)
    temporary.write_text(text)
    temporary.replace(path)
