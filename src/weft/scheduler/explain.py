"""Why a job waits, in numbers, from the same check that places it."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from weft.model.gang import Gang, Request
from weft.model.quantities import format_cpu, show_bytes
from weft.scheduler.cluster import Cluster, NodeRoom
from weft.scheduler.feasible import how_many, place


@dataclass(frozen=True, slots=True)
class Explanation:
    reason: str
    details: tuple[str, ...] = ()
    ever: bool = True
    """Whether the cluster could run the job if it were empty."""


def explain(cluster: Cluster, gang: Gang) -> Explanation:
    """A sentence with numbers: what is asked, what is free, and whether it could ever fit."""
    mark = cluster.mark()
    fits = place(cluster, gang) is not None
    cluster.revert(mark)
    if fits:
        return Explanation("fits now and starts in its turn")
    empty = Cluster(room.node for room in cluster.rooms.values())
    ever = place(empty, gang) is not None
    rooms = list(cluster.rooms.values())
    details = tuple(_node(cluster, room, gang) for room in rooms[:16])
    needs = describe(gang)
    if not ever:
        return Explanation(
            f"can never start here: needs {needs}; {_largest(empty, gang)}", details, ever=False
        )
    return Explanation(f"needs {needs}; {_free(rooms, gang)}", details)


def describe(gang: Gang) -> str:
    """`3 × (1 cpu, 2 GiB) + 1 × (0.5 cpu) on one node`."""
    counts = Counter(task.request for task in gang.tasks)
    parts = [
        f"{count} × ({_request(request)})" if count > 1 else _request(request)
        for request, count in counts.items()
    ]
    where = " on one node" if gang.one_node and len(gang.tasks) > 1 else ""
    labels = f" with {', '.join(f'{k}={v}' for k, v in gang.selector)}" if gang.selector else ""
    return " + ".join(parts) + where + labels


def _request(request: Request) -> str:
    parts = [f"{format_cpu(request.cpu)} cpu"]
    if request.memory:
        parts.append(show_bytes(request.memory))
    if request.gpu:
        parts.append(f"{request.gpu} {request.gpu_type + ' ' if request.gpu_type else ''}gpu")
    return ", ".join(parts)


def _free(rooms: list[NodeRoom], gang: Gang) -> str:
    able = [room for room in rooms if room.node.schedulable and room.matches(gang.selector)]
    cpu = format_cpu(sum(room.cpu for room in able))
    memory = show_bytes(sum(room.memory for room in able))
    gpus = sum(len(room.gpus) for room in able)
    total_gpus = sum(len(room.node.gpus) for room in able)
    gpu_text = f", {gpus} of {total_gpus} gpu" if total_gpus else ""
    total_cpu = format_cpu(sum(room.node.cpu for room in able))
    running = sum(room.tasks for room in rooms)
    return (
        f"free: {cpu} of {total_cpu} cpu, {memory}{gpu_text} on {len(able)} "
        f"node{'s' * (len(able) != 1)}, used by {running} running task{'s' * (running != 1)}"
    )


def _largest(cluster: Cluster, gang: Gang) -> str:
    rooms = [room for room in cluster.rooms.values() if room.matches(gang.selector)]
    if not rooms:
        return f"no node has the labels {dict(gang.selector)}"
    cpu = max(room.cpu for room in rooms)
    memory = max(room.memory for room in rooms)
    gpus = max(len(room.gpus) for room in rooms)
    types = sorted({gpu.type for room in rooms for gpu in room.gpus})
    gpu_text = f", {gpus} gpu ({', '.join(types)})" if types else ", no gpu"
    all_cpu = format_cpu(sum(room.cpu for room in rooms))
    if len(rooms) == 1:
        return f"the node has {format_cpu(cpu)} cpu, {show_bytes(memory)}{gpu_text}"
    return (
        f"the largest of {len(rooms)} nodes has {format_cpu(cpu)} cpu, {show_bytes(memory)}{gpu_text}; "
        f"all together {all_cpu} cpu"
    )


def _node(cluster: Cluster, room: NodeRoom, gang: Gang) -> str:
    name = room.node.name
    if not room.node.schedulable:
        return f"{name}: closed to new tasks"
    if not room.matches(gang.selector):
        return f"{name}: lacks the labels {dict(gang.selector)}"
    fitting = how_many(cluster, gang, room)
    gpus = f", {len(room.gpus)} gpu" if room.node.gpus else ""
    return (
        f"{name}: {format_cpu(room.cpu)} of {format_cpu(room.node.cpu)} cpu, {show_bytes(room.memory)}{gpus} free; "
        f"room for {fitting} of the {len(gang.tasks)} task{'s' * (len(gang.tasks) != 1)}"
    )
