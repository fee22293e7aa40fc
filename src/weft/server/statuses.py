"""What the server tells of what was declared: queues and the line in them, datasets, job types, sizes and clusters."""

from __future__ import annotations

from typing import Any, Literal, NotRequired

from typing_extensions import TypedDict

from weft.model.cluster import ClusterSpec
from weft.model.dataset import DatasetSpec
from weft.model.job import JobMetadata, Resources
from weft.model.jobtype import JobTypeSpec
from weft.model.queue import QueueSpec
from weft.model.resource import Metadata
from weft.model.sizes import SizeSpec
from weft.model.status import State
from weft.server.answers import Estimate, exact


@exact
class Used(TypedDict):
    """CPUs and GPUs as people count them, memory in bytes. What is left out is not meant."""

    cpu: NotRequired[float]
    memory: NotRequired[int]
    gpu: NotRequired[float]


@exact
class Room(TypedDict):
    cpu: float
    memory: int
    gpu: float


@exact
class QueueUser(TypedDict):
    owner: str
    used: Used
    waiting: int
    running: int


@exact
class QueueStatus(TypedDict):
    used: Used
    guaranteed: Used
    limit: Used
    borrowed: Used
    waiting: int
    running: int
    users: list[QueueUser]
    share: float
    """Its part of the cluster, averaged over the last hours."""
    notes: list[str]


@exact
class ToldQueue(TypedDict):
    apiVersion: str
    kind: str
    metadata: Metadata
    spec: QueueSpec
    status: QueueStatus


@exact
class Queues(TypedDict):
    items: list[ToldQueue]
    capacity: Room
    """What all nodes have together: what queues share."""


@exact
class WaitingJob(TypedDict):
    position: int | None
    """None: it can never start."""
    name: str
    uid: str
    queue: str
    owner: str
    priority: int
    waited: float
    needs: str
    cpu: float
    gpu: float
    likelyDuration: float
    reason: str
    possible: bool
    estimatedStart: Estimate
    promisedStart: float | None


@exact
class RunningJob(TypedDict):
    name: str
    uid: str
    queue: str
    owner: str
    priority: int
    started: float
    cpu: float
    gpu: float
    likelyEnd: float


@exact
class Line(TypedDict):
    items: list[WaitingJob]
    running: list[RunningJob]


@exact
class Origin(TypedDict, total=False):
    """The job that made a version, its code, and the versions that it read; empty for what came from a source."""

    job: str
    uid: str
    code: dict[str, Any] | None
    inputs: dict[str, str]


@exact
class DatasetVersion(TypedDict):
    version: str
    created: float
    samples: int
    bytes: int
    parts: int
    lineage: Origin
    readers: list[str]


@exact
class DatasetCache(TypedDict):
    node: str
    versions: dict[str, int]
    """Bytes of each that are there."""
    warming: dict[str, int]
    """Bytes of each that is being brought there, all of it."""
    hits: int
    """Samples that were there when a job read them: of the newest epoch of each."""
    misses: int
    hitRatio: float | None
    """Of their bytes. Without replacement it is `heldRatio` from the second epoch on."""
    heldRatio: float | None
    """Of the versions of which something is there, the part that is."""
    remoteBytes: int
    """That came from the store or the source."""
    peerBytes: int
    """That came from other nodes."""
    stallSeconds: float
    """That readers waited for what was not there, all of them together."""


@exact
class DatasetStatus(TypedDict):
    state: Literal["READY", "READING", "FAILED", "EMPTY"]
    reason: str | None
    progress: dict[str, Any] | None
    version: str | None
    versions: list[DatasetVersion]
    readers: list[str]
    cached: list[DatasetCache]


@exact
class ToldDataset(TypedDict):
    apiVersion: str
    kind: str
    metadata: JobMetadata
    spec: DatasetSpec
    status: DatasetStatus


@exact
class Datasets(TypedDict):
    items: list[ToldDataset]


@exact
class LineageVersion(TypedDict):
    kind: Literal["version"]
    dataset: str
    version: str
    there: bool


@exact
class LineageJob(TypedDict):
    kind: Literal["job"]
    job: str
    code: dict[str, Any] | None


LineageEdge = TypedDict("LineageEdge", {"from": str, "to": str})


@exact
class Lineage(TypedDict):
    of: str
    nodes: dict[str, LineageVersion | LineageJob]
    edges: list[LineageEdge]


@exact
class Proof(TypedDict):
    """What was read of a version to prove it, and all that is not as it was stored."""

    dataset: str
    version: str
    samples: int
    bytes: int
    elsewhere: int
    """Objects that stay at their source, known by their size and mark alone."""
    problems: list[str]


@exact
class JobTypeStatus(TypedDict):
    builtIn: bool


@exact
class ToldJobType(TypedDict):
    apiVersion: str
    kind: str
    metadata: Metadata
    spec: JobTypeSpec
    status: JobTypeStatus


@exact
class JobTypes(TypedDict):
    items: list[ToldJobType]


@exact
class SizeStatus(TypedDict):
    builtIn: bool
    overrides: bool


@exact
class ToldSize(TypedDict):
    apiVersion: str
    kind: str
    metadata: Metadata
    spec: SizeSpec
    status: SizeStatus


@exact
class Sizes(TypedDict):
    items: list[ToldSize]


@exact
class UsedAtMost(TypedDict):
    """By the largest task of a role that was measured: CPUs on average, the peak of memory in bytes."""

    measured: int
    """So many of its tasks."""
    seconds: float
    cpu: float
    memory: int


@exact
class Enough(TypedDict):
    """As a job file has it."""

    cpu: float
    memory: str


@exact
class SuggestedRole(TypedDict):
    role: str
    tasks: int
    asked: Resources
    used: UsedAtMost | None
    suggested: Enough | None
    size: str | None
    """The smallest declared one that would have done."""
    changes: bool
    notes: list[str]


@exact
class Suggestions(TypedDict):
    job: str
    state: State
    memoryHeadroom: float
    items: list[SuggestedRole]


@exact
class ClusterStatus(TypedDict):
    state: Literal["READY", "AWAY"]
    reason: str | None
    nodes: int
    gpus: int
    jobs: int


@exact
class ToldCluster(TypedDict):
    apiVersion: str
    kind: str
    metadata: Metadata
    spec: ClusterSpec
    status: ClusterStatus


@exact
class Clusters(TypedDict):
    items: list[ToldCluster]


STATUSES: tuple[type, ...] = (Queues, Line, Datasets, Lineage, Proof, JobTypes, Sizes, Suggestions, Clusters)
