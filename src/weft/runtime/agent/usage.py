"""What the other processes of a pod use, from /proc: the pod's containers share their process ids."""

from __future__ import annotations

import os
import time

TICKS = os.sysconf("SC_CLK_TCK")
PAGE = os.sysconf("SC_PAGE_SIZE")
LEAST = 1.0
"""Seconds between two looks."""


class Usage:
    """CPUs on average since the last look, and bytes of memory."""

    def __init__(self) -> None:
        self._looked = time.monotonic()
        self._ticks = {who: ticks for who, ticks, _ in _processes()}
        self._told = (0.0, 0)

    def now(self) -> tuple[float, int]:
        """At most one look a second; in between it is what was told last."""
        now = time.monotonic()
        passed = now - self._looked
        if passed < LEAST:
            return self._told
        ticks, memory, used = {}, 0, 0
        for who, own, resident in _processes():
            ticks[who] = own
            used += max(own - self._ticks.get(who, 0), 0)
            memory += resident
        self._looked, self._ticks = now, ticks
        self._told = (round(used / TICKS / passed, 3), memory)
        return self._told


def _processes() -> list[tuple[tuple[bytes, bytes], int, int]]:
    """Of each process but this one: id and birth, ticks of CPU, bytes that are resident."""
    found = []
    for name in os.listdir("/proc"):
        if not name.isdigit() or int(name) == os.getpid():
            continue
        try:
            with open(f"/proc/{name}/stat", "rb", buffering=0) as file:
                fields = file.read(4096).rpartition(b")")[2].split()
            found.append(
                ((name.encode(), fields[19]), int(fields[11]) + int(fields[12]), int(fields[21]) * PAGE)
            )
        except (OSError, IndexError, ValueError):
            continue
    return found
