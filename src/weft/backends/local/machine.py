"""What this machine has: CPUs, memory, GPUs; and how it is carved into virtual nodes."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, field

from weft.backends.local import cgroups
from weft.model.node import Gpu, Node


@dataclass(frozen=True, slots=True)
class Shape:
    """What the operator declared at `weft up`; None means what the machine has."""

    nodes: int = 1
    cpu: int | None = None
    """Thousandths of a CPU in all."""
    memory: int | None = None
    gpus: int | None = None
    """Virtual GPUs in all, in place of real ones."""
    gpu_type: str | None = None
    gpu_memory: int = 0
    """Bytes of each virtual GPU."""
    racks: int | None = None
    """The nodes are spread over so many, in order."""
    fabrics: int | None = None
    devices: Mapping[str, int] = field(default_factory=dict)
    """What else each node has a number of."""


def discover(shape: Shape) -> tuple[Node, ...]:
    """This machine as nodes: one, or as many virtual ones as declared."""
    return carve(shape, sorted(os.sched_getaffinity(0)), total_memory(), find_gpus())


def carve(shape: Shape, cpu_ids: list[int], memory: int, found: tuple[Gpu, ...]) -> tuple[Node, ...]:
    """Divide the machine evenly. A node has at least one CPU: more nodes than CPUs share them."""
    count = shape.nodes
    gpus = found
    if shape.gpus is not None:
        kind = shape.gpu_type or "virtual"
        gpus = tuple(Gpu(index, kind, virtual=True, memory=shape.gpu_memory) for index in range(shape.gpus))
    total_cpu = shape.cpu if shape.cpu is not None else len(cpu_ids) * 1000
    each_cpu = max(total_cpu // count // 1000 * 1000, 1000) if shape.cpu is None else total_cpu // count
    exclusive = each_cpu % 1000 == 0 and each_cpu * count <= len(cpu_ids) * 1000
    own = each_cpu // 1000
    notes = (
        () if exclusive else (f"CPUs are shared: {each_cpu * count / 1000:g} declared, {len(cpu_ids)} real",)
    )
    each_memory = (shape.memory if shape.memory is not None else memory) // count
    return tuple(
        Node(
            name="local" if count == 1 else f"local-{index}",
            cpu=each_cpu,
            memory=each_memory,
            cpu_ids=tuple(cpu_ids[index * own : (index + 1) * own]) if exclusive else (),
            gpus=gpus[index * len(gpus) // count : (index + 1) * len(gpus) // count],
            labels=(("weft.dev/node", "local" if count == 1 else f"local-{index}"),),
            notes=notes,
            rack=_zone("rack", index, count, shape.racks),
            fabric=_zone("fabric", index, count, shape.fabrics),
            devices=tuple(sorted(shape.devices.items())),
        )
        for index in range(count)
    )


def _zone(kind: str, index: int, count: int, zones: int | None) -> str:
    """Neighbours are in one rack: nodes 0 and 1 of four are in the first of two."""
    return f"{kind}-{index * zones // count}" if zones else ""


def total_memory() -> int:
    """The machine's memory, or the smaller limit of the cgroups this process lives in."""
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return min(total, cgroups.own_memory_limit() or total)


def find_gpus() -> tuple[Gpu, ...]:
    """NVIDIA GPUs by index, as nvidia-smi lists them; none where there is no nvidia-smi."""
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return ()
    try:
        answer = subprocess.run(
            [tool, "--query-gpu=index,memory.total,name", "--format=csv,noheader,nounits"],
            capture_output=True,
            text=True,
            timeout=10,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return ()
    return parse_gpus(answer.stdout)


def parse_gpus(listing: str) -> tuple[Gpu, ...]:
    """`0, 16160, Tesla V100-SXM2-16GB` (MiB) → type `v100`: the model's number in lower case."""
    gpus = []
    for line in listing.splitlines():
        index, memory, name = (field.strip() for field in f"{line},,".split(",", 3)[:3])
        if not index.isdigit():
            continue
        words = [
            w for w in re.split(r"[\s-]+", name) if re.search(r"\d", w) and not re.fullmatch(r"\d+(GB|MB)", w)
        ]
        model = (words or [name])[0].lower()
        known = int(memory) << 20 if memory.isdigit() else 0  # "[N/A]" where memory is the machine's own
        gpus.append(Gpu(int(index), re.sub(r"[^a-z0-9.]+", "-", model) or "gpu", memory=known))
    return tuple(gpus)
