"""Who is let into a full cache: the whole policy, without a file, a clock or a die of its own.

A policy is the order in which what is held would go. No replacement (`nr`) lets nothing go: what is in stays in. Of
data that is read once an epoch, only as much as the cache holds can be there when an epoch begins, so no policy has
a better hit ratio than cache/dataset; `nr` has exactly that, in any order, and even Belady, who knows the future,
only ties it. `lru` is for readers that come back to what they read last: notebooks, serving.

The cache asks `admit` with the order of `nr` or `lru` from its books. `Shelf` is a cache in thought, in which those
two stand beside first-in-first-out, random and Belady (benchmarks/experiments/cache_policies.py).
"""

from __future__ import annotations

import heapq
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import NamedTuple, Protocol

POLICIES = ("nr", "lru")
"""Those that a dataset may ask for."""


@dataclass(frozen=True, slots=True)
class Room:
    """A disk is full when either is gone."""

    bytes: int
    inodes: int = 1

    def __add__(self, other: Room) -> Room:
        return Room(self.bytes + other.bytes, self.inodes + other.inodes)

    def __sub__(self, other: Room) -> Room:
        return Room(self.bytes - other.bytes, self.inodes - other.inodes)

    def holds(self, need: Room) -> bool:
        return need.bytes <= self.bytes and need.inodes <= self.inodes

    def least(self, other: Room) -> Room:
        return Room(min(self.bytes, other.bytes), min(self.inodes, other.inodes))


NOTHING = Room(0, 0)
UNLIMITED = Room(1 << 62, 1 << 62)


class Held(NamedTuple):
    key: str
    room: Room


def admit(need: Room, free: Room, going: Iterable[Held] = ()) -> tuple[Held, ...] | None:
    """What must go so that `need` fits: nothing, if there is room. None: it does not fit even so, and nothing goes."""
    gone: list[Held] = []
    order = iter(going)
    while not free.holds(need):
        victim = next(order, None)
        if victim is None:
            return None
        gone.append(victim)
        free = free + victim.room
    return tuple(gone)


# ── a cache in thought ──


class Order(Protocol):
    """What a policy remembers: `asked` at every read, and what came in and left."""

    def asked(self, key: str) -> None: ...
    def entered(self, key: str) -> None: ...
    def left(self, key: str) -> None: ...
    def going(self, key: str) -> Iterator[str]:
        """Those that would go for this one, first first."""
        ...


class Shelf:
    def __init__(self, capacity: int, order: Order):
        self.free = Room(capacity, UNLIMITED.inodes)
        self.order = order
        self.held: dict[str, Room] = {}

    def read(self, key: str, size: int = 1) -> bool:
        """Whether it was there; if not it comes in, should the policy let it."""
        self.order.asked(key)
        if key in self.held:
            return True
        need = Room(size)
        gone = admit(need, self.free, (Held(old, self.held[old]) for old in self.order.going(key)))
        if gone is None:
            return False
        for old in gone:
            self.free += self.held.pop(old.key)
            self.order.left(old.key)
        self.held[key] = need
        self.free -= need
        self.order.entered(key)
        return False


class NoReplacement:
    def asked(self, key: str) -> None: ...
    def entered(self, key: str) -> None: ...
    def left(self, key: str) -> None: ...
    def going(self, key: str) -> Iterator[str]:
        return iter(())


class FirstIn:
    def __init__(self) -> None:
        self.line: OrderedDict[str, None] = OrderedDict()

    def asked(self, key: str) -> None: ...

    def entered(self, key: str) -> None:
        self.line[key] = None

    def left(self, key: str) -> None:
        del self.line[key]

    def going(self, key: str) -> Iterator[str]:
        return iter(self.line)


class LeastRecent(FirstIn):
    def asked(self, key: str) -> None:
        if key in self.line:
            self.line.move_to_end(key)


class AtRandom:
    def __init__(self, chance: Random):
        self.chance = chance
        self.keys: list[str] = []
        self.places: dict[str, int] = {}

    def asked(self, key: str) -> None: ...

    def entered(self, key: str) -> None:
        self.places[key] = len(self.keys)
        self.keys.append(key)

    def left(self, key: str) -> None:
        place, last = self.places.pop(key), self.keys.pop()
        if last != key:
            self.keys[place] = last
            self.places[last] = place

    def going(self, key: str) -> Iterator[str]:
        seen: set[int] = set()
        while len(seen) < len(self.keys):
            place = self.chance.randrange(len(self.keys))
            if place not in seen:
                seen.add(place)
                yield self.keys[place]


class Belady:
    """Lets go what is wanted again last; what is wanted later than all that is held does not come in."""

    def __init__(self, future: Sequence[str]):
        self.now = -1
        self.next = _next_uses(future)
        self.wanted: dict[str, int] = {}
        self.heap: list[tuple[int, str]] = []

    def asked(self, key: str) -> None:
        self.now += 1
        if key in self.wanted:
            self.entered(key)

    def entered(self, key: str) -> None:
        self.wanted[key] = self.next[self.now]
        heapq.heappush(self.heap, (-self.next[self.now], key))

    def left(self, key: str) -> None:
        del self.wanted[key]

    def going(self, key: str) -> Iterator[str]:
        passed: list[tuple[int, str]] = []
        try:
            while self.heap:
                when, old = self.heap[0]
                if self.wanted.get(old) != -when:
                    heapq.heappop(self.heap)
                    continue
                if -when <= self.next[self.now]:
                    return
                passed.append(heapq.heappop(self.heap))
                yield old
        finally:
            for entry in passed:
                heapq.heappush(self.heap, entry)


def _next_uses(future: Sequence[str]) -> list[int]:
    """For each read, when the same is read again; never is after all others."""
    uses, seen = [0] * len(future), dict[str, int]()
    for at in range(len(future) - 1, -1, -1):
        uses[at] = seen.get(future[at], len(future))
        seen[future[at]] = at
    return uses


def hit_ratios(
    capacity: int, order: Order, epochs: Sequence[Sequence[str]], sizes: Mapping[str, int]
) -> list[float]:
    """Of each epoch: the part of the bytes that did not have to be fetched."""
    shelf = Shelf(capacity, order)
    ratios = []
    for epoch in epochs:
        found = sum(sizes[key] for key in epoch if shelf.read(key, sizes[key]))
        ratios.append(found / sum(sizes[key] for key in epoch))
    return ratios
