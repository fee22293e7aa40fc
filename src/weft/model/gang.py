"""A job's spec as the gang of tasks that it means, with every default resolved."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import lru_cache

from weft.model.cluster import ANY, CLUSTER
from weft.model.job import Resources, Restart, RestartPolicy, Role, Scope, Strategy, TrainingJobSpec
from weft.model.lazy import lazy

CHIEF_ROLES = ("chief", "master", "launcher", "worker")


@dataclass(frozen=True)
class Request:
    """What one task needs of a node. Equal requests are one question to the scheduler."""

    cpu: int
    """Thousandths of a CPU."""
    memory: int = 0
    gpu: int = 0
    """Whole GPUs."""
    gpu_type: str | None = None
    gpu_share: int = 0
    """Thousandths of one GPU that others may use too; whole GPUs are 0 then."""
    gpu_memory: int = 0
    """Only GPUs with at least this many bytes."""
    gpu_generation: int = 0
    """Only GPUs of this generation or later."""
    devices: tuple[tuple[str, int], ...] = ()
    slots: int = 1
    """Of the tasks that a node takes at once; also one that asks for nothing else is one of them."""

    def __hash__(self) -> int:
        return self._hash

    @lazy
    def _hash(self) -> int:
        """Worked out once: the scheduler looks requests up all the time."""
        return hash((self.cpu, self.memory, self.gpu, self.gpu_type, self.gpu_share, self.devices))

    @property
    def gpus(self) -> float:
        """Whole or part, as a person counts them."""
        return self.gpu + self.gpu_share / 1000

    @property
    def whole_cpus(self) -> int:
        """Exclusive CPUs, or 0 where the task shares them."""
        return self.cpu // 1000 if self.cpu and self.cpu % 1000 == 0 else 0


@dataclass(frozen=True, slots=True)
class Task:
    """One process of the gang."""

    name: str
    role: str
    index: int
    """Within its role."""
    rank: int
    """Within the job."""
    request: Request
    restart: Restart
    service: bool = False
    chief: bool = False

    def __hash__(self) -> int:
        """Of what tells most tasks apart: groups of tasks are looked up all the time."""
        return hash((self.name, self.request))

    def may_restart(self, restarts: int, good: bool, exit_code: int | None, signal: int | None) -> bool:
        """Whether the policy grants another start after this exit."""
        if restarts >= self.restart.max:
            return False
        match self.restart.policy:
            case RestartPolicy.NEVER:
                return False
            case RestartPolicy.ALWAYS:
                return True
            case RestartPolicy.ON_FAILURE:
                return not good
            case RestartPolicy.EXIT_CODE:
                return not good and (signal is not None or exit_code is None or exit_code >= 128)

    @property
    def scope(self) -> Scope:
        return self.restart.scope or Scope.TASK

    def backoff(self, restarts: int) -> float:
        """Seconds to wait before restart number `restarts` + 1."""
        return min(self.restart.backoff * 2.0 ** min(restarts, 64), self.restart.max_backoff)


class Signature:
    """What a gang asks for, as one thing to look up: compared as a whole, its hash worked out once."""

    __slots__ = ("_hash", "_parts")

    def __init__(self, parts: tuple[object, ...]):
        self._parts = parts
        self._hash = hash(parts)

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        return self is other or (
            isinstance(other, Signature) and self._hash == other._hash and self._parts == other._parts
        )


class Within(StrEnum):
    """What all tasks of a gang must share."""

    ANYWHERE = "any"
    NODE = "one"
    RACK = "same-rack"
    FABRIC = "same-fabric"
    CLUSTER = "same-cluster"


@dataclass(frozen=True, slots=True)
class Span:
    """How many tasks of a role there may be. The others of `Gang.tasks` wait for room to grow into."""

    role: str
    minimum: int
    preferred: int
    maximum: int


@dataclass(frozen=True)
class Gang:
    """All tasks of a job, up to the most it may grow to, and the rules that hold for them together."""

    tasks: tuple[Task, ...]
    chief_decides: bool
    grace: float
    deadline: float | None
    max_wait: float | None
    needs_fetch: bool
    strategy: Strategy = Strategy.PACK
    within: Within = Within.ANYWHERE
    selector: tuple[tuple[str, str], ...] = ()
    tolerations: tuple[str, ...] = ()
    wants: tuple[tuple[str, int], ...] = ()
    """Datasets and images that the tasks read, in bytes: better started where these lie."""
    spans: tuple[Span, ...] = ()
    """Only of roles whose size may change."""
    restart_to_resize: bool = False
    """All tasks stop and start again when some come or go."""

    def task(self, name: str) -> Task:
        return self._by_name[name]

    @lazy
    def _by_name(self) -> dict[str, Task]:
        return {task.name: task for task in self.tasks}

    @lazy
    def signature(self) -> Signature:
        """Two gangs of the same signature fit or do not fit alike."""
        counts: dict[tuple[str, Request], int] = {}
        for task in self.tasks:
            key = (task.role if self.spans else "", task.request)
            counts[key] = counts.get(key, 0) + 1
        rules = (self.strategy, self.within, self.selector, self.tolerations, self.wants, self.spans)
        return Signature((tuple(counts.items()), rules))

    def together(self, task: Task) -> frozenset[str]:
        """The tasks that start again with this one."""
        match task.scope:
            case Scope.TASK:
                return frozenset()
            case Scope.ROLE:
                return frozenset(other.name for other in self.tasks if other.role == task.role)
            case Scope.GANG:
                return frozenset(other.name for other in self.tasks)

    @property
    def elastic(self) -> bool:
        return bool(self.spans)

    @lazy
    def preferred(self) -> tuple[Task, ...]:
        """The tasks that the job asks for."""
        return self._sized({span.role: span.preferred for span in self.spans})

    @lazy
    def least(self) -> tuple[Task, ...]:
        """The tasks without which the job does not run."""
        return self._sized({span.role: span.minimum for span in self.spans})

    def _sized(self, sizes: dict[str, int]) -> tuple[Task, ...]:
        if not sizes:
            return self.tasks
        return tuple(task for task in self.tasks if task.index < sizes.get(task.role, task.index + 1))

    @lazy
    def gpus(self) -> float:
        """GPUs of the tasks that the job asks for."""
        return sum(task.request.gpus for task in self.preferred)


def gang_of(spec: TrainingJobSpec) -> Gang:
    """The gang of a completed spec (roles present, resources resolved)."""
    chief = chief_role(spec.roles)
    tasks: list[Task] = []
    spans: list[Span] = []
    for role_name, role in spec.roles.items():
        request = request_of(role.resources)
        restart = role.restart or spec.restart
        least = role.replicas if role.min_replicas is None else role.min_replicas
        most = role.max_replicas or role.replicas
        if least < most:
            spans.append(Span(role_name, least, role.replicas, most))
        for index in range(most):
            tasks.append(
                Task(
                    name=f"{role_name}-{index}",
                    role=role_name,
                    index=index,
                    rank=len(tasks),
                    request=request,
                    restart=restart,
                    service=bool(role.service),
                    chief=role_name == chief and index == 0,
                )
            )
    placement, cluster = spec.placement, spec.placement.cluster
    within, selector, tolerations = Within(placement.nodes), {**placement.selector}, {*placement.tolerations}
    if cluster is not None:
        tolerations.add(CLUSTER)
        if cluster != ANY:
            selector[CLUSTER] = cluster
        elif within is Within.ANYWHERE:
            within = Within.CLUSTER
    return Gang(
        tasks=tuple(tasks),
        chief_decides=spec.success == "chief",
        grace=spec.grace,
        deadline=spec.deadline,
        max_wait=spec.max_wait,
        needs_fetch=spec.code is not None or bool(spec.datasets),
        strategy=placement.strategy,
        within=within,
        selector=tuple(sorted(selector.items())),
        tolerations=tuple(sorted(tolerations)),
        spans=tuple(spans),
        restart_to_resize=bool(spans) and spec.resize == "restart",
    )


def sized(gang: Gang, sizes: Mapping[str, int]) -> Gang:
    """The gang as a person has sized it: so many tasks of these roles, and fewer only while others need the room."""
    if not sizes:
        return gang
    spans = tuple(
        replace(span, preferred=sizes[span.role], maximum=sizes[span.role]) if span.role in sizes else span
        for span in gang.spans
    )
    return replace(gang, spans=spans)


def chief_role(roles: Mapping[str, Role]) -> str:
    """The role whose first task leads: others find it, and `success: chief` looks at it alone."""
    return next((role for role in CHIEF_ROLES if role in roles), next(iter(roles)))


def request_of(resources: Resources) -> Request:
    gpu = resources.gpu or 0
    shared = 0 < gpu < 1
    return _the_request(
        resources.cpu or 0,
        resources.memory or 0,
        0 if shared else int(gpu),
        resources.gpu_type,
        round(gpu * 1000) if shared else 0,
        resources.gpu_memory or 0,
        resources.gpu_generation or 0,
        tuple(sorted(resources.devices.items())),
    )


_the_request = lru_cache(maxsize=4096)(Request)
"""Jobs that ask for the same share one request, which is then found by being itself."""
