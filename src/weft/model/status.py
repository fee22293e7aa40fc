"""What is true of a job now: the part of the resource that the server writes."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from functools import cache
from typing import ClassVar

from pydantic import ConfigDict, TypeAdapter
from pydantic.alias_generators import to_camel

from weft.model.failures import Code, Failure
from weft.model.quantities import show_bytes

OUTSIDE = ConfigDict(alias_generator=to_camel, validate_by_name=True, validate_by_alias=True)
"""Statuses are written in camelCase, as everything is outside of Python."""


class State(StrEnum):
    PENDING = "PENDING"
    QUEUED = "QUEUED"
    DEPLOYING = "DEPLOYING"
    DOWNLOADING = "DOWNLOADING"
    PROCESSING = "PROCESSING"
    STORING = "STORING"
    COMPLETED = "COMPLETED"
    FAILED = "FAILED"
    HALTED = "HALTED"
    CANCELLED = "CANCELLED"
    PREEMPTED = "PREEMPTED"
    RESTARTING = "RESTARTING"

    @property
    def finished(self) -> bool:
        return self in FINISHED

    @property
    def idle(self) -> bool:
        """Nothing runs, waits or is reserved: finished, or halted by a person."""
        return self in FINISHED or self is State.HALTED


FINISHED = frozenset({State.COMPLETED, State.FAILED, State.CANCELLED})


class Desire(StrEnum):
    """What a person last asked of the job."""

    RUN = "run"
    HALT = "halt"
    CANCEL = "cancel"
    DELETE = "delete"


class TaskState(StrEnum):
    WAITING = "WAITING"
    STARTING = "STARTING"
    RUNNING = "RUNNING"
    BACKOFF = "BACKOFF"
    SUCCEEDED = "SUCCEEDED"
    FAILED = "FAILED"
    STOPPED = "STOPPED"
    LOST = "LOST"
    """Gone with its node; waits to be replaced."""

    @property
    def alive(self) -> bool:
        """A process exists or is being made."""
        return self in (TaskState.STARTING, TaskState.RUNNING)


@dataclass(frozen=True, slots=True)
class Binding:
    """The place of one task: a node, and the very CPUs and GPUs where the node numbers them."""

    __pydantic_config__: ClassVar[ConfigDict] = OUTSIDE
    task: str
    node: str
    cpus: tuple[int, ...] = ()
    gpus: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Exit:
    """How a process ended, as its supervisor saw it."""

    __pydantic_config__: ClassVar[ConfigDict] = OUTSIDE
    code: int | None = None
    signal: int | None = None
    failure: Failure | None = None
    peak_memory: int | None = None
    cpu_seconds: float | None = None
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class TaskStatus:
    __pydantic_config__: ClassVar[ConfigDict] = OUTSIDE
    name: str
    state: TaskState = TaskState.WAITING
    binding: Binding | None = None
    launch: int = 0
    """The number of the launch that started it last."""
    pid: int | None = None
    restarts: int = 0
    due: float | None = None
    """When a task in backoff starts again."""
    leaving: bool = False
    """Told to go so that others have room; the job goes on without it."""
    again: bool = False
    """Told to stop because another failed with which it starts again."""
    started: float | None = None
    finished: float | None = None
    exit: Exit | None = None


@dataclass(frozen=True, slots=True)
class Stored:
    __pydantic_config__: ClassVar[ConfigDict] = OUTSIDE
    files: int
    bytes: int


@dataclass(frozen=True, slots=True)
class Progress:
    """How far data is that a job waits for."""

    __pydantic_config__: ClassVar[ConfigDict] = OUTSIDE
    what: str
    bytes: int
    all_bytes: int
    rate: float
    """Bytes a second."""

    def __str__(self) -> str:
        return f"{self.what}: {show_bytes(self.bytes)} of {show_bytes(self.all_bytes)} at {show_bytes(self.rate)}/s"


@dataclass(frozen=True)
class JobStatus:
    __pydantic_config__: ClassVar[ConfigDict] = OUTSIDE
    state: State
    tasks: tuple[TaskStatus, ...]
    desire: Desire = Desire.RUN
    reason: str | None = None
    """A sentence on the current state, where there is something to say."""
    failure: Failure | None = None
    reason_code: Code | None = None
    """The reason for programs, where something is wrong."""
    succeeded: bool = False
    """The success rule is met; what still runs is being stopped."""
    launch: int = 0
    queued: float | None = None
    started: float | None = None
    finished: float | None = None
    restarts: int = 0
    giving_way: str | None = None
    """Who the job is being stopped for; it waits for its turn again once nothing of it runs."""
    halted_for: str | None = None
    """Why it is being halted, or is, if no person asked for it."""
    preemptions: int = 0
    ran: float = 0.0
    """Seconds of the runs that gave way."""
    waited: float = 0.0
    """Seconds that it waited for its places since a person last started it."""
    checkpoint: str | None = None
    """The checkpoint that a person had it resumed from, and the launch that was: good until it saves another."""
    sizes: tuple[tuple[str, int], ...] = ()
    """How many tasks of a role a person last asked for; others are as the job says."""
    datasets: tuple[tuple[str, str], ...] = ()
    """The version of each dataset that it reads: the same for all its starts."""
    progress: Progress | None = None
    """Of the data that is being brought, while it is DOWNLOADING."""
    results: Stored | None = None
    log_tail: tuple[str, ...] = field(default=())
    """The last lines of the log of the task that failed."""

    def task(self, name: str) -> TaskStatus:
        return next(task for task in self.tasks if task.name == name)

    @property
    def alive(self) -> tuple[TaskStatus, ...]:
        return tuple(task for task in self.tasks if task.state.alive)

    def dump(self) -> bytes:
        """As JSON, without what is unknown."""
        return _adapter().dump_json(self, by_alias=True, exclude_none=True)

    @staticmethod
    def load(document: str | bytes) -> JobStatus:
        return _adapter().validate_json(document)


@cache
def _adapter() -> TypeAdapter[JobStatus]:
    return TypeAdapter(JobStatus)
