"""`weft metrics`."""

from __future__ import annotations

import shutil
import sys
from typing import Annotated, Any

from cyclopts import Parameter

from weft.cli import moments, terminal
from weft.cli.output import ListForm, print_table, print_whole
from weft.cli.plot import plot as draw
from weft.cli.table import Column
from weft.client.api import Client

COLUMNS = (
    Column("METRIC"),
    Column("LAST", right=True),
    Column("MIN", right=True),
    Column("MAX", right=True),
    Column("STEP", right=True),
    Column("POINTS", right=True),
    Column("TASKS", right=True),
)


def metrics(
    job: str,
    /,
    *,
    plot: bool = False,
    name: str | None = None,
    follow: Annotated[bool, Parameter(name=["--follow", "-f"])] = False,
    output: ListForm = None,
) -> int:
    """A job's metrics as a table, a curve or a stream.

    For example:
      weft metrics mnist-3
      weft metrics mnist-3 --plot --name loss
      weft metrics mnist-3 -f

    Parameters
    ----------
    job
        The job's name.
    plot
        Draw a curve for each metric.
    name
        Only this metric.
    follow
        Print points as they are logged, until the job has ended.
    output
        json or yaml: all points; wide: one row for each task.
    """
    client = Client()
    if follow:
        for batch in client.follow_metrics(job, name):
            print("\n".join(map(_line, batch)), flush=True)
        terminal.next_step(f"weft show {job}")
        return 0
    points = client.metrics(job, name)
    if output in ("json", "yaml"):
        print_whole({"items": points}, str(output))
    elif not points:
        terminal.note(f"no metrics{f' named {name}' if name else ''} yet")
        terminal.next_step("in the script: import weft; weft.log(step=1, loss=0.5)")
    elif plot:
        print("\n\n".join(_curve(metric, series) for metric, series in _by(points, "name").items()))
        terminal.next_step(f"weft show {job}")
    else:
        groups = _by(points, "name", "task") if output == "wide" else _by(points, "name")
        columns = (*COLUMNS[:-1], Column("TASK")) if output == "wide" else COLUMNS
        print_table(columns, [_row(series, output == "wide") for series in groups.values()])
        terminal.next_step(f"weft metrics {job} --plot")
    return 0


def _by(points: list[dict[str, Any]], *keys: str) -> dict[Any, list[dict[str, Any]]]:
    groups: dict[Any, list[dict[str, Any]]] = {}
    for point in points:
        group = point[keys[0]] if len(keys) == 1 else tuple(point[key] for key in keys)
        groups.setdefault(group, []).append(point)
    return groups


def _row(series: list[dict[str, Any]], by_task: bool) -> list[str]:
    values = [point["value"] for point in series if point["value"] == point["value"]] or [float("nan")]
    last = series[-1]
    tasks = {point["task"] for point in series}
    return [
        last["name"],
        moments.number(last["value"]),
        moments.number(min(values)),
        moments.number(max(values)),
        "-" if last["step"] is None else str(last["step"]),
        str(len(series)),
        last["task"] if by_task else str(len(tasks)),
    ]


def _line(point: dict[str, Any]) -> str:
    step = "" if point["step"] is None else f" step {point['step']}"
    value = f"{point['name']}={moments.number(point['value'])}"
    return f"{moments.clock(point['time'])} {point['task']}{step} {value}"


def _curve(metric: str, series: list[dict[str, Any]]) -> str:
    """By step where every point has one, else by seconds since the first."""
    stepped = all(point["step"] is not None for point in series)
    begin = series[0]["time"]
    points = [(float(p["step"] if stepped else p["time"] - begin), float(p["value"])) for p in series]
    tasks = sorted({point["task"] for point in series})
    of = tasks[0] if len(tasks) == 1 else f"{len(tasks)} tasks"
    columns = shutil.get_terminal_size().columns if sys.stdout.isatty() else 80
    return draw(
        points,
        title=terminal.safe(f"{metric} ({of}, last {moments.number(series[-1]['value'])})"),
        across="step" if stepped else "seconds",
        up=terminal.safe(metric),
        width=min(columns, 120),
    )
