"""`weft.heartbeat()`: a task that has nothing to print says that it is still at work."""

from __future__ import annotations

import os


def heartbeat() -> None:
    """Count as heard of, for the job's `stallTimeout`. Cheap; never raises; outside of a job it does nothing.

    It is the time of the file that WEFT_METRICS_FILE names, so that a program in another language can `touch` it.
    """
    if path := os.environ.get("WEFT_METRICS_FILE"):
        touch(path)


def touch(path: str, when: float | None = None) -> None:
    """Give a file this time, or the present one, making it if need be. Never raises."""
    times = None if when is None else (when, when)
    try:
        os.utime(path, times)
    except FileNotFoundError:
        try:
            os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o644))
            os.utime(path, times)
        except OSError:
            return
    except OSError:
        return
