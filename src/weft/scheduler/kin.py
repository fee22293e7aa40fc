"""Kin: what an end is expected to cost, by jobs of the same kind that came near this one in time.

What one owner submits one after the other, of one name and one size, are tries of one thing and run about as long. On
Philly's trace the logarithms of two such neighbours' durations correlate by 0.7 (8 GPUs and more) to 0.9 (2 and 4
GPUs); those of two jobs of one owner and size at any distance by 0.4 and 0.5. So the nearest few say more of a job
than all that ever ran. Of kin that still run it is known that they take at least so long, and that counts as well.

Time is cut into spans that grow by half. For each span: of those that came to its beginning, how many ended in it? The
nearest count most, and where few came so far, what jobs of this size did counts instead. From these chances of ending follows
what an end is expected to cost from here on: for every time to look ahead, the service expected until then for each chance
of an end by then; the best of them. That is the inverse of the Gittins index, which is the best order for jobs of which only
such chances are known. Where nothing is known it grows with what a job has had, and the order is that of Tiresias.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator
from copy import copy
from dataclasses import dataclass
from itertools import accumulate, chain, pairwise
from operator import attrgetter
from typing import Protocol

from weft.scheduler.history import Likeness

Chances = list[float]
"""Of ending in each span, for who came to its beginning. None is certain."""
Place = tuple[float, str]
"""In the order of coming: when, and who of those that came at once."""
NEAR = 16
"""So many kin are asked on each side of a job, in the order of their coming."""
DECAY = 0.8
"""The next one counts for this much of the one before it."""
ENOUGH = 4
"""A job's namesakes are asked where so many of them have run; else all of its owner and size."""
DOUBT = 0.2
"""What jobs of a size usually do counts as much as this part of a nearest kin."""
HEARSAY = 5.0
"""What all jobs do counts as much as so many jobs of this size."""
AGAIN = 1 / 3
"""The chance of ending in a span where nothing is known: half of those that ran for so long run as long again."""
LEAST, MOST = 1e-4, 0.999
LARGEST = 16.0
"""Jobs of so many GPUs and more are of one size."""
REMEMBERED = 512
"""Of each kind."""
KINDS = 20_000
UNENDED = 100_000
"""So many are followed at a time; one of more that nothing was heard of for longest counts with what it had."""

EDGES = [0.0, *accumulate(range(37), lambda edge, _: 1.5 * edge, initial=30.0)]
"""Of the spans: from half a minute to three years."""
SPANS = len(EDGES) - 1
LENGTHS = [end - begin for begin, end in pairwise(EDGES)]
WEIGHTS = [DECAY**place for place in range(NEAR)]


class Kindred(Protocol):
    """What must be known of a job to find its kin."""

    @property
    def uid(self) -> str: ...
    @property
    def like(self) -> Likeness: ...
    @property
    def came(self) -> float: ...


@dataclass(slots=True)
class Life:
    """How long one job has run, as far as is known."""

    place: Place
    seconds: float = 0.0
    span: int = 0
    """In which it is, or ended."""
    ended: bool = False


_place = attrgetter("place")


class Kind:
    """The lives of jobs of one kind, in the order of their coming."""

    __slots__ = ("fresh", "lives")

    def __init__(self) -> None:
        self.lives: list[Life] = []
        self.fresh: dict[tuple[int, int], float] = {}
        """What is expected of one that has not run, by where it stands among these, until one of them has news."""

    def at(self, place: Place) -> int:
        return bisect_left(self.lives, place, key=_place)

    def join(self, life: Life) -> None:
        self.lives.insert(self.at(life.place), life)
        if len(self.lives) > REMEMBERED:
            del self.lives[0]

    def near(self, place: Place) -> Iterator[tuple[float, Life]]:
        """Those around this place, with what each counts."""
        at = self.at(place)
        before = reversed(self.lives[max(0, at - NEAR) : at])
        behind = self.lives[at : at + NEAR + 1]
        if behind and behind[0].place == place:
            del behind[0]
        return chain(zip(WEIGHTS, before, strict=False), zip(WEIGHTS, behind, strict=False))


class Tally:
    """Of all jobs of one size: how many came to the beginning of each span, and ended in it."""

    def __init__(self) -> None:
        self.came = [0] * SPANS
        self.ended = [0] * SPANS

    def count(self, seconds: float) -> None:
        last = span_of(seconds)
        for span in range(last + 1):
            self.came[span] += 1
        self.ended[last] += 1

    def chances(self, doubted: Chances) -> Chances:
        counted = zip(self.came, self.ended, doubted, strict=True)
        found = ((ended + HEARSAY * doubt) / (came + HEARSAY) for came, ended, doubt in counted)
        return [min(max(chance, LEAST), MOST) for chance in found]


class Kin:
    def __init__(self) -> None:
        self._kinds: dict[tuple[object, ...], Kind] = {}
        self._unended: dict[str, Life] = {}
        self._all = Tally()
        self._sizes: dict[float, Tally] = {}
        self._usual: dict[float, tuple[int, Chances]] = {}
        """What jobs of each size do, and how many ends that was worked out from."""
        self._ends = 0
        self._still = False

    def still(self) -> Kin:
        """The same, to look at from another thread: nothing that it is told is kept."""
        twin = copy(self)
        twin._still = True
        return twin

    # ── what happens ──

    def ran(self, job: Kindred, seconds: float) -> None:
        """It has run for so long, and goes on or may do so."""
        if not self._still:
            self._note(job, seconds)

    def ended(self, job: Kindred, seconds: float) -> None:
        """It has ended by itself after so long, well or not: either way its room is free."""
        if self._still:
            return
        self._note(job, seconds)
        if (life := self._unended.pop(job.uid, None)) is not None:
            life.ended = True
        self._sizes.setdefault(_size(job), Tally()).count(seconds)
        self._all.count(seconds)
        self._ends += 1

    def _note(self, job: Kindred, seconds: float) -> None:
        if seconds <= 0:
            return
        life = self._unended.pop(job.uid, None)
        if life is None:
            life = Life((job.came, job.uid))
            for key in job.like[:-1]:
                self._of(key).join(life)
        self._unended[job.uid] = life
        if len(self._unended) > UNENDED:
            del self._unended[next(iter(self._unended))]
        life.seconds, life.span = seconds, span_of(seconds)
        for key in job.like[:-1]:
            self._of(key).fresh = {}

    def _of(self, key: tuple[object, ...]) -> Kind:
        kind = self._kinds.get(key)
        if kind is None:
            kind = self._kinds[key] = Kind()
            if len(self._kinds) > KINDS:
                del self._kinds[next(iter(self._kinds))]
        return kind

    # ── what is expected ──

    def cost(self, job: Kindred, attained: float) -> float:
        """Seconds of service that an end is expected to cost from here: who has the least should run first."""
        life = self._unended.get(job.uid)
        place = (job.came, job.uid) if life is None else life.place
        kind = self._kind_of(job)
        ends, usual = self._usual_of(_size(job))
        if kind is None:
            return cost_of(usual, attained)
        if attained:
            return cost_of(chances_of(kind.near(place), usual), attained)
        fresh, where = kind.fresh, (kind.at(place), ends)
        cost = fresh.get(where)
        if cost is None:
            cost = fresh[where] = cost_of(chances_of(kind.near(place), usual), 0.0)
        return cost

    def _kind_of(self, job: Kindred) -> Kind | None:
        """The narrowest that knows enough, else the widest that knows anything."""
        found = None
        for key in job.like[:-1]:
            kind = self._kinds.get(key)
            if kind is not None:
                found = kind
                if len(kind.lives) >= ENOUGH:
                    break
        return found

    def _usual_of(self, size: float) -> tuple[int, Chances]:
        """What jobs of this size do, worked out anew once there is a twentieth more to learn from."""
        known = self._usual.get(size)
        if known is None or self._ends > known[0] * 1.05 + 1:
            tally = self._sizes.get(size)
            usual = self._all.chances([AGAIN] * SPANS)
            known = self._usual[size] = (self._ends, usual if tally is None else tally.chances(usual))
        return known


def span_of(seconds: float) -> int:
    return min(bisect_right(EDGES, seconds), SPANS) - 1


def _size(job: Kindred) -> float:
    gpus = job.like[-1][0]
    assert isinstance(gpus, int | float)
    return min(float(gpus), LARGEST)


def chances_of(near: Iterable[tuple[float, Life]], usual: Chances) -> Chances:
    """What these did, each by its weight, and where they say little what is usual."""
    came = 0.0
    ended, left = [0.0] * SPANS, [0.0] * (SPANS + 1)
    for weight, life in near:
        came += weight
        span = life.span
        if life.ended:
            ended[span] += weight
            left[span + 1] += weight
        else:  # it has seen a part of this span, and counts for that part
            part = weight * min(1.0, (life.seconds - EDGES[span]) / LENGTHS[span])
            left[span] += weight - part
            left[span + 1] += part
    found = []
    for gone, over, doubt in zip(left, ended, usual, strict=False):
        came -= gone
        chance = (over + DOUBT * doubt) / ((came if came > 0.0 else 0.0) + DOUBT)
        found.append(LEAST if chance < LEAST else chance if chance < MOST else MOST)
    return found


def cost_of(chances: Chances, attained: float) -> float:
    """The least expected service for an end, over all times to look ahead."""
    first = span_of(attained)
    length = max(EDGES[first + 1] - attained, 1.0)
    alive: float = (1.0 - chances[first]) ** (length / LENGTHS[first])
    served = length * (1.0 + alive) / 2
    best = served / (1.0 - alive)
    for chance, length in zip(chances[first + 1 :], LENGTHS[first + 1 :], strict=True):
        left = alive * (1.0 - chance)
        served += length * (alive + left) / 2
        alive = left
        cost = served / (1.0 - alive)
        best = min(best, cost)
    return best
