"""(e) Completion times and the waits of large jobs: FIFO, shortest first, least attained service, fair share, Weft's two.

    .venv/bin/python benchmarks/experiments/policies.py [--trace philly.csv] [--jobs N] [--loads 1.0] [--policies default]
                                                        [--without 0,1,2]

Expected: orders that let short jobs pass have far shorter mean completion times than FIFO (Tiresias: up to 5.5 times
shorter than YARN's capacity scheduler); the one that is told how long every job runs is the one to come close to.
Weft's default needs no such knowledge, and its large jobs (8 GPUs and more) wait no longer than under FIFO.

Load is set by the number of nodes. Every pair of a policy and a load is written down as it ends and kept until it is
run again, so that one of them can be repeated alone. Virtual clusters are queues under `fair` only.

One run of a trace is one sample. `--without` runs it again without one job in fifty, once without the first, the 51st and so on,
once without the second, …: nearly the same workload, which shows how far the last digits may be trusted.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import lab

from weft.scheduler.policy import NAMED
from weft.sim import draw
from weft.sim.clusterfile import equal_nodes
from weft.sim.compare import ORACLE, simulate
from weft.sim.generate import PHILLY
from weft.sim.metrics import measure
from weft.sim.workload import Arrival, load_on, nodes_for

POLICIES = ("fifo", "fair", "least-attained", "shortest+oracle", "expected", "default")
LOADS = (0.8, 1.0, 1.5)
JOBS = 10_000
TICK = 30.0
"""Seconds from one decision to the next at least, for every policy alike: nothing against these durations."""


PART = 50
"""`--without` leaves out one job in so many."""


def once(arrivals: Sequence[Arrival], load: float, policy: str, without: int | None = None) -> dict[str, Any]:
    if without is not None:
        arrivals = [arrival for number, arrival in enumerate(arrivals) if number % PART != without]
    nodes = nodes_for(arrivals, load)
    outcome = simulate(policy, equal_nodes(nodes), arrivals, tick=TICK)
    found = measure(outcome)
    return {
        "load": load,
        "policy": policy,
        "without": without,
        "jobs": found.jobs,
        "nodes": nodes,
        "actualLoad": round(load_on(arrivals, nodes * 8), 3),
        "unfinished": found.unfinished,
        "completionMean": round(found.completion.mean, 1),
        "completionP50": round(found.completion.p50, 1),
        "completionP99": round(found.completion.p99, 1),
        "wideFirstWaitMean": round(found.wide.first.mean, 1),
        "wideFirstWaitP99": round(found.wide.first.p99, 1),
        "wideTotalWaitMean": round(found.wide.total.mean, 1),
        "wideTotalWaitP99": round(found.wide.total.p99, 1),
        "queuedLong": round(found.queued_long, 5),
        "allocated": round(found.allocated, 4),
        "useful": round(found.useful, 4),
        "stranded": round(found.stranded, 4),
        "preemptions": round(found.preemptions, 4),
        "fairnessP99": round(found.fairness.p99, 2),
        "decisionP50Ms": round(found.decision.p50 * 1000, 3),
        "decisionP99Ms": round(found.decision.p99 * 1000, 3),
        "wallSeconds": round(outcome.wall, 1),
    }


def known(path: Path, jobs: int) -> list[dict[str, Any]]:
    """The runs of this very workload, by policies that there still are."""
    runs = json.loads(path.read_bytes())["runs"] if path.exists() else []
    runs = [{**run, "without": run.get("without")} for run in runs]
    runs = [run for run in runs if run["policy"].removesuffix(ORACLE) in NAMED]
    return [run for run in runs if run["without"] is not None or run["jobs"] == jobs]


def ordered(runs: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    def place(run: dict[str, Any]) -> tuple[bool, float, int, int]:
        policy = POLICIES.index(run["policy"]) if run["policy"] in POLICIES else len(POLICIES)
        return (run["without"] is not None, run["load"], policy, run["without"] or 0)

    return sorted(runs, key=place)


def result(kept: Sequence[dict[str, Any]], source: str) -> lab.Result:
    span = lab.span
    runs = [run for run in kept if run["without"] is None]
    rows = [
        (
            f"{run['load']:g}", run["policy"], span(run["completionMean"]), span(run["completionP50"]), span(run["completionP99"]),
            span(run["wideFirstWaitP99"]), span(run["wideTotalWaitP99"]), f"{run['queuedLong']:.1%}", f"{run['useful']:.0%}",
            f"{run['preemptions']:.2f}",
        )
        for run in runs
    ]  # fmt: skip
    by = {(run["load"], run["policy"]): run for run in runs}
    told = []
    for load in sorted({run["load"] for run in runs}):
        fifo, ours, oracle = (by.get((load, name)) for name in ("fifo", "default", "shortest+oracle"))
        if fifo and ours:
            text = f"load {load:g}: mean completion {fifo['completionMean'] / ours['completionMean']:.1f} times shorter than FIFO's"
            blind = [by[load, name] for name in ("fair", "least-attained") if (load, name) in by]
            if blind:
                best = min(blind, key=lambda run: run["completionMean"])
                ahead = 1 - ours["completionMean"] / best["completionMean"]
                text += f", {abs(ahead):.1%} {'shorter' if ahead > 0 else 'longer'} than that of {best['policy']}, the best other that is not told durations"
            if oracle:
                text += f" ({ours['completionMean'] / oracle['completionMean']:.2f} of the oracle's)"
            wait = f"{span(ours['wideFirstWaitP99'])} against {span(fifo['wideFirstWaitP99'])}"
            in_all = f"{span(ours['wideTotalWaitP99'])} against {span(fifo['wideTotalWaitP99'])}"
            told.append(f"{text}, p99 wait of large jobs {wait} (in all {in_all})")
    told += again(kept)
    titles = (
        "load", "policy", "completion, mean", "p50", "p99", "8+ GPUs: first wait, p99", "total wait, p99", "queued > 15 min",
        "useful GPU time", "preemptions a job",
    )  # fmt: skip
    series = (tuple(runs[0]), [tuple(run.values()) for run in kept])
    expected = lab.docstring_part(__doc__, "Expected")
    return lab.Result(
        "policies", source, expected, "; ".join(told) + ".", titles, rows, {"runs": list(kept)}, series
    )


def again(kept: Sequence[dict[str, Any]]) -> list[str]:
    """What came out when a few jobs were left out, as ratios to the same workload's other policies."""
    by = {(run["load"], run["policy"], run["without"]): run for run in kept if run["without"] is not None}
    told = []
    for load in sorted({load for load, _, _ in by}):
        means, waits = [], []
        for _, _, without in sorted(key for key in by if key[:2] == (load, "default")):
            ours, blind, fifo = (
                by.get((load, name, without)) for name in ("default", "least-attained", "fifo")
            )
            if ours and blind and fifo:
                means.append(f"{1 - ours['completionMean'] / blind['completionMean']:.1%}")
                waits.append(f"{ours['wideTotalWaitP99'] / fifo['wideTotalWaitP99']:.2f}")
        if means:
            told.append(
                f"load {load:g} again, each time without another fiftieth of the jobs: mean completion {', '.join(means)} shorter than "
                f"least-attained's, p99 wait of large jobs in all {', '.join(waits)} of FIFO's"
            )
    return told


def picture(path: Path, runs: Sequence[dict[str, Any]]) -> None:
    loads = sorted({run["load"] for run in runs})
    runs = [run for run in runs if run["without"] is None]
    names = [name for name in POLICIES if any(run["policy"] == name for run in runs)]
    by = {(run["load"], run["policy"]): run for run in runs}
    panels = (
        ("completionMean", "Mean completion"),
        ("completionP99", "Completion, p99"),
        ("wideFirstWaitP99", "8+ GPUs: first wait, p99"),
        ("wideTotalWaitP99", "8+ GPUs: total wait, p99"),
    )
    with draw.picture(path, len(panels), height=3.2, width=11.0) as drawn:
        for axes, (field, title) in zip(drawn, panels, strict=True):
            series = {
                name: [by.get((load, name), {}).get(field, 0.0) / 3600 for load in loads] for name in names
            }
            draw.bars(axes, [f"{load:g}" for load in loads], series)
            axes.set(title=title, xlabel="load", ylabel="hours" if field == panels[0][0] else "")
        draw.legend(drawn[0])


def main() -> None:
    parser = lab.options(__doc__ or "", JOBS, trace=True)
    parser.add_argument("--loads", default=",".join(map(str, LOADS)), help="with commas between")
    parser.add_argument("--policies", default=",".join(POLICIES), help="with commas between")
    parser.add_argument(
        "--without", default="", help=f"again without one job in {PART}: 0,1,2 (leaves the table alone)"
    )
    chosen = parser.parse_args()
    arrivals = lab.workload(chosen, PHILLY)
    where = lab.folder(chosen)
    path = where / f"policies.{lab.source(chosen)}.json"
    runs = {(run["load"], run["policy"], run["without"]): run for run in known(path, len(arrivals))}
    loads, names = map(float, chosen.loads.split(",")), chosen.policies.split(",")
    parts = [int(part) for part in chosen.without.split(",")] if chosen.without else [None]
    for load, name, without in itertools.product(loads, names, parts):
        run = once(arrivals, load, name, without)
        runs[load, name, without] = run
        print(
            f"load {load:g}  {name:16} {'' if without is None else f'without {without}  '}mean {lab.span(run['completionMean'])}  p99 {lab.span(run['completionP99'])}  ({run['wallSeconds']:.0f} s)",
            flush=True,
        )
        kept = ordered([*runs.values()])  # written after each, so that an interrupted evening is not lost
        where.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps({"runs": kept}, indent=1) + "\n")
    print()
    lab.publish(result(kept, lab.source(chosen)), where, lambda out: picture(out, kept))


if __name__ == "__main__":
    main()
