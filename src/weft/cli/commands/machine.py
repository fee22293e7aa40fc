"""`weft nodes`, `queue`, `top`, `jobtypes` and `schema`: what there is to run on, and how it is used."""

from __future__ import annotations

import sys
import time
from typing import Any

from weft.cli import moments, terminal
from weft.cli.output import ListForm, print_table, print_whole
from weft.cli.table import Column, render
from weft.client.api import Client
from weft.client.errors import NoServer, WeftError

NODES = (
    Column("NODE"),
    Column("CPU FREE", right=True),
    Column("MEMORY FREE", right=True),
    Column("GPU FREE", right=True),
    Column("GPU TYPE"),
    Column("TASKS", right=True),
    Column("NOTES", flexible=True),
)
QUEUE = (
    Column("#", right=True),
    Column("JOB"),
    Column("QUEUE"),
    Column("PRIORITY", right=True),
    Column("WAITED", right=True),
    Column("NEEDS"),
    Column("REASON", flexible=True),
)
TOP = (
    Column("JOB"),
    Column("TASK"),
    Column("NODE"),
    Column("PID", right=True),
    Column("CPU", right=True),
    Column("OF", right=True),
    Column("MEMORY", right=True),
    Column("OF", right=True),
    Column("GPUS"),
)


def nodes(*, output: ListForm = None) -> int:
    """The nodes, what they have and what is free.

    Parameters
    ----------
    output
        json, yaml or wide (with labels and tasks).
    """
    items = Client().nodes()
    if output in ("json", "yaml"):
        print_whole({"items": items}, str(output))
        return 0
    wide = output == "wide"
    columns = (*NODES[:-1], Column("LABELS"), Column("RUNNING"), NODES[-1]) if wide else NODES
    print_table(columns, [_node(item, wide) for item in items])
    terminal.next_step("weft top", "weft queue")
    return 0


def _node(item: dict[str, Any], wide: bool) -> list[str]:
    capacity, free = item["capacity"], item["free"]
    notes = item.get("notes") or []
    notes = [notes] if isinstance(notes, str) else list(notes)
    if item.get("schedulable") is False:
        notes.insert(0, "not schedulable")
    row = [
        item["name"],
        f"{_cpus(free.get('cpu'))} of {_cpus(capacity.get('cpu'))}",
        f"{_memory(free.get('memory'))} of {_memory(capacity.get('memory'))}",
        f"{free.get('gpu') or 0} of {capacity.get('gpu') or 0}",
        capacity.get("gpuType") or "-",
        str(len(item.get("tasks") or ())),
    ]
    if wide:
        row += [
            ",".join(f"{name}={value}" for name, value in (item.get("labels") or {}).items()),
            " ".join(f"{task['job']}/{task['task']}" for task in item.get("tasks") or ()),
        ]
    return [*row, "; ".join(map(str, notes))]


def queue(*, output: ListForm = None) -> int:
    """What waits, in the order in which it will start, and why it waits.

    Parameters
    ----------
    output
        json, yaml or wide.
    """
    items = Client().queue()
    if output in ("json", "yaml"):
        print_whole({"items": items}, str(output))
        return 0
    rows = [
        [
            str(item["position"]),
            item["name"],
            item.get("queue") or "",
            str(item.get("priority", 0)),
            moments.span(item.get("waited")),
            _needs(item.get("needs")),
            item.get("reason") or "",
        ]
        for item in items
    ]
    print_table(QUEUE, rows)
    if items:
        terminal.next_step(f"weft explain {items[0]['name']}")
    else:
        terminal.note("nothing waits")
        terminal.next_step("weft ls", "weft top")
    return 0


def top(*, watch: bool = False, output: ListForm = None) -> int:
    """What running tasks use: CPUs, memory and GPUs, next to what they may use.

    For example:
      weft top --watch

    Parameters
    ----------
    watch
        Show it again every second, until Ctrl-C.
    output
        json, yaml or wide.
    """
    client = Client()
    if output in ("json", "yaml"):
        print_whole({"items": client.top()}, str(output))
        return 0
    while True:
        items = client.top()
        text = render(
            TOP,
            [_usage(item) for item in items],
            width=terminal.width(),
            colour=terminal.colours(sys.stdout),
        )
        if not watch:
            print(text)
            if not items:
                terminal.note("nothing runs")
            terminal.next_step(
                *([f"weft show {items[0]['job']}", "weft top --watch"] if items else ["weft ls"])
            )
            return 0
        clear = "\x1b[H\x1b[2J" if sys.stdout.isatty() else ""
        print(f"{clear}{text}", flush=True)
        time.sleep(1.0)


def _usage(item: dict[str, Any]) -> list[str]:
    cpu = item.get("cpu")
    return [
        item["job"],
        item["task"],
        item.get("node") or "-",
        str(item.get("pid") or "-"),
        "-" if cpu is None else f"{cpu:.2f}",
        _cpus(item.get("cpuLimit")),
        moments.size(item.get("memory")),
        _memory(item.get("memoryLimit")),
        _few(item.get("gpus")),
    ]


def jobtypes(*, output: ListForm = None) -> int:
    """The job types that there are: templates that give a job its roles and its environment.

    Parameters
    ----------
    output
        json, yaml or wide.
    """
    items = Client().job_types()
    if output in ("json", "yaml"):
        print_whole({"items": items}, str(output))
        return 0
    rows = [[item["name"], str(item.get("description") or "")] for item in items]
    print_table((Column("TYPE"), Column("DESCRIPTION", flexible=True)), rows)
    terminal.next_step("weft run --type TYPE ...")
    return 0


def schema(kind: str = "TrainingJob", /, *, output: ListForm = None) -> int:
    """The JSON Schema of a kind, for editors: they then complete and check job files.

    For example:
      weft schema > weft.schema.json

    Parameters
    ----------
    kind
        TrainingJob.
    output
        json (default) or yaml.
    """
    try:
        found = Client().schema(kind)
    except NoServer:
        found = _own_schema(kind)
    print_whole(found, "yaml" if output == "yaml" else "json")
    if output is None:
        terminal.next_step("weft schema > weft.schema.json", "weft run job.yaml --dry-run")
    return 0


def _own_schema(kind: str) -> dict[str, Any]:
    """No server runs: the models of this installation say the same."""
    from weft.model.job import TrainingJob

    if kind != "TrainingJob":
        raise WeftError(f"no kind {kind}", "there is only TrainingJob", "weft schema TrainingJob")
    return TrainingJob.model_json_schema(by_alias=True)


def _cpus(value: object) -> str:
    return f"{value:g}" if isinstance(value, (int, float)) else str(value) if value else "-"


def _memory(value: object) -> str:
    return moments.size(value) if isinstance(value, (int, float)) and value else str(value) if value else "-"


def _needs(value: object) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{amount} {name}" for name, amount in value.items() if amount)
    return "" if value is None else str(value)


def _few(value: object) -> str:
    return ",".join(map(str, value)) if isinstance(value, list) else str(value or "-")
