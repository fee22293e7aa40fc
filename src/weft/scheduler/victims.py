"""Who could leave so that a waiting job fits, the cheapest first: tasks that can be spared, jobs node by node."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from weft.model.gang import Within
from weft.scheduler.claim import Claim, Victim
from weft.scheduler.cluster import Ints
from weft.scheduler.feasible import groups_of
from weft.scheduler.running import GROWN, Band, width

NODES_TRIED = 24
ZONES_TRIED = 16


class Choice:
    """The victims there are to choose from."""

    def __init__(self, claim: Claim):
        self._claim = claim

    def shrinking(self) -> list[Victim]:
        """Every task that an elastic job can do without, the least important job first."""
        found: list[Victim] = []
        for uid in self._claim.running.elastic:
            job = self._claim.running[uid]
            if not self._claim.may_take(job):
                continue
            beyond = {*job.beyond()}
            for place_, name in enumerate(job.spare()):
                if name in beyond or self._claim.below(job):
                    found.append(Victim(job, (name,), False, (job.priority, -job.bands[name][2], place_)))
        return sorted(found, key=lambda victim: victim.cost)

    def zones(self, bands: set[Band]) -> list[Ints | None]:
        """The nodes to choose from: all, or those of one rack (or fabric, or one node) after the other."""
        gang = self._claim.job.gang
        if gang.within is Within.ANYWHERE:
            return [None]
        zones = self._zone_of()
        able = self._zones_that_fit(self._claim.room(bands), zones)
        taken = self._taken(bands)[0]
        least = np.full(len(able), np.inf)
        np.minimum.at(least, zones[zones >= 0], taken[zones >= 0])
        chosen = np.flatnonzero(able)
        order = chosen[np.argsort(least[chosen], kind="stable")][:ZONES_TRIED]
        return [np.flatnonzero(zones == zone) for zone in order.tolist()]

    def _zone_of(self) -> Ints:
        match self._claim.job.gang.within:
            case Within.RACK:
                return self._claim.cluster.racks
            case Within.FABRIC:
                return self._claim.cluster.fabrics
            case Within.CLUSTER:
                return self._claim.cluster.clusters
            case _:
                return np.arange(len(self._claim.cluster.nodes))

    def _zones_that_fit(self, room: Ints, zones: Ints) -> NDArray[np.bool_]:
        """Which zones have, by count, room for every kind of task."""
        count = int(zones.max()) + 1 if len(zones) else 0
        able = np.ones(max(count, 0), bool)
        named = zones >= 0
        for request, tasks in groups_of(self._claim.job.gang.least):
            counts = np.minimum(self._claim.counts(request, room), len(tasks))
            able &= np.bincount(zones[named], weights=counts[named], minlength=len(able)) >= len(tasks)
        return able

    def stopping(self, bands: set[Band], zone: Ints | None) -> list[Victim]:
        """Victims node by node, where the fewest must go, who lose least, are no larger than need be, and have waited least."""
        nodes = self.likely_nodes(bands, zone)
        found: dict[tuple[str, tuple[str, ...]], Victim] = {}
        ranked = []
        for node in nodes:
            victims = self.victims_on(node, bands)
            needed = self.needed(node, victims)
            if needed is not None:
                leaving, gained = needed
                stopped = [victim for victim in leaving if victim.whole]
                lost = sum(victim.cost[-1] for victim in stopped)
                room = sum(width(victim.job.gang) for victim in stopped)
                waited = sum(victim.job.waited for victim in stopped)
                cost = (len(stopped) / gained, lost / gained, room / gained, waited / gained, node)
                ranked.append((cost, leaving))
        for _, leaving in sorted(ranked, key=lambda item: item[0]):
            for victim in leaving:
                found.setdefault((victim.job.uid, victim.tasks), victim)
        return list(found.values())

    def sufficient_bands(self, bands: list[Band]) -> set[Band] | None:
        """The least important bands with whose room the job would fit, by count; None if all are not enough."""
        room = self._claim.cluster.free.copy()
        chosen: set[Band] = set()
        for band in bands:
            room += self._claim.running.bands[band]
            chosen.add(band)
            if self._would_fit(room):
                return chosen
        return None

    def _would_fit(self, room: Ints) -> bool:
        if self._claim.job.gang.within is not Within.ANYWHERE:
            return bool(self._zones_that_fit(room, self._zone_of()).any())
        groups = groups_of(self._claim.job.gang.least)
        return all(self._claim.counts(request, room).sum() >= len(tasks) for request, tasks in groups)

    def _taken(self, bands: set[Band], free: Ints | None = None) -> tuple[NDArray[np.float64], Ints]:
        """What has to be taken from others on each node for a task of the largest kind, and how many fit then."""
        request, tasks = groups_of(self._claim.job.gang.least)[0]
        free = self._claim.cluster.free if free is None else free
        could = self._claim.counts(request, self._claim.room(bands))
        columns = self._claim.cluster.gpu_columns
        have, want = (free[:, columns].sum(axis=1), request.gpu) if request.gpu else (free[:, 0], request.cpu)
        taken = np.maximum(np.minimum(could, len(tasks)) * want - have, 0) / np.maximum(could, 1)
        return np.where(could > 0, taken, np.inf), could

    def likely_nodes(self, bands: set[Band], zone: Ints | None = None, free: Ints | None = None) -> list[int]:
        """Where the least has to be taken, beyond what is free."""
        taken, could = self._taken(bands, free)
        nodes = np.flatnonzero(could) if zone is None else zone[could[zone] > 0]
        count = NODES_TRIED + len(groups_of(self._claim.job.gang.least)[0][1])
        if len(nodes) > count:
            nodes = nodes[np.argpartition(taken[nodes], count - 1)[:count]]
        found: list[int] = nodes[np.lexsort((nodes, taken[nodes]))].tolist()
        return found

    def victims_on(self, node: int, bands: set[Band]) -> list[Victim]:
        victims: dict[tuple[str, str], Victim] = {}
        for uid, task in self._claim.running.on_node[node]:
            job = self._claim.running[uid]
            if job.bands[task] not in bands or task in job.shrinking or not self._claim.may_take(job):
                continue
            lost = job.lost(self._claim.now)
            if (
                job.gang.elastic
                and task in job.spare()
                and (job.bands[task][2] == GROWN or self._claim.below(job))
            ):
                victims[uid, task] = Victim(job, (task,), False, (0, job.priority, -job.bands[task][2], lost))
            elif self._claim.below(job):
                cost = (1, job.priority, -job.bands[task][2], lost)
                staying = tuple(name for name in job.tasks if name not in job.shrinking)
                victims[uid, ""] = Victim(job, staying, True, cost)
        return sorted(victims.values(), key=lambda victim: victim.cost)

    def needed(self, node: int, victims: list[Victim]) -> tuple[list[Victim], int] | None:
        """The cheapest of these without whom the node takes as many tasks as it can, and how many those are."""
        request, tasks = groups_of(self._claim.job.gang.least)[0]
        room = self._claim.cluster.rooms[self._claim.cluster.nodes[node].name]
        mark = self._claim.cluster.mark()
        before = reached = room.count(request)
        gone: list[Victim] = []
        chosen: list[Victim] = []
        for victim in victims:
            if reached >= len(tasks):
                break
            self._claim.let_go(victim, gone)
            count = room.count(request)
            if count > reached:
                reached, chosen = count, list(gone)
        sizes = {width(victim.job.gang) for victim in chosen}
        if len(sizes) > 1:  # an early small one may have been made needless by a later large one
            self._claim.cluster.revert(mark)
            for victim in chosen:
                self._claim.vacate(victim)
            for victim in chosen[:-1]:
                again = self._claim.cluster.mark()
                self._claim.restore(victim)
                if room.count(request) >= reached and self._claim.sound(victim):
                    chosen = [other for other in chosen if other is not victim]
                else:
                    self._claim.cluster.revert(again)
        self._claim.cluster.revert(mark)
        return (chosen, min(reached, len(tasks))) if chosen or before else None
