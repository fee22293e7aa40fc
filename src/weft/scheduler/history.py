"""How long jobs like this one ran: what may be expected of a job before it ends.

Jobs are alike by owner, name (without its number) and size; where too few of those are known, by owner and
size, then by size. Where nothing is known a job is expected to run as long again as it has run: for the
heavy-tailed durations of this field that is what the median job does.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections import deque
from dataclasses import dataclass, field

REMEMBERED = 512
ENOUGH = 8
CLASSES = 20_000
"""Kinds of jobs that are remembered; the one known longest is forgotten first."""
YOUNG = 300.0
"""A job of which nothing is known is expected to run at least this long."""
_NUMBER = re.compile(r"[-_.]?[0-9a-f]*\d[0-9a-f]*$")

Likeness = tuple[tuple[object, ...], ...]
"""The classes that a job belongs to, the narrowest first."""


def likeness(owner: str, name: str, gpus: float) -> Likeness:
    stem = _NUMBER.sub("", name) or name
    return ((owner, stem, gpus), (owner, gpus), (gpus,))


@dataclass(slots=True)
class Durations:
    """The latest durations of one class."""

    seconds: deque[float] = field(default_factory=lambda: deque(maxlen=REMEMBERED))
    total: int = 0
    ordered: list[float] = field(default_factory=list)
    known: int = 0
    """How many of `total` are in `ordered`."""

    def add(self, seconds: float) -> None:
        self.seconds.append(seconds)
        self.total += 1

    def refresh(self) -> None:
        """Sort them anew, once there is a tenth more to learn from."""
        if self.known and self.total < self.known * 1.1 + 1:
            return
        self.ordered = sorted(self.seconds)
        self.known = self.total


class History:
    def __init__(self) -> None:
        self._classes: dict[tuple[object, ...], Durations] = {}

    def record(self, like: Likeness, seconds: float) -> None:
        """A job has completed after running this long."""
        for key in like:
            known = self._classes.get(key)
            if known is None:
                known = self._classes[key] = Durations()
            known.add(seconds)
        while len(self._classes) > CLASSES:
            del self._classes[next(iter(self._classes))]

    def of_size(self, gpus: float) -> tuple[int, list[float]]:
        """Of jobs of so many GPUs or more: how many have completed, and the GPU seconds that the latest of each size took."""
        sizes = [(key[0], known) for key, known in self._classes.items() if len(key) == 1]
        large = [(size, known) for size, known in sizes if isinstance(size, int | float) and size >= gpus]
        return sum(known.total for _, known in large), [
            size * s for size, known in large for s in known.seconds
        ]

    def _of(self, like: Likeness, attained: float) -> Durations | None:
        """The narrowest class that knows enough jobs which ran at least this long."""
        for key in like:
            known = self._classes.get(key)
            if known is None or known.total < ENOUGH:
                continue
            known.refresh()
            if len(known.ordered) - bisect_right(known.ordered, attained) >= ENOUGH:
                return known
        return None

    def knows(self, like: Likeness, attained: float = 0.0) -> bool:
        """Whether there is anything to go by."""
        return self._of(like, attained) is not None

    def remaining(self, like: Likeness, attained: float, quantile: float = 0.5) -> float:
        """How much longer a job runs that has run this long, at this quantile."""
        known = self._of(like, attained)
        if known is None:
            return max(attained, YOUNG) * (quantile / (1.0 - quantile))
        first = bisect_right(known.ordered, attained)
        place = first + int(quantile * (len(known.ordered) - first))
        return known.ordered[min(place, len(known.ordered) - 1)] - attained
