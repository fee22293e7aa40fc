"""Why a job waits, in numbers, from the same checks that place it."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from weft.model.gang import Gang, Request, Within
from weft.model.quantities import format_cpu, show_bytes
from weft.scheduler.cluster import Cluster, Room, suits
from weft.scheduler.feasible import could_ever_fit, groups_of, how_many, place
from weft.scheduler.pending import Waiting
from weft.scheduler.plan import Preemption
from weft.scheduler.running import Occupancy
from weft.scheduler.state import State

_WITHIN = {Within.NODE: " on one node", Within.RACK: " in one rack", Within.FABRIC: " on one fabric"}
FITS = "fits now and starts in its turn"
NODES_SHOWN = 16


@dataclass(frozen=True, slots=True)
class Explanation:
    reason: str
    details: tuple[str, ...] = ()
    ever: bool = True
    """Whether the cluster, and the queue's limits, could ever let the job run."""
    promised: float | None = None
    """The start that nothing behind it may delay."""
    numbers: dict[str, int] = field(default_factory=dict)
    """How many nodes there are, and how many are out of question, by cause."""


def explain_waiting(state: State, job: Waiting) -> Explanation:
    """All that keeps a waiting job: its queue, room, who is giving way to it, what is promised to others."""
    refusal = state.queues.refusal(job.queue, job.owner, job.least)
    if refusal is not None and could_ever_fit(state.cluster, job.gang):
        ever = state.queues.could_ever(job.queue, job.least)
        return Explanation(refusal if ever else f"can never start here: {refusal}", ever=ever)
    held = state.holds.get(job.uid)
    if held is not None:
        return Explanation(
            _giving_way(state, held), numbers={"givingWay": len(held.evicted) + len(held.shrunk)}
        )
    found = explain(state.cluster, job.gang, state.running)
    own = state.promises.get(job.uid)
    if own is not None:
        return Explanation(found.reason, found.details, found.ever, own.start, found.numbers)
    if found.reason == FITS and state.promises:
        return Explanation(_promised_to(state, job), found.details, True, None, found.numbers)
    return found


def _giving_way(state: State, held: Preemption) -> str:
    names = [state.running[uid].name for uid in held.evicted if uid in state.running]
    names += [state.running[s.uid].name for s in held.shrunk if s.uid in state.running]
    return f"its room is being freed: {_few(names) or 'others'} {'gives' if len(names) == 1 else 'give'} way to it"


def _promised_to(state: State, job: Waiting) -> str:
    first = min(state.promises.values(), key=lambda made: (made.start, made.uid))
    holder = state.pending.get(first.uid)
    name = holder.name if holder is not None else first.uid
    return (
        f"waits behind {name}, to which the free room is promised; it would still run when {name} is to start"
    )


def explain(cluster: Cluster, gang: Gang, running: Occupancy | None = None) -> Explanation:
    """A sentence with numbers: what is asked, what is free, and whether it could ever fit."""
    mark = cluster.mark()
    fits = place(cluster, gang, gang.least) is not None
    cluster.revert(mark)
    if fits:
        return Explanation(FITS)
    ever = could_ever_fit(cluster, gang)
    rooms = list(cluster.rooms.values())
    details = tuple(_node(cluster, room, gang) for room in rooms[:NODES_SHOWN])
    needs = describe(gang)
    numbers, sentence = _nodes(cluster, gang, running)
    if not ever:
        reason = f"can never start here: needs {needs}; {_largest(Cluster(cluster.nodes), gang)}"
        return Explanation(reason + sentence, details, ever=False, numbers=numbers)
    return Explanation(f"needs {needs}; {_free(rooms, gang)}{sentence}", details, numbers=numbers)


def describe(gang: Gang) -> str:
    """`3 × (1 cpu, 2 GiB) + 1 × (0.5 cpu) on one node`."""
    counts = Counter(task.request for task in gang.least)
    parts = [
        f"{count} × ({_request(request)})" if count > 1 else _request(request)
        for request, count in counts.items()
    ]
    where = _WITHIN.get(gang.within, "") if len(gang.least) > 1 else ""
    labels = f" with {', '.join(f'{k}={v}' for k, v in gang.selector)}" if gang.selector else ""
    return " + ".join(parts) + where + labels


def _request(request: Request) -> str:
    parts = [f"{format_cpu(request.cpu)} cpu"]
    if request.memory:
        parts.append(show_bytes(request.memory))
    if request.gpus:
        kind = f"{request.gpu_type} " if request.gpu_type else ""
        memory = f" of {show_bytes(request.gpu_memory)}" if request.gpu_memory else ""
        parts.append(f"{request.gpus:g} {kind}gpu{memory}")
    parts += [f"{count} {name}" for name, count in request.devices]
    return ", ".join(parts)


def _nodes(cluster: Cluster, gang: Gang, running: Occupancy | None) -> tuple[dict[str, int], str]:
    """Of how many nodes which are out of question and why, and who uses the others: for the largest task."""
    request = groups_of(gang.least)[0][0]
    numbers: Counter[str] = Counter()
    causes: Counter[str] = Counter()
    able: list[int] = []
    for room in cluster.rooms.values():
        cause = _unfit(room, gang, request)
        if cause is None:
            able.append(room.index)
        else:
            numbers[cause[0]] += 1
            causes[cause[1]] += 1
    numbers["nodes"] = len(cluster.nodes)
    numbers["able"] = len(able)
    if len(cluster.nodes) == 1:
        return dict(numbers), ""
    parts = []
    if able:
        have = f"{len(able)} of {len(cluster.nodes)} nodes could take {_request(request)}"
        parts.append(have + _used_by(cluster, able, running))
    parts += [
        f"{count} of {len(cluster.nodes)} nodes {'lacks' if count == 1 else 'lack'} {what}"
        for what, count in causes.most_common()
    ]
    return dict(numbers), "; " + "; ".join(parts) if parts else ""


def _unfit(room: Room, gang: Gang, request: Request) -> tuple[str, str] | None:
    """Why this node would not take the task even if it were empty."""
    node = room.node
    if not node.schedulable:
        return "closed", "permission: closed to new tasks"
    if not room.matches(gang.selector):
        return "labels", f"the labels {', '.join(f'{k}={v}' for k, v in gang.selector)}"
    if not room.tolerated(gang.tolerations):
        return "taints", f"tolerance of {', '.join(sorted({*node.taints} - {*gang.tolerations}))}"
    devices = dict(node.devices)
    for name, count in request.devices:
        if devices.get(name, 0) < count:
            return "devices", name if count == 1 else f"{count} {name}"
    wanted = request.gpu or bool(request.gpu_share)
    if wanted and sum(suits(gpu, request) for gpu in node.gpus) < wanted:
        kind = f"{request.gpu_type} " if request.gpu_type else ""
        return "gpu", f"{wanted:d} {kind}gpu"
    if node.cpu < request.cpu:
        return "cpu", f"{format_cpu(request.cpu)} cpu"
    if node.memory < request.memory:
        return "memory", show_bytes(request.memory)
    return None


def _used_by(cluster: Cluster, able: list[int], running: Occupancy | None) -> str:
    if running is None:
        return ""
    queues: Counter[str] = Counter()
    jobs: set[str] = set()
    for node in able:
        for uid, _ in running.on_node[node]:
            queues[running[uid].queue] += 1
            jobs.add(running[uid].name)
    if not queues:
        return ""
    busy = sum(1 for node in able if running.on_node[node])
    whose = _few([f"queue {name}" for name, _ in queues.most_common()])
    many = f"{len(jobs)} job{'s' * (len(jobs) != 1)} of {whose}"
    return f", {'all' if busy == len(able) else busy} used by {many}"


def _free(rooms: list[Room], gang: Gang) -> str:
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


def _node(cluster: Cluster, room: Room, gang: Gang) -> str:
    name = room.node.name
    if not room.node.schedulable:
        return f"{name}: closed to new tasks"
    if not room.matches(gang.selector):
        return f"{name}: lacks the labels {dict(gang.selector)}"
    fitting = how_many(cluster, gang, room.index)
    gpus = f", {len(room.gpus)} gpu" if room.node.gpus else ""
    count = len(gang.preferred)
    return (
        f"{name}: {format_cpu(room.cpu)} of {format_cpu(room.node.cpu)} cpu, {show_bytes(room.memory)}{gpus} free; "
        f"room for {fitting} of the {count} task{'s' * (count != 1)}"
    )


def _few(names: list[str]) -> str:
    return ", ".join(names) if len(names) <= 3 else f"{', '.join(names[:3])} and {len(names) - 3} more"
