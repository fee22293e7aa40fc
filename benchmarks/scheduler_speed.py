"""The scheduler's decisions on 5,000 nodes × 8 GPUs, one core: placements, gangs, preemption, idle and hopeless cycles.

No server and no binding: `schedule` on books in memory, as the control plane and the simulator call it.
"""

from __future__ import annotations

import functools
import random
import statistics
import time
from collections.abc import Callable
from typing import Any

from harness import Claim, arguments, clean_memory, print_table, publish, spread

from weft.model.gang import Gang, Request, Task, Within
from weft.model.job import Restart
from weft.model.node import Gpu, Node
from weft.model.status import Binding
from weft.scheduler.pending import Waiting
from weft.scheduler.queues import QueueRule
from weft.scheduler.running import Running
from weft.scheduler.schedule import schedule
from weft.scheduler.state import State

NODES = 5_000
RACK = 32
GIB = 2**30
NEVER = Restart()
MANY = 500
SIZES, SHARES = (1, 2, 4, 8, 16, 32), (85.0, 1.4, 6.8, 5.8, 0.7, 0.3)
"""GPUs a job and their share in per cent: Philly without its two largest virtual clusters."""
PUBLISHED = {
    "kube-scheduler, 5,000 nodes, pods/s (floor of its CI)": "680-790",
    "Volcano, pods/s": "up to 1000",
    "YuniKorn, pods/s": "156-833",
    "Nomad, placements/s on 5 servers": "3750",
    "Slurm, jobs/s": "500",
    "Kueue, workloads/s": "37-43",
}


def main() -> None:
    options = arguments(__doc__ or "").parse_args()
    rounds = 2 if options.quick else 5
    measured: dict[str, list[float]] = {}
    for name, measure in MEASURES.items():
        samples = []
        for _ in range(rounds):
            clean_memory()
            samples.append(measure())
        measured[name] = samples
        print(f"{name}: {statistics.median(samples):.4g}", flush=True)
    middle = {name: statistics.median(samples) for name, samples in measured.items()}
    claims = [
        Claim("Placements a second, jobs of one task, 5,000 nodes × 8 GPUs, one core",
              middle["oneTaskPerSecond"], 10_000, "/s", at_most=False, digits=0),
        Claim("Tasks placed a second, Philly's mix of gangs, with quotas, priorities and racks",
              middle["gangTasksPerSecond"], 4_000, "/s", at_most=False, digits=0),
        Claim("Who gives way to a gang of 8 × 8 GPUs, cluster full of 1-GPU jobs",
              middle["preemptSmallMs"], 20.0, " ms"),
        Claim("Who gives way to a gang of 8 × 8 GPUs, cluster full of 8-GPU jobs",
              middle["preemptLargeMs"], 20.0, " ms"),
        Claim("A cycle in which nothing changed", middle["idleMs"], 1.0, " ms"),
        Claim("A cycle with 10,000 waiting jobs of 4 kinds that do not fit", middle["fewKindsMs"], 10.0, " ms"),
        Claim("A cycle with 10,000 waiting jobs of 500 kinds that do not fit",
              middle["manyKindsMs"], 10.0, " ms"),
        Claim("… half of which ask for what no node has, and all wait for an hour", middle["longMs"], 10.0, " ms"),
        Claim("… while all 10,000, which have run before, are ranked anew", middle["lookingAgainMs"], 10.0, " ms"),
        Claim("A placement on 5,000 nodes against one on 500", middle["growth"], 3.0, "×"),
        Claim("Books of 10,000 running jobs on 5,000 nodes rebuilt", middle["rebuildSeconds"], 3.0, " s"),
    ]  # fmt: skip
    print_table(("published, not measured here", ""), list(PUBLISHED.items()))
    details = {
        "nodes": NODES,
        "samples": {name: spread(samples) for name, samples in measured.items()},
        "beyond": {name: middle[name] for name in BEYOND},
        "publishedNotMeasured": PUBLISHED,
    }
    publish("scheduler_speed", claims, details, options.quick)


# ── books ──


def nodes(count: int = NODES) -> list[Node]:
    return [
        Node(
            f"node-{number:04d}",
            96_000,
            768 * GIB,
            gpus=tuple(Gpu(index, "v100") for index in range(8)),
            rack=f"rack-{number // RACK:03d}",
        )
        for number in range(count)
    ]


def gang(gpus: int, within: Within = Within.ANYWHERE, cpu: int = 4000, memory: int = 16 * GIB) -> Gang:
    """At most 8 GPUs a task."""
    width = min(gpus, 8)
    request = Request(cpu * width, memory * width, width)
    tasks = tuple(Task(f"w-{i}", "w", i, i, request, NEVER, False, i == 0) for i in range(max(1, gpus // 8)))
    return Gang(tasks, False, 30.0, None, None, False, within=within)


def full_of(size: int, count: int = NODES) -> State:
    """Every GPU is used, by jobs of this many GPUs (at most 8)."""
    state = State(nodes(count))
    shape = gang(size)
    for number, node in enumerate(state.cluster.nodes):
        for place in range(8 // size):
            uid = f"r-{number}-{place}"
            binding = Binding("w-0", node.name, (), tuple(range(place * size, (place + 1) * size)))
            job = Running(uid, uid, shape, 0, "default", "ann", float(place), {"w-0": binding})
            state.restore(job, 0.0)
    return state


def apply(state: State, now: float) -> Any:
    """One cycle, carried out."""
    plan = schedule(state.snapshot(now), state.policy)
    state.decided(plan)
    for placement in plan.placements:
        state.start(placement.uid, placement.bindings, now)
    return plan


def seconds(work: Callable[[], Any]) -> float:
    begin = time.perf_counter()
    work()
    return time.perf_counter() - begin


# ── measures: each gives one sample ──


def one_task_per_second(count: int = NODES, jobs: int = 10_000) -> float:
    """Jobs of 1 GPU, all submitted at once, decided and carried out; the rate of the whole."""
    state = State(nodes(count))
    shape = gang(1)
    for number in range(jobs):
        state.submit(Waiting(f"j-{number}", f"j-{number}", shape, 0, float(number)))
    took = seconds(lambda: apply(state, 1e4))
    assert len(state.running) == jobs, f"{len(state.running)} of {jobs} started"
    return jobs / took


def decide_per_second(jobs: int = 10_000) -> float:
    """The decision alone."""
    state = State(nodes())
    shape = gang(1)
    for number in range(jobs):
        state.submit(Waiting(f"j-{number}", f"j-{number}", shape, 0, float(number)))
    snapshot = state.snapshot(1e4)
    return jobs / seconds(lambda: schedule(snapshot, state.policy))


def arriving_per_second(jobs: int = 2_000) -> float:
    """Jobs of 1 GPU that come one after the other, a cycle each."""
    state = State(nodes())
    shape = gang(1)
    apply(state, 0.0)

    def arrive() -> None:
        for number in range(jobs):
            state.submit(Waiting(f"j-{number}", f"j-{number}", shape, 0, float(number)))
            apply(state, float(number))

    return jobs / seconds(arrive)


def gang_tasks_per_second(jobs: int = 2_000) -> float:
    chance = random.Random(1)
    rules = [QueueRule("research", weight=2.0, guarantee={"gpu": 10_000_000}), QueueRule("prod")]
    rules += [QueueRule(f"team-{i}", "research", limit={"gpu": 20_000_000}) for i in range(4)]
    state = State(nodes(), rules)
    shapes = {
        (size, within): gang(size, within) for size in SIZES for within in (Within.ANYWHERE, Within.RACK)
    }
    tasks = 0
    for number in range(jobs):
        size = chance.choices(SIZES, SHARES)[0]
        within = Within.RACK if size > 8 and chance.random() < 0.5 else Within.ANYWHERE
        shape = shapes[size, within]
        tasks += len(shape.tasks)
        queue, owner = (
            chance.choice(["prod", *(f"team-{i}" for i in range(4))]),
            f"user-{chance.randrange(20)}",
        )
        state.submit(
            Waiting(
                f"j-{number}",
                f"train-{number}",
                shape,
                chance.choice([0, 0, 0, 10]),
                float(number),
                queue,
                owner,
            )
        )
    took = seconds(lambda: apply(state, 1e4))
    assert len(state.running) == jobs, f"{len(state.running)} of {jobs} started"
    return tasks / took


def preempt_ms(size: int) -> float:
    state = full_of(size)
    state.snapshot(100.0)
    state.submit(Waiting("big", "big", gang(64), 10, 90.0))
    snapshot = state.snapshot(100.0)
    begin = time.perf_counter()
    plan = schedule(snapshot, state.policy)
    took = time.perf_counter() - begin
    assert len(plan.preemptions) == 1
    assert len(plan.preemptions[0].evicted) == 64 // size, len(plan.preemptions[0].evicted)
    return 1e3 * took


def preempt_again_ms(size: int) -> float:
    """The same question again: what is kept is warm."""
    state = full_of(size)
    state.submit(Waiting("big", "big", gang(64), 10, 90.0))
    schedule(state.snapshot(100.0), state.policy)
    snapshot = state.snapshot(100.0)
    return 1e3 * seconds(lambda: schedule(snapshot, state.policy))


def idle_ms() -> float:
    """A full cluster and 100 jobs that wait, asked again."""
    state = full_of(8)
    for number in range(100):
        state.submit(Waiting(f"j-{number}", f"j-{number}", gang(8), 0, 90.0))
    apply(state, 100.0)
    return repeated(state, 100.0)


@functools.cache
def hopeless(kinds: int, size: int, jobs: int = 10_000) -> State:
    """A full cluster of jobs of this size, and jobs of 2 to 8 GPUs and so many kinds that were asked once and wait."""
    state = full_of(size)
    shapes = [gang(2 + number % 7, cpu=1000 + number) for number in range(kinds)]
    for number in range(jobs):
        state.submit(Waiting(f"j-{number}", f"j-{number}", shapes[number % kinds], 0, 90.0))
    apply(state, 100.0)
    return state


def hopeless_ms(kinds: int) -> float:
    """Asked again, with nothing changed."""
    return repeated(hopeless(kinds, 8), 100.0)


def hopeless_for_long_ms(kinds: int = 500) -> float:
    """Who waits longer than the policy's patience is promised a start; half of these ask for what no node has."""
    state = full_of(8)
    shapes = [gang(2 + number % 7, cpu=1000 + number + 1_000_000 * (number % 2)) for number in range(kinds)]
    for number in range(10_000):
        state.submit(Waiting(f"j-{number}", f"j-{number}", shapes[number % kinds], 0, 90.0))
    apply(state, 4000.0)
    return repeated(state, 4000.0)


def looking_again_ms(kinds: int, of: Callable[[list[float]], float]) -> float:
    """Of the cycles in which it is worked out anew what is expected of 10,000 jobs that have run before."""
    state = full_of(8)
    shapes = [gang(2 + number % 7, cpu=1000 + number) for number in range(kinds)]
    for number in range(10_000):
        had = 600.0 + number
        shape = shapes[number % kinds]
        state.submit(
            Waiting(
                f"j-{number}",
                f"j-{number}",
                shape,
                0,
                5e5,
                owner=f"u-{number % 50}",
                waited=1e5,
                attained=had,
            )
        )
    apply(state, 5e5 + 400.0)  # who waits longer than the policy's patience is promised a start
    again = 5e5 + 401.0 + state.policy.quantum
    return of([cycle_ms(state, again + number) for number in range(60)])


def hopeless_after_an_end_ms(kinds: int) -> float:
    """The same, where a job of one GPU has ended since, so that everybody must be asked again."""
    state = hopeless(kinds, 1)
    state.leave(next(job.uid for job in state.running if job.uid.endswith("-7")), 101.0)  # one of each node
    plan = []
    took = 1e3 * seconds(lambda: plan.append(apply(state, 101.0)))
    assert plan[0].empty, "somebody fits"
    return took


def new_kind_ms(kinds: int = 20) -> float:
    """A request that nobody has asked before, on a full cluster."""
    state = full_of(8)
    for number in range(kinds):
        state.submit(Waiting(f"j-{number}", f"j-{number}", gang(1, cpu=1000 + number), 0, 90.0))
    snapshot = state.snapshot(100.0)
    return 1e3 * seconds(lambda: schedule(snapshot, state.policy)) / kinds


def repeated(state: State, now: float, times: int = 5) -> float:
    return statistics.median(cycle_ms(state, now) for _ in range(times))


def cycle_ms(state: State, now: float) -> float:
    """As the control plane asks: who stands where by now, and the decision."""
    return 1e3 * seconds(lambda: schedule(state.snapshot(now), state.policy))


def growth() -> float:
    """Time a placement, 5,000 nodes against 500: 3,000 jobs each, so that both have room."""
    return one_task_per_second(500, 3_000) / one_task_per_second(5_000, 3_000)


def rebuild_seconds(jobs: int = 10_000) -> float:
    """As after a restart: books from nodes and running jobs."""
    places = nodes()
    shape = gang(4)
    running = [
        Running(
            f"r-{n}", f"r-{n}", shape, 0, "default", "ann", 0.0,
            {"w-0": Binding("w-0", places[n // 2].name, (), tuple(range(4 * (n % 2), 4 * (n % 2) + 4)))},
        )
        for n in range(jobs)
    ]  # fmt: skip

    def rebuild() -> None:
        state = State(places)
        for job in running:
            state.restore(job, 0.0)

    return seconds(rebuild)


MEASURES: dict[str, Callable[[], float]] = {
    "oneTaskPerSecond": one_task_per_second,
    "decidedPerSecond": decide_per_second,
    "arrivingPerSecond": arriving_per_second,
    "gangTasksPerSecond": gang_tasks_per_second,
    "preemptSmallMs": lambda: preempt_ms(1),
    "preemptLargeMs": lambda: preempt_ms(8),
    "preemptSmallWarmMs": lambda: preempt_again_ms(1),
    "preemptLargeWarmMs": lambda: preempt_again_ms(8),
    "idleMs": idle_ms,
    "fewKindsMs": lambda: hopeless_ms(4),
    "manyKindsMs": lambda: hopeless_ms(MANY),
    "longMs": lambda: hopeless_for_long_ms(MANY),
    "lookingAgainMs": lambda: looking_again_ms(4, statistics.median),
    "lookingAgainLongestMs": lambda: looking_again_ms(4, max),
    "fewKindsAfterAnEndMs": lambda: hopeless_after_an_end_ms(4),
    "manyKindsAfterAnEndMs": lambda: hopeless_after_an_end_ms(MANY),
    "newKindMs": new_kind_ms,
    "growth": growth,
    "rebuildSeconds": rebuild_seconds,
}
BEYOND = (
    "decidedPerSecond",
    "arrivingPerSecond",
    "preemptSmallWarmMs",
    "preemptLargeWarmMs",
    "lookingAgainLongestMs",
    "fewKindsAfterAnEndMs",
    "manyKindsAfterAnEndMs",
    "newKindMs",
)


if __name__ == "__main__":
    main()
