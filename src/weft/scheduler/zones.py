"""Racks, fabrics and clusters, for a gang that must have all its tasks in one: which are too small, and which only full now."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from operator import attrgetter

from weft.model.gang import Gang, Request, Within
from weft.model.node import Node
from weft.model.quantities import format_cpu, show_bytes
from weft.scheduler.cluster import WHOLE, Cluster, Ints, Room, suits
from weft.scheduler.empty import emptied
from weft.scheduler.feasible import groups_of
from weft.scheduler.fit import fit_of
from weft.scheduler.words import gpu_words

WORDS = {Within.RACK: "rack", Within.FABRIC: "fabric", Within.CLUSTER: "cluster"}
WHERE = {
    Within.NODE: " on one node",
    Within.RACK: " in one rack",
    Within.FABRIC: " on one fabric",
    Within.CLUSTER: " in one cluster",
}


@dataclass(frozen=True, slots=True)
class Zone:
    """One rack, fabric or cluster, and how many of the gang's tasks it takes: if nothing else ran, and now."""

    name: str
    nodes: tuple[Node, ...]
    """Those that the gang may use."""
    ever: int
    now: int


@dataclass(frozen=True, slots=True)
class Asked:
    """What a gang asks for in all of one thing."""

    wanted: int
    had: Callable[[Node], int]
    """How much of it a node has."""
    show: Callable[[int], str]
    unit: str = ""


def zones_of(cluster: Cluster, gang: Gang) -> list[Zone]:
    """None where the gang may go anywhere, as one of a single task may; where no zone has a name; or where some
    task fits on no node at all."""
    word = WORDS.get(gang.within) if len(gang.least) > 1 else None
    named: dict[str, list[int]] = {}
    for number, node in enumerate(cluster.nodes if word else ()):
        if name := getattr(node, str(word)):
            named.setdefault(name, []).append(number)
    if not named:
        return []
    ever, now = _counts(emptied(cluster), gang), _counts(cluster, gang)
    if not all(count.any() for count, _ in ever):
        return []
    rooms = list(cluster.rooms.values())
    return [
        Zone(
            name,
            tuple(rooms[n].node for n in numbers if admits(rooms[n], gang)),
            _taken(ever, numbers),
            _taken(now, numbers),
        )
        for name, numbers in sorted(named.items())
    ]


def admits(room: Room, gang: Gang) -> bool:
    """Whether the node is open to the gang's tasks, however full it is."""
    return room.node.schedulable and room.matches(gang.selector) and room.tolerated(gang.tolerations)


def _counts(cluster: Cluster, gang: Gang) -> list[tuple[Ints, int]]:
    """For each kind of task: how many each node takes, and how many there are."""
    return [(fit_of(cluster, gang, request).count, len(tasks)) for request, tasks in groups_of(gang.least)]


def _taken(counts: Sequence[tuple[Ints, int]], nodes: list[int]) -> int:
    return sum(min(wanted, int(count[nodes].sum())) for count, wanted in counts)


def too_small(zones: Sequence[Zone], gang: Gang) -> str | None:
    """`needs 64 gpu in one rack: the largest of 4 racks, r3, has 32`; None where no one thing is short."""
    for asked in _asked(gang):
        sizes = {zone.name: sum(map(asked.had, zone.nodes)) for zone in zones}
        name = max(sizes, key=lambda name: sizes[name])
        if sizes[name] < asked.wanted:
            needs = f"needs {asked.show(asked.wanted)}{asked.unit}{WHERE[gang.within]}"
            return f"{needs}: {_largest(zones, gang, name)} has {asked.show(sizes[name])}"
    return None


def in_pieces(zones: Sequence[Zone], gang: Gang) -> str:
    """`the largest of 2 racks, r0, takes 3 of the 4 tasks`."""
    best = max(zones, key=lambda zone: zone.ever)
    wanted = len(gang.least)
    many = f"{best.ever} of the {wanted} tasks" if best.ever < wanted else "not all tasks together"
    return f"{_largest(zones, gang, best.name)} takes {many}"


def full_now(zones: Sequence[Zone], gang: Gang) -> str:
    """`1 of 3 racks is large enough, but too full now: r2 has room for 3 of the 4 tasks`."""
    wanted = len(gang.least)
    large = large_of(zones, gang)
    best = max(large or zones, key=lambda zone: zone.now)
    many = f"{len(large)} of {len(zones)} {WORDS[gang.within]}s {'is' if len(large) == 1 else 'are'}"
    room = f": {best.name} has room for {best.now} of the {wanted} tasks" if best.now < wanted else ""
    return f"{many} large enough, but too full now{room}"


def large_of(zones: Sequence[Zone], gang: Gang) -> list[Zone]:
    """The zones that would take all of the gang if nothing else ran."""
    return [zone for zone in zones if zone.ever >= len(gang.least)]


def _largest(zones: Sequence[Zone], gang: Gang, name: str) -> str:
    word = WORDS[gang.within]
    return f"the only {word}, {name}," if len(zones) == 1 else f"the largest of {len(zones)} {word}s, {name},"


def _asked(gang: Gang) -> Iterator[Asked]:
    """What is scarce first: GPUs of each kind, devices, CPUs, memory."""
    gpus: Counter[tuple[str | None, int, int]] = Counter()
    kinds: dict[tuple[str | None, int, int], Request] = {}
    devices: Counter[str] = Counter()
    for task in gang.least:
        request = task.request
        kind = (request.gpu_type, request.gpu_memory, request.gpu_generation)
        kinds.setdefault(kind, request)
        gpus[kind] += WHOLE * request.gpu + request.gpu_share
        devices.update(dict(request.devices))
    for kind, wanted in gpus.items():
        yield Asked(wanted, partial(_gpus, kinds[kind]), _thousandths, f" {gpu_words(kinds[kind])}")
    for name, wanted in devices.items():
        yield Asked(wanted, partial(_devices, name), str, f" {name}")
    yield Asked(sum(task.request.cpu for task in gang.least), attrgetter("cpu"), format_cpu, " cpu")
    yield Asked(sum(task.request.memory for task in gang.least), attrgetter("memory"), show_bytes)


def _gpus(request: Request, node: Node) -> int:
    return WHOLE * sum(suits(gpu, request) for gpu in node.gpus)


def _devices(name: str, node: Node) -> int:
    return dict(node.devices).get(name, 0)


def _thousandths(count: int) -> str:
    return f"{count / WHOLE:g}"
