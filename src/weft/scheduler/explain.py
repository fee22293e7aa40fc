"""Why a job waits, in numbers, from the same checks that place it."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace
from functools import lru_cache

from weft.model.gang import Gang, Request
from weft.model.node import Node
from weft.model.quantities import format_cpu, show_bytes
from weft.model.words import few
from weft.scheduler.cluster import Cluster, Room
from weft.scheduler.empty import could_ever_fit, emptied, shut_out
from weft.scheduler.feasible import groups_of, how_many, place
from weft.scheduler.pending import Waiting
from weft.scheduler.plan import Preemption
from weft.scheduler.running import Occupancy
from weft.scheduler.state import State
from weft.scheduler.words import gpu_words, request_words
from weft.scheduler.zones import (
    WHERE,
    WORDS,
    Zone,
    admits,
    full_now,
    in_pieces,
    large_of,
    too_small,
    zones_of,
)

FITS = "fits now and starts in its turn"
NODES_SHOWN = 16


@dataclass(frozen=True, slots=True)
class Explanation:
    reason: str
    details: tuple[str, ...] = ()
    ever: bool = True
    """Whether the cluster, and the queue's limits, could ever let the job run."""
    closed: bool = False
    """It could, if no node were closed to new tasks."""
    promised: float | None = None
    """The start that nothing behind it may delay."""
    numbers: dict[str, int] = field(default_factory=dict)
    """How many nodes there are, and how many are out of question, by cause; how many racks or fabrics."""


@dataclass(frozen=True, slots=True)
class Unfit:
    """Why a node would not take a task even if it were empty."""

    cause: str
    verb: str
    what: str

    def said(self, one: bool) -> str:
        return f"{_SINGULAR[self.verb] if one else self.verb} {self.what}"


_SINGULAR = {"lack": "lacks", "have": "has"}


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
        return replace(found, promised=own.start)
    if found.reason == FITS and state.promises:
        return replace(found, reason=_promised_to(state, job))
    return found


def _giving_way(state: State, held: Preemption) -> str:
    names = [state.running[uid].name for uid in held.evicted if uid in state.running]
    names += [state.running[s.uid].name for s in held.shrunk if s.uid in state.running]
    return f"its room is being freed: {few(names) or 'others'} {'gives' if len(names) == 1 else 'give'} way to it"


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
    numbers, sentence = _nodes(cluster, gang, running if ever else None)
    zones = zones_of(cluster, gang)
    if zones:
        word = WORDS[gang.within]
        numbers |= {f"{word}s": len(zones), f"large{word.title()}s": len(large_of(zones, gang))}
    closed = shut_out(cluster, gang)
    if closed or not ever:
        never = f"cannot start while {_closed(cluster)}" if closed else "can never start here"
        reason = f"{never}: {_too_much(cluster, gang, zones)}{sentence}"
        return Explanation(reason, details, ever=ever, closed=closed, numbers=numbers)
    full = f"; {full_now(zones, gang)}" if zones else ""
    return Explanation(
        f"needs {describe(gang)}; {_free(rooms, gang)}{full}{sentence}", details, numbers=numbers
    )


def _closed(cluster: Cluster) -> str:
    if len(cluster.nodes) == 1:
        return "the node is closed to new tasks"
    count = sum(not node.schedulable for node in cluster.nodes)
    return f"{count} of {len(cluster.nodes)} nodes {'is' if count == 1 else 'are'} closed to new tasks"


def _too_much(cluster: Cluster, gang: Gang, zones: list[Zone]) -> str:
    """What a gang needs that even an empty cluster has not."""
    if not zones:
        return f"needs {describe(gang)}; {_largest(emptied(cluster), gang)}"
    return too_small(zones, gang) or f"needs {describe(gang)}; {in_pieces(zones, gang)}"


def describe(gang: Gang) -> str:
    """`3 × (1 cpu, 2 GiB) + 1 × (0.5 cpu) on one node`."""
    counts = Counter(task.request for task in gang.least)
    parts = [
        f"{count} × ({request_words(request)})" if count > 1 else request_words(request)
        for request, count in counts.items()
    ]
    where = WHERE.get(gang.within, "") if len(gang.least) > 1 else ""
    labels = f" with {', '.join(f'{k}={v}' for k, v in gang.selector)}" if gang.selector else ""
    return " + ".join(parts) + where + labels


def _nodes(cluster: Cluster, gang: Gang, running: Occupancy | None) -> tuple[dict[str, int], str]:
    """Of how many nodes which are out of question and why, and who uses the others: for the largest task."""
    request = groups_of(gang.least)[0][0]
    unfit: Counter[Unfit] = Counter()
    able: list[int] = []
    for room in cluster.rooms.values():
        found = _unfit(room, gang, request)
        if found is None:
            able.append(room.index)
        else:
            unfit[found] += 1
    numbers: Counter[str] = Counter({"nodes": len(cluster.nodes), "able": len(able)})
    for found, count in unfit.items():
        numbers[found.cause] += count
    if len(cluster.nodes) == 1:
        return dict(numbers), "".join(
            f"; it {found.said(one=True)}" for found in unfit if found.verb == "have"
        )
    parts = []
    if able:
        have = f"{len(able)} of {len(cluster.nodes)} nodes could take {request_words(request)}"
        parts.append(have + _used_by(cluster, able, running))
    parts += [
        f"{count} of {len(cluster.nodes)} nodes {found.said(one=count == 1)}"
        for found, count in unfit.most_common()
    ]
    return dict(numbers), "; " + "; ".join(parts) if parts else ""


def _unfit(room: Room, gang: Gang, request: Request) -> Unfit | None:
    """Why this node would not take the task even if it were empty."""
    node = room.node
    if not node.schedulable:
        return Unfit("closed", "lack", "permission: closed to new tasks")
    if not room.matches(gang.selector):
        return Unfit("labels", "lack", f"the labels {', '.join(f'{k}={v}' for k, v in gang.selector)}")
    if not room.tolerated(gang.tolerations):
        taints = ", ".join(sorted({*node.taints} - {*gang.tolerations}))
        return Unfit("taints", "lack", f"tolerance of {taints}")
    devices = dict(node.devices)
    for name, count in request.devices:
        if devices.get(name, 0) < count:
            return Unfit("devices", "lack", name if count == 1 else f"{count} {name}")
    if (found := _unfit_gpus(node, request)) is not None:
        return found
    if node.cpu < request.cpu:
        return Unfit("cpu", "lack", f"{format_cpu(request.cpu)} cpu")
    if node.memory < request.memory:
        return Unfit("memory", "lack", show_bytes(request.memory))
    if node.slots < request.slots:
        return Unfit("slots", "have", "no place for a task")
    return None


def _unfit_gpus(node: Node, request: Request) -> Unfit | None:
    """Too few GPUs; or enough of them, but not of that much memory, or not of that generation."""
    wanted = request.gpu or int(bool(request.gpu_share))
    if len(Room.suiting(node.gpus, request)) >= wanted:
        return None
    plain, large = _less_choosy(request)
    if len(Room.suiting(node.gpus, plain)) < wanted:
        return Unfit("gpu", "lack", f"{wanted} {gpu_words(plain)}")
    small = len(Room.suiting(node.gpus, large)) < wanted
    asked = large if small else request
    few = len(Room.suiting(node.gpus, asked))
    what = f"fewer than {wanted} {gpu_words(asked, 'GPUs')}" if few else f"no {gpu_words(asked, 'GPU')}"
    return Unfit("gpuMemory" if small else "gpuGeneration", "have", what)


@lru_cache(maxsize=256)
def _less_choosy(request: Request) -> tuple[Request, Request]:
    """The request for GPUs of any memory and generation, and for those of any generation."""
    return replace(request, gpu_memory=0, gpu_generation=0), replace(request, gpu_generation=0)


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
    whose = few([f"queue {name}" for name, _ in queues.most_common()])
    many = f"{len(jobs)} job{'s' * (len(jobs) != 1)} of {whose}"
    return f", {'all' if busy == len(able) else busy} used by {many}"


def _free(rooms: list[Room], gang: Gang) -> str:
    able = [room for room in rooms if admits(room, gang)]
    request = groups_of(gang.least)[0][0]
    cpu = format_cpu(sum(room.cpu for room in able))
    memory = show_bytes(sum(room.memory for room in able))
    gpus = sum(len(room.suiting(room.gpus, request)) for room in able)
    total_gpus = sum(len(room.suiting(room.node.gpus, request)) for room in able)
    gpu_text = f", {gpus} of {total_gpus} {gpu_words(request)}" if total_gpus else ""
    total_cpu = format_cpu(sum(room.node.cpu for room in able))
    running = sum(room.tasks for room in rooms)
    full = sum(room.slots < request.slots for room in able)
    return (
        f"free: {cpu} of {total_cpu} cpu, {memory}{gpu_text} on {len(able)} "
        f"node{'s' * (len(able) != 1)}, used by {running} running task{'s' * (running != 1)}"
        + (
            f"; {full} of these nodes {'has' if full == 1 else 'have'} as many as may be there"
            if full
            else ""
        )
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
