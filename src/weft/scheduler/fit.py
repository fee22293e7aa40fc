"""How many tasks of one request each node takes, and which node is tried first: kept up to date, not worked out anew.

A cluster changes a few nodes at a time, so the answer for a request is kept as two arrays, and only the
rows of nodes that were touched since the last question are computed again.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from weft.model.gang import Gang, Request
from weft.scheduler.cluster import CPU, MEMORY, MOST, SLOTS, WHOLE, Cluster, Ints

NEVER = np.int64(2**62)
KEPT = 1024
FEW = 6
"""So many nodes are computed one by one, more as arrays."""
LONG = 64
"""So many changes are looked through, however small the cluster is, before all of it is computed again."""
GIB = 2**30
FRAGMENT = 64
"""How many GiB to be moved weigh as much as one GPU that is left in pieces nobody asks for."""
PIECE = GIB // 16
"""Bytes to be moved that weigh as much as one GPU of a node on which the task needs none."""
MOVED = 64 * 16
"""So far can the bytes to be moved count, in pieces: they choose among nodes, they never make a job wait."""
Mix = tuple[tuple[int, float], ...]
"""What waits: GPUs a task, and their share of the GPUs waited for."""


@dataclass(frozen=True, slots=True)
class Ask:
    """A request and the rules on nodes that come with it. Equal questions share an answer."""

    request: Request
    selector: tuple[tuple[str, str], ...] = ()
    tolerations: tuple[str, ...] = ()
    wants: tuple[tuple[str, int], ...] = ()


class Fit:
    """The standing answer to one question."""

    def __init__(self, cluster: Cluster, ask: Ask, mix: Mix):
        self._cluster = cluster
        self._rooms = list(cluster.rooms.values())
        self.request = request = ask.request
        self._able = _able(cluster, ask.selector, ask.tolerations)
        needs = [(CPU, request.cpu), (MEMORY, request.memory)]
        if cluster.slotted:
            needs.append((SLOTS, request.slots))
        for name, count in request.devices:
            if name in cluster.devices:
                needs.append((cluster.devices[name], count))
            else:
                self._able = np.zeros_like(self._able)  # no node has such a device
        self._needs = [(column, need) for column, need in needs if need]
        self._kinds = [column for kind, column in cluster.kinds.items() if _kind_suits(kind, request)]
        self._moved = _bytes_to_move(cluster, ask.wants)
        # who asks for no GPU stays off nodes that have some; who takes any GPU takes the oldest
        self._value = cluster.gpu_worth if request.gpus else cluster.gpu_total
        self._table: Ints | None = None
        self._set_mix(mix)
        self.count: Ints = np.zeros(len(cluster.nodes), np.int64)
        """How many more of these each node takes."""
        self.key: Ints = np.zeros(len(cluster.nodes), np.int64)
        """The lowest is packed first; NEVER where nothing fits."""
        self._seen, self._epoch = 0, -1

    def _set_mix(self, mix: Mix) -> None:
        self.mix = mix
        self._table = _fragments(self.request.gpu, mix) if self.request.gpu and mix else None

    def refresh(self, mix: Mix) -> Fit:
        """Catch up with what changed."""
        cluster = self._cluster
        if mix != self.mix:
            self._set_mix(mix)
            self._epoch = -1
        if self._epoch != cluster.epoch or len(cluster.touched) - self._seen > max(len(self.count), LONG):
            self._compute(slice(None))
            self._epoch, self._seen = cluster.epoch, len(cluster.touched)
        elif self._seen < len(cluster.touched):
            changed = {*cluster.touched[self._seen :]}
            if len(changed) <= FEW:
                for row in changed:
                    self._compute_one(row)
            else:
                self._compute(np.fromiter(changed, np.int64, len(changed)))
            self._seen = len(cluster.touched)
        return self

    def _compute(self, rows: slice | Ints) -> None:
        free = self._cluster.free[rows]
        gpus = free[:, self._cluster.gpu_columns].sum(axis=1)
        pieces = self._pieces(rows) if self.request.gpu_share else None
        count = self._count(free, gpus, pieces, self._able[rows])
        self.count[rows] = count
        self.key[rows] = np.where(count > 0, self._order(rows, free, gpus, pieces), NEVER)

    def _compute_one(self, row: int) -> None:
        """The same for one node without arrays, which cost more than they save here."""
        room = self._rooms[row]
        count = room.count(self.request) if self._able[row] else 0
        self.count[row] = count
        if not count:
            self.key[row] = NEVER
            return
        gpus = min(len(room.gpus), 63)
        key = (
            (int(self._value[row]) << 46)
            + (gpus << 40)
            + (min(room.cpu // 10, (1 << 20) - 1) << 20)
            + min(room.memory // GIB, (1 << 20) - 1)
        )
        worse = 0
        if self._table is not None:
            worse += int(self._table[gpus])
        if self.request.gpu_share and not room.pieces(self.request):
            worse += FRAGMENT
        if self._moved is not None:
            key += int(self._moved[row]) << 46
        self.key[row] = key + (worse << 50)

    def counts_in(self, room: Ints) -> Ints:
        """How many would fit each node if this much were free there."""
        gpus = room[:, self._cluster.gpu_columns].sum(axis=1)
        pieces = self._pieces(slice(None)) if self.request.gpu_share else None
        return self._count(room, gpus, pieces, self._able)

    def _count(self, free: Ints, gpus: Ints, pieces: Ints | None, able: NDArray[np.bool_]) -> Ints:
        count: Ints = np.where(able, MOST, 0)
        for column, need in self._needs:
            np.minimum(count, free[:, column] // need, out=count)
        if self.request.gpu or pieces is not None:
            suiting = (
                gpus if len(self._kinds) == len(self._cluster.kinds) else free[:, self._kinds].sum(axis=1)
            )
            if pieces is None:
                np.minimum(count, suiting // self.request.gpu, out=count)
            else:
                np.minimum(count, pieces + suiting * (WHOLE // self.request.gpu_share), out=count)
        np.maximum(count, 0, out=count)
        return count

    def _pieces(self, rows: slice | Ints) -> Ints:
        """How many shares of this size the split GPUs have left."""
        share = self._cluster.share[rows]
        if len(self._kinds) != len(self._cluster.kinds):
            share = np.where(np.isin(self._cluster.share_kind[rows], self._kinds), share, 0)
        pieces: Ints = (share // self.request.gpu_share).sum(axis=1)
        return pieces

    def _order(self, rows: slice | Ints, free: Ints, gpus: Ints, pieces: Ints | None) -> Ints:
        """What is broken up for those who wait (and what must be moved), the node's worth, then the fullest."""
        key = (
            (self._value[rows] << 46)
            + (np.minimum(gpus, 63) << 40)
            + (np.minimum(free[:, CPU] // 10, (1 << 20) - 1) << 20)
            + np.minimum(free[:, MEMORY] // GIB, (1 << 20) - 1)
        )
        if self._table is not None:
            key = key + (self._table[np.minimum(gpus, 63)] << 50)
        if pieces is not None:
            key = key + (np.where(pieces > 0, 0, FRAGMENT).astype(np.int64) << 50)
        if self._moved is not None:
            key = key + (self._moved[rows] << 46)
        result: Ints = key
        return result

    def best(self) -> int | None:
        """The node to pack a task on."""
        if not len(self.key):
            return None
        node = int(self.key.argmin())
        return node if self.count[node] > 0 else None

    def emptiest(self) -> Ints:
        """The lowest is spread to first: the emptiest, where a piece to be moved weighs as much as a GPU in use."""
        emptiness: Ints = -(self.key & ((1 << 46) - 1))
        if self._moved is not None:
            emptiness = emptiness + (self._moved << 40)
        result: Ints = np.where(self.count > 0, emptiness, NEVER)
        return result


def fit_of(cluster: Cluster, gang: Gang, request: Request, mix: Mix = ()) -> Fit:
    """The standing answer for a task of this gang, up to date."""
    ask = (request, gang.selector, gang.tolerations, gang.wants)
    fit: Fit | None = cluster.fits.get(ask)
    if fit is None:
        if len(cluster.fits) >= KEPT:
            del cluster.fits[next(iter(cluster.fits))]
        fit = cluster.fits[ask] = Fit(cluster, Ask(*ask), mix)
    return fit.refresh(mix)


def _able(
    cluster: Cluster, selector: tuple[tuple[str, str], ...], tolerations: tuple[str, ...]
) -> NDArray[np.bool_]:
    """Nodes that are open and have what every task must find, however full they are."""
    able: NDArray[np.bool_] | None = cluster.able.get((selector, tolerations))
    if able is None:
        if len(cluster.able) >= KEPT:
            cluster.able.clear()
        able = cluster.open.copy()
        for room in cluster.rooms.values() if selector else cluster.tainted:
            if not (room.matches(selector) and room.tolerated(tolerations)):
                able[room.index] = False
        cluster.able[selector, tolerations] = able
    return able


def _kind_suits(kind: tuple[str, int, int], request: Request) -> bool:
    type, memory, generation = kind
    return (
        request.gpu_type in (None, type)
        and memory >= request.gpu_memory
        and generation >= request.gpu_generation
    )


def _fragments(gpu: int, mix: Mix) -> Ints:
    """For each number of free GPUs on a node: how many more are left unusable to those who wait, once `gpu` are taken.

    An idea of FGD (Weng et al., USENIX ATC 2023), for whole GPUs: a table, so that it costs one look-up.
    """

    def unusable(free: int) -> float:
        return sum(weight * (free % wanted if free >= wanted else free) for wanted, weight in mix if wanted)

    deltas = [unusable(free - gpu) - unusable(free) if free >= gpu else 0.0 for free in range(64)]
    least = min(deltas)
    return np.array([min(round((delta - least) * FRAGMENT), 2000) for delta in deltas], np.int64)


def _bytes_to_move(cluster: Cluster, wants: tuple[tuple[str, int], ...]) -> NDArray[np.int64] | None:
    if not wants:
        return None
    held = [dict(node.holds) for node in cluster.nodes]
    missing = [sum(max(0, size - here.get(item, 0)) for item, size in wants) for here in held]
    return np.array([min(-(-bytes // PIECE), MOVED) for bytes in missing], np.int64)
