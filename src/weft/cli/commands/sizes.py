"""`weft sizes`: what the names of sizes stand for, and what would have been enough for a job."""

from __future__ import annotations

from typing import Any

from weft.cli import moments, terminal
from weft.cli.output import ListForm, PageForm, print_table, print_whole
from weft.cli.table import Column
from weft.client.api import Client
from weft.client.jobspec import BadOption

COLUMNS = (
    Column("SIZE"),
    Column("CPU", right=True),
    Column("MEMORY", right=True),
    Column("GPU", right=True),
    Column("GPU TYPE"),
    Column("FROM"),
)
WIDE = (*COLUMNS, Column("DECLARED"), Column("DESCRIPTION", flexible=True))
ROLES = (
    Column("ROLE"),
    Column("TASKS", right=True),
    Column("RAN", right=True),
    Column("CPU", right=True),
    Column("OF", right=True),
    Column("MEMORY", right=True),
    Column("OF", right=True),
    Column("ENOUGH"),
    Column("SIZE"),
)

Json = dict[str, Any]


def list_sizes(*, output: ListForm = None) -> int:
    """The sizes: what a job gets that asks for one of them, and who declared it.

    Of a size per GPU (NAME-N) the numbers are for each GPU.

    Parameters
    ----------
    output
        json, yaml or wide (with what each is for).
    """
    items = Client().sizes()
    if output in ("json", "yaml"):
        print_whole({"items": items}, str(output))
        return 0
    wide = output == "wide"
    print_table(WIDE if wide else COLUMNS, [_size(item, wide) for item in items])
    terminal.next_step("weft run --size SIZE ...", "weft sizes suggest JOB")
    return 0


def _size(item: Json, wide: bool) -> list[str]:
    metadata, spec, status = item["metadata"], item["spec"], item.get("status") or {}
    each = bool(spec.get("perGpu"))
    instead = " (in place of Weft's)" if status.get("overrides") else ""
    row = [
        f"{metadata['name']}{'-N' * each}",
        _number(spec.get("cpu")),
        str(spec.get("memory") or "-"),
        "N" if each else _number(spec.get("gpu")),
        spec.get("gpuType") or "-",
        "Weft" if status.get("builtIn") else f"{metadata.get('owner') or 'operator'}{instead}",
    ]
    return [*row, moments.clock(metadata.get("created")), str(spec.get("description") or "")] if wide else row


def set_size(
    name: str,
    /,
    *,
    cpu: str | None = None,
    memory: str | None = None,
    gpu: str | None = None,
    gpu_type: str | None = None,
    per_gpu: bool = False,
    description: str | None = None,
) -> int:
    """Declare a size, or change one, also one that comes with Weft. What is left out stays as it is.

    Jobs that exist keep the numbers that they were submitted with.

    For example:
      weft sizes set a100 --cpu 12 --memory 96Gi --gpu-type a100 --per-gpu
      weft sizes set small --memory 4Gi

    Parameters
    ----------
    name
        The size's name.
    cpu
        CPUs of each task: 2, 0.5.
    memory
        Memory of each task: 4Gi.
    gpu
        GPUs of each task.
    gpu_type
        Only GPUs of this type.
    per_gpu
        CPU and memory are for each GPU: jobs ask for NAME-1, NAME-2 and so on.
    description
        What it is for.
    """
    options = {"cpu": cpu, "memory": memory, "gpu": gpu, "gpuType": gpu_type, "description": description}
    given: Json = {field: value for field, value in options.items() if value is not None}
    given |= {"perGpu": True} if per_gpu else {"perGpu": False} if gpu is not None else {}
    if not given:
        raise BadOption("say what the size stands for: --cpu, --memory, --gpu, --gpu-type (weft sizes)")
    client = Client()
    before = next((item for item in client.sizes() if item["metadata"]["name"] == name), None)
    old: Json = before["spec"] if before else {}
    spec = {**old, **given}
    if per_gpu and gpu is None:
        spec.pop("gpu", None)  # whoever asks says how many
    kept = client.put_size({"kind": "Size", "metadata": {"name": name}, "spec": spec})
    done = "declared" if before is None else "unchanged" if kept["spec"] == old else "changed"
    print(f"size/{name} {done}")
    terminal.next_step(f"weft run --size {name}{'-1' * bool(kept['spec'].get('perGpu'))} ...", "weft sizes")
    return 0


def remove_sizes(*names: str) -> int:
    """Delete sizes. One that comes with Weft is as it was again; jobs that exist keep their numbers.

    For example:
      weft sizes rm a100

    Parameters
    ----------
    names
        Names of sizes.
    """
    if not names:
        raise BadOption("name at least one size (weft sizes)")
    client = Client()
    for name in names:
        client.delete_size(name)
        print(f"size/{name} deleted")
    terminal.next_step("weft sizes")
    return 0


def suggest(job: str, /, *, output: PageForm = None) -> int:
    """What would have been enough for a job that has finished: what its tasks used, next to what they asked for.

    CPU is the average over the run of the busiest task of a role, rounded up; memory is the largest peak and a
    quarter more. The lines to change are printed as a job file has them.

    For example:
      weft sizes suggest mnist-3

    Parameters
    ----------
    job
        The job's name.
    output
        json or yaml.
    """
    found = Client().suggestion(job)
    if output is not None:
        print_whole(found, output)
        return 0
    items = found["items"]
    print_table(ROLES, [_role(item) for item in items])
    for item in items:
        for note in item.get("notes") or ():
            terminal.note(f"note: {item['role']}: {note}", "yellow")
    headroom = f"memory is the peak × {found['memoryHeadroom']:g}, CPU the average rounded up"
    lines = list(_lines([item for item in items if item["changes"]]))
    if lines:
        print()
        print("\n".join(lines))
        terminal.note(headroom)
    else:
        terminal.note(f"what it asked for is what it needs ({headroom})")
    terminal.next_step(f"weft show {found['job']} -o yaml", "weft sizes")
    return 0


def _role(item: Json) -> list[str]:
    used, asked, enough = item.get("used"), item["asked"], item.get("suggested")
    limits = [f"{asked[name]}" if asked.get(name) else "no limit" for name in ("cpu", "memory")]
    if not used or not enough:
        return [item["role"], str(item["tasks"]), "-", "-", limits[0], "-", limits[1], "not measured", "-"]
    return [
        item["role"],
        str(item["tasks"]),
        moments.span(used["seconds"]),
        f"{used['cpu']:.2f}",
        limits[0],
        moments.size(used["memory"]),
        limits[1],
        f"{enough['cpu']:g} cpu, {enough['memory']}",
        item.get("size") or "-",
    ]


def _lines(items: list[Json]) -> list[str]:
    """What to change in the job file."""
    lines = ["spec:", "  roles:"]
    for item in items:
        asked, enough = item["asked"], item["suggested"]
        lines += [f"    {item['role']}:", "      resources:"]
        for field in ("cpu", "memory"):
            was = asked.get(field)
            if enough[field] != was:
                before = "no limit" if was in (None, 0) else was
                lines.append(f"        {field}: {enough[field]}  # was {before}")
        if item.get("size") not in (None, asked.get("size")):
            lines.append(f"        # or: size: {item['size']}")
    return lines if items else []


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:g}"
