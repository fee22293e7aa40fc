"""Samples that this node does not keep, read ahead: while the loop works with one, those that come next are on their way.

Of parts that are known to stay far away only; a part that may come to this node is the agent's to bring. Nothing is kept of
what was read, so nothing goes for it.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from contextlib import suppress
from queue import Empty, SimpleQueue

from weft.runtime.data.errors import DataError
from weft.runtime.data.files import AHEAD_BYTES, Files
from weft.runtime.data.parts import Parts

AT_ONCE = 8
"""Requests that are under way for one reader."""


class Coming:
    """A sample on its way."""

    __slots__ = ("data", "number", "ready", "size")

    def __init__(self, number: int, size: int):
        self.number = number
        self.size = size
        self.data: bytes | None = None
        self.ready = threading.Event()


class Far:
    def __init__(self, files: Files):
        self._files = files
        self._index = files.index
        self._coming: dict[int, Coming] = {}
        self._left = AHEAD_BYTES
        self._waiting: SimpleQueue[Coming | None] = SimpleQueue()
        self._threads: list[threading.Thread] = []

    def want(self, numbers: Sequence[int]) -> None:
        """These come next, in this order."""
        for number in numbers:
            held = self._files.held.get(self._index.part[number])
            if held is None or held.file >= 0 or held.ready is not None or number in self._coming:
                continue
            size = self._index.length[number]
            if size > self._left:
                return
            self._left -= size
            coming = self._coming[number] = Coming(number, size)
            if len(self._threads) < AT_ONCE:
                self._threads.append(threading.Thread(target=self._work, name="weft-data-far", daemon=True))
                self._threads[-1].start()
            self._waiting.put(coming)

    def take(self, number: int) -> bytes | None:
        """The sample, if it was wanted; None: read it yourself."""
        coming = self._coming.pop(number, None)
        if coming is None:
            return None
        self._left += coming.size
        while not coming.ready.wait(1.0):
            if not any(thread.is_alive() for thread in self._threads):  # as in a forked process
                return None
        return coming.data

    def close(self) -> None:
        """What nobody will take is not asked for any more."""
        with suppress(Empty):
            while True:
                self._waiting.get_nowait()
        for _ in self._threads:
            self._waiting.put(None)

    def _work(self) -> None:
        parts = self._files.parts.another()
        try:
            while (coming := self._waiting.get()) is not None:
                with suppress(DataError):  # whoever takes it reads it, and hears of it
                    coming.data = self._read(parts, coming.number)
                coming.ready.set()
        finally:
            parts.close()

    def _read(self, parts: Parts, number: int) -> bytes | None:
        part, offset, left = self._index.part[number], self._index.offset[number], self._index.length[number]
        pieces, sample = [], number if left else None
        while left:
            pieces.append(parts.read(self._index.version, part, offset, left, sample))
            if not pieces[-1]:
                return None
            offset, left, sample = offset + len(pieces[-1]), left - len(pieces[-1]), None
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)
