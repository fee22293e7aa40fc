"""A place that runs tasks, as a backend reports it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Gpu:
    index: int
    type: str
    virtual: bool = False
    """Declared for trying things out; no such device exists."""


@dataclass(frozen=True, slots=True)
class Node:
    name: str
    cpu: int
    """Thousandths of a CPU."""
    memory: int
    cpu_ids: tuple[int, ...] = ()
    """The CPUs that can be given to one task alone; empty where they are shared."""
    gpus: tuple[Gpu, ...] = ()
    labels: tuple[tuple[str, str], ...] = ()
    schedulable: bool = True
    notes: tuple[str, ...] = ()
