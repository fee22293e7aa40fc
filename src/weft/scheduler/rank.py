"""Ranks: whose turn it is among jobs of one priority and one queue, and who would give way to whom.

By least attained service a job stands the further back the more GPU time it has had. For large jobs that alone has no
end: whoever needs more than most waits for all who come meanwhile, and gives way to them again and again. Where the
policy says so (`Policy.line`), large jobs that have had more than the half of their kind that needs least stand in one
line: more GPU time puts them back no further, they do not give way to each other, and who has waited longest in all is its
first. Small jobs that have had much more stand behind the line, and so do, for good, the one in a hundred large jobs that
has had most: what these few would take is what all others would wait for.

Nothing of this needs to know how long a job will run, and nothing is fitted to a cluster: where the line begins follows from
what large jobs have had here so far.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from weft.scheduler.history import History
from weft.scheduler.pending import Pending, Waiting
from weft.scheduler.policy import Order, Policy
from weft.scheduler.running import Occupancy, Running, level_of, width

LOOK = 3600.0
"""How often, in seconds, it is looked at where the line begins and who goes last."""
ENOUGH = 20
"""So many large jobs must have been seen before any of that is said."""


class Ranking:
    def __init__(self, policy: Policy, history: History):
        self._policy = policy
        self._history = history
        self.line: int | None = None
        """The level that is the line of large jobs; None: there is none."""
        self.last: frozenset[str] = frozenset()
        """Large jobs that stand behind it for good."""
        self._before: int | None = None
        """How many had gone last before these books began, by what had ended until then."""
        self._next = -math.inf

    def of(self, job: Waiting | Running, attained: float) -> float:
        """The rank of a job that has run for so many seconds: the lowest goes first."""
        match self._policy.order:
            case Order.FIFO:
                return 0.0
            case Order.SHORTEST:
                return self._history.remaining(job.like, attained) * width(job.gang)
            case Order.LEAST_ATTAINED:
                return self._in_line(job, attained * width(job.gang))
            case _:
                return self._history.rank(job.like, attained) * width(job.gang)

    def _in_line(self, job: Waiting | Running, had: float) -> float:
        if self.line is None or job.gang.gpus < self._policy.large:
            return had
        begin, end = self._policy.factor**self.line, self._policy.factor ** (self.line + 1)
        if job.uid in self.last:
            return max(had, end)
        return had if had < begin else end * (1 - 1e-9)

    def level(self, job: Running, attained: float) -> int:
        return level_of(self.of(job, attained), self._policy.factor)

    # ── where the line begins, and who goes last ──

    def look(self, now: float, pending: Pending, running: Occupancy) -> bool:
        """Look at what large jobs have had by now. True if that changes ranks."""
        if not self._policy.line or self._policy.order is not Order.LEAST_ATTAINED or now < self._next:
            return False
        self._next = now + LOOK
        ended, known = self._history.of_size(self._policy.large)
        if self._before is None:
            self._before = int(self._policy.last * ended)
        had = dict(self._had(now, pending, running))
        seen = sorted((*known, *had.values()))
        if len(seen) < ENOUGH:
            return False
        before = (self.line, self.last)
        self.line = max(0, round(math.log(max(seen[len(seen) // 2], 1.0), self._policy.factor)))
        slots = int(self._policy.last * (ended + len(had))) - self._before - len(self.last)
        if slots > 0:
            self.last |= {*self._most(had, slots)}
        return (self.line, self.last) != before

    def _had(self, now: float, pending: Pending, running: Occupancy) -> Iterator[tuple[str, float]]:
        """The GPU seconds of the large jobs that are here."""
        for waiting in pending.as_large(self._policy.large):
            yield waiting.uid, waiting.attained * width(waiting.gang)
        for job in running:
            if job.gang.gpus >= self._policy.large:
                yield job.uid, job.ran(now) * width(job.gang)

    def _most(self, had: dict[str, float], count: int) -> list[str]:
        """Those who have had most, and more than who just came into the line."""
        assert self.line is not None
        end = self._policy.factor ** (self.line + 1)
        able = sorted(
            (-seconds, uid) for uid, seconds in had.items() if seconds >= end and uid not in self.last
        )
        return [uid for _, uid in able[:count]]
