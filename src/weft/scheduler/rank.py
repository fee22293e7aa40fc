"""Ranks: whose turn it is among jobs of one priority and one queue, and who would give way to whom.

A job stands the further back the more its end is expected to cost (`kin.py`, or by another order of `Policy`). For
large jobs that alone has no end: whoever needs more than most waits for all who come meanwhile, and gives way to them
again and again. So two kinds of large jobs stand elsewhere than their rank alone would have them:

- *Ahead*: those that have waited longest in all, as many as fill a part of the cluster (`Policy.ahead`). They stand two
  levels further ahead, which is before most that would otherwise pass them, and behind all that is soon done. Every hour that
  others spend waiting brings these nearer, so nobody falls far behind its kind, and the longest waits are about alike.
- *Last*: the one in 125 that has had most when its 125 are full, for good. What these few would take is what all
  others would wait for.

Nothing of this needs to know how long a job will run, and nothing is fitted to a cluster.
"""

from __future__ import annotations

import math
from copy import copy

from weft.scheduler.history import History
from weft.scheduler.kin import Kin
from weft.scheduler.pending import Pending, Waiting
from weft.scheduler.policy import Order, Policy
from weft.scheduler.running import Occupancy, Running, level_of, width

LEVELS_AHEAD = 2
LEVELS_BEHIND = 10
TURN = 6 * 3600.0
"""A turn must be worth a restart: who has waited for less does not stand ahead, and who does and runs stays there until
another has waited so much longer."""
AT_ONCE = 100
"""So many of those who wait are ranked anew in one cycle."""
ENOUGH = 20
"""So many large jobs must have been seen before any goes last."""


class Ranking:
    def __init__(self, policy: Policy, history: History, kin: Kin):
        self._policy = policy
        self._history = history
        self.kin = kin
        self.ahead: frozenset[str] = frozenset()
        """Large jobs that have waited longest."""
        self.last: frozenset[str] = frozenset()
        """Large jobs that stand behind all others for good."""
        self._before: int | None = None
        """How many had gone last before these books began, by what had ended until then."""
        self._next = -math.inf
        """When to look again who stands ahead and who goes last."""
        self._round = -math.inf
        """When all who wait are to be ranked anew."""
        self._unranked: list[str] = []
        """Who is still to be in this round."""

    def onto(self, kin: Kin) -> Ranking:
        """The same, by what these kin know."""
        twin = copy(self)
        twin.kin = kin
        return twin

    def of(self, job: Waiting | Running, attained: float) -> float:
        """The rank of a job that has run for so many seconds: the lowest goes first."""
        match self._policy.order:
            case Order.FIFO:
                return 0.0
            case Order.SHORTEST:
                return self._history.remaining(job.like, attained) * width(job.gang)
            case Order.LEAST_ATTAINED:
                return attained * width(job.gang)
            case Order.EXPECTED:
                rank = self.kin.cost(job, attained) * width(job.gang)
        if job.uid in self.last:
            return rank * self._policy.factor**LEVELS_BEHIND
        return rank / self._policy.factor**LEVELS_AHEAD if job.uid in self.ahead else rank

    def level(self, job: Running, attained: float) -> int:
        return level_of(self.of(job, attained), self._policy.factor)

    def next(self, now: float, pending: Pending) -> list[str]:
        """Whom to rank anew. What is expected of those who wait changes as their kin run and end: all have their turn once
        in a quantum, but a few in each cycle, so that none takes long."""
        if self._policy.order is not Order.EXPECTED:
            return []
        if not self._unranked and now >= self._round:
            self._unranked = [job.uid for job in pending]
            self._round = now + self._policy.quantum
        some, self._unranked = self._unranked[:AT_ONCE], self._unranked[AT_ONCE:]
        return [uid for uid in some if uid in pending]

    # ── who stands ahead, and who goes last ──

    def look(self, now: float, pending: Pending, running: Occupancy, cluster: float) -> frozenset[str]:
        """Look at who has waited longest and had most by now, in a cluster so wide. Who stands elsewhere since."""
        if self._policy.order is not Order.EXPECTED or now < self._next:
            return frozenset()
        self._next = now + self._policy.quantum
        before = (self.ahead, self.last)
        if self._policy.last:
            self._choose_last(now, pending, running)
        if self._policy.ahead:
            self._choose_ahead(now, pending, running, cluster)
        return (before[0] ^ self.ahead) | (before[1] ^ self.last)

    def _choose_ahead(self, now: float, pending: Pending, running: Occupancy, cluster: float) -> None:
        waits: list[tuple[float, float, Waiting | Running]]
        waits = [(now - job.origin, 0.0, job) for job in pending.as_large(self._policy.large)]
        waits += [(job.waited, TURN, job) for job in running.as_large(self._policy.large)]
        able = [
            (-waited - turn, job.uid, width(job.gang))
            for waited, turn, job in waits
            if waited >= TURN and job.uid not in self.last
        ]
        room, chosen = self._policy.ahead * cluster, []
        for _, uid, wide in sorted(able):
            if room <= 0:
                break
            chosen.append(uid)
            room -= wide
        self.ahead = frozenset(chosen)

    def _choose_last(self, now: float, pending: Pending, running: Occupancy) -> None:
        waiting, here = pending.as_large(self._policy.large), running.as_large(self._policy.large)
        ended, known = self._history.of_size(self._policy.large)
        if self._before is None:
            self._before = int(self._policy.last * ended)
        slots = int(self._policy.last * (ended + len(waiting) + len(here))) - self._before - len(self.last)
        if slots <= 0:
            return
        had = {job.uid: job.attained * width(job.gang) for job in waiting}
        had |= {job.uid: job.ran(now) * width(job.gang) for job in here}
        seen = sorted((*known, *had.values()))
        if len(seen) < ENOUGH:
            return
        much = seen[len(seen) // 2] * self._policy.factor
        most = sorted((-gpu_s, uid) for uid, gpu_s in had.items() if gpu_s >= much and uid not in self.last)
        self.last |= {uid for _, uid in most[:slots]}
