"""The other processes of a pod: its containers share their process ids."""

from __future__ import annotations

import os

PAUSE = 1
"""What holds the pod together."""


def others() -> list[int]:
    """All but that, this one, and what this one has started."""
    parents = {pid: parent for pid in _all() if (parent := _parent(pid)) is not None}
    return sorted(pid for pid in parents if pid != PAUSE and not _below(pid, os.getpid(), parents))


def _below(pid: int, root: int, parents: dict[int, int]) -> bool:
    while pid != root and pid in parents:
        pid = parents[pid]
    return pid == root


def _all() -> list[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]


def _parent(pid: int) -> int | None:
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return int(file.read(4096).rpartition(b")")[2].split()[1])
    except (OSError, IndexError, ValueError):
        return None
