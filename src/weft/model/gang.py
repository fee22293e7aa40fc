"""A job's spec as the gang of tasks that it means, with every default resolved."""

from __future__ import annotations

from dataclasses import dataclass

from weft.model.job import Resources, Restart, RestartPolicy, Strategy, TrainingJobSpec

CHIEF_ROLES = ("chief", "master", "launcher", "worker")


@dataclass(frozen=True, slots=True)
class Request:
    """What one task needs of a node. Equal requests are one question to the scheduler."""

    cpu: int
    memory: int = 0
    gpu: int = 0
    gpu_type: str | None = None

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

    def backoff(self, restarts: int) -> float:
        """Seconds to wait before restart number `restarts` + 1."""
        return min(self.restart.backoff * 2.0 ** min(restarts, 64), self.restart.max_backoff)


@dataclass(frozen=True, slots=True)
class Gang:
    """All tasks of a job and the rules that hold for them together."""

    tasks: tuple[Task, ...]
    chief_decides: bool
    grace: float
    deadline: float | None
    max_wait: float | None
    needs_fetch: bool
    strategy: Strategy = Strategy.PACK
    one_node: bool = False
    selector: tuple[tuple[str, str], ...] = ()

    def task(self, name: str) -> Task:
        return next(task for task in self.tasks if task.name == name)

    @property
    def signature(self) -> tuple[object, ...]:
        """Two gangs of the same signature fit or do not fit alike."""
        return (tuple(t.request for t in self.tasks), self.strategy, self.one_node, self.selector)


def gang_of(spec: TrainingJobSpec) -> Gang:
    """The gang of a completed spec (roles present, resources resolved)."""
    chief = next((role for role in CHIEF_ROLES if role in spec.roles), next(iter(spec.roles)))
    tasks: list[Task] = []
    for role_name, role in spec.roles.items():
        request = request_of(role.resources)
        restart = role.restart or spec.restart
        for index in range(role.replicas):
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
    return Gang(
        tasks=tuple(tasks),
        chief_decides=spec.success == "chief",
        grace=spec.grace,
        deadline=spec.deadline,
        max_wait=spec.max_wait,
        needs_fetch=spec.code is not None,
        strategy=spec.placement.strategy,
        one_node=spec.placement.nodes == "one",
        selector=tuple(sorted(spec.placement.selector.items())),
    )


def request_of(resources: Resources) -> Request:
    return Request(
        cpu=resources.cpu or 0,
        memory=resources.memory or 0,
        gpu=resources.gpu or 0,
        gpu_type=resources.gpu_type,
    )
