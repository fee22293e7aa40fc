"""The NUMA groups of this machine, as the kernel tells them in /sys: which CPUs and GPUs are near each other."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from weft.model.node import Gpu

SYS = Path("/sys")
UNKNOWN = -1
Groups = Mapping[int, tuple[int, ...]]
"""The CPU ids of each group, by the number that the kernel gives it."""


def find_groups(root: Path = SYS) -> dict[int, tuple[int, ...]]:
    """None of them where the kernel tells nothing, as in many containers."""
    found = {}
    for folder in (root / "devices/system/node").glob("node[0-9]*"):
        number = folder.name.removeprefix("node")
        try:
            cpus = parse_cpus((folder / "cpulist").read_text())
        except (OSError, ValueError):
            continue
        if number.isdigit() and cpus:  # a group may be memory alone
            found[int(number)] = cpus
    return dict(sorted(found.items()))


def parse_cpus(text: str) -> tuple[int, ...]:
    """`0-3,8` → 0, 1, 2, 3, 8."""
    cpus: list[int] = []
    for part in text.strip().split(","):
        if part:
            first, _, last = part.partition("-")
            cpus += range(int(first), int(last or first) + 1)
    return tuple(cpus)


def group_of_device(bus: str, root: Path = SYS) -> int:
    """The group of a PCI device; nvidia-smi writes `00000000:3B:00.0` for what is `0000:3b:00.0` in /sys."""
    domain, _, place = bus.strip().lower().partition(":")
    try:
        return int((root / f"bus/pci/devices/{domain[-4:]}:{place}/numa_node").read_text())
    except (OSError, ValueError):
        return UNKNOWN


def of_node(
    groups: Groups, cpu_ids: tuple[int, ...], gpus: tuple[Gpu, ...]
) -> tuple[tuple[tuple[int, ...], ...], tuple[Gpu, ...]]:
    """The groups that a node has CPUs of, and its GPUs numbered by them; GPUs of other groups come after."""
    own = {number: tuple(cpu for cpu in cpus if cpu in cpu_ids) for number, cpus in groups.items()}
    own = {number: cpus for number, cpus in own.items() if cpus}
    if len(own) < 2:
        own = {}
    order = [*own, *sorted({gpu.numa for gpu in gpus} - {*own})]
    places = {number: place for place, number in enumerate(order)}
    return tuple(own.values()), tuple(replace(gpu, numa=places[gpu.numa]) for gpu in gpus)
