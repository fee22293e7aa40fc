"""Which sample comes when: an order of an epoch, the same on every machine, with numpy and without.

The order is the samples sorted by a key each, `splitmix64` of seed, epoch and number. A rank's share is every
`world`-th place of what is left, so a position in the order, the same for all ranks, is all that a resume needs: any
other number of ranks can divide the rest anew.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from itertools import accumulate
from typing import Any, Protocol

MASK = (1 << 64) - 1
STEP = 0x9E3779B97F4A7C15
FEW = 4096
"""So few samples are sorted at once; for no more of them numpy is not worth its import."""


class Order(Protocol):
    """A permutation of the numbers of an epoch."""

    def take(self, places: range) -> list[int]:
        """The samples at these places."""


def order(count: int, seed: int, epoch: int, shuffle: bool) -> Order:
    if not shuffle:
        return InOrder()
    numpy = _numpy() if count > FEW else None
    return Shuffled(count, seed, epoch) if numpy is None else ShuffledByNumpy(numpy, count, seed, epoch)


def share(position: int, count: int, rank: int, world: int) -> range:
    """The places of a rank from a position of the epoch to its end; none, if it is none of the ranks."""
    return range(position + rank, count, world) if world else range(0)


def reached(position: int, taken: int, count: int, world: int) -> int:
    """The position of the epoch when every rank has taken so many since another."""
    return min(position + taken * world, count)


class InOrder:
    """As the samples are numbered."""

    def take(self, places: range) -> list[int]:
        return list(places)


class ShuffledByNumpy:
    """Sorted whole: 4 bytes a sample are kept, some 30 are needed for a moment."""

    def __init__(self, numpy: Any, count: int, seed: int, epoch: int):
        key = numpy.arange(1, count + 1, dtype=numpy.uint64)
        key *= numpy.uint64(STEP)
        key += numpy.uint64(base(seed, epoch))
        for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
            key ^= key >> numpy.uint64(shift)
            key *= numpy.uint64(factor)
        key ^= key >> numpy.uint64(31)
        narrow = numpy.uint32 if count <= 1 << 32 else numpy.uint64
        self._order = key.argsort().astype(narrow)  # no two keys are equal, so any sort is stable

    def take(self, places: range) -> list[int]:
        found: list[int] = self._order[places.start : places.stop : places.step].tolist()
        return found


class Shuffled:
    """The same, without numpy: samples are put into buckets by the first bits of their keys, and a bucket is sorted
    when its turn comes. 4 bytes a sample are kept."""

    def __init__(self, count: int, seed: int, epoch: int):
        self._base = base(seed, epoch)
        bits = max(0, (count // FEW).bit_length())
        self._shift = 64 - bits
        sizes = [0] * (1 << bits)
        for number in range(count):
            sizes[self._key(number) >> self._shift] += 1
        self._ends = list(accumulate(sizes))
        free = [end - size for end, size in zip(self._ends, sizes, strict=True)]
        self._numbers = array(
            "I" if count <= 1 << 32 else "Q", bytes(4 * count if count <= 1 << 32 else 8 * count)
        )
        for number in range(count):
            bucket = self._key(number) >> self._shift
            self._numbers[free[bucket]] = number
            free[bucket] += 1
        self._sorted = range(0)
        self._bucket: list[int] = []

    def _key(self, number: int) -> int:
        return mixed(self._base + (number + 1) * STEP)

    def take(self, places: range) -> list[int]:
        taken = []
        for place in places:
            if place not in self._sorted:
                at = bisect_right(self._ends, place)
                self._sorted = range(self._ends[at - 1] if at else 0, self._ends[at])
                self._bucket = sorted(self._numbers[self._sorted.start : self._sorted.stop], key=self._key)
            taken.append(self._bucket[place - self._sorted.start])
        return taken


def base(seed: int, epoch: int) -> int:
    return mixed(mixed(seed + STEP) + (epoch + 1) * STEP)


def mixed(value: int) -> int:
    """The finalizer of splitmix64: one to one, so different numbers never have the same key."""
    value &= MASK
    value = (value ^ (value >> 30)) * 0xBF58476D1CE4E5B9 & MASK
    value = (value ^ (value >> 27)) * 0x94D049BB133111EB & MASK
    return value ^ (value >> 31)


def _numpy() -> Any:
    try:
        import numpy
    except ImportError:
        return None
    return numpy
