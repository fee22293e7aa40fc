"""Moving: there is enough room, but in pieces. Small jobs go elsewhere, each to a place that is found beforehand.

The pieces may also be in use by jobs that would give way: these are stopped, and who is moved takes their places.
"""

from __future__ import annotations

import numpy as np

from weft.model.status import Binding
from weft.scheduler.claim import Claim, Victim
from weft.scheduler.feasible import groups_of, place
from weft.scheduler.plan import Placement, Preemption
from weft.scheduler.running import GROWN, Band, width
from weft.scheduler.victims import NODES_TRIED, Choice

TRIES = 6


class Moving:
    def __init__(self, claim: Claim, choice: Choice):
        self._claim = claim
        self._choice = choice
        self._yielding = {*claim.bands()}
        """The bands that give way to the job."""

    def plan(self) -> Preemption | None:
        """Who moves where so that the job fits; None if that would not do, or would move more than it places."""
        claim = self._claim
        request, tasks = groups_of(claim.job.gang.least)[0]
        if request.gpu < 2 or not self._enough():
            return None
        movable = {
            band for band in claim.running.bands if 0 <= band[2] < GROWN and band[0] <= claim.job.priority
        } - self._yielding
        if not movable:
            return None
        bands = movable | self._yielding
        if claim.counts(request, claim.room(bands)).sum() < len(tasks):
            return None
        ranked = []
        for node in self._choice.likely_nodes(bands, free=claim.room(self._yielding)):
            stopping = [victim for victim in self._choice.victims_on(node, self._yielding) if victim.whole]
            needed = self._choice.needed(node, [*stopping, *self._movable_on(node, movable)])
            if needed is not None:
                leaving, gained = needed
                cost = (self._moved_width(leaving) / gained, len(leaving) / gained, node)
                ranked.append((cost, leaving, gained))
        ranked.sort(key=lambda item: item[0])
        return self._of_nodes([item[1:] for item in ranked], len(tasks))

    def _enough(self) -> bool:
        """By the sums."""
        claim = self._claim
        if not self._yielding:
            return 1000 * claim.cluster.idle[1] >= claim.job.least[2]
        return claim.enough(claim.within_reach() or (0, 0))

    def _of_nodes(self, nodes: list[tuple[list[Victim], int]], tasks: int) -> Preemption | None:
        """By the first of these nodes that are enough; one from which a job finds no new place is left out, a few times."""
        for _ in range(TRIES):
            missing, leaving = tasks, []
            for here, gained in nodes:
                leaving += here
                missing -= gained
                if missing <= 0:
                    break
            if missing > 0 or not 0 < self._moved_width(leaving) <= width(self._claim.job.gang):
                return None
            found = self._moved(leaving)
            if not isinstance(found, Victim):
                return found
            nodes = [(here, gained) for here, gained in nodes if found not in here]
        return None

    def _yields(self, victim: Victim) -> bool:
        return any(band in self._yielding for band in victim.job.bands.values())

    def _moved_width(self, leaving: list[Victim]) -> float:
        return sum(width(victim.job.gang) for victim in leaving if not self._yields(victim))

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

    def _moved(self, leaving: list[Victim]) -> Preemption | Victim | None:
        """The plan, or who of them finds no new place."""
        claim = self._claim
        start, queues = claim.cluster.mark(), claim.queues.mark()
        try:
            stopped: list[Victim] = []
            if not all(self._let_go(victim, stopped) for victim in leaving):
                return None
            bindings = place(claim.cluster, claim.job.gang, claim.job.gang.least, claim.mix)
            if bindings is None:
                return None
            places: list[Placement] = []
            for victim in leaving:
                if not self._yields(victim):
                    found = self._new_place(victim, stopped)
                    if found is None:
                        return victim
                    places.append(Placement(victim.job.uid, found))
        finally:
            claim.cluster.revert(start)
            claim.queues.revert(queues)
        evicted = {placement.uid for placement in places} | {victim.job.uid for victim in stopped}
        return Preemption(claim.job.uid, tuple(sorted(evicted)), (), bindings, tuple(places))

    def _let_go(self, victim: Victim, stopped: list[Victim]) -> bool:
        """It leaves, on the undo stack; False if it gives way and its queue cannot spare it."""
        if self._yields(victim):
            if not self._claim.allowed(victim):
                return False
            self._claim.account(victim, -1)
            stopped.append(victim)
        self._claim.vacate(victim)
        return True

    def _new_place(self, moved: Victim, stopped: list[Victim]) -> tuple[Binding, ...] | None:
        """Where there is room, or where those who give way leave it."""
        claim, gang = self._claim, moved.job.gang
        found = place(claim.cluster, gang, mix=claim.mix)
        if found is not None or not self._yielding:
            return found
        columns = claim.cluster.gpu_columns
        free = claim.cluster.free[:, columns].sum(axis=1)
        room = free + sum(claim.running.bands[band][:, columns].sum(axis=1) for band in self._yielding)
        able = np.flatnonzero(room >= gang.gpus)
        gone = {victim.job.uid for victim in stopped}
        for node in able[np.argsort(-free[able], kind="stable")][:NODES_TRIED].tolist():
            mark, count = claim.cluster.mark(), len(stopped)
            for victim in self._choice.victims_on(node, self._yielding):
                if victim.whole and victim.job.uid not in gone and self._let_go(victim, stopped):
                    found = place(claim.cluster, gang, mix=claim.mix)
                    if found is not None:
                        return found
            claim.cluster.revert(mark)
            for victim in stopped[count:]:
                claim.account(victim, 1)
            del stopped[count:]
        return None
