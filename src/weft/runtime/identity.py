"""Which process is meant: an id alone may have been given to another since."""

from __future__ import annotations


def start_time(pid: int) -> int:
    """When a process was born, in clock ticks since boot: with its id, its identity."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return int(file.read().rpartition(b")")[2].split()[19])
    except (OSError, IndexError, ValueError):
        return 0


def boot_id() -> str:
    try:
        with open("/proc/sys/kernel/random/boot_id") as file:
            return file.read().strip()
    except OSError:
        return ""
