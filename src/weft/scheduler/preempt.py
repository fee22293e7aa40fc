"""Who gives way: the fewest and cheapest whose room makes a waiting job fit, the elastic ones shrunk before any is stopped.

A plan is only made of what was tried: victims leave and the job is placed on the undo stack, then every
victim that turns out not to be needed is put back. If the job still does not fit, nobody goes.
"""

from __future__ import annotations

from weft.scheduler.claim import Claim, Victim
from weft.scheduler.feasible import place
from weft.scheduler.moving import Moving
from weft.scheduler.plan import Preemption, Shrink
from weft.scheduler.victims import Choice


class Preempting:
    """One attempt for one waiting job."""

    def __init__(self, claim: Claim):
        self._claim = claim
        self._choice = Choice(claim)

    def plan(self) -> Preemption | None:
        """Who must go so that the job fits; None if nothing would help. Leaves the cluster as it was."""
        mark = self._claim.cluster.mark()
        planned = None
        reach = self._claim.within_reach()
        if reach is not None and self._claim.enough(reach):
            planned = self._by(self._choice.shrinking()) or self._stopped()
        if planned is None and self._claim.policy.move:
            planned = Moving(self._claim, self._choice).plan()
        self._claim.cluster.revert(mark)
        return planned

    def _stopped(self) -> Preemption | None:
        """By the least important bands that should suffice, by count, else by all; zone by zone, if it must be in one."""
        every = self._claim.bands()
        few = self._choice.sufficient_bands(every)
        if few is None:
            return None
        for bands in (few, {*every}) if len(few) < len(every) else (few,):
            for zone in self._choice.zones(bands):
                planned = self._by(self._choice.stopping(bands, zone))
                if planned is not None:
                    return planned
        return None

    def _by(self, victims: list[Victim]) -> Preemption | None:
        """Let victims leave one after the other until the job fits, then put back whoever was not needed."""
        cluster = self._claim.cluster
        start = cluster.mark()
        gone: list[Victim] = []
        queues = self._claim.queues.mark()
        bindings, step, untried = None, 1, False
        stopped: set[str] = set()
        for victim in (*victims, None):
            if victim is not None:
                if victim.job.uid in stopped or not self._claim.allowed(victim):
                    continue
                for part in self._claim.let_go(victim, gone):
                    self._claim.account(part, 1)
                self._claim.account(victim, -1)
                untried = True
                if victim.whole:
                    stopped.add(victim.job.uid)
            if untried and (len(gone) >= step or victim is None):
                bindings = self._claim.tried()
                if bindings is not None:
                    break
                untried, step = False, len(gone) + max(1, len(gone) // 8)
        self._claim.queues.revert(queues)
        if bindings is None:
            cluster.revert(start)
            return None
        return self._trimmed(gone, start)

    def _trimmed(self, gone: list[Victim], start: int) -> Preemption | None:
        cluster, gang = self._claim.cluster, self._claim.job.gang
        kept: list[Victim] = []
        for victim in sorted(gone, key=lambda victim: (victim.whole, victim.cost), reverse=True):
            mark = cluster.mark()
            self._claim.restore(victim)
            if not self._claim.sound(victim) or self._claim.tried() is None:
                cluster.revert(mark)
                kept.append(victim)
        bindings = place(cluster, gang, gang.least, self._claim.mix)
        cluster.revert(start)
        if bindings is None:
            return None
        evicted = tuple(sorted(victim.job.uid for victim in kept if victim.whole))
        shrunk: dict[str, list[str]] = {}
        for victim in kept:
            if not victim.whole and victim.job.uid not in evicted:
                shrunk.setdefault(victim.job.uid, []).extend(victim.tasks)
        shrinks = tuple(Shrink(uid, tuple(sorted(tasks))) for uid, tasks in sorted(shrunk.items()))
        return Preemption(self._claim.job.uid, evicted, shrinks, bindings)
