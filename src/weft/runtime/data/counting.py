"""What a process got of a version, and whether its node had it: told to the node's agent now and then.

Only the reader knows: it keeps parts open, so most of what it reads the agent never hears of. A sample is a miss if its
bytes came from elsewhere for this turn: read from far away, or with a part that was brought for it. Counted by the
chunk, told without waiting for an answer: a loop whose parts are all open must not depend on the agent.
"""

from __future__ import annotations

import atexit
import os
import sys
import time
import weakref
from collections.abc import Sequence

from weft.runtime.data.index import Index
from weft.runtime.data.parts import Parts

EVERY = 1.0
"""Seconds after which what was counted is told."""

_turns: dict[str, int] = {}
"""Loops over all of a version that this process has begun: who makes a dataset anew for each epoch has many, too."""


class Counting:
    def __init__(self, parts: Parts, index: Index):
        self._parts, self._index = parts, index
        self._turn = 0
        self.fresh = parts.fresh(index.version)
        """Parts that came from elsewhere in this turn."""
        self._clear()
        self._told = time.monotonic()
        _every.add(self)

    def _clear(self) -> None:
        self.hits = self.misses = self.hit_bytes = self.miss_bytes = 0
        self._far = self._far_bytes = 0

    def begin(self, epoch: int) -> None:
        """Another turn over the samples."""
        version = self._index.version
        self.tell()
        self._turn = _turns[version] = max(epoch, _turns.get(version, -1) + 1)
        self.fresh.clear()

    def far(self, size: int) -> None:
        """One sample of those that will be told of by `took` was read from far away."""
        self._far += 1
        self._far_bytes += size

    def took(self, numbers: Sequence[int]) -> None:
        """The loop got these samples."""
        part, length = self._index.part, self._index.length
        size = sum([length[number] for number in numbers])
        missed, missed_bytes = self._far, self._far_bytes
        if self.fresh:
            brought = [length[number] for number in numbers if part[number] in self.fresh]
            missed, missed_bytes = missed + len(brought), missed_bytes + sum(brought)
        self._far = self._far_bytes = 0
        self.add(len(numbers) - missed, missed, size - missed_bytes, missed_bytes)

    def add(self, hits: int, misses: int, hit_bytes: int, miss_bytes: int) -> None:
        self.hits += hits
        self.misses += misses
        self.hit_bytes += hit_bytes
        self.miss_bytes += miss_bytes
        if time.monotonic() - self._told > EVERY:
            self.tell()
        elif not _at_exit:
            _tell_at_exit()

    def tell(self) -> None:
        """What was not told yet; it is kept where the agent cannot hear it now."""
        self._told = time.monotonic()
        if not self.hits + self.misses:
            return
        counted = {
            "turn": self._turn,
            "hits": self.hits,
            "misses": self.misses,
            "hitBytes": self.hit_bytes,
            "missBytes": self.miss_bytes,
        }
        if self._parts.tell(self._index.version, counted):
            self._clear()


_every: weakref.WeakSet[Counting] = weakref.WeakSet()
_at_exit: list[int] = []


def _tell_all() -> None:
    for counting in list(_every):
        counting.tell()


def _tell_at_exit() -> None:
    """A process of multiprocessing, such as a worker of torch, has ends of its own."""
    _at_exit.append(os.getpid())
    process = sys.modules.get("multiprocessing.process")
    if process is not None and process.parent_process() is not None:
        sys.modules["multiprocessing.util"].Finalize(None, _tell_all, exitpriority=0)
    else:
        atexit.register(_tell_all)


def _forked() -> None:
    """What the parent counted is its own to tell."""
    _at_exit.clear()
    for counting in list(_every):
        counting._clear()


os.register_at_fork(after_in_child=_forked)
