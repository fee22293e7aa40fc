"""Jobs, gangs and nodes in as few words as a test needs."""

from __future__ import annotations

from typing import Any

from weft.jobtypes.complete import read_job
from weft.model.gang import Gang, Request, Span, Task, Within
from weft.model.job import Restart, RestartPolicy, Scope, Strategy, TrainingJob
from weft.model.node import MANY, Gpu, Node
from weft.model.problems import parse

GIB = 2**30


def job_document(name: str = "demo", **spec: Any) -> dict[str, Any]:
    """A job file as a person writes it: fields by their outside names."""
    return {
        "apiVersion": "weft.dev/v1",
        "kind": "TrainingJob",
        "metadata": {"name": name},
        "spec": {"command": ["true"], **spec},
    }


def a_job(name: str = "demo", **spec: Any) -> TrainingJob:
    """The parsed job, not yet completed."""
    return parse(TrainingJob, job_document(name, **spec), f"job {name}")


def a_complete_job(name: str = "demo", **spec: Any) -> TrainingJob:
    return read_job(job_document(name, **spec), f"job {name}")


def a_request(
    cpu: float = 1,
    memory: int = 0,
    gpu: float = 0,
    gpu_type: str | None = None,
    *,
    gpu_memory: int = 0,
    generation: int = 0,
    devices: dict[str, int] | None = None,
) -> Request:
    """CPUs, GiB, GPUs (less than one is a share), GiB of each GPU."""
    whole = int(gpu)
    return Request(
        round(cpu * 1000),
        memory * GIB,
        whole,
        gpu_type,
        0 if whole else round(gpu * 1000),
        gpu_memory * GIB,
        generation,
        tuple(sorted((devices or {}).items())),
    )


def restarts(
    policy: str = "on-failure",
    max: int = 3,
    backoff: float = 1.0,
    max_backoff: float = 300.0,
    scope: Scope | None = None,
) -> Restart:
    return Restart(
        policy=RestartPolicy(policy), max=max, backoff=backoff, max_backoff=max_backoff, scope=scope
    )


NEVER = restarts("never")


def a_task(
    name: str = "worker-0",
    rank: int = 0,
    request: Request | None = None,
    restart: Restart = NEVER,
    *,
    service: bool = False,
    chief: bool = False,
) -> Task:
    role, _, index = name.rpartition("-")
    return Task(name, role, int(index), rank, request or a_request(), restart, service, chief)


def a_gang(
    *requests: Request,
    tasks: tuple[Task, ...] = (),
    strategy: str = "pack",
    one_node: bool = False,
    within: Within = Within.ANYWHERE,
    selector: dict[str, str] | None = None,
    tolerations: tuple[str, ...] = (),
    wants: dict[str, int] | None = None,
    spans: tuple[Span, ...] = (),
    chief_decides: bool = False,
    grace: float = 30.0,
    deadline: float | None = None,
    max_wait: float | None = None,
    needs_fetch: bool = False,
) -> Gang:
    """One worker a request, or the tasks given."""
    made = tasks or tuple(
        a_task(f"worker-{i}", i, request, chief=i == 0)
        for i, request in enumerate(requests or (a_request(),))
    )
    return Gang(
        tasks=made,
        chief_decides=chief_decides,
        grace=grace,
        deadline=deadline,
        max_wait=max_wait,
        needs_fetch=needs_fetch,
        strategy=Strategy(strategy),
        within=Within.NODE if one_node else within,
        selector=tuple(sorted((selector or {}).items())),
        tolerations=tolerations,
        wants=tuple(sorted((wants or {}).items())),
        spans=spans,
    )


def an_elastic_gang(least: int, wish: int, most: int, request: Request | None = None, **rules: Any) -> Gang:
    """Equal workers: at least, as wished, at most."""
    tasks = tuple(a_task(f"worker-{i}", i, request or a_request(1), chief=i == 0) for i in range(most))
    return a_gang(tasks=tasks, spans=(Span("worker", least, wish, most),), **rules)


def a_node(
    name: str = "node-0",
    cpu: int = 4,
    memory: int = 16,
    gpus: list[str] | int = 0,
    labels: dict[str, str] | None = None,
    *,
    gpu_memory: int = 0,
    generation: int = 0,
    shared: bool = False,
    closed: bool = False,
    rack: str = "",
    fabric: str = "",
    taints: tuple[str, ...] = (),
    devices: dict[str, int] | None = None,
    numa: int = 1,
    holds: dict[str, int] | None = None,
    slots: int = MANY,
) -> Node:
    """CPUs (numbered, unless shared), GiB, GPUs by type or number, GiB of each GPU, so many NUMA groups."""
    types = ["v100"] * gpus if isinstance(gpus, int) else gpus
    return Node(
        name=name,
        cpu=cpu * 1000,
        memory=memory * GIB,
        slots=slots,
        cpu_ids=() if shared else tuple(range(cpu)),
        gpus=tuple(
            Gpu(i, kind, memory=gpu_memory * GIB, generation=generation, numa=i * numa // len(types))
            for i, kind in enumerate(types)
        ),
        labels=tuple(sorted((labels or {}).items())),
        schedulable=not closed,
        taints=taints,
        rack=rack,
        fabric=fabric,
        devices=tuple(sorted((devices or {}).items())),
        numa=()
        if numa == 1 or shared
        else tuple(tuple(i for i in range(cpu) if i * numa // cpu == group) for group in range(numa)),
        holds=tuple(sorted((holds or {}).items())),
    )
