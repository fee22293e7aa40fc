"""Where a gang fits: pack or spread, on one node, in one rack or anywhere, whole or not at all.

`place` is the one answer to that question: the cycle, preemption, reservations, repairs, the forecast and
the explanations all ask it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache

import numpy as np

from weft.model.gang import Gang, Request, Task, Within
from weft.model.job import Strategy
from weft.model.status import Binding
from weft.scheduler.cluster import CPU, MEMORY, Cluster, Ints
from weft.scheduler.fit import NEVER, Fit, Mix, fit_of

SEARCH_STEPS = 500
SEARCH_TASKS = 64
ZONES_TRIED = 8
Group = tuple[Request, tuple[Task, ...]]


def place(
    cluster: Cluster,
    gang: Gang,
    tasks: tuple[Task, ...] | None = None,
    mix: Mix = (),
    near: Iterable[Binding] = (),
) -> tuple[Binding, ...] | None:
    """Reserve room for these tasks (all that the gang prefers) and say where; None, and nothing reserved, if
    not all fit. `near`: where the rest of the gang runs already, for repairs and growth."""
    tasks = gang.preferred if tasks is None else tasks
    near = tuple(near)
    if len(tasks) == 1 and not near:
        return _one(cluster, gang, tasks[0], mix)
    mark = cluster.mark()
    bindings = _Placing(cluster, gang, mix, near).all(tasks)
    if bindings is None:
        cluster.revert(mark)
        return None
    ranks = {task.name: task.rank for task in tasks}
    return tuple(sorted(bindings, key=lambda binding: ranks[binding.task]))


def place_elastic(cluster: Cluster, gang: Gang, mix: Mix = ()) -> tuple[Binding, ...] | None:
    """As many tasks as fit between what the gang prefers and what it needs at least."""
    bindings = place(cluster, gang, mix=mix)
    if bindings is not None or not gang.elastic:
        return bindings
    bindings = place(cluster, gang, gang.least, mix)
    if bindings is None:
        return None
    least = {task.name for task in gang.least}
    more = [task for task in gang.preferred if task.name not in least]
    low, high, mark = 0, len(more), cluster.mark()
    best = bindings
    while high - low > 1:  # the most of the others that fit beside it: `low` do, `high` do not
        middle = (low + high) // 2
        added = place(cluster, gang, tuple(more[:middle]), mix, near=bindings)
        cluster.revert(mark)
        if added is None:
            high = middle
        else:
            low, best = middle, (*bindings, *added)
    for binding in best[len(bindings) :]:
        cluster.hold(binding, gang.task(binding.task).request)
    return best


def how_many(cluster: Cluster, gang: Gang, node: int) -> int:
    """How many of the gang's tasks one node would take at once."""
    mark = cluster.mark()
    count = 0
    for request, tasks in groups_of(gang.preferred):
        fitting = min(len(tasks), int(fit_of(cluster, gang, request).count[node]))
        for task in tasks[:fitting]:
            cluster.reserve(task.name, node, request)
        count += fitting
    cluster.revert(mark)
    return count


@lru_cache(maxsize=4096)
def groups_of(tasks: tuple[Task, ...]) -> tuple[Group, ...]:
    """Tasks by request, the largest first; who wants GPUs of one kind comes before who takes any."""
    groups: dict[Request, list[Task]] = {}
    for task in tasks:
        groups.setdefault(task.request, []).append(task)

    def order(request: Request) -> tuple[object, ...]:
        choosy = request.gpu_type is None and not request.gpu_memory and not request.gpu_generation
        return (choosy, -request.gpus, -request.cpu, -request.memory, groups[request][0].rank)

    return tuple((request, tuple(groups[request])) for request in sorted(groups, key=order))


def _one(cluster: Cluster, gang: Gang, task: Task, mix: Mix) -> tuple[Binding, ...] | None:
    fit = fit_of(cluster, gang, task.request, mix)
    node: int | None
    if gang.strategy is Strategy.SPREAD and len(fit.count):
        node = int(fit.emptiest().argmin())
        node = node if fit.count[node] > 0 else None
    else:
        node = fit.best()
    return None if node is None else (cluster.reserve(task.name, node, task.request),)


class _Placing:
    """One attempt at one gang."""

    def __init__(self, cluster: Cluster, gang: Gang, mix: Mix, near: tuple[Binding, ...]):
        self._cluster = cluster
        self._gang = gang
        self._mix = mix
        self._near = sorted({cluster.index[b.node] for b in near if b.node in cluster.index})

    def all(self, tasks: tuple[Task, ...]) -> list[Binding] | None:
        groups = groups_of(tasks)
        match self._gang.within:
            case Within.NODE:
                return self._on_one_node(groups)
            case Within.RACK:
                return self._in_one_zone(groups, self._cluster.racks)
            case Within.FABRIC:
                return self._in_one_zone(groups, self._cluster.fabrics)
            case Within.CLUSTER:
                return self._in_one_zone(groups, self._cluster.clusters)
            case _:
                return self._anywhere(groups, tasks)

    def _fit(self, request: Request) -> Fit:
        return fit_of(self._cluster, self._gang, request, self._mix)

    # ── on one node ──

    def _on_one_node(self, groups: Sequence[Group]) -> list[Binding] | None:
        for node in self._nodes_for_all(groups):
            mark = self._cluster.mark()
            bindings = self._fill(groups, node)
            if bindings is not None:
                return bindings
            self._cluster.revert(mark)
        return None

    def _nodes_for_all(self, groups: Sequence[Group]) -> list[int]:
        """Nodes that have room for the sum, the one to pack first; the very GPUs are only seen on trying."""
        free = self._cluster.free
        able = np.ones(len(free), bool)
        if self._near:
            able[:] = False
            able[self._near] = True
        gpus = 0
        for request, tasks in groups:
            able &= self._fit(request).count >= len(tasks)
            gpus += request.gpu * len(tasks)
        able &= free[:, CPU] >= sum(request.cpu * len(tasks) for request, tasks in groups)
        able &= free[:, MEMORY] >= sum(request.memory * len(tasks) for request, tasks in groups)
        able &= free[:, self._cluster.gpu_columns].sum(axis=1) >= gpus
        key = self._order(self._fit(groups[0][0]))
        nodes = np.flatnonzero(able)
        found: list[int] = nodes[np.argsort(key[nodes], kind="stable")].tolist()
        return found

    def _order(self, fit: Fit) -> Ints:
        return fit.emptiest() if self._gang.strategy is Strategy.SPREAD else fit.key

    def _fill(self, groups: Sequence[Group], node: int) -> list[Binding] | None:
        """All of these on one node."""
        bindings: list[Binding] = []
        for request, tasks in groups:
            if self._fit(request).count[node] < len(tasks):
                return None
            bindings += [self._cluster.reserve(task.name, node, request) for task in tasks]
        return bindings

    # ── in one zone ──

    def _in_one_zone(self, groups: Sequence[Group], zones: Ints) -> list[Binding] | None:
        """Any rack (or fabric) will do; the one with the least room is tried first."""
        if self._near:
            allowed = {int(zones[node]) for node in self._near}
            order = sorted(allowed) if len(allowed) == 1 else []
            if -1 in allowed:  # a node without a rack shares none with another
                return self._on_one_node(groups) if len(self._near) == 1 else None
        else:
            order = self._zones_for_all(groups, zones)
        for zone in order:
            mark = self._cluster.mark()
            bindings = self._in(groups, zones == zone)
            if bindings is not None:
                return bindings
            self._cluster.revert(mark)
        return None

    def _zones_for_all(self, groups: Sequence[Group], zones: Ints) -> list[int]:
        if not len(zones) or zones.max() < 0:
            return []
        named = zones >= 0
        able = np.ones(int(zones.max()) + 1, bool)
        rooms = None
        for request, tasks in groups:
            count = np.minimum(self._fit(request).count, len(tasks))
            sums = np.bincount(zones[named], weights=count[named], minlength=len(able))
            able &= sums >= len(tasks)
            rooms = sums if rooms is None else rooms
        assert rooms is not None
        candidates = np.flatnonzero(able)
        found: list[int] = candidates[np.argsort(rooms[candidates], kind="stable")].tolist()
        return found

    # ── anywhere ──

    def _anywhere(self, groups: Sequence[Group], tasks: tuple[Task, ...]) -> list[Binding] | None:
        mark = self._cluster.mark()
        spread = self._gang.strategy is Strategy.SPREAD
        bindings = self._spread(groups) if spread else self._packed(groups)
        if bindings is None and len(groups) > 1:
            self._cluster.revert(mark)
            bindings = self._search(tasks)
        return bindings

    def _packed(self, groups: Sequence[Group]) -> list[Binding] | None:
        """Fewest nodes, then fewest racks."""
        if not self._near:
            bindings = self._on_one_node(groups)
            if bindings is not None:
                return bindings
        mark = self._cluster.mark()
        everywhere = self._in(groups, None)
        if everywhere is None or self._near or not self._cluster.racks.any():
            return everywhere
        nodes = _nodes(everywhere)
        if len({int(self._cluster.racks[self._cluster.index[name]]) for name in nodes}) == 1:
            return everywhere
        self._cluster.revert(mark)
        for zone in self._zones_for_all(groups, self._cluster.racks)[:ZONES_TRIED]:
            bindings = self._in(groups, self._cluster.racks == zone)
            if bindings is not None and len(_nodes(bindings)) <= len(nodes):
                return bindings
            self._cluster.revert(mark)
        return self._in(groups, None)

    def _in(self, groups: Sequence[Group], among: np.ndarray | None) -> list[Binding] | None:
        """Group by group on the fewest of these nodes; nodes that the gang is on already come first."""
        bindings: list[Binding] = []
        own = list(self._near)
        for request, tasks in groups:
            shares = self._shares(self._fit(request), len(tasks), among, own)
            if shares is None:
                return None
            number = 0
            for node, count in shares:
                if node not in own:
                    own.append(node)
                for task in tasks[number : number + count]:
                    bindings.append(self._cluster.reserve(task.name, node, request))
                number += count
        return bindings

    def _shares(
        self, fit: Fit, wanted: int, among: np.ndarray | None, own: list[int]
    ) -> list[tuple[int, int]] | None:
        """How many of `wanted` equal tasks go to which node."""
        count = fit.count if among is None else np.where(among, fit.count, 0)
        shares: list[tuple[int, int]] = []
        for node in own:
            here = min(wanted, int(count[node]))
            if here:
                shares.append((node, here))
                wanted -= here
        if not wanted:
            return shares
        if own:
            count = count.copy()
            count[own] = 0
        if count.sum() < wanted:
            return None
        enough = count >= wanted
        if not enough.any():
            shares_full, wanted = self._full_nodes(fit, count, wanted)
            shares += shares_full
            count = count.copy()
            count[[node for node, _ in shares_full]] = 0
            enough = count >= wanted
        if wanted:
            last = int(np.where(enough, fit.key, NEVER).argmin())
            shares.append((last, wanted))
        return shares

    def _full_nodes(self, fit: Fit, count: Ints, wanted: int) -> tuple[list[tuple[int, int]], int]:
        """The nodes that take most, those of one rack after each other, until what is left fits on one more."""
        nodes = np.flatnonzero(count)
        racks = self._cluster.racks
        room = np.bincount(racks[nodes] + 1, weights=count[nodes])[racks[nodes] + 1]
        order = nodes[np.lexsort((fit.key[nodes], racks[nodes], -room, -count[nodes]))]
        shares = []
        for node in order.tolist():
            here = int(count[node])
            if here >= wanted:
                break
            shares.append((node, here))
            wanted -= here
        return shares, wanted

    def _spread(self, groups: Sequence[Group]) -> list[Binding] | None:
        """Each task to the node with the fewest of this job's, then the emptiest."""
        own = np.zeros(len(self._cluster.nodes), np.int64)
        np.add.at(own, self._near, 1)
        bindings = []
        for request, tasks in groups:
            left = list(tasks)
            while left:
                fit = self._fit(request)
                able = fit.count > 0
                if not able.any():
                    return None
                fewest = own[able].min()
                nodes = np.flatnonzero(able & (own == fewest))
                order = nodes[np.argsort(fit.emptiest()[nodes], kind="stable")].tolist()
                for node in order[: len(left)]:
                    bindings.append(self._cluster.reserve(left.pop(0).name, node, request))
                    own[node] += 1
        return bindings

    def _search(self, tasks: tuple[Task, ...]) -> list[Binding] | None:
        """Try other ways than the greedy one, up to a bound: unlike tasks may fit in one order and not in another."""
        if len(tasks) > SEARCH_TASKS:
            return None
        ordered = [task for _, group in groups_of(tasks) for task in group]
        steps = SEARCH_STEPS

        def fit(index: int) -> list[Binding] | None:
            nonlocal steps
            if index == len(ordered):
                return []
            task = ordered[index]
            found = self._fit(task.request)
            nodes = np.flatnonzero(found.count)
            for node in nodes[np.argsort(found.key[nodes], kind="stable")].tolist():
                steps -= 1
                if steps < 0:
                    return None
                mark = self._cluster.mark()
                binding = self._cluster.reserve(task.name, node, task.request)
                rest = fit(index + 1)
                if rest is not None:
                    return [binding, *rest]
                self._cluster.revert(mark)
            return None

        return fit(0)


def _nodes(bindings: Iterable[Binding]) -> set[str]:
    return {binding.node for binding in bindings}
