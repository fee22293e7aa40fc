"""(f) What it costs to bound how long a job waits in all, with what comes after it gave way.

    .venv/bin/python benchmarks/experiments/bounds.py [--trace philly.csv] [--jobs N] [--load 0.8]

Expected: a large job that has run for a while gives way to every shorter one, so that orders with a short mean let a few
large jobs wait for long in all. A bound on that (`Policy.bound_again`: who has waited longer goes first and then runs to
its end, in at most the part `settled` of the cluster) shortens the longest waits and lengthens the mean. FIFO, which lets
everyone wait alike, has the shortest longest wait and by far the longest mean.

Policies without such a bound are not simulated again where `policies.py` has done so.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import lab

from weft.scheduler.policy import DEFAULT, NAMED, Policy
from weft.sim import draw
from weft.sim.clusterfile import equal_nodes
from weft.sim.engine import Simulation
from weft.sim.generate import PHILLY
from weft.sim.metrics import measure
from weft.sim.workload import Arrival, nodes_for

JOBS = 10_000
TICK = 30.0
DAY = 86_400.0
BOUNDS = ((20, 0.3), (5, 1.0))
"""Days, and the part of the cluster for those who have waited longer."""
UNBOUND = {"default": "default", "least-attained": "least attained", "fifo": "FIFO"}


def bounded() -> dict[str, Policy]:
    return {
        f"{days} days, {part:.0%}": replace(DEFAULT, bound_again=days * DAY, settled=part)
        for days, part in BOUNDS
    }


def once(arrivals: Sequence[Arrival], load: float, name: str, policy: Policy) -> dict[str, Any]:
    nodes = nodes_for(arrivals, load)
    found = measure(Simulation(equal_nodes(nodes), arrivals, policy, tick=TICK).run())
    return {
        "bound": name,
        "jobs": found.jobs,
        "completionMean": round(found.completion.mean, 1),
        "wideFirstWaitP99": round(found.wide.first.p99, 1),
        "wideTotalWaitMean": round(found.wide.total.mean, 1),
        "wideTotalWaitP99": round(found.wide.total.p99, 1),
    }


def known(where: Path, source: str, load: float, jobs: int) -> dict[str, dict[str, Any]]:
    """What `policies.py` found of the policies without a bound, by their names here."""
    path = where / f"policies.{source}.json"
    found = json.loads(path.read_bytes())["runs"] if path.exists() else []
    fields = ("jobs", "completionMean", "wideFirstWaitP99", "wideTotalWaitMean", "wideTotalWaitP99")
    return {
        UNBOUND[run["policy"]]: {"bound": UNBOUND[run["policy"]], **{field: run[field] for field in fields}}
        for run in found
        if run["policy"] in UNBOUND and run["load"] == load and run["jobs"] == jobs
    }


def result(runs: Sequence[dict[str, Any]], source: str, load: float) -> lab.Result:
    span = lab.span
    titles = (
        "bound, part of the cluster",
        "completion, mean",
        "8+ GPUs: first wait, p99",
        "total wait, mean",
        "p99",
    )
    rows = [
        (
            run["bound"], span(run["completionMean"]), span(run["wideFirstWaitP99"]), span(run["wideTotalWaitMean"]),
            span(run["wideTotalWaitP99"]),
        )
        for run in runs
    ]  # fmt: skip
    ours, fifo = runs[0], runs[-1]
    told = [
        f"{run['bound']}: mean {run['completionMean'] / ours['completionMean'] - 1:+.0%}, "
        f"longest waits {run['wideTotalWaitP99'] / ours['wideTotalWaitP99'] - 1:+.0%}"
        for run in runs[1:-2]
    ]
    reached = [run["bound"] for run in runs[1:-2] if run["wideTotalWaitP99"] <= fifo["wideTotalWaitP99"]]
    end = f"as short as FIFO's with {reached[0]}" if reached else "never as short as FIFO's"
    came_out = f"at load {load:g}, against the default: {'; '.join(told)}; {end}."
    series = (tuple(runs[0]), [tuple(run.values()) for run in runs])
    expected = lab.docstring_part(__doc__, "Expected")
    data = {"load": load, "runs": list(runs)}
    return lab.Result("bounds", source, expected, came_out, titles, rows, data, series)


def picture(path: Path, runs: Sequence[dict[str, Any]]) -> None:
    with draw.picture(path, 1, height=3.6, width=7.0) as [axes]:
        for run in runs:
            mean, wait = run["completionMean"] / 3600, run["wideTotalWaitP99"] / DAY
            axes.plot(mean, wait, "o")
            axes.annotate(run["bound"], (mean, wait), xytext=(6, 4), textcoords="offset points", fontsize=8)
        axes.set(
            xscale="log", xlabel="mean completion, hours", ylabel="8+ GPUs: total wait, p99, days",
            title="What a bound on waiting buys, and costs", ylim=(0, None),
        )  # fmt: skip
        axes.margins(x=0.25)


def main() -> None:
    parser = lab.options(__doc__ or "", JOBS, trace=True)
    parser.add_argument("--load", type=float, default=0.8)
    chosen = parser.parse_args()
    arrivals = lab.workload(chosen, PHILLY)
    where, source = lab.folder(chosen), lab.source(chosen)
    seen = known(where, source, chosen.load, len(arrivals))
    wanted = {
        "default": DEFAULT,
        **bounded(),
        "least attained": NAMED["least-attained"],
        "FIFO": NAMED["fifo"],
    }
    runs = []
    for name, policy in wanted.items():
        runs.append(seen.get(name) or once(arrivals, chosen.load, name, policy))
        mean, wait = runs[-1]["completionMean"], runs[-1]["wideTotalWaitP99"]
        print(f"{name:20} mean {lab.span(mean)}, large jobs' total wait p99 {lab.span(wait)}", flush=True)
    print()
    lab.publish(result(runs, source, chosen.load), where, lambda out: picture(out, runs))


if __name__ == "__main__":
    main()
