"""The contract between control and every engine."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from weft.model.events import Event
from weft.model.failures import Failure
from weft.model.gang import Gang
from weft.model.job import TrainingJobSpec
from weft.model.node import Node
from weft.model.status import JobStatus


@dataclass(slots=True)
class Assignment:
    """A job as a backend sees it: who it is, what it asked for and where it stands."""

    uid: str
    name: str
    spec: TrainingJobSpec
    gang: Gang
    status: JobStatus


@dataclass(frozen=True, slots=True)
class TaskUsage:
    """What a running task uses at this moment."""

    uid: str
    task: str
    pid: int
    cpu: float
    """CPUs, averaged since the last look (or since its start)."""
    memory: int


STALLS = "stalls"
"""The folder of RESULT_DIR in which `Backend.dump` keeps what it found."""

Listener = Callable[[str, Event], None]
"""Called on the event loop with a job's uid and what happened to it."""


class LogLine(Protocol):
    @property
    def task(self) -> str: ...
    @property
    def offset(self) -> int: ...
    @property
    def time(self) -> float: ...
    @property
    def text(self) -> str: ...


class TaskLog(Protocol):
    """A task's log, readable from any offset while it grows and after the task has ended."""

    def lines(self, offset: int, limit: int, *, final: bool = False) -> tuple[Sequence[LogLine], int]: ...

    def tail(self, count: int, *, final: bool = False) -> tuple[Sequence[LogLine], int]: ...


class Backend(Protocol):
    name: str

    def nodes(self) -> tuple[Node, ...]: ...

    def notes(self) -> tuple[str, ...]:
        """What this engine cannot do here, for `weft status`."""
        ...

    async def start(self, listener: Listener) -> None: ...

    async def stop_engine(self) -> None:
        """Let go of everything; what runs goes on running."""
        ...

    def provision(self, job: Assignment) -> None:
        """Make the job's folders. Idempotent."""
        ...

    async def fetch(self, job: Assignment) -> None:
        """Bring the code. Idempotent; raises Permanent or Temporary."""
        ...

    def launch(self, job: Assignment, launch: int, tasks: tuple[str, ...]) -> None:
        """Start these tasks together or not at all; `Launched` or `Undone` follows, then an `Exited` each.

        Asked twice for the same launch, it runs once.
        """
        ...

    def adopt(self, job: Assignment, launch: int) -> bool:
        """Take over a launch made by an earlier server: its events follow. False if nobody ever began it."""
        ...

    def forbid(self, job: Assignment, launch: int) -> bool:
        """Make sure that a launch that nobody has begun never begins. False if somebody has."""
        ...

    def stop(self, job: Assignment, tasks: tuple[str, ...], grace: float) -> None:
        """SIGTERM now, SIGKILL after the grace, to everything the tasks started."""
        ...

    def lose(self, job: Assignment, node: str, tasks: tuple[str, ...]) -> None:
        """Their node is given up: kill these running tasks, at once or when they are adopted. One `Lost` follows when
        the last of them has ended, in place of an `Exited` each."""
        ...

    def heard(self, uid: str, tasks: Sequence[str]) -> dict[str, float]:
        """When each task last logged, measured or touched its metrics file; 0: never. Also asked in threads."""
        ...

    def active(self, uid: str, tasks: Sequence[str]) -> dict[str, float]:
        """When each task last said that it is in use; 0: never. Also asked in threads."""
        ...

    def urls(self, job: Assignment) -> dict[str, str]:
        """Where the running tasks have said that they can be reached. May hold secrets. Also asked in threads."""
        ...

    async def dump(self, job: Assignment, name: str) -> bool:
        """Keep what every process of the job is doing now, as this file of STALLS. False if that was not possible."""
        ...

    def fail(self, job: Assignment, task: str, failure: Failure) -> None:
        """Kill this running task; its `Exited` says this failure."""
        ...

    def retire(self, job: Assignment) -> None:
        """The job is over: give back what only a running job needs. Its folder stays."""
        ...

    def remove(self, uid: str) -> None:
        """Delete the job's folder and everything in it."""
        ...

    def kept_folders(self) -> list[str]:
        """The uids of all jobs that have files here."""
        ...

    def result_folder(self, uid: str) -> str: ...

    def checkpoint_folder(self, uid: str) -> str: ...

    def saved(self, uid: str) -> float | None:
        """When the job last wrote a checkpoint; None: never."""
        ...

    def checkpoints(self, uid: str) -> list[int]:
        """The steps of those that `weft.checkpoint` saved."""
        ...

    def metrics_file(self, uid: str, task: str) -> str:
        """Where the task's metrics arrive as JSON lines."""
        ...

    def log(self, uid: str, task: str) -> TaskLog: ...

    def log_tail(self, uid: str, task: str) -> list[str]:
        """The last lines of a task's log, for the record of a failure."""
        ...

    def usage(self, jobs: list[Assignment]) -> list[TaskUsage]: ...
