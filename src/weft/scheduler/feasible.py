"""Where a gang fits: pack or spread, on one node or any, whole or not at all."""

from __future__ import annotations

from weft.model.gang import Gang, Task
from weft.model.job import Strategy
from weft.model.status import Binding
from weft.scheduler.cluster import Cluster, NodeRoom

SEARCH_STEPS = 500
SEARCH_TASKS = 64


def place(cluster: Cluster, gang: Gang) -> tuple[Binding, ...] | None:
    """Reserve room for the whole gang and say where; None, and nothing reserved, if it does not fit."""
    rooms = [room for room in cluster.rooms.values() if room.matches(gang.selector)]
    mark = cluster.mark()
    if gang.one_node:
        bindings = _on_one_node(cluster, gang, rooms)
    elif gang.strategy is Strategy.SPREAD:
        bindings = _spread(cluster, gang, rooms)
    else:
        bindings = _pack(cluster, gang, rooms)
    if bindings is None and not gang.one_node and len({task.request for task in gang.tasks}) > 1:
        cluster.revert(mark)
        bindings = _search(cluster, _largest_first(gang), rooms)
    if bindings is None:
        cluster.revert(mark)
        return None
    ranks = {task.name: task.rank for task in gang.tasks}
    return tuple(sorted(bindings, key=lambda binding: ranks[binding.task]))


def could_ever_fit(cluster: Cluster, gang: Gang) -> bool:
    """Whether the gang would fit if nothing else ran."""
    return place(Cluster(room.node for room in cluster.rooms.values()), gang) is not None


def how_many(cluster: Cluster, gang: Gang, room: NodeRoom) -> int:
    """How many of the gang's tasks one node would take at once."""
    mark = cluster.mark()
    count = len(_fill(cluster, _largest_first(gang), room))
    cluster.revert(mark)
    return count


def _largest_first(gang: Gang) -> list[Task]:
    """Who wants GPUs of one type comes before who takes any, so that these do not use up those."""
    return sorted(
        gang.tasks,
        key=lambda t: (
            t.request.gpu_type is None,
            -t.request.gpu,
            -t.request.cpu,
            -t.request.memory,
            t.rank,
        ),
    )


def _fullest_first(room: NodeRoom) -> tuple[int, int, int, str]:
    return (len(room.gpus), room.cpu, room.memory, room.node.name)


def _on_one_node(cluster: Cluster, gang: Gang, rooms: list[NodeRoom]) -> list[Binding] | None:
    for room in sorted(rooms, key=_fullest_first):
        mark = cluster.mark()
        bindings = _fill(cluster, _largest_first(gang), room)
        if len(bindings) == len(gang.tasks):
            return bindings
        cluster.revert(mark)
    return None


def _pack(cluster: Cluster, gang: Gang, rooms: list[NodeRoom]) -> list[Binding] | None:
    """Greedy: the node that takes the most of what is left, the fullest such node first."""
    left = _largest_first(gang)
    if len(left) == 1:
        fitting = [room for room in rooms if room.fits(left[0].request)]
        if not fitting:
            return None
        best = min(fitting, key=_fullest_first)
        return [cluster.reserve(left[0].name, best.node.name, left[0].request)]
    bindings: list[Binding] = []
    while left:
        chosen: NodeRoom | None = None
        most = 0
        for room in sorted(rooms, key=_fullest_first):
            mark = cluster.mark()
            count = len(_fill(cluster, left, room))
            cluster.revert(mark)
            if count > most:
                chosen, most = room, count
        if chosen is None:
            return None
        placed = _fill(cluster, left, chosen)
        bindings += placed
        done = {binding.task for binding in placed}
        left = [task for task in left if task.name not in done]
    return bindings


def _spread(cluster: Cluster, gang: Gang, rooms: list[NodeRoom]) -> list[Binding] | None:
    """Each task to the node with the fewest of this job's, then the emptiest."""
    own = dict.fromkeys((room.node.name for room in rooms), 0)
    bindings = []
    for task in _largest_first(gang):
        fitting = [room for room in rooms if room.fits(task.request)]
        if not fitting:
            return None
        best = min(fitting, key=lambda r: (own[r.node.name], -len(r.gpus), -r.cpu, -r.memory, r.node.name))
        own[best.node.name] += 1
        bindings.append(cluster.reserve(task.name, best.node.name, task.request))
    return bindings


def _search(cluster: Cluster, tasks: list[Task], rooms: list[NodeRoom]) -> list[Binding] | None:
    """Try other ways than the greedy one, up to a bound: unlike tasks may fit in one order and not in another."""
    steps = SEARCH_STEPS

    def fit(index: int) -> list[Binding] | None:
        nonlocal steps
        if index == len(tasks):
            return []
        task = tasks[index]
        for room in sorted(rooms, key=_fullest_first):
            if not room.fits(task.request):
                continue
            steps -= 1
            if steps < 0:
                return None
            mark = cluster.mark()
            binding = cluster.reserve(task.name, room.node.name, task.request)
            rest = fit(index + 1)
            if rest is not None:
                return [binding, *rest]
            cluster.revert(mark)
        return None

    return fit(0) if len(tasks) <= SEARCH_TASKS else None


def _fill(cluster: Cluster, tasks: list[Task], room: NodeRoom) -> list[Binding]:
    """As many of these tasks as the node takes."""
    return [
        cluster.reserve(task.name, room.node.name, task.request) for task in tasks if room.fits(task.request)
    ]
