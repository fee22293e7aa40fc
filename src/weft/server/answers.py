"""What the API answers with, where that is no resource: one type a thing, from which OpenAPI and the page's types come."""

from __future__ import annotations

from functools import cache
from typing import Any, NotRequired

from pydantic import ConfigDict, TypeAdapter, with_config
from typing_extensions import TypedDict

from weft.model.failures import Code, Failure
from weft.model.status import JobStatus, State

Places = dict[str, int]
"""An offset for each task."""
exact = with_config(ConfigDict(extra="forbid"))


@exact
class ElasticSize(TypedDict):
    """How large an elastic job is, and between which sizes it may be."""

    now: int
    least: int
    most: int


@exact
class JobSummary(TypedDict):
    uid: str
    name: str
    state: State
    type: str
    owner: str
    queue: str
    priority: int
    created: float
    queued: NotRequired[float]
    started: NotRequired[float]
    finished: NotRequired[float]
    tasks: int
    cpus: NotRequired[float]
    gpus: NotRequired[float]
    restarts: int
    reason: NotRequired[str]
    project: NotRequired[str]
    nodes: NotRequired[list[str]]
    running: NotRequired[int]
    """Tasks that run."""
    size: NotRequired[ElasticSize]
    step: NotRequired[int]
    """The highest that it measured."""
    progress: NotRequired[float]
    """From 0 to 1, if it measures that."""


@exact
class Event(TypedDict):
    seq: int
    time: float
    uid: str
    job: str
    """The name of the job, node, dataset or queue that it happened to."""
    type: str
    cause: str
    actor: str
    state: NotRequired[State]
    previous: NotRequired[State]
    code: NotRequired[Code]
    """What is wrong, where something is."""


@exact
class Events(TypedDict):
    items: list[Event]


@exact
class LogLine(TypedDict):
    task: str
    offset: int
    """Of its first byte in the task's log."""
    time: float
    text: str
    place: NotRequired[Places]
    """Of a line that was looked for: where it is in the merged log."""


@exact
class LogLines(TypedDict):
    items: list[LogLine]
    previous: NotRequired[Places | None]
    """Before its first line, for `before`; null: nothing is before it."""
    next: NotRequired[Places]
    """After its last line, for `after`."""
    searched: NotRequired[Places]
    """How far was looked, with `find` or `level`."""
    more: NotRequired[bool]
    """There was no time to look further: go on from `searched`."""


@exact
class MetricPoint(TypedDict):
    id: int
    task: str
    name: str
    step: int | None
    time: float
    value: float | str
    """NaN, Infinity and -Infinity are words."""


@exact
class MetricPoints(TypedDict):
    items: list[MetricPoint]
    next: int


@exact
class Curve(TypedDict):
    task: str
    name: str
    count: int
    """Points that there are."""
    points: list[tuple[int | None, float, float | str]]
    """Step, time and value of those to draw."""


@exact
class Curves(TypedDict):
    items: list[Curve]
    next: int


@exact
class Estimate(TypedDict):
    """When a job should start; null: later than can be foreseen."""

    earliest: float | None
    likely: float | None
    latest: float | None


@exact
class Explanation(TypedDict):
    state: State
    reason: str
    failure: NotRequired[Failure]
    details: NotRequired[list[str]]
    numbers: NotRequired[dict[str, Any]]
    possible: NotRequired[bool]
    queue: NotRequired[str]
    position: NotRequired[int | None]
    ahead: NotRequired[list[str]]
    waited: NotRequired[float]
    estimatedStart: NotRequired[Estimate]
    promisedStart: NotRequired[float | None]
    advice: NotRequired[str]
    """What to do about it, in words."""
    next: NotRequired[str]
    """A command to try."""


@exact
class Checkpoint(TypedDict):
    step: int
    size: int
    saved: float
    here: bool
    """In the job's own folder."""
    copied: bool
    """In the results store."""


@exact
class Checkpoints(TypedDict):
    items: list[Checkpoint]


@exact
class ResultFile(TypedDict):
    path: str
    size: int
    modified: float


@exact
class ResultFiles(TypedDict):
    items: list[ResultFile]
    bytes: int


@exact
class Usage(TypedDict):
    """What a running task uses at this moment."""

    job: str
    task: str
    node: str | None
    pid: int
    cpu: float | None
    cpuLimit: float
    memory: int | None
    memoryLimit: int | None
    gpus: list[int]
    gpuShare: float | None
    rack: str | None


@exact
class Usages(TypedDict):
    items: list[Usage]


@exact
class UsedOverTime(TypedDict):
    task: str
    cpuLimit: float
    memoryLimit: int | None
    points: list[tuple[float, float, float]]
    """Time, CPUs and bytes of memory."""


@exact
class UsagesOverTime(TypedDict):
    items: list[UsedOverTime]


@exact
class SecretKeys(TypedDict):
    """A secret without its values."""

    name: str
    keys: list[str]


@exact
class SecretsKeys(TypedDict):
    items: list[SecretKeys]


@exact
class Share(TypedDict):
    used: float
    total: float


@exact
class Sample(TypedDict):
    """How much of the cluster was given to jobs at a moment."""

    time: float
    cpu: Share
    memory: Share
    gpu: Share
    running: int
    waiting: int


@exact
class Samples(TypedDict):
    items: list[Sample]
    interval: float


@exact
class Cordon(TypedDict):
    since: float
    by: str
    reason: str | None
    lost: bool


@exact
class Capacity(TypedDict):
    cpu: float
    memory: int
    gpu: int
    gpuType: str | None
    gpuMemory: int | None
    gpuGeneration: int | None
    gpuNuma: dict[str, Any] | None
    devices: dict[str, int]


@exact
class Free(TypedDict):
    cpu: float
    memory: int
    gpu: float
    devices: dict[str, int]


@exact
class Gpu(TypedDict):
    index: int
    type: str
    free: float
    """From 0 to 1."""


@exact
class Occupant(TypedDict):
    """A task on a node, and which of its CPUs and GPUs it has."""

    job: str
    uid: str
    task: str
    cpu: float
    memory: int | None
    cpus: list[int]
    gpus: list[int]
    gpuShare: float | None


@exact
class Promised(TypedDict):
    """For whom room is kept, from when on, and how much."""

    job: str
    uid: str
    start: float
    cpu: float
    memory: int | None
    gpus: list[int]
    """Those that it will have; some may be taken until then."""


@exact
class Node(TypedDict):
    name: str
    labels: dict[str, str]
    taints: list[Any]
    rack: str | None
    fabric: str | None
    schedulable: bool
    cordon: Cordon | None
    numa: Any
    capacity: Capacity
    free: Free
    gpus: list[Gpu]
    splitGpus: dict[str, float]
    tasks: list[Occupant]
    promised: list[Promised]
    notes: list[str]


@exact
class Nodes(TypedDict):
    items: list[Node]


@exact
class Hello(TypedDict):
    """The first word of a stream of all that changes."""

    seq: int
    """Of the newest event."""
    version: str
    started: float


@exact
class ChangedJobs(TypedDict):
    items: list[JobSummary]
    gone: list[str]
    """Uids of those that were deleted."""


@exact
class Declared(TypedDict):
    """Of these kinds something was declared, changed or deleted."""

    kinds: list[str]


@exact
class MeasuredUse(TypedDict):
    """What tasks use was looked at: of those that run there is another point."""

    time: float


@exact
class ChangedCaches(TypedDict):
    datasets: list[str]
    """Of which nodes hold something else than before, or were asked for it."""


@exact
class Status(TypedDict):
    pid: int
    address: str
    version: str
    home: str
    backend: str
    policy: str
    resultsStore: str | None
    database: str
    started: float
    page: bool
    jobs: dict[str, int]
    """How many there are, by state."""
    notes: list[str]


@exact
class Health(TypedDict):
    status: str
    version: str


@exact
class SessionCode(TypedDict):
    """What signs one page in."""

    code: str
    expires: float


@exact
class SignedIn(TypedDict):
    owner: str
    version: str


ANSWERS: tuple[type, ...] = (
    JobSummary, Events, LogLines, MetricPoints, Curves, Explanation, Checkpoints, ResultFiles, Usages, UsagesOverTime, Samples, Nodes,
    Node, Status, Hello, ChangedJobs, Declared, MeasuredUse, ChangedCaches, SecretsKeys, Health, SessionCode, SignedIn,
)  # fmt: skip
REFERENCE = "#/components/schemas/{model}"


def ref(answer: type | str) -> dict[str, Any]:
    return {"$ref": REFERENCE.format(model=answer if isinstance(answer, str) else answer.__name__)}


@cache
def schemas(further: tuple[type, ...] = ()) -> dict[str, Any]:
    """Of all of these, and of a job's status, by name."""
    found: dict[str, Any] = {}
    for answer in (*ANSWERS, *further):
        schema = TypeAdapter(answer).json_schema(ref_template=REFERENCE)
        found |= {**schema.pop("$defs", {}), answer.__name__: schema}
    status = TypeAdapter(JobStatus).json_schema(ref_template=REFERENCE, mode="serialization")
    parts = {**status.pop("$defs", {}), "JobStatus": status}
    found |= {name: _told(schema) for name, schema in parts.items()}
    found = _renamed(found, "Code", "FailureCode")  # where a job's program is from is a Code too
    for name, told in (
        ("urls", "Where its tasks can be reached; only of one job that is asked for, while it runs."),
        (
            "forwards",
            "By task, the command that makes its URL one of your machine, where it is on a cluster.",
        ),
    ):
        about = {"type": "object", "additionalProperties": {"type": "string"}, "description": told}
        found["JobStatus"]["properties"][name] = about
    return found


def _renamed(found: dict[str, Any], old: str, new: str) -> dict[str, Any]:
    def inside(value: Any) -> Any:
        if isinstance(value, dict):
            return ref(new) if value == ref(old) else {name: inside(each) for name, each in value.items()}
        return [inside(each) for each in value] if isinstance(value, list) else value

    return {new if name == old else name: inside(schema) for name, schema in found.items()}


def _told(schema: dict[str, Any]) -> dict[str, Any]:
    """A status is written without what is unknown: so nothing in it is null, and what may be unknown may be missing."""
    properties = schema.get("properties")
    if properties is None:
        return schema
    unknown = {name for name, each in properties.items() if {"type": "null"} in each.get("anyOf", ())}
    for name in unknown:
        known = [one for one in properties[name].pop("anyOf") if one != {"type": "null"}]
        properties[name] = {**properties[name], **(known[0] if len(known) == 1 else {"anyOf": known})}
        properties[name].pop("default", None)
    return {**schema, "required": [name for name in properties if name not in unknown]}
