"""Why something failed: a code for programs, a sentence for people, and where to look next."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Code(StrEnum):
    """Every way in which a job can end badly, or be kept from going on. One word each, the same on every backend."""

    EXIT_CODE = "EXIT_CODE"
    SIGNAL = "SIGNAL"
    OUT_OF_MEMORY = "OUT_OF_MEMORY"
    COMMAND_NOT_FOUND = "COMMAND_NOT_FOUND"
    CANNOT_START = "CANNOT_START"
    DEADLINE = "DEADLINE"
    UNSCHEDULABLE = "UNSCHEDULABLE"
    BAD_CODE = "BAD_CODE"
    DATA = "DATA"
    SECRET_MISSING = "SECRET_MISSING"  # noqa: S105  (a failure's name, no password)
    ISOLATION_UNAVAILABLE = "ISOLATION_UNAVAILABLE"
    SUPERVISOR_LOST = "SUPERVISOR_LOST"
    STALLED = "STALLED"
    IMAGE_PULL = "IMAGE_PULL"
    CRASH_LOOP = "CRASH_LOOP"
    VOLUME_MOUNT = "VOLUME_MOUNT"
    EVICTED = "EVICTED"
    NODE_LOST = "NODE_LOST"
    PREEMPTED = "PREEMPTED"
    POD_DELETED = "POD_DELETED"
    RESULTS = "RESULTS"
    CANCELLED = "CANCELLED"
    HALTED = "HALTED"


MAYBE_THE_NODE = frozenset(
    {Code.SUPERVISOR_LOST, Code.CANNOT_START, Code.ISOLATION_UNAVAILABLE, Code.SIGNAL, Code.STALLED}
)
"""What a broken node does to good jobs. A SIGNAL is one that Weft did not send; an exit code is the program's own."""


@dataclass(frozen=True)
class Failure:
    code: Code
    message: str
    task: str | None = None


class Temporary(Exception):
    """Try again after `delay` seconds: the cause is expected to pass."""

    def __init__(self, message: str, delay: float = 1.0):
        super().__init__(message)
        self.delay = delay


class Permanent(Exception):
    """Trying again cannot help; the failure says what a person can do."""

    def __init__(self, code: Code, message: str, task: str | None = None):
        super().__init__(message)
        self.failure = Failure(code, message, task)
