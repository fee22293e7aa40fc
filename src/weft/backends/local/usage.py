"""What running tasks use, read from /proc: a task is all processes of its session."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Mapping

from weft.backends.api import TaskUsage

TICK = os.sysconf("SC_CLK_TCK")
PAGE = os.sysconf("SC_PAGE_SIZE")


class Meter:
    """Remembers the last reading of each task, so that CPU use is of the time since."""

    def __init__(self) -> None:
        self._last: dict[tuple[str, str], tuple[float, float]] = {}

    def read(self, running: Mapping[tuple[str, str], int]) -> list[TaskUsage]:
        now = time.monotonic()
        wanted = set(running.values())
        seconds = dict.fromkeys(wanted, 0.0)
        memory = dict.fromkeys(wanted, 0)
        age: dict[int, float] = {}
        uptime = time.clock_gettime(time.CLOCK_BOOTTIME)
        for pid, fields in _processes():
            session = int(fields[3])
            if session not in wanted:
                continue
            seconds[session] += (int(fields[11]) + int(fields[12])) / TICK
            memory[session] += int(fields[21]) * PAGE
            if pid == session:
                age[session] = uptime - int(fields[19]) / TICK
        found = []
        for (uid, task), pid in running.items():
            then, used = self._last.get((uid, task), (now - max(age.get(pid, 0.0), 0.01), 0.0))
            rate = max(0.0, seconds[pid] - used) / max(now - then, 0.01)
            found.append(TaskUsage(uid, task, pid, round(rate, 2), memory[pid]))
        self._last = {key: (now, seconds[pid]) for key, pid in running.items()}
        return found


def descendants(roots: Iterable[int]) -> dict[int, list[int]]:
    """Of each root: children, their children and so on, nearest first. One look at /proc for all of them."""
    children: dict[int, list[int]] = {}
    for pid, fields in _processes():
        children.setdefault(int(fields[1]), []).append(pid)
    return {root: _below(root, children) for root in roots}


def _below(root: int, children: Mapping[int, list[int]]) -> list[int]:
    found = list(children.get(root, ()))
    for pid in found:  # grows as it goes
        found += children.get(pid, ())
    return found


def _processes() -> list[tuple[int, list[bytes]]]:
    """Every process with the fields of its stat line after the name (state is field 0)."""
    found = []
    for entry in os.scandir("/proc"):
        if not entry.name.isdigit():
            continue
        try:
            with open(f"/proc/{entry.name}/stat", "rb") as file:  # noqa: PTH123
                found.append((int(entry.name), file.read().rpartition(b")")[2].split()))
        except OSError:
            continue
    return found
