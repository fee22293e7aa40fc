"""How far long work has come, told to whoever wants to know."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

Progress = Callable[[str, int, int | None], None]
"""What is being done, the bytes that have passed, and how many there are in all, if that is known."""


class Counted:
    """Reads through, telling how many bytes have passed."""

    def __init__(self, source: Any, what: str, total: int | None, progress: Progress | None):
        self._source = source
        self._what = what
        self._total = total
        self._progress = progress
        self._passed = 0

    def read(self, size: int = -1) -> bytes:
        data: bytes = self._source.read(size)
        self._passed += len(data)
        if self._progress is not None:
            self._progress(self._what, self._passed, self._total)
        return data

    def seek(self, place: int) -> int:
        """Begin again: a request that is repeated counts from the start."""
        self._passed = place
        moved: int = self._source.seek(place)
        return moved
