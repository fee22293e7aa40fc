"""Events: what can happen to a job. `lifecycle` says what becomes of it then."""

from __future__ import annotations

from dataclasses import dataclass

from weft.model.failures import Code, Failure
from weft.model.status import Binding, Desire, Exit, Progress, Stored


@dataclass(frozen=True, slots=True)
class Admitted:
    """The job passed validation and belongs to a queue."""


@dataclass(frozen=True, slots=True)
class Placed:
    """The scheduler found a place for the whole gang."""

    bindings: tuple[Binding, ...]


@dataclass(frozen=True, slots=True)
class Preempted:
    """The scheduler wants the job's room for another: it stops, keeps its checkpoints and waits again."""

    by: str


@dataclass(frozen=True, slots=True)
class Shrunk:
    """These tasks have to go, and the job goes on without them: another job wants their room, or a person fewer tasks."""

    tasks: tuple[str, ...]
    by: str | None
    """The other job."""


@dataclass(frozen=True, slots=True)
class Joined:
    """The scheduler has found room for more tasks: lost ones replaced, or an elastic job grown."""

    bindings: tuple[Binding, ...]


@dataclass(frozen=True, slots=True)
class Lost:
    """The node of these tasks is gone, and they with it; or it has put them out, for the reason given."""

    tasks: tuple[str, ...]
    node: str
    why: str | None = None
    code: Code = Code.NODE_LOST


@dataclass(frozen=True, slots=True)
class Provisioned:
    """The job's folders stand."""


@dataclass(frozen=True, slots=True)
class Fetched:
    """The code and the data are in place."""


@dataclass(frozen=True, slots=True)
class Pinned:
    """Which version of each of its datasets the job reads, by name; from now on, for all its starts."""

    datasets: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class Launched:
    """All tasks of a launch have their process."""

    launch: int
    pids: tuple[tuple[str, int], ...]
    time: float | None = None
    """When; None means now. A server that was away hears of it later."""


@dataclass(frozen=True, slots=True)
class Undone:
    """Provisioning, fetching or launching did not succeed and left nothing behind."""

    launch: int
    failure: Failure
    temporary: bool = False


@dataclass(frozen=True, slots=True)
class Hindered:
    """A start does not get on; the engine goes on trying, and this is why it takes so long."""

    launch: int
    why: str
    code: Code | None = None


@dataclass(frozen=True, slots=True)
class Progressed:
    """How far the start has come, for who looks; not worth a line in its history."""

    launch: int
    far: Progress


@dataclass(frozen=True, slots=True)
class Disturbed:
    """Somebody is taking a running task away; it has its grace to save. `Lost` follows."""

    task: str
    launch: int
    why: str
    code: Code | None = None


@dataclass(frozen=True, slots=True)
class Exited:
    """One process has ended."""

    task: str
    launch: int
    exit: Exit
    time: float | None = None
    """When; None means now."""


@dataclass(frozen=True, slots=True)
class ResultsStored:
    stored: Stored


@dataclass(frozen=True, slots=True)
class StoringFailed:
    failure: Failure


@dataclass(frozen=True, slots=True)
class Asked:
    """A person wants something of the job, or Weft does for a reason that it gives."""

    desire: Desire
    checkpoint: int | None = None
    """When it is resumed: go on from this one instead of the newest."""
    why: str | None = None
    """When no person asked for it to be halted: what for."""


@dataclass(frozen=True, slots=True)
class Scaled:
    """A person wants so many tasks of these roles."""

    sizes: tuple[tuple[str, int], ...]


@dataclass(frozen=True, slots=True)
class Woke:
    """The moment that `next_wake` named has come. `explanation` is why the job still waits, if it does."""

    explanation: str = ""


Event = (
    Admitted
    | Placed
    | Preempted
    | Shrunk
    | Joined
    | Lost
    | Provisioned
    | Fetched
    | Pinned
    | Progressed
    | Launched
    | Undone
    | Hindered
    | Disturbed
    | Exited
    | ResultsStored
    | StoringFailed
    | Asked
    | Scaled
    | Woke
)
