"""The data that a job waits for while it is DOWNLOADING: a bar on a terminal, a line now and then anywhere else."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from weft.cli import moments, terminal
from weft.client.api import Client
from weft.client.errors import WeftError

WIDTH = 24
BEFORE = ("PENDING", "QUEUED", "DEPLOYING", "DOWNLOADING", "PREEMPTED")
"""While a job is one of these, data may still come."""
LINES_EVERY = 5.0
LOOK_EVERY = 0.3
WAIT_EVERY = 1.0


class Download:
    """Shows the `progress` of one status after the other."""

    def __init__(self) -> None:
        self._drawn = False
        self._next_line = 0.0

    def show(self, progress: dict[str, Any] | None) -> None:
        if progress is None:
            self.erase()
        elif sys.stderr.isatty():
            self._drawn = True
            print(f"\r\x1b[K{terminal.safe(text(progress, bar=True))}", end="", file=sys.stderr, flush=True)
        elif time.monotonic() >= self._next_line:
            self._next_line = time.monotonic() + LINES_EVERY
            terminal.note(text(progress))

    def erase(self) -> None:
        if self._drawn:
            self._drawn = False
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)


def text(progress: dict[str, Any], *, bar: bool = False) -> str:
    """`reading dataset faces: 3.1 GiB of 20 GiB (15%), 210 MiB/s`."""
    done, of = progress["bytes"], progress["allBytes"]
    part = min(done / of, 1.0) if of else 0.0
    drawn = f"[{'#' * round(part * WIDTH):-<{WIDTH}}] " if bar else ""
    size, rate = f"{moments.size(done)} of {moments.size(of)}", moments.size(round(progress["rate"]))
    return f"{progress['what']}: {drawn}{size} ({part:.0%}), {rate}/s"


@contextmanager
def watched(client: Client, job: str) -> Iterator[threading.Event]:
    """Meanwhile its downloads are shown, until the event is set or it has started."""
    over = threading.Event()

    def watch() -> None:
        shown = Download()
        state = BEFORE[0]
        while state in BEFORE and not over.wait(LOOK_EVERY if state == "DOWNLOADING" else WAIT_EVERY):
            try:
                status = client.get(job).status
            except WeftError:
                break
            state = status["state"]
            if not over.is_set():
                shown.show(status.get("progress"))
        shown.erase()

    thread = threading.Thread(target=watch, name="downloads", daemon=True)
    thread.start()
    try:
        yield over
    finally:
        over.set()
        if thread.is_alive():
            thread.join(2 * WAIT_EVERY)
