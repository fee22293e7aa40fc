"""Who gives way: the fewest and cheapest whose room makes a waiting job fit, the elastic ones shrunk before any is stopped.

A plan is only made of what was tried: victims leave and the job is placed on the undo stack, then every
victim that turns out not to be needed is put back. If the job still does not fit, nobody goes.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from weft.model.gang import Request, Within
from weft.model.status import Binding
from weft.scheduler.cluster import Cluster, Ints
from weft.scheduler.feasible import groups_of, place
from weft.scheduler.fit import Mix, fit_of
from weft.scheduler.pending import Waiting
from weft.scheduler.plan import Placement, Preemption, Shrink
from weft.scheduler.policy import Policy
from weft.scheduler.queues import Amounts, Queues, amounts_of
from weft.scheduler.running import GROWN, Band, Occupancy, Running, width

NODES_TRIED = 8
ZONES_TRIED = 16


@dataclass(frozen=True, slots=True)
class Victim:
    """What leaves together: one task of an elastic job, or a whole job."""

    job: Running
    tasks: tuple[str, ...]
    whole: bool
    cost: tuple[float, ...]


def enough(cluster: Cluster, job: Waiting, reach: tuple[int, int]) -> bool:
    """A look at the sums, before any closer look: is there as much as the job needs?"""
    cpu, _, gpu = job.least
    return cluster.idle[0] + reach[0] >= cpu and 1000 * (cluster.idle[1] + reach[1]) >= gpu - gpu % 1000


class Preempting:
    """One attempt for one waiting job."""

    def __init__(
        self,
        cluster: Cluster,
        running: Occupancy,
        queues: Queues,
        policy: Policy,
        now: float,
        job: Waiting,
        level: int,
        mix: Mix = (),
        spared: frozenset[str] = frozenset(),
    ):
        self._cluster = cluster
        self._running = running
        self._queues = queues
        self._policy = policy
        self._now = now
        self._job = job
        self._level = level
        self._mix = mix
        self._spared = spared
        """Jobs that give way to another already, in this very cycle."""
        self._owed = queues.guaranteed(job.queue, job.least)

    def plan(self) -> Preemption | None:
        """Who must go so that the job fits; None if nothing would help. Leaves the cluster as it was."""
        mark = self._cluster.mark()
        planned = None
        reach = self.within_reach()
        if reach is not None and enough(self._cluster, self._job, reach):
            planned = self._by(self._shrinking()) or self._stopped()
        if planned is None and self._policy.move:
            planned = self._moving()
        self._cluster.revert(mark)
        return planned

    # ── who may be asked ──

    def _gives_way(self, band: Band) -> bool:
        """The one comparator: whether what is in this band may be taken for the job."""
        priority, queue, level = band
        if priority < self._job.priority or (level == GROWN and priority <= self._job.priority):
            return True
        if (
            priority == self._job.priority
            and self._policy.time_share
            and level >= max(0, self._level + self._policy.gap)
        ):
            return True
        return self._owed and queue != self._job.queue  # a guarantee is taken back whoever borrowed it

    def _bands(self) -> list[Band]:
        """The least important first."""
        bands = [band for band in self._running.bands if self._gives_way(band)]
        return sorted(bands, key=lambda band: (band[0], -band[2], band[1]))

    def within_reach(self) -> tuple[int, int] | None:
        """CPU and whole GPUs of all who might give way; None if nobody might."""
        bands = [sums for band, sums in self._running.sums.items() if self._gives_way(band)]
        return (sum(sums[0] for sums in bands), sum(sums[1] for sums in bands)) if bands else None

    def _may_take(self, job: Running) -> bool:
        if job.leaving or job.uid in self._spared or job.uid == self._job.uid:
            return False
        if not self._queue_spares(job, job.held()) and not job.gang.elastic:
            return False
        if job.priority < self._job.priority:
            return True
        bands = [*job.bands.values()]
        if not any(self._gives_way(band) for band in bands):
            return False
        by_rank = (
            job.priority == self._job.priority
            and any(0 <= level < GROWN for _, _, level in bands)
            and job.unsaved(self._now) <= self._policy.quantum
        )
        by_right = self._owed and job.queue != self._job.queue
        return by_rank or by_right or any(level == GROWN for _, _, level in bands)

    def _queue_spares(self, job: Running, held: Amounts) -> bool:
        """No other queue is taken below its guarantee, by nobody: it would take it back, and so on for ever."""
        return job.queue == self._job.queue or self._queues.borrows(job.queue, held, self._job.queue)

    # ── victims ──

    def _shrinking(self) -> list[Victim]:
        """Every task that an elastic job can do without, the least important job first."""
        found: list[Victim] = []
        for uid in self._running.elastic:
            job = self._running[uid]
            if not self._may_take(job):
                continue
            beyond = {*job.beyond()}
            for place_, name in enumerate(job.spare()):
                if name in beyond or self._below(job):
                    found.append(Victim(job, (name,), False, (job.priority, -job.bands[name][2], place_)))
        return sorted(found, key=lambda victim: victim.cost)

    def _below(self, job: Running) -> bool:
        """Whether the job gives way as a whole, and not only with what it has beyond its wish."""
        return job.priority < self._job.priority or any(
            self._gives_way(band) for band in job.bands.values() if band[2] != GROWN
        )

    def _stopped(self) -> Preemption | None:
        """By the least important bands that should suffice, by count, else by all; zone by zone, if it must be in one."""
        every = self._bands()
        few = self._sufficient_bands(every)
        if few is None:
            return None
        for bands in (few, {*every}) if len(few) < len(every) else (few,):
            for zone in self._zones(bands):
                planned = self._by(self._stopping(bands, zone))
                if planned is not None:
                    return planned
        return None

    def _zones(self, bands: set[Band]) -> list[Ints | None]:
        """The nodes to choose from: all, or those of one rack (or fabric, or one node) after the other."""
        gang = self._job.gang
        if gang.within is Within.ANYWHERE:
            return [None]
        zones = self._zone_of()
        able = self._zones_that_fit(self._room(bands), zones)
        taken = self._taken(bands)[0]
        least = np.full(len(able), np.inf)
        np.minimum.at(least, zones[zones >= 0], taken[zones >= 0])
        chosen = np.flatnonzero(able)
        order = chosen[np.argsort(least[chosen], kind="stable")][:ZONES_TRIED]
        return [np.flatnonzero(zones == zone) for zone in order.tolist()]

    def _zone_of(self) -> Ints:
        match self._job.gang.within:
            case Within.RACK:
                return self._cluster.racks
            case Within.FABRIC:
                return self._cluster.fabrics
            case _:
                return np.arange(len(self._cluster.nodes))

    def _zones_that_fit(self, room: Ints, zones: Ints) -> NDArray[np.bool_]:
        """Which zones have, by count, room for every kind of task."""
        count = int(zones.max()) + 1 if len(zones) else 0
        able = np.ones(max(count, 0), bool)
        named = zones >= 0
        for request, tasks in groups_of(self._job.gang.least):
            counts = np.minimum(self._counts(request, room), len(tasks))
            able &= np.bincount(zones[named], weights=counts[named], minlength=len(able)) >= len(tasks)
        return able

    def _room(self, bands: set[Band]) -> Ints:
        """What would be free if all of these had left."""
        room: Ints = self._cluster.free + sum(self._running.bands[band] for band in bands)
        return room

    def _stopping(self, bands: set[Band], zone: Ints | None) -> list[Victim]:
        """Victims node by node, where the fewest must go."""
        nodes = self._likely_nodes(bands, zone)
        found: dict[tuple[str, tuple[str, ...]], Victim] = {}
        ranked = []
        for node in nodes:
            victims = self._victims_on(node, bands)
            needed = self._needed(node, victims)
            if needed is not None:
                leaving, gained = needed
                stopped = sum(victim.whole for victim in leaving)
                lost = sum(victim.cost[-1] for victim in leaving if victim.whole)
                ranked.append(((stopped / gained, lost / gained, node), leaving))
        for _, leaving in sorted(ranked, key=lambda item: item[0]):
            for victim in leaving:
                found.setdefault((victim.job.uid, victim.tasks), victim)
        return list(found.values())

    def _sufficient_bands(self, bands: list[Band]) -> set[Band] | None:
        """The least important bands with whose room the job would fit, by count; None if all are not enough."""
        room = self._cluster.free.copy()
        chosen: set[Band] = set()
        for band in bands:
            room += self._running.bands[band]
            chosen.add(band)
            if self._would_fit(room):
                return chosen
        return None

    def _would_fit(self, room: Ints) -> bool:
        if self._job.gang.within is not Within.ANYWHERE:
            return bool(self._zones_that_fit(room, self._zone_of()).any())
        groups = groups_of(self._job.gang.least)
        return all(self._counts(request, room).sum() >= len(tasks) for request, tasks in groups)

    def _counts(self, request: Request, room: Ints) -> Ints:
        return fit_of(self._cluster, self._job.gang, request, self._mix).counts_in(room)

    def _taken(self, bands: set[Band]) -> tuple[NDArray[np.float64], Ints]:
        """What has to be taken from others on each node for a task of the largest kind, and how many fit then."""
        request, tasks = groups_of(self._job.gang.least)[0]
        free = self._cluster.free
        could = self._counts(request, self._room(bands))
        columns = self._cluster.gpu_columns
        have, want = (free[:, columns].sum(axis=1), request.gpu) if request.gpu else (free[:, 0], request.cpu)
        taken = np.maximum(np.minimum(could, len(tasks)) * want - have, 0) / np.maximum(could, 1)
        return np.where(could > 0, taken, np.inf), could

    def _likely_nodes(self, bands: set[Band], zone: Ints | None = None) -> list[int]:
        """Where the least has to be taken."""
        taken, could = self._taken(bands)
        nodes = np.flatnonzero(could) if zone is None else zone[could[zone] > 0]
        count = NODES_TRIED + len(groups_of(self._job.gang.least)[0][1])
        if len(nodes) > count:
            nodes = nodes[np.argpartition(taken[nodes], count - 1)[:count]]
        found: list[int] = nodes[np.lexsort((nodes, taken[nodes]))].tolist()
        return found

    def _victims_on(self, node: int, bands: set[Band]) -> list[Victim]:
        victims: dict[tuple[str, str], Victim] = {}
        for uid, task in self._running.on_node[node]:
            job = self._running[uid]
            if job.bands[task] not in bands or task in job.shrinking or not self._may_take(job):
                continue
            lost = job.lost(self._now)
            if job.gang.elastic and task in job.spare() and (job.bands[task][2] == GROWN or self._below(job)):
                victims[uid, task] = Victim(job, (task,), False, (0, job.priority, -job.bands[task][2], lost))
            elif self._below(job):
                cost = (1, job.priority, -job.bands[task][2], lost)
                staying = tuple(name for name in job.tasks if name not in job.shrinking)
                victims[uid, ""] = Victim(job, staying, True, cost)
        return sorted(victims.values(), key=lambda victim: victim.cost)

    def _needed(self, node: int, victims: list[Victim]) -> tuple[list[Victim], int] | None:
        """The cheapest of these without whom the node takes as many tasks as it can, and how many those are."""
        request, tasks = groups_of(self._job.gang.least)[0]
        room = self._cluster.rooms[self._cluster.nodes[node].name]
        mark = self._cluster.mark()
        before = reached = room.count(request)
        gone: list[Victim] = []
        chosen: list[Victim] = []
        for victim in victims:
            if reached >= len(tasks):
                break
            self._let_go(victim, gone)
            count = room.count(request)
            if count > reached:
                reached, chosen = count, list(gone)
        sizes = {width(victim.job.gang) for victim in chosen}
        if len(sizes) > 1:  # an early small one may have been made needless by a later large one
            self._cluster.revert(mark)
            for victim in chosen:
                self._vacate(victim)
            for victim in chosen[:-1]:
                again = self._cluster.mark()
                self._restore(victim)
                if room.count(request) >= reached and self._sound(victim):
                    chosen = [other for other in chosen if other is not victim]
                else:
                    self._cluster.revert(again)
        self._cluster.revert(mark)
        return (chosen, min(reached, len(tasks))) if chosen or before else None

    def _let_go(self, victim: Victim, gone: list[Victim]) -> list[Victim]:
        """One more leaves. A job that is stopped is not shrunk as well: says what of it had left before."""
        parts = [other for other in gone if victim.whole and other.job is victim.job]
        for part in parts:
            self._restore(part)
            gone.remove(part)
        self._vacate(victim)
        gone.append(victim)
        return parts

    def _vacate(self, victim: Victim) -> None:
        for name in victim.tasks:
            self._cluster.vacate(victim.job.tasks[name], victim.job.requests[name])

    def _restore(self, victim: Victim) -> None:
        for name in victim.tasks:
            self._cluster.hold(victim.job.tasks[name], victim.job.requests[name])

    def _sound(self, victim: Victim) -> bool:
        """Whether nothing is overdrawn where the victim came back."""
        rows = [self._cluster.index[binding.node] for binding in victim.job.tasks.values()]
        return bool((self._cluster.free[rows] >= 0).all())

    # ── moving ──

    def _moving(self) -> Preemption | None:
        """There is enough room, but in pieces: small jobs go elsewhere, each to a place that is found beforehand."""
        request, tasks = groups_of(self._job.gang.least)[0]
        if request.gpu < 2 or 1000 * self._cluster.idle[1] < self._job.least[2]:
            return None
        bands = {
            band for band in self._running.bands if 0 <= band[2] < GROWN and band[0] <= self._job.priority
        }
        if not bands:
            return None
        if self._counts(request, self._room(bands)).sum() < len(tasks):
            return None
        ranked = []
        for node in self._likely_nodes(bands):
            needed = self._needed(node, self._movable_on(node, bands))
            if needed is not None:
                leaving, gained = needed
                ranked.append((sum(width(v.job.gang) for v in leaving) / gained, node, leaving, gained))
        missing, moving = len(tasks), []
        for _, _, leaving, gained in sorted(ranked, key=lambda item: item[:2]):
            moving += leaving
            missing -= gained
            if missing <= 0:
                break
        if missing > 0 or not moving or sum(width(v.job.gang) for v in moving) > width(self._job.gang):
            return None
        return self._moved(moving)

    def _movable_on(self, node: int, bands: set[Band]) -> list[Victim]:
        """Jobs of one task that lie here, have saved lately and are not promised their peace, the smallest first."""
        found = []
        for uid, task in self._running.on_node[node]:
            job = self._running[uid]
            if len(job.tasks) > 1 or job.bands[task] not in bands or job.leaving or uid in self._spared:
                continue
            if job.unsaved(self._now) <= self._policy.quantum:
                found.append(Victim(job, (task,), True, (width(job.gang), job.lost(self._now))))
        return sorted(found, key=lambda victim: (victim.cost, victim.job.uid))

    def _moved(self, moving: list[Victim]) -> Preemption | None:
        start = self._cluster.mark()
        for victim in moving:
            self._vacate(victim)
        bindings = place(self._cluster, self._job.gang, self._job.gang.least, self._mix)
        places: list[Placement] = []
        for victim in moving if bindings is not None else ():
            found = place(self._cluster, victim.job.gang, mix=self._mix)
            if found is None:
                break
            places.append(Placement(victim.job.uid, found))
        self._cluster.revert(start)
        if bindings is None or len(places) < len(moving):
            return None
        evicted = tuple(sorted(victim.job.uid for victim in moving))
        return Preemption(self._job.uid, evicted, (), bindings, tuple(places))

    # ── the plan ──

    def _by(self, victims: list[Victim]) -> Preemption | None:
        """Let victims leave one after the other until the job fits, then put back whoever was not needed."""
        cluster = self._cluster
        start = cluster.mark()
        gone: list[Victim] = []
        queues = self._queues.mark()
        bindings, step, untried = None, 1, False
        stopped: set[str] = set()
        for victim in (*victims, None):
            if victim is not None:
                if victim.job.uid in stopped or not self._allowed(victim):
                    continue
                for part in self._let_go(victim, gone):
                    self._account(part, 1)
                self._account(victim, -1)
                untried = True
                if victim.whole:
                    stopped.add(victim.job.uid)
            if untried and (len(gone) >= step or victim is None):
                bindings = self._try()
                if bindings is not None:
                    break
                untried, step = False, len(gone) + max(1, len(gone) // 8)
        self._queues.revert(queues)
        if bindings is None:
            cluster.revert(start)
            return None
        return self._trimmed(gone, start)

    def _allowed(self, victim: Victim) -> bool:
        """What a job has beyond its wish is anybody's; else its queue must be able to spare it."""
        if all(victim.job.bands[name][2] == GROWN for name in victim.tasks):
            return True
        held = amounts_of(victim.job.requests[name] for name in victim.tasks)
        return self._queue_spares(victim.job, held)

    def _account(self, victim: Victim, sign: int) -> None:
        held = amounts_of(victim.job.requests[name] for name in victim.tasks)
        self._queues.plan(victim.job.queue, victim.job.owner, held, sign)

    def _try(self) -> tuple[Binding, ...] | None:
        """Where the job would fit now. A look at the counts says "nowhere" much sooner than `place` does."""
        gang = self._job.gang
        for request, tasks in groups_of(gang.least):
            if fit_of(self._cluster, gang, request, self._mix).count.sum() < len(tasks):
                return None
        mark = self._cluster.mark()
        bindings = place(self._cluster, gang, gang.least, self._mix)
        self._cluster.revert(mark)
        return bindings

    def _trimmed(self, gone: list[Victim], start: int) -> Preemption | None:
        cluster, gang = self._cluster, self._job.gang
        kept: list[Victim] = []
        for victim in sorted(gone, key=lambda victim: (victim.whole, victim.cost), reverse=True):
            mark = cluster.mark()
            self._restore(victim)
            if not self._sound(victim) or self._try() is None:
                cluster.revert(mark)
                kept.append(victim)
        bindings = place(cluster, gang, gang.least, self._mix)
        cluster.revert(start)
        if bindings is None:
            return None
        evicted = tuple(sorted(victim.job.uid for victim in kept if victim.whole))
        shrunk: dict[str, list[str]] = {}
        for victim in kept:
            if not victim.whole and victim.job.uid not in evicted:
                shrunk.setdefault(victim.job.uid, []).extend(victim.tasks)
        shrinks = tuple(Shrink(uid, tuple(sorted(tasks))) for uid, tasks in sorted(shrunk.items()))
        return Preemption(self._job.uid, evicted, shrinks, bindings)
