"""Which process is meant: an id alone may have been given to another since."""

from __future__ import annotations

import os
import time

TICKS = os.sysconf("SC_CLK_TCK")


def start_time(pid: int) -> int:
    """When a process was born, in clock ticks since boot: with its id, its identity."""
    try:
        with open(f"/proc/{pid}/stat", "rb", buffering=0) as file:
            return int(file.read(4096).rpartition(b")")[2].split()[19])
    except (OSError, IndexError, ValueError):
        return 0


class Births:
    """Start times of processes that were started just now.

    A process whose start lies within one tick of the clock needs no look into /proc, which costs as much as a
    tenth of starting it. The kernel is asked for the first, and for all if the clock did not agree with it.
    """

    def __init__(self) -> None:
        self._agreed: bool | None = None

    def now(self) -> int:
        """The tick that it is, to be handed to `of` after a start."""
        return time.clock_gettime_ns(time.CLOCK_BOOTTIME) * TICKS // 1_000_000_000

    def of(self, pid: int, before: int) -> int:
        after = self.now()
        if self._agreed and before == after:
            return after
        birth = start_time(pid)
        if self._agreed is None and birth:
            self._agreed = before <= birth <= after
        return birth


def boot_id() -> str:
    try:
        with open("/proc/sys/kernel/random/boot_id") as file:
            return file.read().strip()
    except OSError:
        return ""
