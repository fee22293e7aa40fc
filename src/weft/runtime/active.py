"""`weft.active()`: somebody is using what a task offers, or it is at work for them."""

from __future__ import annotations

import os

from weft.runtime.heartbeat import touch


def active(when: float | None = None) -> None:
    """Count as in use now (or since `when`), for the job's `idleTimeout`. Cheap; never raises; outside of a job it does
    nothing.

    A task that is at work says so every tenth of the timeout (WEFT_IDLE_TIMEOUT, in seconds) or every ten seconds,
    whichever is sooner. It is the time of the file that WEFT_ACTIVITY_FILE names, so that a program in another language
    can `touch` it.
    """
    if path := os.environ.get("WEFT_ACTIVITY_FILE"):
        touch(path, when)
