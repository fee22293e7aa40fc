"""A line on standard error that says how far long work has come, for people only."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from weft.cli import moments
from weft.client.progress import Progress

PATIENCE = 0.3
"""What takes less time than this needs no line."""
EVERY = 0.1


@contextmanager
def meter(show: Callable[[int], str] = moments.size) -> Iterator[Progress | None]:
    """Where to report progress; None where nobody looks. The line is gone at the end. `show`: what is counted."""
    if not sys.stderr.isatty():
        yield None
        return
    shown = _Meter(show)
    try:
        yield shown
    finally:
        shown.erase()


class _Meter:
    def __init__(self, show: Callable[[int], str]) -> None:
        self._show = show
        self._next = time.monotonic() + PATIENCE
        self._drawn = False

    def __call__(self, what: str, passed: int, total: int | None) -> None:
        if time.monotonic() < self._next:
            return
        self._next = time.monotonic() + EVERY
        self._drawn = True
        of = f" of {self._show(total)} ({min(passed / total, 1.0):.0%})" if total else ""
        print(f"\r\x1b[K{what} {self._show(passed)}{of}", end="", file=sys.stderr, flush=True)

    def erase(self) -> None:
        if self._drawn:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)
