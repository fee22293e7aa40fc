"""Exclusive CPUs: a task of whole CPUs has them alone, all others share what is left.

The shared ones are moved when an exclusive task comes or goes, threads and all.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, field


@dataclass(slots=True)
class _NodeCpus:
    everything: frozenset[int]
    exclusive: dict[tuple[str, str], frozenset[int]] = field(default_factory=dict)
    shared: dict[tuple[str, str], int] = field(default_factory=dict)

    @property
    def pool(self) -> frozenset[int]:
        return self.everything.difference(*self.exclusive.values()) or self.everything


class Pinning:
    """Keeps the CPUs of each node apart. Keys are (uid, task)."""

    def __init__(
        self, nodes: dict[str, tuple[int, ...]], members: Callable[[list[int]], dict[int, list[int]]]
    ):
        self._nodes = {name: _NodeCpus(frozenset(cpus)) for name, cpus in nodes.items() if cpus}
        self._members = members

    def cpus_for(self, node: str, own: tuple[int, ...]) -> list[int]:
        """What a task about to start should run on; empty where CPUs are not kept apart."""
        here = self._nodes.get(node)
        if here is None:
            return []
        return sorted(own or here.pool)

    def started(self, key: tuple[str, str], node: str, own: tuple[int, ...], pid: int) -> None:
        here = self._nodes.get(node)
        if here is None:
            return
        if own:
            here.exclusive[key] = frozenset(own)
            self._move_shared(here)
        else:
            here.shared[key] = pid

    def ended(self, key: tuple[str, str]) -> None:
        for here in self._nodes.values():
            here.shared.pop(key, None)
            if here.exclusive.pop(key, None) is not None:
                self._move_shared(here)

    def _move_shared(self, here: _NodeCpus) -> None:
        if not here.shared:
            return
        for pid, below in self._members(list(here.shared.values())).items():
            for member in (pid, *below):
                _pin(member, here.pool)


def _pin(pid: int, cpus: frozenset[int]) -> None:
    try:
        threads = os.listdir(f"/proc/{pid}/task")  # noqa: PTH208
    except OSError:
        return
    for thread in threads:
        try:
            os.sched_setaffinity(int(thread), cpus)
        except OSError:
            continue
