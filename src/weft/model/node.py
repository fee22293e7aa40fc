"""A place that runs tasks, as a backend reports it."""

from __future__ import annotations

from dataclasses import dataclass

from weft.model.cluster import HOME

MANY = 1 << 20
"""Tasks that a node takes where nobody counts them."""


@dataclass(frozen=True, slots=True)
class Gpu:
    index: int
    type: str
    virtual: bool = False
    """Declared for trying things out; no such device exists."""
    memory: int = 0
    """Bytes; 0 where it is not known."""
    generation: int = 0
    """Grows with every generation of a maker's GPUs; 0 where it is not known."""
    numa: int = 0
    """Which of the node's NUMA groups it hangs on."""


@dataclass(frozen=True, slots=True)
class Node:
    name: str
    cpu: int
    """Thousandths of a CPU."""
    memory: int
    slots: int = MANY
    """Tasks that it takes at once, whatever they ask for: pods, on Kubernetes."""
    cpu_ids: tuple[int, ...] = ()
    """The CPUs that can be given to one task alone; empty where they are shared."""
    gpus: tuple[Gpu, ...] = ()
    labels: tuple[tuple[str, str], ...] = ()
    schedulable: bool = True
    notes: tuple[str, ...] = ()
    taints: tuple[str, ...] = ()
    """Only jobs that tolerate all of these may come here."""
    rack: str = ""
    fabric: str = ""
    """The fast network that the node hangs on (an InfiniBand or RoCE island)."""
    devices: tuple[tuple[str, int], ...] = ()
    """Anything else that is counted: FPGAs, RDMA cards."""
    numa: tuple[tuple[int, ...], ...] = ()
    """The CPU ids of each NUMA group; empty where there is only one."""
    cluster: str = HOME
    """Which of several clusters it belongs to."""
    holds: tuple[tuple[str, int], ...] = ()
    """Datasets and images that lie here already, and how many bytes of each."""
