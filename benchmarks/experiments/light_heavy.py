"""(c) A light and a heavy load on 680 GPUs: what queueing and throughput the policies make of it.

    .venv/bin/python benchmarks/experiments/light_heavy.py [--jobs N]

Expected: with 70 jobs at a time nothing queues under any policy, so that all are alike. With 700 the GPUs asked for are
twice those there are: strict FIFO leaves GPUs idle behind the first job that does not fit, backfill does not, and
orders that know (or learn) which jobs are short finish most jobs sooner without ending later.

The heavy load comes as in FfDL's scale test on 680 GPUs (Jayaram et al., Middleware 2019): 300 jobs for K80s in the first
minute, 240 more after 15 minutes, 110 for P100s after 30 and 50 for V100s after 32; the light load is a tenth of each.
How many GPUs of a kind there were is not published with it; they are divided as the jobs are. Jobs have the sizes of the
gang mix and run for an hour in the middle and for up to eight; 5 seeds. What FfDL measured besides, how much slower jobs
are that share a network and a store, is nothing that a scheduler's simulator knows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import lab

from weft.model.gang import Gang
from weft.model.node import Node
from weft.sim import draw
from weft.sim.clusterfile import equal_nodes
from weft.sim.compare import simulate
from weft.sim.generate import GANGS, Shape, generate
from weft.sim.metrics import spread
from weft.sim.outcome import Record
from weft.sim.workload import Arrival, workers

NODES = {"k80": 65, "p100": 14, "v100": 6}
WAVES = (("k80", 300, 0.0), ("k80", 240, 900.0), ("p100", 110, 1800.0), ("v100", 50, 1920.0))
"""What they ask for, how many of the heavy load's jobs they are, and when they come."""
LOADS = {"light, 70 jobs": 70, "heavy, 700 jobs": 700}
POLICIES = ("fifo", "fifo-backfill", "fair", "least-attained", "shortest+oracle", "default")
SEEDS = 5
WITHIN = 60.0
TICK = 10.0
"""Seconds from one decision to the next at least."""
HOUR = 3600.0
DURATIONS = ((0.001, 300.0), (0.1, 1200.0), (0.5, 3600.0), (0.9, 3 * HOUR), (0.999, 8 * HOUR))


def shape(jobs: int) -> Shape:
    return replace(GANGS, gap=WITHIN / jobs, burst=1.0, durations=DURATIONS, larger_longer=0.3)


def cluster() -> list[Node]:
    return [node for kind, count in NODES.items() for node in equal_nodes(count, name=kind, gpu_type=kind)]


def workload(jobs: int, seed: int) -> list[Arrival]:
    """So many jobs, in the waves of the published load."""
    whole = sum(count for _, count, _ in WAVES)
    found: list[Arrival] = []
    for number, (kind, of_whole, begin) in enumerate(WAVES):
        count = max(1, round(jobs * of_whole / whole))
        for job in generate(shape(count), count, seed * len(WAVES) + number):
            name = f"{kind}-{number}-{job.name}"
            found.append(replace(job, name=name, time=begin + job.time, gang=on_kind(job.gang, kind)))
    return found


def on_kind(gang: Gang, kind: str) -> Gang:
    return workers([replace(task.request, gpu_type=kind) for task in gang.tasks])


def run(jobs: int, seed: int, policies: Sequence[str] = POLICIES) -> dict[str, list[Record]]:
    nodes = cluster()
    found: dict[str, list[Record]] = {name: [] for name in policies}
    for number in range(SEEDS):
        arrivals = workload(jobs, seed + number)
        for name in policies:
            found[name] += simulate(name, nodes, arrivals, tick=TICK).records
    return found


def numbers(records: Sequence[Record], jobs: int) -> dict[str, float]:
    waits = spread(record.waited for record in records)
    done = spread(record.completion or 0.0 for record in records)
    ends = [max(r.finished or 0.0 for r in records[at : at + jobs]) for at in range(0, len(records), jobs)]
    in_four = sum((record.finished or 0.0) <= 4 * HOUR for record in records) / len(records)
    return {
        "waitMean": round(waits.mean, 1),
        "waitP99": round(waits.p99, 1),
        "completionMean": round(done.mean, 1),
        "completionP99": round(done.p99, 1),
        "makespan": round(sum(ends) / len(ends), 1),
        "doneInFourHours": round(in_four, 4),
        "jobsAnHour": round(jobs / (sum(ends) / len(ends)) * HOUR, 2),
        "preemptions": round(sum(record.preemptions for record in records) / len(records), 3),
    }


def result(found: dict[str, dict[str, list[Record]]], loads: dict[str, int]) -> lab.Result:
    data: dict[str, Any] = {
        load: {name: numbers(records, loads[load]) for name, records in policies.items()}
        for load, policies in found.items()
    }
    rows = [
        (
            load, name, lab.span(n["waitMean"]), lab.span(n["waitP99"]), lab.span(n["completionMean"]), lab.span(n["completionP99"]),
            f"{n['doneInFourHours']:.0%}", lab.span(n["makespan"]), f"{n['jobsAnHour']:.1f}",
        )
        for load, policies in data.items()
        for name, n in policies.items()
    ]  # fmt: skip
    light, heavy = data.values()
    best = min(heavy, key=lambda name: heavy[name]["completionMean"])
    told = (
        f"Light: the longest mean wait was {lab.span(max(n['waitMean'] for n in light.values()))}. Heavy: mean completion from "
        f"{lab.span(heavy[best]['completionMean'])} ({best}) to {lab.span(heavy['fifo']['completionMean'])} (fifo), Weft's default "
        f"{lab.span(heavy['default']['completionMean'])}; all jobs were done after {lab.span(heavy['default']['makespan'])} with the "
        f"default, {lab.span(heavy['fifo']['makespan'])} with fifo."
    )
    titles = (
        "load", "policy", "wait, mean", "p99", "completion, mean", "p99", "done in 4 h", "all done after", "jobs an hour",
    )  # fmt: skip
    columns = ("load", "policy", *next(iter(heavy.values())))
    series = [(load, name, *n.values()) for load, policies in data.items() for name, n in policies.items()]
    expected = lab.docstring_part(__doc__, "Expected")
    return lab.Result(
        "light_heavy", "generated", expected, told, titles, rows, {"loads": data}, (columns, series)
    )


def picture(path: Path, found: dict[str, dict[str, list[Record]]]) -> None:
    with draw.picture(path, 2) as panels:
        for axes, (load, policies) in zip(panels, found.items(), strict=True):
            draw.cdf(
                axes,
                {name: [(r.completion or 0.0) / HOUR for r in records] for name, records in policies.items()},
            )
            axes.set(title=load, xlabel="hours from submitted to finished", xlim=(0, None))
        panels[0].set_ylabel("jobs completed")
        draw.legend(panels[0], 3)


def main() -> None:
    chosen = lab.options(__doc__ or "", 700).parse_args()
    loads = (
        LOADS
        if not chosen.jobs
        else {
            f"light, {chosen.jobs // 10} jobs": chosen.jobs // 10,
            f"heavy, {chosen.jobs} jobs": chosen.jobs,
        }
    )
    found = {load: run(jobs, chosen.seed) for load, jobs in loads.items()}
    lab.publish(result(found, loads), lab.folder(chosen), lambda path: picture(path, found))


if __name__ == "__main__":
    main()
