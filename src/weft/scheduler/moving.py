"""Moving: there is enough room, but in pieces. Small jobs go elsewhere, each to a place that is found beforehand."""

from __future__ import annotations

from weft.scheduler.claim import Claim, Victim
from weft.scheduler.feasible import groups_of, place
from weft.scheduler.plan import Placement, Preemption
from weft.scheduler.running import GROWN, Band, width
from weft.scheduler.victims import Choice


class Moving:
    def __init__(self, claim: Claim, choice: Choice):
        self._claim = claim
        self._choice = choice

    def plan(self) -> Preemption | None:
        """Who moves where so that the job fits; None if that would not do, or would move more than it places."""
        request, tasks = groups_of(self._claim.job.gang.least)[0]
        if request.gpu < 2 or 1000 * self._claim.cluster.idle[1] < self._claim.job.least[2]:
            return None
        bands = {
            band
            for band in self._claim.running.bands
            if 0 <= band[2] < GROWN and band[0] <= self._claim.job.priority
        }
        if not bands:
            return None
        if self._claim.counts(request, self._claim.room(bands)).sum() < len(tasks):
            return None
        ranked = []
        for node in self._choice.likely_nodes(bands):
            needed = self._choice.needed(node, self._movable_on(node, bands))
            if needed is not None:
                leaving, gained = needed
                ranked.append((sum(width(v.job.gang) for v in leaving) / gained, node, leaving, gained))
        missing, moving = len(tasks), []
        for _, _, leaving, gained in sorted(ranked, key=lambda item: item[:2]):
            moving += leaving
            missing -= gained
            if missing <= 0:
                break
        if missing > 0 or not moving or sum(width(v.job.gang) for v in moving) > width(self._claim.job.gang):
            return None
        return self._moved(moving)

    def _movable_on(self, node: int, bands: set[Band]) -> list[Victim]:
        """Jobs of one task that lie here, have saved lately and are not promised their peace, the smallest first."""
        found = []
        for uid, task in self._claim.running.on_node[node]:
            job = self._claim.running[uid]
            if len(job.tasks) > 1 or job.bands[task] not in bands or job.leaving or uid in self._claim.spared:
                continue
            if job.unsaved(self._claim.now) <= self._claim.policy.quantum:
                found.append(Victim(job, (task,), True, (width(job.gang), job.lost(self._claim.now))))
        return sorted(found, key=lambda victim: (victim.cost, victim.job.uid))

    def _moved(self, moving: list[Victim]) -> Preemption | None:
        start = self._claim.cluster.mark()
        for victim in moving:
            self._claim.vacate(victim)
        bindings = place(
            self._claim.cluster, self._claim.job.gang, self._claim.job.gang.least, self._claim.mix
        )
        places: list[Placement] = []
        for victim in moving if bindings is not None else ():
            found = place(self._claim.cluster, victim.job.gang, mix=self._claim.mix)
            if found is None:
                break
            places.append(Placement(victim.job.uid, found))
        self._claim.cluster.revert(start)
        if bindings is None or len(places) < len(moving):
            return None
        evicted = tuple(sorted(victim.job.uid for victim in moving))
        return Preemption(self._claim.job.uid, evicted, (), bindings, tuple(places))
