"""The contract between control and every engine."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from weft.backends.logsearch import Wanted
from weft.model.events import Event
from weft.model.failures import Failure
from weft.model.gang import Gang, Request
from weft.model.job import TrainingJobSpec
from weft.model.node import Node
from weft.model.status import JobStatus, Progress


class EngineUnavailable(Exception):
    """An engine cannot be used at all; says why and what to do."""


@dataclass(slots=True)
class Assignment:
    """A job as a backend sees it: who it is, what it asked for and where it stands."""

    uid: str
    name: str
    spec: TrainingJobSpec
    gang: Gang
    status: JobStatus
    project: str | None = None
    """On Kubernetes the namespace of its objects; None: the server's own."""


@dataclass(frozen=True, slots=True)
class TaskUsage:
    """What a running task uses at this moment."""

    uid: str
    task: str
    pid: int
    cpu: float
    """CPUs, averaged since the last look (or since its start)."""
    memory: int


@dataclass(frozen=True, slots=True)
class Reads:
    """What the readers of a dataset got on one node."""

    hits: int = 0
    """Samples that were there, of the newest epoch of each job."""
    misses: int = 0
    hit_bytes: int = 0
    miss_bytes: int = 0
    remote: int = 0
    """Bytes that came from the store or a source."""
    peer: int = 0
    """Bytes that came from other nodes."""
    stalled: float = 0.0
    """Seconds that readers waited for what was not there."""

    @classmethod
    def told(cls, line: Mapping[str, Any]) -> dict[str, Any]:
        """As a node's agent says it: numbers that can be added up."""
        return {name: line[called] for name, called in READ_AS.items()}

    @property
    def ratio(self) -> float | None:
        read = self.hit_bytes + self.miss_bytes
        return self.hit_bytes / read if read else None


READ_AS = {
    "hits": "hits",
    "misses": "misses",
    "hit_bytes": "hitBytes",
    "miss_bytes": "missBytes",
    "remote": "remoteBytes",
    "peer": "peerBytes",
    "stalled": "stallSeconds",
}
"""What an agent calls them."""


@dataclass(frozen=True, slots=True)
class Cached:
    """What one node holds of datasets. The same bytes are in `Node.holds`, by which jobs are placed."""

    node: str
    versions: Mapping[str, int]
    """Bytes of each that are there."""
    reads: Mapping[str, Reads] = field(default_factory=dict)
    """By dataset."""
    warming: Mapping[str, int] = field(default_factory=dict)
    """Versions that are being brought there before anybody reads them: bytes in all."""


@dataclass(frozen=True, slots=True)
class Lent:
    """What an engine must know of a dataset that a job reads."""

    policy: str
    quota: int | None
    source: Mapping[str, Any]
    """For objects that stay there."""
    credentials: Mapping[str, str] = field(repr=False)


Tell = Callable[[Progress], None]
"""Says how far the data is that a job waits for."""
STALLS = "stalls"
"""The folder of RESULT_DIR in which `Backend.dump` keeps what it found."""

Listener = Callable[[str, Event], None]
"""Called on the event loop with a job's uid and what happened to it."""


class Surroundings(Protocol):
    """What an engine tells of nodes that change, and of others who use them. Called on the event loop."""

    def nodes_changed(self) -> None:
        """`Backend.nodes` has another answer from now on; also if only what they hold is another."""
        ...

    def occupied(self, who: str, node: str, request: Request) -> None:
        """Somebody who is no job of ours uses so much of a node."""
        ...

    def vacated(self, who: str) -> None: ...

    def lent(self, dataset: str) -> Lent:
        """How a dataset is read and cached."""
        ...

    def node_lost(self, node: str, reason: str) -> None:
        """Nothing of what ran there runs on: the engine tells of each job's tasks by `Lost`, when asked to `lose` them."""
        ...


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

    def start(self) -> int: ...

    def end(self) -> int: ...

    def pieces(self) -> Iterator[bytes]: ...

    def runs(self, *, final: bool = False) -> Iterator[tuple[float, bytes]]: ...

    def before(self, offset: int, count: int) -> Sequence[LogLine]: ...

    def at(self, time: float) -> int: ...

    def matching(
        self, wanted: Wanted, begin: int, end: int, *, backward: bool
    ) -> Iterator[LogLine | int]: ...


class Backend(Protocol):
    name: str
    one_machine: bool
    """Its nodes are parts of one machine, which may be carved anew: what runs on a node that is gone runs on all the same."""

    keeps_secrets: bool
    """Jobs' secrets are the cluster's own, not the server's."""

    def nodes(self) -> tuple[Node, ...]: ...

    def notes(self) -> tuple[str, ...]:
        """What this engine cannot do here, for `weft status`."""
        ...

    async def start(self, listener: Listener, surroundings: Surroundings) -> None: ...

    async def stop_engine(self) -> None:
        """Let go of everything; what runs goes on running."""
        ...

    def counted(self, job: Assignment) -> Gang:
        """The gang as it counts on the nodes: with what the engine itself needs beside each task."""
        ...

    def provision(self, job: Assignment) -> None:
        """Make the job's folders. Idempotent."""
        ...

    async def fetch(self, job: Assignment, tell: Tell) -> None:
        """Bring the code, and the data whose versions the status names, to the nodes of its tasks. Idempotent, and done
        again whenever tasks of a job that reads data start; raises Permanent or Temporary."""
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
        """SIGTERM now, SIGKILL after the grace, to everything the tasks started.

        No tasks: a launch that is under way may be given up, by `Undone`."""
        ...

    def regroup(self, job: Assignment) -> None:
        """An elastic gang goes on with fewer tasks: tell those that are left, and divide their data among them."""
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

    def forwards(self, job: Assignment) -> dict[str, str]:
        """By task, the command that makes its URL one of the person's own machine, where it is not anyway."""
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

    def metrics_file(self, uid: str, task: str) -> str:
        """Where the task's metrics arrive as JSON lines."""
        ...

    def usage_file(self, uid: str, task: str) -> str:
        """Where what the task used over time is kept."""
        ...

    def log(self, uid: str, task: str) -> TaskLog: ...

    def log_tail(self, uid: str, task: str) -> list[str]:
        """The last lines of a task's log, for the record of a failure."""
        ...

    def usage(self, jobs: list[Assignment]) -> list[TaskUsage]: ...

    async def cached(self) -> list[Cached]:
        """What nodes hold of datasets."""
        ...

    async def warm(self, dataset: str, version: str, nodes: Sequence[str]) -> None:
        """Begin to bring a version to these nodes, or to go on; `cached` says how far it is. Raises Permanent or
        Temporary."""
        ...
