"""`weft nodes`, `top`, `jobtypes` and `schema`: what there is to run on, and how it is used."""

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
WIDE = (
    "GPU MEMORY", "GENERATION", "NUMA", "RACK", "FABRIC", "DEVICES FREE", "SPLIT GPUS", "TAINTS", "LABELS", "RUNNING",
)  # fmt: skip
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
        json, yaml or wide (with memory and generation of GPUs, NUMA groups, racks, fabrics, devices, split GPUs,
        taints, labels and tasks).
    """
    items = Client().nodes()
    if output in ("json", "yaml"):
        print_whole({"items": items}, str(output))
        return 0
    wide = output == "wide"
    columns = (*NODES[:-1], *map(Column, WIDE), NODES[-1]) if wide else NODES
    print_table(columns, [_node(item, wide) for item in items])
    closed = [item["name"] for item in items if item.get("cordon")]
    terminal.next_step("weft top", "weft queue", *(f"weft nodes uncordon {name}" for name in closed[:1]))
    return 0


def _node(item: dict[str, Any], wide: bool) -> list[str]:
    capacity, free = item["capacity"], item["free"]
    row = [
        item["name"],
        f"{_cpus(free.get('cpu'))} of {_cpus(capacity.get('cpu'))}",
        f"{_memory(free.get('memory'))} of {_memory(capacity.get('memory'))}",
        f"{free.get('gpu') or 0:g} of {capacity.get('gpu') or 0}",
        capacity.get("gpuType") or "-",
        str(len(item.get("tasks") or ())),
    ]
    if wide:
        devices, left = capacity.get("devices") or {}, free.get("devices") or {}
        split = item.get("splitGpus") or {}
        row += [
            _memory(capacity.get("gpuMemory")),
            str(capacity.get("gpuGeneration") or "-"),
            " ".join(map(_cpu_ids, item.get("numa") or ())) or "-",
            item.get("rack") or "-",
            item.get("fabric") or "-",
            ", ".join(f"{left.get(name, 0)} of {count} {name}" for name, count in devices.items()) or "-",
            ", ".join(f"{index}: {part:g} free" for index, part in split.items()) or "-",
            ",".join(item.get("taints") or ()) or "-",
            ",".join(f"{name}={value}" for name, value in (item.get("labels") or {}).items()),
            " ".join(f"{task['job']}/{task['task']}" for task in item.get("tasks") or ()),
        ]
    return [*row, "; ".join(_notes(item, wide))]


def _notes(item: dict[str, Any], wide: bool) -> list[str]:
    """Who may come here, and then what the engine has to say."""
    notes = []
    if cordon := item.get("cordon"):
        why = f": {cordon['reason']}" if cordon.get("reason") else ""
        notes.append(f"{'lost' if cordon.get('lost') else 'cordoned'}{why}")
    elif item.get("schedulable") is False:
        notes.append("not schedulable")
    if (taints := item.get("taints")) and not wide:
        notes.append(f"only for jobs that tolerate {', '.join(taints)}")
    engine = item.get("notes") or []
    return [*notes, *([engine] if isinstance(engine, str) else map(str, engine))]


def _cpu_ids(cpus: list[int]) -> str:
    """0, 1, 2, 3, 8 → `0-3,8`."""
    spans: list[list[int]] = []
    for cpu in cpus:
        if spans and spans[-1][1] == cpu - 1:
            spans[-1][1] = cpu
        else:
            spans.append([cpu, cpu])
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in spans)


def top(*, watch: bool = False, output: ListForm = None) -> int:
    """What running tasks use: CPUs, memory and GPUs, next to what they may use.

    For example:
      weft top --watch

    Parameters
    ----------
    watch
        Show it again every second, until Ctrl-C.
    output
        json, yaml or wide (with the rack).
    """
    client = Client()
    if output in ("json", "yaml"):
        print_whole({"items": client.top()}, str(output))
        return 0
    wide = output == "wide"
    columns = (*TOP, Column("RACK")) if wide else TOP
    while True:
        items = client.top()
        text = render(
            columns,
            [[*_usage(item), *([item.get("rack") or "-"] if wide else [])] for item in items],
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
        _few(item.get("gpus")) + (f" ({share:g})" if (share := item.get("gpuShare")) else ""),
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
    rows = [
        [
            item["metadata"]["name"],
            ", ".join(item["spec"].get("roles", ())),
            str(item["spec"].get("description") or ""),
        ]
        for item in items
    ]
    print_table((Column("TYPE"), Column("ROLES"), Column("DESCRIPTION", flexible=True)), rows)
    terminal.next_step("weft show jobtype TYPE", "weft run --type TYPE ...")
    return 0


def schema(kind: str = "TrainingJob", /, *, output: ListForm = None) -> int:
    """The JSON Schema of a kind, for editors: they then complete and check job files.

    For example:
      weft schema > weft.schema.json
      weft schema Queue
      weft schema JobType
      weft schema Size

    Parameters
    ----------
    kind
        TrainingJob (default), Queue, JobType, Size, Cluster or Dataset.
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
    from weft.model.cluster import Cluster
    from weft.model.dataset import Dataset
    from weft.model.job import TrainingJob
    from weft.model.jobtype import JobType
    from weft.model.queue import Queue
    from weft.model.sizes import Size

    models = {model.__name__: model for model in (TrainingJob, Queue, JobType, Size, Cluster, Dataset)}
    if kind not in models:
        raise WeftError(f"no kind {kind}", f"the kinds are {', '.join(models)}", "weft schema TrainingJob")
    return models[kind].model_json_schema(by_alias=True)


def _cpus(value: object) -> str:
    return f"{value:g}" if isinstance(value, (int, float)) else str(value) if value else "-"


def _memory(value: object) -> str:
    return moments.size(value) if isinstance(value, (int, float)) and value else str(value) if value else "-"


def _few(value: object) -> str:
    return ",".join(map(str, value)) if isinstance(value, list) else str(value or "-")
