"""(a) Jobs queued over 15 minutes, day by day over 60 days: PACK against SPREAD.

    .venv/bin/python benchmarks/experiments/pack_spread.py [--trace philly.csv] [--jobs N]

Expected: with SPREAD (the habit of the Kubernetes scheduler) small jobs leave a few free GPUs on every node and none
for a job of 8, so that on bad days at least three times as many jobs are queued over 15 minutes as with PACK (FfDL,
Jayaram et al., Middleware 2019).

Only the placement differs. The order is FIFO, strict (as in FfDL) and with backfill; the load is one at which a job
queues because of where GPUs are free (0.5), and one at which it queues because too few are (0.75). Generated: three
times 60 days of the gang mix, since a few jobs that run for weeks decide much of one. Of a trace, its busiest 60 days.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import lab

from weft.model.job import Strategy
from weft.scheduler.policy import NAMED
from weft.sim import draw
from weft.sim.clusterfile import equal_nodes
from weft.sim.engine import Simulation
from weft.sim.generate import GANGS, generate
from weft.sim.metrics import measure, queued_long, spread
from weft.sim.outcome import Outcome
from weft.sim.workload import Arrival, nodes_for, with_strategy

DAY = 86400.0
DAYS = 60
JOBS = round(DAYS * DAY / GANGS.gap)
LOADS = (0.5, 0.75)
ORDERS = ("fifo", "fifo-backfill")
STRATEGIES = (Strategy.PACK, Strategy.SPREAD)
WORST = 10
"""Days of sixty that count as bad."""
SEEDS = 3


def busiest(arrivals: Sequence[Arrival], days: int) -> list[Arrival]:
    """The days in a row in which most GPU time was asked for."""
    last = int(max(arrival.time for arrival in arrivals) // DAY)
    work = [0.0] * (last + 1)
    for arrival in arrivals:
        work[int(arrival.time // DAY)] += arrival.work
    first = max(range(max(1, last + 2 - days)), key=lambda day: sum(work[day : day + days]))
    return [arrival for arrival in arrivals if first * DAY <= arrival.time < (first + days) * DAY]


def run(arrivals: Sequence[Arrival], load: float, order: str) -> dict[str, Outcome]:
    nodes = equal_nodes(nodes_for(arrivals, load))
    return {
        strategy.value: Simulation(nodes, with_strategy(arrivals, strategy), NAMED[order]).run()
        for strategy in STRATEGIES
    }


def by_day(outcome: Outcome) -> list[tuple[int, int]]:
    """Of each day: jobs submitted, and how many of them were queued over 15 minutes."""
    begin = outcome.records[0].arrival.time
    days: dict[int, tuple[int, int]] = {}
    for record in outcome.records:
        day = int((record.arrival.time - begin) // DAY)
        jobs, long = days.get(day, (0, 0))
        days[day] = (jobs + 1, long + queued_long(record))
    return [days.get(day, (0, 0)) for day in range(max(days) + 1)]


def share(day: tuple[int, int]) -> float:
    return day[1] / day[0] if day[0] else 0.0


def compared(runs: Sequence[dict[str, Outcome]]) -> dict[str, Any]:
    """All runs (of several seeds) together; of days, those of each run."""
    records = {name: [record for run in runs for record in run[name].records] for name in ("pack", "spread")}
    metrics = {name: [measure(run[name]) for run in runs] for name in records}
    days = {name: [day for run in runs for day in by_day(run[name])] for name in records}
    worst = sorted(range(len(days["spread"])), key=lambda day: -days["spread"][day][1])[: WORST * len(runs)]
    bad = {name: sum(found[day][1] for day in worst) for name, found in days.items()}
    long = {name: sum(map(queued_long, found)) / len(found) for name, found in records.items()}
    wide = {
        name: spread(r.first_wait or 0.0 for r in found if r.arrival.gang.gpus >= 8)
        for name, found in records.items()
    }
    return {
        "runs": len(runs),
        "jobs": len(records["pack"]),
        "gpus": [run["pack"].gpus for run in runs],
        "queuedLong": {name: round(share, 6) for name, share in long.items()},
        "ratio": times(long["spread"], long["pack"]),
        "ratioOfEachRun": [
            times(b.queued_long, a.queued_long)
            for a, b in zip(metrics["pack"], metrics["spread"], strict=True)
        ],
        "queuedLongWorstDays": bad,
        "ratioWorstDays": times(bad["spread"], bad["pack"]),
        "wideWaitMean": {name: round(found.mean) for name, found in wide.items()},
        "wideWaitP99": {name: round(found.p99) for name, found in wide.items()},
        "stranded": {
            name: round(sum(m.stranded for m in found) / len(found), 4) for name, found in metrics.items()
        },
        "allocated": {
            name: round(sum(m.allocated for m in found) / len(found), 4) for name, found in metrics.items()
        },
        "days": days,
    }


def times(more: float, less: float) -> float | None:
    """None: there are none to compare with."""
    return round(more / less, 2) if less else None


def shown(ratio: float | None) -> str:
    return "PACK had none" if ratio is None else f"{ratio:.1f}"


def told_of(n: dict[str, Any]) -> str:
    pack, spread_ = n["queuedLong"]["pack"], n["queuedLong"]["spread"]
    worst = n["ratioWorstDays"]
    on_worst = (
        "where PACK had none" if worst is None else f"{worst:.1f} times on its worst days, ten of sixty"
    )
    return f"{shown(n['ratio'])} times as many jobs ({spread_:.2%} against {pack:.2%}; {on_worst})"


def result(found: dict[tuple[float, str], dict[str, Any]], source: str) -> lab.Result:
    rows, series = [], []
    for (load, order), n in found.items():
        long, bad, mean, stranded = (
            n[key] for key in ("queuedLong", "queuedLongWorstDays", "wideWaitMean", "stranded")
        )
        rows.append((
            f"{load:g}", order, f"{long['pack']:.2%}", f"{long['spread']:.2%}", shown(n["ratio"]), f"{bad['pack']:,}",
            f"{bad['spread']:,}", shown(n["ratioWorstDays"]), lab.span(mean["pack"]), lab.span(mean["spread"]),
            f"{stranded['pack']:.1%}", f"{stranded['spread']:.1%}",
        ))  # fmt: skip
        packed, spread_ = n["days"]["pack"], n["days"]["spread"]
        series += [
            (load, order, day, packed[day][0], packed[day][1], spread_[day][1]) for day in range(len(packed))
        ]
    fifo, backfill = (found[LOADS[0], order] for order in ORDERS)
    high = found[LOADS[1], ORDERS[1]]
    told = (
        f"At load {LOADS[0]:g}, SPREAD had {told_of(fifo)} under strict FIFO and {told_of(backfill)} with backfill queued over "
        f"15 minutes. At load {LOADS[1]:g} with backfill: {told_of(high)}."
    )
    titles = (
        "load", "order", "queued > 15 min: PACK", "SPREAD", "times", "on SPREAD's worst days: PACK", "SPREAD", "times",
        "8+ GPUs wait, mean: PACK", "SPREAD", "GPUs stranded: PACK", "SPREAD",
    )  # fmt: skip
    kept = {
        f"{load:g} {order}": {k: v for k, v in n.items() if k != "days"} for (load, order), n in found.items()
    }
    columns = ("load", "order", "day", "jobs", "queued_long_pack", "queued_long_spread")
    expected = lab.docstring_part(__doc__, "Expected")
    return lab.Result("pack_spread", source, expected, told, titles, rows, {"runs": kept}, (columns, series))


def picture(path: Path, found: dict[tuple[float, str], dict[str, Any]]) -> None:
    with draw.picture(path, 2, width=9.0) as panels:
        for axes, order in zip(panels, ORDERS, strict=True):
            days = found[LOADS[0], order]["days"]
            count = min(len(days["pack"]), DAYS)
            shares = {name.upper(): [share(day) for day in days[name][:count]] for name in ("pack", "spread")}
            draw.bars(axes, [str(day) for day in range(count)], shares)
            axes.set_xticks(range(0, count + 1, 10), [str(day) for day in range(0, count + 1, 10)])
            draw.percent(axes.yaxis)
            axes.set(title=f"Queued over 15 minutes: {order}", xlabel=f"day, load {LOADS[0]:g}")
        panels[0].set_ylabel("of the day's jobs")
        draw.legend(panels[0])


def main() -> None:
    chosen = lab.options(__doc__ or "", JOBS, trace=True).parse_args()
    if chosen.trace is not None:
        workloads = [busiest(lab.workload(chosen, GANGS), DAYS)]
    else:
        workloads = [generate(GANGS, chosen.jobs or JOBS, chosen.seed + number) for number in range(SEEDS)]
    found = {
        (load, order): compared([run(arrivals, load, order) for arrivals in workloads])
        for load in LOADS
        for order in ORDERS
    }
    lab.publish(result(found, lab.source(chosen)), lab.folder(chosen), lambda path: picture(path, found))


if __name__ == "__main__":
    main()
