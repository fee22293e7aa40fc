"""One server's shard: its parameters in one stretch of memory, what the optimizer keeps, and who pushed what.

A pull reads the very memory that pushes write to. Whoever writes while somebody reads therefore writes to another
buffer, which takes the first one's place; the first is used again when its readers are gone. Only if all buffers
are being read, a push writes under a reader, who then gets a mixture of two neighbouring versions: less than what
asynchronous SGD does to it anyway, and nobody waits for a slow worker.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from weft.runtime.ps.gradients import Part
from weft.runtime.ps.layout import Shard
from weft.runtime.ps.optimizers import SGD, NotFinite, Optimizer, checked_step, finite, step_in_blocks

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Floats = NDArray[np.float32]

MOST_BUFFERS = 4
MOST_SESSIONS = 10_000
"""Processes of workers whose last push is remembered; the one that pushed longest ago is forgotten."""


class Closed(Exception):
    """The last snapshot is written: what came after it would be lost."""


class Point(NamedTuple):
    """A version, and in which of the server's lives it was seen: a server that came back counts from its snapshot."""

    life: int
    version: int


@dataclass(frozen=True, slots=True, eq=False)
class Push:
    session: str
    number: int
    base: Point
    count: int
    """How many gradients it is the sum of."""
    lr: float | None
    parts: list[Part]
    values: Floats


@dataclass(frozen=True, slots=True)
class Verdict:
    taken: bool
    """False: it was too far behind."""
    at: Point


@dataclass(frozen=True, slots=True, eq=False)
class Kept:
    """All that outlives a server."""

    values: Floats
    slots: list[Floats]
    steps: list[int]
    point: Point
    sessions: dict[str, int]
    done: list[str]


class State:
    def __init__(self, shard: Shard, values: Floats, optimizer: Optimizer, staleness: int | None = None):
        import numpy as np

        self.shard = shard
        self.optimizer = optimizer
        self.staleness = staleness
        self.point = Point(1, 0)
        self.stale = 0
        """Pushes that were too far behind."""
        self.sessions: dict[str, int] = {}
        self.done: set[str] = set()
        self._began = 0
        self._steps = [0] * len(shard.pieces)
        self._slots = [np.zeros(shard.size, dtype="<f4") for _ in range(optimizer.slots)]
        self._buffers = [np.array(values, dtype="<f4")]
        self._readers = [0]
        self._current = 0
        self._closed = False
        self._lock = threading.Lock()

    def restore(self, kept: Kept) -> None:
        """Begin another life where a snapshot ends."""
        import numpy as np

        self._buffers, self._readers, self._current = [np.array(kept.values, dtype="<f4")], [0], 0
        if len(kept.slots) == len(self._slots):
            self._slots, self._steps = kept.slots, kept.steps
        self.point = Point(kept.point.life + 1, kept.point.version)
        self._began = kept.point.version
        self.sessions = dict(kept.sessions)
        self.done = set(kept.done)

    @contextlib.contextmanager
    def reading(self) -> Iterator[tuple[Floats, Point]]:
        """The parameters and their version, which stay as they are meanwhile."""
        with self._lock:
            buffer, point = self._current, self.point
            self._readers[buffer] += 1
        try:
            yield self._buffers[buffer], point
        finally:
            with self._lock:
                self._readers[buffer] -= 1

    def take(self, push: Push) -> Verdict:
        """Apply a push, once. NotFinite, with nothing done, if it cannot be."""
        with self._lock:
            if self._closed:
                raise Closed
            verdict = self._judge(push)
            if verdict is None:
                return Verdict(True, self.point)
            if not verdict.taken:
                self.stale += 1
                return verdict
            self._apply(push)
            self.point = verdict.at
            self.sessions.pop(push.session, None)  # to the end: who pushed last is forgotten last
            self.sessions[push.session] = push.number
            if len(self.sessions) > MOST_SESSIONS:
                self.sessions.pop(next(iter(self.sessions)))
            return verdict

    def _judge(self, push: Push) -> Verdict | None:
        """What becomes of a push; None if that was decided before."""
        if push.number <= self.sessions.get(push.session, 0):
            return None
        version = self.point.version
        base = push.base.version if push.base.life == self.point.life else min(push.base.version, self._began)
        if self.staleness is not None and version - base > self.staleness:
            return Verdict(False, self.point)
        return Verdict(True, Point(self.point.life, version + push.count))

    def _apply(self, push: Push) -> None:
        import numpy as np

        optimizer = self.optimizer
        lr = optimizer.lr if push.lr is None else push.lr
        everything = len(push.parts) == len(self.shard.pieces) and all(p.rows is None for p in push.parts)
        before = self._current
        if everything and isinstance(optimizer, SGD):
            try:
                checked_step(optimizer, *self._writable(fresh=True), push.values, lr)
            except NotFinite:
                self._current = before
                raise
        elif not finite(push.values):
            raise NotFinite
        else:
            if push.count > 1 and not optimizer.additive:
                np.multiply(push.values, np.float32(1 / push.count), out=push.values)
            self._apply_parts(push, *self._writable(fresh=everything), lr)

    def _apply_parts(self, push: Push, old: Floats, new: Floats, lr: float) -> None:
        for part in push.parts:
            self._steps[part.piece] += 1
        for start, stop, gradient, t in self._stretches(push):
            slots = [slot[start:stop] for slot in self._slots]
            step_in_blocks(self.optimizer, old[start:stop], new[start:stop], gradient, slots, lr, t)
        for part in push.parts:
            if part.rows is not None and len(part.rows):
                self._apply_rows(part, new, lr)

    def _writable(self, fresh: bool) -> tuple[Floats, Floats]:
        """The parameters as they are, and the memory for those to come, with a copy in it unless all is `fresh`."""
        import numpy as np

        old = self._buffers[self._current]
        if self._readers[self._current]:
            free = next((i for i, readers in enumerate(self._readers) if not readers), None)
            if free is None and len(self._buffers) < MOST_BUFFERS:
                self._buffers.append(np.empty_like(old))
                self._readers.append(0)
                free = len(self._buffers) - 1
            if free is not None:
                self._current = free
                if not fresh:
                    np.copyto(self._buffers[free], old)
                    old = self._buffers[free]
        return old, self._buffers[self._current]

    def _stretches(self, push: Push) -> Iterator[tuple[int, int, Floats, int]]:
        """Whole pieces that lie side by side and have taken as many steps, together: (from, to, gradient, step)."""
        start = stop = taken = 0
        step = -1
        for part in push.parts:
            piece = self.shard.pieces[part.piece]
            joins = part.rows is None and piece.start == stop and self._steps[part.piece] == step
            if not joins and stop > start:
                yield start, stop, push.values[taken - (stop - start) : taken], step
            if part.rows is not None:
                start = stop = -1
            else:
                start = start if joins else piece.start
                stop, step = piece.end, self._steps[part.piece]
            taken += part.values.size
        if stop > start:
            yield start, stop, push.values[taken - (stop - start) : taken], step

    def _apply_rows(self, part: Part, new: Floats, lr: float) -> None:
        piece = self.shard.pieces[part.piece]

        def table(flat: Floats) -> Floats:
            return flat[piece.start : piece.end].reshape(piece.rows, piece.parameter.width)

        rows = part.rows
        slots = [table(slot)[rows].reshape(-1) for slot in self._slots]
        moved = table(new)[rows].reshape(-1)
        step_in_blocks(self.optimizer, moved, moved, part.values, slots, lr, self._steps[part.piece])
        table(new)[rows] = moved.reshape(-1, piece.parameter.width)
        for slot, changed in zip(self._slots, slots, strict=True):
            table(slot)[rows] = changed.reshape(-1, piece.parameter.width)

    def kept(self, close: bool = False) -> Kept:
        """A copy for a snapshot; after `close` no push is taken any more."""
        with self._lock:
            self._closed = self._closed or close
            return Kept(
                self._buffers[self._current].copy(),
                [slot.copy() for slot in self._slots],
                list(self._steps),
                self.point,
                dict(self.sessions),
                sorted(self.done),
            )

    def mark(self, worker: str, done: bool) -> None:
        with self._lock:
            (self.done.add if done else self.done.discard)(worker)


def shard_values(shard: Shard, initial: Mapping[str, Any]) -> Floats:
    """A shard's part of all parameters."""
    import numpy as np

    values = np.empty(shard.size, dtype="<f4")
    for piece in shard.pieces:
        array = initial[piece.parameter.name].reshape(piece.parameter.rows, -1)
        values[piece.start : piece.end] = array[piece.first : piece.stop].reshape(-1)
    return values
