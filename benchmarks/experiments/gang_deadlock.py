"""(b) Learners in deadlock and GPUs idle, with and without gang scheduling: 15 nodes of 4 GPUs, 50 jobs, 20 runs.

    .venv/bin/python benchmarks/experiments/gang_deadlock.py [--runs N]

Expected: a scheduler that places tasks one by one gives GPUs to parts of jobs that cannot begin; in FfDL (Jayaram et
al., Middleware 2019) up to 46 % of the GPUs were idle for that reason. With gang scheduling no learner holds a GPU
before its job is complete, and no GPU is idle while a job that fits waits.

All 50 synchronous jobs come at once, as 2 learners of 1 GPU, 2 of 2, or 4 of 1. Without gangs their learners come to
the scheduler in one of two orders: wholly at random, as when all jobs are created at the same moment (the worst
case), or job by job, each learner up to a few seconds after its job (what a controller does). Either is placed by
the same `place` as Weft's, one task at a time. A run is looked at when nothing more fits.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import lab

from weft.model.gang import Request
from weft.model.node import Node
from weft.scheduler.cluster import Cluster
from weft.scheduler.feasible import place
from weft.sim import draw
from weft.sim.clusterfile import equal_nodes
from weft.sim.engine import Simulation
from weft.sim.workload import Arrival, workers

NODES, GPUS, JOBS, RUNS = 15, 4, 50, 20
MIXES = {"2 × 1 GPU": (2, 1), "2 × 2 GPUs": (2, 2), "4 × 1 GPU": (4, 1)}
SCHEDULERS = ("one by one, at random", "one by one, job by job", "gangs")
APART = 1.0
"""Seconds from one job to the next."""
LATE = 4.0
"""And up to so many until each of its learners has come: image pulls, volumes, retries."""


@dataclass(frozen=True)
class Run:
    deadlocked: float
    """The share of learners with a GPU whose job is not complete."""
    idle: float
    """The share of GPUs that are free, or held by such learners."""


def jobs_of(learners: int, gpus: int) -> list[Arrival]:
    gang = workers([Request(1000 * gpus, 0, gpus)] * learners)
    return [Arrival(f"job-{number}", 0.0, 3600.0, gang) for number in range(JOBS)]


def alone(nodes: Sequence[Node], jobs: Sequence[Arrival], chance: random.Random, *, scattered: bool) -> Run:
    """The baseline: every task is a question of its own."""
    cluster = Cluster(nodes)
    coming = []
    for number, job in enumerate(jobs):
        for task in job.gang.tasks:
            when = chance.random() if scattered else APART * number + LATE * chance.random()
            coming.append((when, number, task))
    held: dict[int, int] = {}
    for _, number, task in sorted(coming, key=lambda item: item[:2]):
        if place(cluster, workers([task.request])) is not None:
            held[number] = held.get(number, 0) + 1
    return judged(jobs, held, sum(held.values()))


def together(nodes: Sequence[Node], jobs: Sequence[Arrival], chance: random.Random) -> Run:
    """Weft, by the function that the server calls."""
    order = [*jobs]
    chance.shuffle(order)
    named = [
        Arrival(f"job-{number:02d}", job.time, job.seconds, job.gang) for number, job in enumerate(order)
    ]
    simulation = Simulation(nodes, named, tick=1.0, until=0.5)
    simulation.run()
    held = {number: len(job.tasks) for number, job in enumerate(simulation.state.running)}
    return judged(named, held, sum(held.values()))


def judged(jobs: Sequence[Arrival], held: dict[int, int], learners: int) -> Run:
    gang = jobs[0].gang
    whole = sum(count for count in held.values() if count == len(gang.tasks))
    working = whole * gang.tasks[0].request.gpu
    return Run((learners - whole) / max(learners, 1), 1 - working / (NODES * GPUS))


def run(runs: int = RUNS, seed: int = 1) -> dict[str, dict[str, list[Run]]]:
    """By mix and scheduler."""
    nodes = equal_nodes(NODES, GPUS)
    found: dict[str, dict[str, list[Run]]] = {}
    for mix, (learners, gpus) in MIXES.items():
        jobs = jobs_of(learners, gpus)
        found[mix] = {
            SCHEDULERS[0]: [alone(nodes, jobs, random.Random(seed + i), scattered=True) for i in range(runs)],
            SCHEDULERS[1]: [
                alone(nodes, jobs, random.Random(seed + i), scattered=False) for i in range(runs)
            ],
            SCHEDULERS[2]: [together(nodes, jobs, random.Random(seed + i)) for i in range(runs)],
        }
    return found


def result(found: dict[str, dict[str, list[Run]]]) -> lab.Result:
    rows, data, series = [], {}, []
    for mix, schedulers in found.items():
        data[mix] = {}
        for scheduler, runs in schedulers.items():
            learners = [each.deadlocked for each in runs]
            idle = [each.idle for each in runs]
            some = sum(share > 0 for share in learners) / len(runs)
            rows.append((
                mix, scheduler, f"{some:.0%}", f"{sum(learners) / len(runs):.0%}", f"{max(learners):.0%}",
                f"{sum(idle) / len(runs):.0%}", f"{max(idle):.0%}",
            ))  # fmt: skip
            data[mix][scheduler] = {
                "runsWithDeadlock": round(some, 4),
                "deadlockedLearners": [round(share, 4) for share in sorted(learners)],
                "idleGpus": [round(share, 4) for share in sorted(idle)],
            }
            series += [(mix, scheduler, n, each.deadlocked, each.idle) for n, each in enumerate(runs)]
    each_job = [run.idle for schedulers in found.values() for run in schedulers[SCHEDULERS[1]]]
    any_job = [run.idle for schedulers in found.values() for run in schedulers[SCHEDULERS[0]]]
    ours = [run for schedulers in found.values() for run in schedulers[SCHEDULERS[2]]]
    told = (
        f"Placed one by one, up to {max(each_job):.0%} of the GPUs were idle when learners came job by job, and up to "
        f"{max(any_job):.0%} when they came at random. As gangs: {max(run.deadlocked for run in ours):.0%} of the learners "
        f"in deadlock and {max(run.idle for run in ours):.0%} of the GPUs idle, in every run."
    )
    titles = (
        "jobs (learners × GPUs)",
        "scheduler",
        "runs with deadlock",
        "learners, mean",
        "most",
        "idle GPUs, mean",
        "most",
    )
    columns = ("mix", "scheduler", "run", "deadlocked_learners", "idle_gpus")
    expected = lab.docstring_part(__doc__, "Expected")
    return lab.Result(
        "gang_deadlock", "generated", expected, told, titles, rows, {"mixes": data}, (columns, series)
    )


def picture(path: Path, found: dict[str, dict[str, list[Run]]]) -> None:
    with draw.picture(path, len(found), rows=2, height=2.9, width=9.0) as panels:
        for number, (mix, schedulers) in enumerate(found.items()):
            learners, gpus = panels[number], panels[number + len(found)]
            draw.cdf(learners, {name: [run.deadlocked for run in runs] for name, runs in schedulers.items()})
            draw.cdf(gpus, {name: [run.idle for run in runs] for name, runs in schedulers.items()})
            learners.set(title=mix, xlabel="learners in deadlock", xlim=(-0.03, 1.03))
            gpus.set(xlabel="GPUs idle for them", xlim=(-0.03, 1.03))
            for axes in (learners, gpus):
                draw.percent(axes.xaxis)
        for first in (panels[0], panels[len(found)]):
            first.set_ylabel("of the runs")
        draw.legend(panels[0])


def main() -> None:
    parser = lab.options(__doc__ or "")
    parser.add_argument("--runs", type=int, default=RUNS)
    chosen = parser.parse_args()
    found = run(chosen.runs, chosen.seed)
    where = lab.RESULTS if chosen.runs == RUNS else lab.RESULTS / "quick"
    lab.publish(result(found), where, lambda path: picture(path, found))


if __name__ == "__main__":
    main()
