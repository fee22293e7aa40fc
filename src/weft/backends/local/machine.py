"""What this machine has: CPUs, memory, GPUs; and how it is carved into virtual nodes."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from weft.backends.local import cgroups, numa
from weft.model.node import Gpu, Node
from weft.model.resource import LABEL_KEY_PATTERN


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
    gpu_generation: int = 0
    """Of all GPUs, virtual and real ones; 0 where nobody said."""
    racks: int | None = None
    """The nodes are spread over so many, in order."""
    fabrics: int | None = None
    devices: Mapping[str, int] = field(default_factory=dict)
    """What else each node has a number of."""
    cache: int | None = None
    """Bytes of data that each node keeps for itself, as if the server's store were far away."""
    taints: Sequence[str] = ()
    """`KEY` for all nodes, `NODE:KEY` for one."""

    def __post_init__(self) -> None:
        for taint in self.taints:
            self._check_taint(taint)

    def _check_taint(self, taint: str) -> None:
        node, _, key = taint.rpartition(":")
        names = node_names(self.nodes)
        if not re.fullmatch(LABEL_KEY_PATTERN.strip("^$"), key) or taint.startswith(":"):
            raise ValueError(f"--taint {taint}: write KEY or NODE:KEY, for example spot or {names[-1]}:spot")
        if node and node not in names:
            are = f"nodes are {names[0]} to {names[-1]}" if len(names) > 1 else f"only node is {names[0]}"
            raise ValueError(f"--taint {taint}: there is no node {node}; with --nodes {self.nodes} the {are}")

    def taints_of(self, node: str) -> tuple[str, ...]:
        split = [taint.rpartition(":") for taint in self.taints]
        return tuple(sorted({key for name, _, key in split if name in ("", node)}))


def node_names(count: int) -> list[str]:
    return ["local"] if count == 1 else [f"local-{index}" for index in range(count)]


def discover(shape: Shape) -> tuple[Node, ...]:
    """This machine as nodes: one, or as many virtual ones as declared."""
    return carve(shape, sorted(os.sched_getaffinity(0)), total_memory(), find_gpus(), numa.find_groups())


def carve(
    shape: Shape, cpu_ids: list[int], memory: int, found: tuple[Gpu, ...], groups: numa.Groups | None = None
) -> tuple[Node, ...]:
    """Divide the machine evenly. A node has at least one CPU: more nodes than CPUs share them."""
    count = shape.nodes
    gpus = _gpus(shape, found)
    total_cpu = shape.cpu if shape.cpu is not None else len(cpu_ids) * 1000
    each_cpu = max(total_cpu // count // 1000 * 1000, 1000) if shape.cpu is None else total_cpu // count
    exclusive = each_cpu % 1000 == 0 and each_cpu * count <= len(cpu_ids) * 1000
    own = each_cpu // 1000
    notes = (
        () if exclusive else (f"CPUs are shared: {each_cpu * count / 1000:g} declared, {len(cpu_ids)} real",)
    )
    each_memory = (shape.memory if shape.memory is not None else memory) // count
    nodes = []
    for index, name in enumerate(node_names(count)):
        cpus = tuple(cpu_ids[index * own : (index + 1) * own]) if exclusive else ()
        part = gpus[index * len(gpus) // count : (index + 1) * len(gpus) // count]
        near, part = numa.of_node(groups or {}, cpus, part)
        nodes.append(
            Node(
                name=name,
                cpu=each_cpu,
                memory=each_memory,
                cpu_ids=cpus,
                gpus=part,
                labels=(("weft.dev/node", name),),
                notes=notes,
                taints=shape.taints_of(name),
                rack=_zone("rack", index, count, shape.racks),
                fabric=_zone("fabric", index, count, shape.fabrics),
                devices=tuple(sorted(shape.devices.items())),
                numa=near,
            )
        )
    return tuple(nodes)


def _gpus(shape: Shape, found: tuple[Gpu, ...]) -> tuple[Gpu, ...]:
    """Those that were declared, else those that were found."""
    generation = shape.gpu_generation
    if shape.gpus is None:
        return tuple(replace(gpu, generation=generation) for gpu in found) if generation else found
    kind = shape.gpu_type or "virtual"
    return tuple(
        Gpu(index, kind, virtual=True, memory=shape.gpu_memory, generation=generation)
        for index in range(shape.gpus)
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
            [tool, "--query-gpu=index,memory.total,name,pci.bus_id", "--format=csv,noheader,nounits"],
            capture_output=True,
            text=True,
            timeout=10,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return ()
    return parse_gpus(answer.stdout)


def parse_gpus(listing: str, group_of: Callable[[str], int] = numa.group_of_device) -> tuple[Gpu, ...]:
    """`0, 16160, Tesla V100-SXM2-16GB, 00000000:3B:00.0` (MiB) → type `v100`: the model's number in lower case."""
    gpus = []
    for line in listing.splitlines():
        index, memory, name, bus = (field.strip() for field in f"{line},,,".split(",", 4)[:4])
        if not index.isdigit():
            continue
        words = [
            w for w in re.split(r"[\s-]+", name) if re.search(r"\d", w) and not re.fullmatch(r"\d+(GB|MB)", w)
        ]
        model = (words or [name])[0].lower()
        known = int(memory) << 20 if memory.isdigit() else 0  # "[N/A]" where memory is the machine's own
        kind = re.sub(r"[^a-z0-9.]+", "-", model) or "gpu"
        gpus.append(Gpu(int(index), kind, memory=known, numa=group_of(bus) if bus else 0))
    return tuple(gpus)
