"""The cluster as the scheduler sees it: what is left of each node, as arrays, with an undo stack in place of copies.

What is counted (CPU, memory, places for tasks, devices, whole GPUs of each kind) is a row of one array, so that a question to
all nodes is a few operations on columns. What has a number (the very CPUs and GPUs) is in the node's `Room`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from weft.model.gang import Request
from weft.model.node import MANY, Gpu, Node
from weft.model.status import Binding

Ints = NDArray[np.int64]
CPU, MEMORY, SLOTS = 0, 1, 2
COUNTED = 3
"""Columns before those of devices and GPUs."""
WHOLE = 1000
"""Thousandths of a GPU."""
MOST = MANY
"""A node takes no more tasks than this, even of those that ask for nothing."""
LOG_LIMIT = 1 << 16
ROWS_KEPT = 1 << 14
Kind = tuple[str, int, int]
"""Type, memory and generation of a GPU: what a request can ask for."""


class Room:
    """What is left of one node, down to the very CPUs and GPUs."""

    __slots__ = ("_cluster", "cpu_ids", "gpus", "index", "labels", "node", "split", "tasks")

    def __init__(self, cluster: Cluster, index: int, node: Node):
        self._cluster = cluster
        self.index = index
        self.node = node
        self.labels = dict(node.labels)
        self.cpu_ids = list(node.cpu_ids)
        self.gpus = list(node.gpus)
        """Whole ones that are free."""
        self.split: dict[int, int] = {}
        """GPUs that several tasks share: what is left of each, in thousandths."""
        self.tasks = 0

    @property
    def cpu(self) -> int:
        return self._cluster.free.item(self.index, CPU)

    @property
    def memory(self) -> int:
        return self._cluster.free.item(self.index, MEMORY)

    @property
    def slots(self) -> int:
        return self._cluster.free.item(self.index, SLOTS)

    def device(self, name: str) -> int:
        column = self._cluster.devices.get(name)
        return 0 if column is None else int(self._cluster.free[self.index, column])

    def matches(self, selector: Iterable[tuple[str, str]]) -> bool:
        return all(self.labels.get(key) == value for key, value in selector)

    def tolerated(self, tolerations: Iterable[str]) -> bool:
        return set(self.node.taints) <= set(tolerations)

    def fits(self, request: Request) -> bool:
        return self.count(request) > 0

    def count(self, request: Request) -> int:
        """How many tasks of this request the node takes, whatever its labels; `Fit` asks all nodes the same at once."""
        if not self.node.schedulable:
            return 0
        free, row = self._cluster.free, self.index
        count = MOST
        if request.slots and self._cluster.slotted:
            count = min(count, free.item(row, SLOTS) // request.slots)
        if request.cpu:
            count = min(count, free.item(row, CPU) // request.cpu)
        if request.memory:
            count = min(count, free.item(row, MEMORY) // request.memory)
        for name, wanted in request.devices:
            count = min(count, self.device(name) // wanted)
        if request.gpu:
            count = min(count, len(self.suiting(self.gpus, request)) // request.gpu)
        elif request.gpu_share:
            whole = len(self.suiting(self.gpus, request)) * (WHOLE // request.gpu_share)
            count = min(count, whole + self.pieces(request))
        return max(count, 0)

    def pieces(self, request: Request) -> int:
        """How many shares of this size the split GPUs have left."""
        split = [self.split.get(gpu.index, 0) for gpu in self.suiting(self.node.gpus, request)]
        return sum(left // request.gpu_share for left in split)

    @staticmethod
    def suiting(gpus: Sequence[Gpu], request: Request) -> Sequence[Gpu]:
        if request.gpu_type is None and not request.gpu_memory and not request.gpu_generation:
            return gpus
        return [gpu for gpu in gpus if suits(gpu, request)]


def suits(gpu: Gpu, request: Request) -> bool:
    return (
        request.gpu_type in (None, gpu.type)
        and gpu.memory >= request.gpu_memory
        and gpu.generation >= request.gpu_generation
    )


class Cluster:
    """All nodes. Whatever is planned is on the undo stack and is taken back exactly."""

    def __init__(self, nodes: Iterable[Node]):
        self.nodes = list(nodes)
        self.index = {node.name: number for number, node in enumerate(self.nodes)}
        names = sorted({name for node in self.nodes for name, _ in node.devices})
        self.devices = {name: COUNTED + number for number, name in enumerate(names)}
        kinds = sorted({_kind(gpu) for node in self.nodes for gpu in node.gpus})
        before = COUNTED + len(names)
        self.kinds = {kind: before + number for number, kind in enumerate(kinds)}
        """The column of each kind of GPU."""
        self.gpu_columns = slice(before, before + len(kinds))
        self.slotted = any(node.slots < MANY for node in self.nodes)
        """Whether some node takes only so many tasks."""
        self.free: Ints = np.zeros((len(self.nodes), before + len(kinds)), np.int64)
        width = max((len(node.gpus) for node in self.nodes), default=0)
        self.share: Ints = np.zeros((len(self.nodes), width), np.int64)
        """What is left of GPUs that are split; 0 for whole ones."""
        self.share_kind: Ints = np.full((len(self.nodes), width), -1, np.int64)
        for row, node in enumerate(self.nodes):
            self._fill_row(row, node)
        self.total: Ints = self.free.copy()
        self.rooms = {node.name: Room(self, number, node) for number, node in enumerate(self.nodes)}
        self.open: NDArray[np.bool_] = np.array([node.schedulable for node in self.nodes], bool)
        self.tainted = [room for room in self.rooms.values() if room.node.taints]
        self.racks = _zones([node.rack for node in self.nodes])
        self.fabrics = _zones([node.fabric for node in self.nodes])
        self.clusters = _zones([node.cluster for node in self.nodes])
        self._rooms = list(self.rooms.values())
        self._positions = [{gpu.index: place for place, gpu in enumerate(node.gpus)} for node in self.nodes]
        self._numbered = [len({gpu.numa for gpu in node.gpus}) > 1 for node in self.nodes]
        self._rows: dict[Request, Ints] = {}
        self._stack: list[tuple[bool, Binding, Request]] = []
        self.touched: list[int] = []
        """The nodes that changed, in order: every `Fit` reads on from where it was."""
        self.epoch = 0
        """Counts how often `touched` was emptied."""
        self.freed = 0
        """Counts what was given back for good: what did not fit before may fit now."""
        self.idle = [int(self.free[:, CPU].sum()), int(self.free[:, self.gpu_columns].sum())]
        """CPU and whole GPUs that are free in all."""
        self.width = max(self.idle[1], self.idle[0] / 8000)
        """As `running.width` counts jobs."""
        self.fits: dict[Any, Any] = {}
        """What `fit.fit_of` keeps up to date."""
        self.able: dict[Any, Any] = {}
        """Which nodes have the labels, and no taints, that were asked for."""
        self.gpu_total = np.minimum(self.total[:, self.gpu_columns].sum(axis=1), 15)
        self.gpu_worth = self._worth()
        """The newest kind of GPU of each node, by number."""
        self.ever: dict[Any, bool] = {}
        """Whether gangs of a signature would fit if nothing ran, as far as anybody asked."""

    def _worth(self) -> Ints:
        order = sorted(self.kinds, key=lambda kind: (kind[2], kind[1], kind[0]))
        rank = {kind: min(number, 15) for number, kind in enumerate(order)}
        return np.array(
            [max((rank[_kind(gpu)] for gpu in node.gpus), default=0) for node in self.nodes], np.int64
        )

    def _fill_row(self, row: int, node: Node) -> None:
        self.free[row, CPU] = node.cpu
        self.free[row, MEMORY] = node.memory
        self.free[row, SLOTS] = node.slots
        for name, count in node.devices:
            self.free[row, self.devices[name]] += count
        for place, gpu in enumerate(node.gpus):
            self.free[row, self.kinds[_kind(gpu)]] += 1
            self.share_kind[row, place] = self.kinds[_kind(gpu)]

    # ── planning, on the undo stack ──

    def reserve(self, task: str, node: int, request: Request) -> Binding:
        """Plan room for a task that fits there: the lowest-numbered CPUs and GPUs, near each other."""
        room = self._rooms[node]
        gpus = self._pick_gpus(room, request) if request.gpu or request.gpu_share else ()
        whole = request.whole_cpus if room.cpu_ids else 0
        cpus = self._pick_cpus(room, whole, gpus) if 0 < whole <= len(room.cpu_ids) else ()
        binding = Binding(task, room.node.name, cpus, gpus)
        self.take(binding, request)
        self._stack.append((True, binding, request))
        return binding

    def hold(self, binding: Binding, request: Request) -> None:
        """Plan exactly this place."""
        self.take(binding, request)
        self._stack.append((True, binding, request))

    def hold_free(self, binding: Binding, request: Request) -> list[tuple[Binding, Request]]:
        """Plan what is free of this place: all of it, or parts, down to what is left of a GPU that is shared."""
        room = self.rooms.get(binding.node)
        if room is None or not room.node.schedulable:
            return []
        if room.fits(request):
            return [(self.reserve(binding.task, room.index, request), request)]
        held = []
        for index in binding.gpus:
            left = room.split.get(index, 0)
            if left:
                share = Request(cpu=0, gpu_share=min(left, request.gpu_share or left), slots=0)
                held.append((Binding(binding.task, binding.node, (), (index,)), share))
        gpus = tuple(gpu.index for gpu in room.gpus if gpu.index in binding.gpus)
        devices = tuple(
            (name, here) for name, count in request.devices if (here := min(count, room.device(name))) > 0
        )
        part = Request(
            cpu=max(0, min(request.cpu, room.cpu)),
            memory=max(0, min(request.memory, room.memory)),
            gpu=0 if request.gpu_share else len(gpus),
            devices=devices,
            slots=max(0, min(request.slots, room.slots)),
        )
        cpus = tuple(cpu for cpu in binding.cpus if cpu in room.cpu_ids)
        held.append((Binding(binding.task, binding.node, cpus, () if request.gpu_share else gpus), part))
        for place in held:
            self.hold(*place)
        return held

    def vacate(self, binding: Binding, request: Request) -> None:
        """Plan that this task leaves."""
        self._give(binding, request)
        self._stack.append((False, binding, request))

    def mark(self) -> int:
        """A place in the stack of plans to come back to."""
        return len(self._stack)

    def revert(self, mark: int) -> None:
        """Take back everything planned since the mark, the last one first."""
        while len(self._stack) > mark:
            reserved, binding, request = self._stack.pop()
            if reserved:
                self._give(binding, request)
            else:
                self.take(binding, request)

    # ── what happens ──

    def take(self, binding: Binding, request: Request) -> None:
        """Take exactly this place: a plan applied, or a running task found again after a restart."""
        row = self.index.get(binding.node)
        if row is None:  # the machine was carved differently when the task started
            return
        room = self._rooms[row]
        self.free[row] -= self._row(request)
        self.idle[0] -= request.cpu
        room.tasks += 1
        if binding.cpus:
            room.cpu_ids = [cpu for cpu in room.cpu_ids if cpu not in binding.cpus]
        if binding.gpus:
            if request.gpu_share:
                self._split(room, binding.gpus[0], -request.gpu_share)
            else:
                self._take_gpus(room, binding.gpus)
        self._touch(row)

    def release(self, binding: Binding, request: Request) -> None:
        """A task has left for good."""
        self._give(binding, request)
        self.freed += 1

    def set_open(self, name: str, open: bool) -> None:
        """Let new tasks come to a node from now on, or none; what is there stays. Nothing may be planned meanwhile."""
        assert not self._stack, "the books are lent to a cycle"
        room = self.rooms[name]
        if room.node.schedulable is open:
            return
        self.nodes[room.index] = room.node = replace(room.node, schedulable=open)
        self.open[room.index] = open
        for answers in (self.able, self.fits, self.ever):
            answers.clear()
        self._touch(room.index)
        self.freed += open

    def restock(self, nodes: Sequence[Node]) -> None:
        """The same nodes hold other data than before."""
        assert not self._stack, "the books are lent to a cycle"
        for room, node in zip(self._rooms, nodes, strict=True):
            if room.node.holds != node.holds:
                self.nodes[room.index] = room.node = replace(room.node, holds=node.holds)
        for ask in [ask for ask in self.fits if ask[-1]]:
            del self.fits[ask]

    def _give(self, binding: Binding, request: Request) -> None:
        row = self.index.get(binding.node)
        if row is None:
            return
        room = self._rooms[row]
        self.free[row] += self._row(request)
        self.idle[0] += request.cpu
        room.tasks -= 1
        if binding.cpus:
            room.cpu_ids = sorted({*room.cpu_ids, *binding.cpus} & {*room.node.cpu_ids})
        if binding.gpus:
            if request.gpu_share:
                self._split(room, binding.gpus[0], request.gpu_share)
            else:
                self._give_gpus(room, binding.gpus)
        self._touch(row)

    def amounts(self, binding: Binding, request: Request) -> Ints:
        """What the task takes of its node at most, by column: a share counts as the whole GPU that it may be the
        last to leave."""
        if not binding.gpus:
            return self._row(request)
        row = self._row(request).copy()
        places = self._positions[self.index[binding.node]]
        for index in binding.gpus:
            if index in places:
                row[self.share_kind[self.index[binding.node], places[index]]] += 1
        return row

    def _row(self, request: Request) -> Ints:
        row = self._rows.get(request)
        if row is None:
            if len(self._rows) > ROWS_KEPT:
                self._rows.clear()
            row = np.zeros(self.free.shape[1], np.int64)
            row[CPU], row[MEMORY], row[SLOTS] = request.cpu, request.memory, request.slots
            for name, count in request.devices:
                if name in self.devices:
                    row[self.devices[name]] += count
            self._rows[request] = row
        return row

    def _touch(self, row: int) -> None:
        if len(self.touched) > LOG_LIMIT:
            self.touched.clear()
            self.epoch += 1
        self.touched.append(row)

    # ── the very GPUs and CPUs ──

    def _pick_gpus(self, room: Room, request: Request) -> tuple[int, ...]:
        if request.gpu_share:
            return (self._pick_share(room, request),)
        gpus = room.gpus
        if request.gpu_type is not None or request.gpu_memory or request.gpu_generation:
            gpus = [gpu for gpu in gpus if suits(gpu, request)]
        if self._numbered[room.index]:  # from one NUMA group if one has enough, the one with fewest to spare
            groups: dict[int, list[Gpu]] = {}
            for gpu in gpus:
                groups.setdefault(gpu.numa, []).append(gpu)
            enough = [group for group in groups.values() if len(group) >= request.gpu]
            gpus = (
                min(enough, key=len) if enough else sorted(gpus, key=lambda g: (-len(groups[g.numa]), g.numa))
            )
        return tuple(gpu.index for gpu in gpus[: request.gpu])

    def _pick_share(self, room: Room, request: Request) -> int:
        """The split GPU that is left with least; a whole one only when no split one will do."""
        fitting = [
            (room.split[gpu.index], gpu.index)
            for gpu in room.node.gpus
            if room.split.get(gpu.index, 0) >= request.gpu_share and suits(gpu, request)
        ]
        if fitting:
            return min(fitting)[1]
        return next(gpu.index for gpu in room.gpus if suits(gpu, request))

    def _pick_cpus(self, room: Room, whole: int, gpus: tuple[int, ...]) -> tuple[int, ...]:
        """From one NUMA group if one has enough: the one of the task's GPUs, else the one with fewest to spare."""
        groups = [[cpu for cpu in group if cpu in room.cpu_ids] for group in room.node.numa]
        near = {gpu.numa for gpu in room.node.gpus if gpu.index in gpus}
        enough = [
            (number not in near, len(cpus), cpus) for number, cpus in enumerate(groups) if len(cpus) >= whole
        ]
        if enough:
            return tuple(min(enough)[2][:whole])
        if groups:
            largest = sorted(groups, key=len, reverse=True)
            return tuple(sorted([cpu for cpus in largest for cpu in cpus][:whole]))
        return tuple(room.cpu_ids[:whole])

    def _take_gpus(self, room: Room, indexes: tuple[int, ...]) -> None:
        kept = []
        for gpu in room.gpus:
            if gpu.index in indexes:
                self.free[room.index, self.kinds[_kind(gpu)]] -= 1
                self.idle[1] -= 1
            else:
                kept.append(gpu)
        room.gpus = kept

    def _give_gpus(self, room: Room, indexes: tuple[int, ...]) -> None:
        there = {gpu.index for gpu in room.gpus}
        for gpu in room.node.gpus:
            if gpu.index in indexes and gpu.index not in there:
                room.gpus.append(gpu)
                self.free[room.index, self.kinds[_kind(gpu)]] += 1
                self.idle[1] += 1
        room.gpus.sort(key=_index)

    def _split(self, room: Room, index: int, change: int) -> None:
        """Take from (or give back to) a GPU that tasks share; one that nobody uses is whole again."""
        place = self._positions[room.index].get(index)
        if place is None:
            return
        before = room.split.get(index)
        if before is None:
            self._take_gpus(room, (index,))
            before = WHOLE
        after = before + change
        if after >= WHOLE:
            del room.split[index]
            self.share[room.index, place] = 0
            self._give_gpus(room, (index,))
        else:
            room.split[index] = after
            self.share[room.index, place] = after


def _kind(gpu: Gpu) -> Kind:
    return (gpu.type, gpu.memory, gpu.generation)


def _index(gpu: Gpu) -> int:
    return gpu.index


def _zones(names: list[str]) -> Ints:
    """Each node's rack (or fabric) by number, -1 where it has none; with no names at all, all are in one."""
    numbers = {name: number for number, name in enumerate(sorted({*names} - {""}))}
    if not numbers:
        return np.zeros(len(names), np.int64)
    return np.array([numbers.get(name, -1) for name in names], np.int64)
