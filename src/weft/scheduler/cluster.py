"""The cluster as the scheduler sees it: what each node has left, with an undo stack in place of copies."""

from __future__ import annotations

from collections.abc import Iterable

from weft.model.gang import Request
from weft.model.node import Node
from weft.model.status import Binding


class NodeRoom:
    """What is left of one node."""

    __slots__ = ("cpu", "cpu_ids", "gpus", "labels", "memory", "node", "tasks")

    def __init__(self, node: Node):
        self.node = node
        self.cpu = node.cpu
        self.memory = node.memory
        self.cpu_ids = list(node.cpu_ids)
        self.gpus = list(node.gpus)
        self.labels = dict(node.labels)
        self.tasks = 0

    def gpus_of(self, gpu_type: str | None) -> int:
        if gpu_type is None:
            return len(self.gpus)
        return sum(gpu.type == gpu_type for gpu in self.gpus)

    def fits(self, request: Request) -> bool:
        """The one feasibility check, for planning, applying and explaining alike."""
        return (
            self.node.schedulable
            and request.cpu <= self.cpu
            and request.memory <= self.memory
            and (not request.gpu or request.gpu <= self.gpus_of(request.gpu_type))
        )

    def matches(self, selector: Iterable[tuple[str, str]]) -> bool:
        return all(self.labels.get(key) == value for key, value in selector)


class Cluster:
    """All nodes. Reservations are bindings; each is taken back exactly."""

    def __init__(self, nodes: Iterable[Node]):
        self.rooms = {node.name: NodeRoom(node) for node in nodes}
        self._stack: list[tuple[Binding, Request]] = []

    def reserve(self, task: str, node: str, request: Request) -> Binding:
        """Plan room for a task, on the undo stack: the lowest-numbered CPUs and GPUs that are free."""
        room = self.rooms[node]
        assert room.fits(request), f"{task} does not fit {node}"
        whole = request.whole_cpus
        cpus = tuple(room.cpu_ids[:whole]) if whole and len(room.cpu_ids) >= whole else ()
        chosen = [gpu for gpu in room.gpus if request.gpu_type in (None, gpu.type)][: request.gpu]
        binding = Binding(task, node, cpus, tuple(gpu.index for gpu in chosen))
        self.take(binding, request)
        self._stack.append((binding, request))
        return binding

    def take(self, binding: Binding, request: Request) -> None:
        """Take exactly this place for good: a plan applied, or a running task found again after a restart."""
        room = self.rooms.get(binding.node)
        if room is None:  # the machine was carved differently when the task started
            return
        room.cpu -= request.cpu
        room.memory -= request.memory
        room.tasks += 1
        if binding.cpus:
            room.cpu_ids = [cpu for cpu in room.cpu_ids if cpu not in binding.cpus]
        if binding.gpus:
            room.gpus = [gpu for gpu in room.gpus if gpu.index not in binding.gpus]

    def release(self, binding: Binding, request: Request) -> None:
        room = self.rooms.get(binding.node)
        if room is None:
            return
        room.cpu += request.cpu
        room.memory += request.memory
        room.tasks -= 1
        if binding.cpus:
            room.cpu_ids = sorted({*room.cpu_ids, *binding.cpus} & {*room.node.cpu_ids})
        if binding.gpus:
            returned = [gpu for gpu in room.node.gpus if gpu.index in binding.gpus]
            room.gpus = sorted((*room.gpus, *returned), key=lambda gpu: gpu.index)

    def mark(self) -> int:
        """A place in the stack of reservations to come back to."""
        return len(self._stack)

    def revert(self, mark: int) -> None:
        """Take back every reservation made since the mark, the last one first."""
        while len(self._stack) > mark:
            self.release(*self._stack.pop())
