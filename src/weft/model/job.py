"""`TrainingJob`: what a person asks for.

The models are the one definition of the job file: the parser, the JSON Schema for editors, the REST
documents and the custom resource of Kubernetes all come from here.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from enum import StrEnum
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    StringConstraints,
    WithJsonSchema,
    field_validator,
)

from weft.model.podpatch import PodPatch
from weft.model.quantities import Cpu, Duration, Memory, TaskGpu
from weft.model.resource import Image, LabelKey, Metadata, Name, Ruled, Strict, Text

MAX_TASKS = 10_000
MAX_ROLES = 32


def _not_reserved(name: str) -> str:
    if name.startswith("WEFT_"):
        raise ValueError("is set by Weft, as all that begin with WEFT_; choose another name")
    return name


def _env_value(value: Any) -> Any:
    if isinstance(value, bool):
        raise ValueError('write text: "true" or "1"')
    return str(value) if isinstance(value, (int, float)) else value


EnvName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z_][A-Za-z0-9_]{0,254}$")]
OwnEnvName = Annotated[EnvName, AfterValidator(_not_reserved)]
"""A variable that a job may set."""
EnvValue = Annotated[
    Text,
    BeforeValidator(_env_value),
    WithJsonSchema({"anyOf": [{"type": "string", "pattern": r"^[^\x00]*$"}, {"type": "number"}]}),
]
Digest = Annotated[str, StringConstraints(pattern=r"^sha256:[0-9a-f]{64}$")]


def _relative(value: Any) -> Any:
    if isinstance(value, str) and (value.startswith("/") or ".." in value.split("/")):
        raise ValueError("must be a path inside its folder: no leading '/' and no '..'")
    return value


SafePath = Annotated[
    str,
    BeforeValidator(_relative),
    StringConstraints(pattern=r"^[^\x00]+$", max_length=4096),
]


class Code(Ruled):
    """Where the job's files come from: exactly one of a local folder, a stored package or a git commit."""

    path: Annotated[str, StringConstraints(pattern=r"^[^\x00]+$", max_length=4096)] | None = None
    """A folder on the submitting machine; the client packs it and sends `package` in its place."""
    package: Digest | None = None
    """A folder packed by content and stored once, by its digest."""
    git: (
        Annotated[str, StringConstraints(pattern=r"^(https|ssh|git|file)://[^\s\x00]+$", max_length=2048)]
        | None
    ) = None
    """A git URL; `commit` says which version."""
    commit: Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{7,40}$")] | None = None
    """The commit to check out: a full or abbreviated hash, so that a job means the same thing every day."""
    subdir: SafePath | None = None
    """Run in this folder of the code."""

    @classmethod
    def rules(cls, given: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
        sources = [name for name in ("path", "package", "git") if given.get(name) is not None]
        git, commit = given.get("git"), given.get("commit")
        if len(sources) != 1:
            yield "", f"give exactly one of path, package or git (found {', '.join(sources) or 'none'})"
        if isinstance(git, str) and re.match(r"[a-z]+://[^/@]*:[^/@]*@", git):
            yield (
                "",  # the field's value would be shown
                "git: keep passwords out of the URL, which everyone can read; use ssh or git's credential helper",
            )
        if git is not None and commit is None:
            yield "commit", "git needs `commit`: the hash of the version to run"
        if commit is not None and git is None:
            yield "commit", "`commit` belongs to `git`"


class SecretRef(Strict):
    """One key of a stored secret, as an environment variable. The value never enters the job."""

    name: Name
    key: Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9._-]{1,253}$")]
    env: OwnEnvName


GpuType = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,62}$")]


class Resources(Strict):
    cpu: Cpu | None = None
    """CPUs of each task (default 1). Whole numbers are exclusive CPUs where the machine has them."""
    memory: Memory | None = None
    """Memory limit of each task. Left out: no limit and nothing reserved."""
    gpu: TaskGpu | None = None
    """GPUs of each task (default 0), or a part of one, such as 0.5, that other tasks may use too."""
    gpu_type: GpuType | None = None
    """Only GPUs of this type, as `weft nodes` names them."""
    gpu_memory: Memory | None = None
    """Only GPUs with at least this much memory of their own."""
    gpu_generation: Annotated[int, Field(ge=1, le=1000)] | None = None
    """Only GPUs of this generation or a later one."""
    devices: dict[LabelKey, Annotated[int, Field(ge=1, le=1024)]] = Field(default_factory=dict)
    """Anything else that nodes have a number of: {fpga: 1, rdma: 1}."""
    size: Annotated[str, StringConstraints(pattern=r"^[a-z0-9][a-z0-9.-]{0,62}$")] | None = None
    """A T-shirt size such as `v100-2`: fills cpu, memory, gpu and gpuType where they are left out."""


_DEFAULT_RESOURCES = Resources()


class RestartPolicy(StrEnum):
    NEVER = "never"
    ON_FAILURE = "on-failure"
    ALWAYS = "always"
    EXIT_CODE = "exit-code"


class Scope(StrEnum):
    """What starts again when a task of it has to."""

    TASK = "task"
    ROLE = "role"
    GANG = "gang"


class Restart(Strict):
    policy: RestartPolicy = RestartPolicy.NEVER
    """never; on-failure; always (also after success); exit-code (128 and above retry, 1–127 are final)."""
    max: Annotated[int, Field(ge=0, le=1_000_000)] = 3
    """Restarts of a task before the job fails."""
    backoff: Duration = 1.0
    """Wait before the first restart; doubles each time."""
    max_backoff: Duration = 300.0
    """The wait never grows past this."""
    scope: Scope | None = None
    """task: it starts again alone; role, gang: all of these stop and start again together (default: as the type)."""


_DEFAULT_RESTART = Restart()


class Role(Strict):
    """A group of equal tasks. What is left out here is taken from the job."""

    replicas: Annotated[int, Field(ge=1, le=MAX_TASKS)] = 1
    min_replicas: Annotated[int, Field(ge=0, le=MAX_TASKS)] | None = None
    """The job starts, and goes on, with so few when there is no room for more (default: replicas)."""
    max_replicas: Annotated[int, Field(ge=1, le=MAX_TASKS)] | None = None
    """It may grow to so many while nobody else wants the room (default: replicas)."""
    resources: Resources = Field(default_factory=lambda: _DEFAULT_RESOURCES)
    command: Annotated[list[Text], Field(min_length=1)] | None = None
    args: list[Text] | None = None
    env: dict[OwnEnvName, EnvValue] = Field(default_factory=dict)
    image: Image | None = None
    restart: Restart | None = None
    service: bool | None = None
    """A role that serves the others (a parameter server): not waited for, stopped when they are done."""
    pod: PodPatch = Field(default_factory=dict)
    """On Kubernetes: merged into the pods of the role, lists of named things by their names; one machine ignores it."""


class TaskTemplate(Strict):
    """What tasks get besides what the job says, with places like `${rank}` that are filled when one starts."""

    env: dict[EnvName, Text] = Field(default_factory=dict)
    command: list[Text] = Field(default_factory=list)
    """What is run instead: arguments around the job's own command, which stands where `${command}` is."""


class Template(TaskTemplate):
    roles: dict[Name, TaskTemplate] = Field(default_factory=dict)
    """What differs for tasks of these roles: variables are added, a command takes the place of the other."""


class Strategy(StrEnum):
    PACK = "pack"
    SPREAD = "spread"


class Placement(Strict):
    strategy: Strategy = Strategy.PACK
    """pack: as few nodes as possible; spread: as many as possible."""
    nodes: Literal["any", "one", "same-rack", "same-fabric"] = "any"
    """one: all tasks of the job on the same node; same-rack, same-fabric: on nodes that share one."""
    selector: dict[LabelKey, str] = Field(default_factory=dict)
    """Only nodes with these labels."""
    tolerations: list[LabelKey] = Field(default_factory=list)
    """Also nodes with these taints, which others are kept from."""
    cluster: Name | None = None
    """A cluster that was added to the server (`weft clusters`), or any: whichever has room, all tasks in the same. Left out:
    the server's own engine."""


_DEFAULT_PLACEMENT = Placement()


PRIORITY_CLASSES = {"low": -100, "normal": 0, "high": 100, "production": 1000}


def _priority(value: Any) -> Any:
    if isinstance(value, str):
        if value in PRIORITY_CLASSES:
            return PRIORITY_CLASSES[value]
        raise ValueError(f"write a whole number or one of {', '.join(PRIORITY_CLASSES)}")
    if isinstance(value, bool) or not isinstance(value, int):
        raise ValueError(f"write a whole number or one of {', '.join(PRIORITY_CLASSES)}")
    return value


Priority = Annotated[
    int,
    BeforeValidator(_priority),
    Field(ge=-1_000_000, le=1_000_000),
    WithJsonSchema(
        {
            "anyOf": [
                {"type": "integer", "minimum": -1_000_000, "maximum": 1_000_000},
                {"enum": list(PRIORITY_CLASSES)},
            ]
        }
    ),
]


class MetricSource(StrEnum):
    LOG = "log"
    REGEX = "regex"
    FILE = "file"
    TENSORBOARD = "tensorboard"


class Metric(Ruled):
    """Something to collect besides `weft.log()`, which is always collected."""

    source: MetricSource
    """log: `name=value` in the task's log; regex: a pattern over it; file: JSON lines; tensorboard: event files.

    The last two are files in LOG_DIR, which is one for the whole job: their points are the chief task's."""
    names: list[Annotated[str, StringConstraints(min_length=1, max_length=253)]] = Field(default_factory=list)
    """log and tensorboard: only these names (default: all)."""
    pattern: Annotated[str, StringConstraints(min_length=1, max_length=4096)] | None = None
    """regex: named groups become metrics; the group `step` is the step."""
    window: Annotated[int, Field(ge=1, le=64)] = 4
    """regex: how many lines a match may span."""
    path: SafePath | None = None
    """file, tensorboard: where, inside LOG_DIR (default: metrics.jsonl; all of LOG_DIR)."""
    group: Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9._-]{1,63}$")] | None = None
    """A prefix for the names: group `train` makes `train/loss`."""

    @field_validator("pattern")
    @classmethod
    def _compiles(cls, value: str | None) -> str | None:
        if value is None:
            return value
        try:
            pattern = re.compile(value)
        except (re.error, RecursionError, OverflowError) as problem:
            raise ValueError(f"not a regular expression: {problem}") from None
        if not pattern.groupindex:
            raise ValueError("needs named groups: loss=(?P<loss>[0-9.]+)")
        return value

    @classmethod
    def rules(cls, given: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
        source, patterned = given.get("source"), given.get("pattern") is not None
        if source in list(MetricSource) and (source == MetricSource.REGEX) != patterned:
            yield "pattern", "`pattern` belongs to source: regex, which needs one"


class Results(Strict):
    include: list[Annotated[str, StringConstraints(min_length=1, max_length=4096)]] = Field(
        default_factory=lambda: ["**"]
    )
    """Which files of RESULT_DIR are results, as glob patterns."""


_DEFAULT_RESULTS = Results()
MAX_DATASETS = 64


class DatasetUse(Strict):
    """A dataset that the job reads."""

    name: Name
    as_: Name | None = Field(default=None, alias="as")
    """What it is called in the job: the folder in DATA_DIR, and the name for `weft.data()`. Left out: its own name."""
    version: Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{12,32}$")] | None = None
    """Left out: the newest when the job first starts; it keeps to that one."""
    mode: Literal["replicate", "shard", "stream", "mount"] = "replicate"
    """replicate: every node has all of it, as files too; shard: every node its part; stream: nothing is kept beyond the
    cache; mount: files that are fetched when they are read."""
    files: bool = True
    """replicate: whether its files are laid out in DATA_DIR; without, `weft.data()` alone reads it."""

    @property
    def called(self) -> str:
        return self.as_ or self.name


class Output(Strict):
    """A folder of the results that becomes a version of a dataset when the job has completed."""

    dataset: Name
    path: SafePath | None = None
    """Below RESULT_DIR. Left out: all of it."""


class TrainingJobSpec(Strict):
    type: Name = "command"
    """The job type: `command`, `parameter-server` (weft jobtypes)."""
    code: Code | None = None
    """The files that the tasks run in. Left out: an empty folder."""
    command: Annotated[list[Text], Field(min_length=1)] | None = None
    """What every task runs, as a list of arguments; no shell is involved."""
    args: list[Text] = Field(default_factory=list)
    env: dict[OwnEnvName, EnvValue] = Field(default_factory=dict)
    secrets: list[SecretRef] = Field(default_factory=list)
    datasets: Annotated[list[DatasetUse], Field(max_length=MAX_DATASETS)] = Field(default_factory=list)
    """What it reads: files in DATA_DIR, samples by `weft.data()`."""
    outputs: Annotated[list[Output], Field(max_length=MAX_DATASETS)] = Field(default_factory=list)
    """What of its results becomes data that others can read."""
    image: Image | None = None
    """A container image; needs podman or docker on the machine."""
    isolation: Literal["process", "sandbox"] = "process"
    """sandbox: private /tmp and process ids, read-only system (bubblewrap)."""
    roles: Annotated[dict[Name, Role], Field(max_length=MAX_ROLES)] = Field(default_factory=dict)
    """The gang: all tasks of all roles start together or not at all. Left out: one `worker`."""
    priority: Priority = 0
    """Higher starts first: a number, or low, normal, high, production."""
    queue: Name = "default"
    scheduling: Literal["weft", "default"] = "weft"
    """On Kubernetes, who places the pods: Weft, or the cluster's own scheduler; on one machine Weft does."""
    placement: Placement = Field(default_factory=lambda: _DEFAULT_PLACEMENT)
    restart: Restart = Field(default_factory=lambda: _DEFAULT_RESTART)
    """The restart policy of roles that have none of their own."""
    success: Literal["chief", "all"] = "all"
    """all: every task must succeed; chief: the first task of the chief (or first) role decides."""
    deadline: Duration | None = None
    """The job fails when it has been running for longer."""
    stall_timeout: Duration | None = None
    """A task that is silent for so long (no log, metric or heartbeat) is killed and counts as failed; 0: never."""
    idle_timeout: Duration | None = None
    """The job is halted when none of its tasks was active (`weft.active()`) for so long; 0: never."""
    max_wait: Duration | None = None
    """The job fails when it has waited for its place for longer."""
    grace: Duration = 30.0
    """Between SIGTERM and SIGKILL when the job is halted, cancelled or out of time."""
    ttl_after_finished: Duration | None = None
    """The job and its files are deleted this long after its end. Left out: kept."""
    metrics: Annotated[list[Metric], Field(max_length=64)] = Field(default_factory=list)
    results: Results = Field(default_factory=lambda: _DEFAULT_RESULTS)
    resize: Literal["live", "restart"] = "live"
    """How an elastic job changes its size: tasks come and go beside those that run, or all stop, save and start again."""
    data_cache: Literal["nr", "lru"] | None = None
    """How nodes cache what the job reads: nr keeps what came first, lru what was read last. Left out: as each dataset says."""
    template: Template | None = None
    """How tasks find each other and what runs them; the job type's, unless it is written here."""


class JobMetadata(Metadata):
    project: Name | None = None
    """On Kubernetes the namespace of its pods (default: the server's own); elsewhere a name to sort jobs by."""


class TrainingJob(Strict):
    api_version: Literal["weft.dev/v1"] = "weft.dev/v1"
    kind: Literal["TrainingJob"] = "TrainingJob"
    metadata: JobMetadata = Field(default_factory=JobMetadata)
    spec: TrainingJobSpec
    status: dict[str, Any] | None = None
    """Written by the server; ignored in what is submitted."""
