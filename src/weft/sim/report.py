"""What a comparison of policies leaves behind: JSON, CSV and pictures in a folder."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from weft.sim import draw
from weft.sim.metrics import Metrics, fairness
from weft.sim.outcome import Outcome

SUMMARY = "summary.json"


def write_numbers(
    folder: Path, about: Mapping[str, Any], outcomes: Mapping[str, Outcome], metrics: Mapping[str, Metrics]
) -> None:
    """summary.json and .csv for all policies; jobs-POLICY.csv and samples-POLICY.csv for each."""
    folder.mkdir(parents=True, exist_ok=True)
    document = {**about, "policies": {name: dump(found) for name, found in metrics.items()}}
    (folder / SUMMARY).write_text(json.dumps(document, indent=1, ensure_ascii=False) + "\n")
    flat = {name: dict(_flat(dump(found))) for name, found in metrics.items()}
    titles = list(next(iter(flat.values()), {}))
    write_csv(
        folder / "summary.csv",
        ("metric", *flat),
        ([title, *(flat[name][title] for name in flat)] for title in titles),
    )
    for name, outcome in outcomes.items():
        write_csv(folder / f"jobs-{name}.csv", JOB_COLUMNS, _jobs(outcome))
        write_csv(folder / f"samples-{name}.csv", SAMPLE_COLUMNS, _samples(outcome))


JOB_COLUMNS = (
    "job", "owner", "queue", "gpus", "submitted", "started", "finished", "seconds",
    "waited", "preemptions", "moves", "failures", "resizes", "nodes", "lost_gpu_seconds", "fairness",
)  # fmt: skip
SAMPLE_COLUMNS = (
    "time",
    "gpus_used",
    "gpus_wanted",
    "waiting",
    "running",
    "gpus_stranded",
    "gpus_deadlocked",
    "gpus_down",
)


def _jobs(outcome: Outcome) -> Iterable[Sequence[Any]]:
    for record in outcome.records:
        a = record.arrival
        yield (
            a.name, a.owner, a.queue, a.gang.gpus, a.time, record.started, record.finished, a.seconds,
            record.waited, record.preemptions, record.moves, record.failures, record.resizes, record.nodes, record.lost,
            fairness(record) if record.finished is not None else None,
        )  # fmt: skip


def _samples(outcome: Outcome) -> Iterable[Sequence[Any]]:
    for s in outcome.samples:
        yield (s.time, s.gpus_used, s.gpus_wanted, s.waiting, s.running, s.stranded, s.deadlocked, s.down)


def write_csv(path: Path, titles: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(titles)
        writer.writerows([_cell(cell) for cell in row] for row in rows)


def _cell(value: Any) -> Any:
    return f"{value:.10g}" if isinstance(value, float) else "" if value is None else value


def dump(metrics: Metrics) -> dict[str, Any]:
    """With names as JSON has them, and no more digits than mean something."""

    def tidy(value: Any) -> Any:
        if isinstance(value, dict):
            return {_camel(str(key)): tidy(inner) for key, inner in value.items()}
        return float(f"{value:.6g}") if isinstance(value, float) else value

    found: dict[str, Any] = tidy(asdict(metrics))
    return found


def _camel(name: str) -> str:
    first, *others = name.split("_")
    return first + "".join(word.capitalize() for word in others)


def _flat(document: Mapping[str, Any], path: str = "") -> Iterable[tuple[str, Any]]:
    for key, value in document.items():
        place = f"{path}.{key}" if path else key
        if isinstance(value, Mapping):
            yield from _flat(value, place)
        else:
            yield place, value


# ── pictures ──


def draw_all(folder: Path, outcomes: Mapping[str, Outcome], metrics: Mapping[str, Metrics]) -> list[str]:
    """The names of the pictures, each there as .svg and .png."""
    _completion(folder / "completion", outcomes)
    _queueing(folder / "queueing", metrics)
    _over_time(folder / "gpus", outcomes)
    return ["completion", "queueing", "gpus"]


def _completion(path: Path, outcomes: Mapping[str, Outcome]) -> None:
    with draw.picture(path, 2) as (left, right):
        done = {
            name: [r.completion or 0.0 for r in o.records if r.finished is not None]
            for name, o in outcomes.items()
        }
        draw.cdf(left, {name: values for name, values in done.items() if values}, log=True)
        left.set(title="Completed after", xlabel="time from submitted to finished", ylabel="jobs")
        draw.durations(left)
        draw.legend(left)
        waits = {name: [r.waited for r in o.records if r.started is not None] for name, o in outcomes.items()}
        draw.cdf(right, {name: values for name, values in waits.items() if values}, log=True)
        right.set(title="Waited in all", xlabel="time in the queue (1 s or less at the left edge)")
        draw.durations(right)


def _queueing(path: Path, metrics: Mapping[str, Metrics]) -> None:
    with draw.picture(path, 2) as (left, right):
        classes = list(next(iter(metrics.values())).queueing)
        for axes, which, title in ((left, "mean", "Mean wait"), (right, "p99", "Wait of the unluckiest 1 %")):
            series = {
                name: [max(getattr(found.queueing[size].total, which), 1.0) for size in classes]
                for name, found in metrics.items()
            }
            draw.bars(
                axes, [size.replace(" GPUs", "").replace(" GPU or less", "") for size in classes], series
            )
            axes.set_yscale("log")
            axes.set_ylim(bottom=1.0)
            draw.durations(axes, on_x=False)
            axes.set(title=title, xlabel="GPUs a job")
        draw.legend(left)


def _over_time(path: Path, outcomes: Mapping[str, Outcome]) -> None:
    with draw.picture(path, 2) as (left, right):
        end = max(outcome.arriving.at for outcome in outcomes.values())
        begin = min(outcome.arriving.begun for outcome in outcomes.values())
        used, waiting = {}, {}
        for name, outcome in outcomes.items():
            samples = [sample for sample in outcome.samples if sample.time <= end]
            days = [(sample.time - begin) / 86400 for sample in samples]
            used[name] = (days, [sample.gpus_used for sample in samples])
            waiting[name] = (days, [sample.gpus_wanted for sample in samples])
        draw.steps(left, used)
        left.axhline(next(iter(outcomes.values())).gpus, color="#9ca3af", linewidth=0.8)
        left.set(title="GPUs in use", xlabel="days, while jobs arrive", ylabel="GPUs")
        left.set_ylim(bottom=0)
        draw.steps(right, waiting)
        right.set(title="GPUs that waiting jobs ask for", xlabel="days, while jobs arrive")
        right.set_ylim(bottom=0)
        draw.legend(left)
