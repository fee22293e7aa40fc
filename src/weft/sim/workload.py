"""What a workload is: jobs with the time they come at, how long they run and what they need."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

from weft.model.gang import Gang, Request, Task
from weft.model.job import Restart, Strategy
from weft.scheduler.queues import QueueRule

GPUS_A_TASK = 8
"""A job of more GPUs than a node of the published clusters has is a gang of several tasks."""
CPU_A_GPU = 2000
NEVER = Restart()


@dataclass(frozen=True, slots=True)
class Arrival:
    """A job of the workload."""

    name: str
    time: float
    seconds: float
    """How long it runs at the size it asks for."""
    gang: Gang
    priority: int = 0
    queue: str = "default"
    owner: str = ""
    checkpoints: bool = True
    """It saves its work now and then, and when it is told to stop."""

    @property
    def work(self) -> float:
        """GPU seconds."""
        return self.seconds * self.gang.gpus


def workers(requests: Sequence[Request], strategy: Strategy = Strategy.PACK) -> Gang:
    """One worker for each request."""
    tasks = tuple(
        Task(f"worker-{number}", "worker", number, number, request, NEVER, chief=number == 0)
        for number, request in enumerate(requests)
    )
    return Gang(tasks, False, 30.0, None, None, False, strategy)


@lru_cache(maxsize=4096)
def gang_of_gpus(gpus: int, strategy: Strategy = Strategy.PACK, a_task: int = GPUS_A_TASK) -> Gang:
    """A job that is only known by its number of GPUs: tasks of up to `a_task`, the last takes the rest."""
    full, rest = divmod(gpus, a_task)
    sizes = [a_task] * full + ([rest] if rest else [])
    return workers([Request(size * CPU_A_GPU, 0, size) for size in sizes], strategy)


def span_of(arrivals: Sequence[Arrival]) -> float:
    """Seconds from the first arrival to the last."""
    times = [arrival.time for arrival in arrivals]
    return max(times) - min(times) if times else 0.0


def load_on(arrivals: Sequence[Arrival], gpus: float) -> float:
    """The GPU time that is asked for, of the GPU time that there is, from the first arrival to the last.

    What a job runs beyond the last arrival is left out: on a short workload the few jobs that run for weeks
    would count for more than all others, and the cluster would be all but empty at a load of 1.
    """
    end = max((arrival.time for arrival in arrivals), default=0.0)
    work = sum(arrival.gang.gpus * min(arrival.seconds, end - arrival.time) for arrival in arrivals)
    return work / max(span_of(arrivals), 1.0) / max(gpus, 1e-9)


def nodes_for(arrivals: Sequence[Arrival], load: float, gpus_a_node: int = GPUS_A_TASK) -> int:
    """How many nodes make this load of it; never fewer than the largest job needs."""
    largest = max((arrival.gang.gpus for arrival in arrivals), default=1.0)
    wanted = round(load_on(arrivals, 1.0) / load / gpus_a_node)
    return max(1, wanted, math.ceil(largest / gpus_a_node))


def at_load(arrivals: Sequence[Arrival], gpus: float, load: float) -> list[Arrival]:
    """The same jobs, coming closer together or further apart: how a load is set where the cluster is given."""
    low, high = 1e-4, 1e4
    most = load_on(_stretched(arrivals, low), gpus)
    if most < load:  # even if all came at once they would not fill the cluster for as long as they come
        raise ValueError(
            f"{len(arrivals):,} jobs are too few for a load of {load:g} on {gpus:g} GPUs: at most {most:.2g}"
        )
    while high / low > 1.001:
        middle = (low * high) ** 0.5
        if load_on(_stretched(arrivals, middle), gpus) > load:
            low = middle
        else:
            high = middle
    return _stretched(arrivals, high)


def _stretched(arrivals: Sequence[Arrival], factor: float) -> list[Arrival]:
    first = min((arrival.time for arrival in arrivals), default=0.0)
    return [replace(arrival, time=first + (arrival.time - first) * factor) for arrival in arrivals]


def by_owner(arrivals: Iterable[Arrival]) -> tuple[list[Arrival], list[QueueRule]]:
    """Every owner (a virtual cluster) gets a queue of its own, all of one weight."""
    moved = [replace(arrival, queue=arrival.owner or "default") for arrival in arrivals]
    return moved, [QueueRule(name) for name in sorted({arrival.queue for arrival in moved})]


def with_strategy(arrivals: Iterable[Arrival], strategy: Strategy) -> list[Arrival]:
    """The same jobs, packed or spread."""
    gangs: dict[Gang, Gang] = {}
    found = []
    for arrival in arrivals:
        gang = gangs.setdefault(arrival.gang, replace(arrival.gang, strategy=strategy))
        found.append(replace(arrival, gang=gang))
    return found
