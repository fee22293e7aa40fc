"""(d) An elastic experiment gives way to a production job, and comes back.

    .venv/bin/python benchmarks/experiments/elastic.py

Expected: an experiment that can run with 50 to 100 GPUs has all 100 when a production job asks for 50. The experiment is
not stopped: it keeps 50, the production job starts at once, and when it has ended the experiment is back at 100.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import lab

from weft.model.gang import Request, Span
from weft.scheduler.policy import DEFAULT
from weft.scheduler.state import State
from weft.sim import draw
from weft.sim.clusterfile import equal_nodes
from weft.sim.engine import Simulation
from weft.sim.outcome import Outcome
from weft.sim.workload import Arrival, workers

NODES, GPUS = 25, 4
HOUR = 3600.0
LABEL = {"color": "white", "ha": "center", "va": "center", "fontweight": "bold"}
COMES, RUNS, WORK = 1 * HOUR, 2 * HOUR, 5 * HOUR
"""When the production job comes, how long it runs, and the experiment's work at full size."""


@dataclass
class Story:
    """GPUs of each job, second by second."""

    times: list[float]
    experiment: list[float]
    production: list[float]
    outcome: Outcome


def run() -> Story:
    full = workers([Request(2000, 0, 1)] * 100)
    elastic = replace(full, spans=(Span("worker", 50, 100, 100),))
    arrivals = [
        Arrival("experiment", 0.0, WORK, elastic),
        Arrival("production", COMES, RUNS, workers([Request(2000, 0, 1)] * 50), priority=100),
    ]
    times: list[float] = []
    sizes: dict[str, list[float]] = {"experiment": [], "production": []}

    def watch(when: float, state: State) -> None:
        times.append(when)
        for name, found in sizes.items():
            found.append(len(state.running[name].tasks) if name in state.running else 0)

    outcome = Simulation(equal_nodes(NODES, GPUS), arrivals, DEFAULT, sample=1.0, watch=watch).run()
    return Story(times, sizes["experiment"], sizes["production"], outcome)


def changes(story: Story) -> list[tuple[float, float, float]]:
    """Time, experiment, production: only where something changed."""
    rows = [*zip(story.times, story.experiment, story.production, strict=True)]
    return [row for place, row in enumerate(rows) if place == 0 or row[1:] != rows[place - 1][1:]]


def result(story: Story) -> lab.Result:
    records = {record.arrival.name: record for record in story.outcome.records}
    production, experiment = records["production"], records["experiment"]
    assert production.finished is not None
    assert experiment.completion is not None
    least = min(
        size for time, size in zip(story.times, story.experiment, strict=True) if COMES < time < COMES + RUNS
    )
    back = next(
        time
        for time, size in zip(story.times, story.experiment, strict=True)
        if time > production.finished and size == 100
    )
    rows = [
        ("production waited", lab.span(production.first_wait or 0.0)),
        ("experiment, GPUs while it ran", f"{least:.0f}"),
        ("experiment back at 100 GPUs after", lab.span(back - production.finished)),
        ("times the experiment was stopped", str(experiment.preemptions)),
        ("experiment completed after", f"{lab.span(experiment.completion)} (alone: {lab.span(WORK)})"),
    ]
    told = (
        f"Production started {lab.span(production.first_wait or 0.0)} after it came; the experiment kept {least:.0f} GPUs, "
        f"was never stopped ({experiment.preemptions} preemptions) and was back at 100 within {lab.span(back - production.finished)} "
        "of its end."
    )
    data = {
        "productionWaited": production.first_wait,
        "experimentLeast": least,
        "backAfter": round(back - production.finished, 1),
        "preemptions": experiment.preemptions,
        "experimentCompletion": round(experiment.completion, 1),
    }
    series = (("time", "experiment_gpus", "production_gpus"), [*changes(story)])
    expected = lab.docstring_part(__doc__, "Expected")
    return lab.Result("elastic", "generated", expected, told, ("", "came out"), rows, data, series)


def picture(path: Path, story: Story) -> None:
    with draw.picture(path) as (axes,):
        rows = [*changes(story), (story.outcome.usage.at, 0.0, 0.0)]
        hours = [time / HOUR for time, _, _ in rows]
        series = {
            "experiment (50 to 100 GPUs)": [row[1] for row in rows],
            "production": [row[2] for row in rows],
        }
        draw.stacked(axes, hours, series)
        axes.axhline(100, color="#9ca3af", linewidth=0.8)
        axes.set(
            title="GPUs of two jobs on a cluster of 100", xlabel="hours", ylabel="GPUs in use", ylim=(0, 108)
        )
        axes.text(0.5, 50, "has 100", **LABEL)
        axes.text(2, 25, "keeps 50", **LABEL)
        axes.text(2, 75, "gets 50 at once", **LABEL)
        axes.text(4.5, 50, "back to 100", **LABEL)
        draw.legend(axes)


def main() -> None:
    lab.options(__doc__ or "").parse_args()
    story = run()
    lab.publish(result(story), lab.RESULTS, lambda path: picture(path, story))


if __name__ == "__main__":
    main()
