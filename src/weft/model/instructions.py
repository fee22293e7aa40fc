"""Instructions: what a change of state asks to be done. `control.guardian` does it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Enqueue:
    """Let the scheduler look for a place."""


@dataclass(frozen=True, slots=True)
class Dequeue:
    """The job no longer waits for a place."""


@dataclass(frozen=True, slots=True)
class Provision:
    """Make the job's folders."""


@dataclass(frozen=True, slots=True)
class Fetch:
    """Bring code and data."""


@dataclass(frozen=True, slots=True)
class Launch:
    """Start these tasks together or not at all, under this number."""

    launch: int
    tasks: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Stop:
    """SIGTERM, then SIGKILL after the grace. Without tasks: whatever is about to start need not; `Undone` or `Launched`
    follows all the same."""

    tasks: tuple[str, ...]
    grace: float


@dataclass(frozen=True, slots=True)
class Release:
    """The job's place is free again."""


@dataclass(frozen=True, slots=True)
class ReleaseTasks:
    """The places of these tasks are free; `replace`: they were lost and want another."""

    tasks: tuple[str, ...]
    replace: bool = False


@dataclass(frozen=True, slots=True)
class Regroup:
    """The gang goes on with fewer tasks: those that are left are told, and their data is divided among them."""


@dataclass(frozen=True, slots=True)
class Readmit:
    """The job gave way and wants to run again."""


@dataclass(frozen=True, slots=True)
class Store:
    """Keep the results."""


@dataclass(frozen=True, slots=True)
class Retire:
    """Nothing more will happen by itself: clean up, and remove the job where that was asked."""


Instruction = (
    Enqueue
    | Dequeue
    | Provision
    | Fetch
    | Launch
    | Stop
    | Release
    | ReleaseTasks
    | Regroup
    | Readmit
    | Store
    | Retire
)
