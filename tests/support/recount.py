"""The scheduler's books worked out anew from what runs and what waits, to compare with those that were kept."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np

from weft.model.gang import Gang
from weft.scheduler.cluster import Cluster
from weft.scheduler.fit import Fit
from weft.scheduler.pending import Group
from weft.scheduler.queues import NONE, Amounts, Queues, amounts_of
from weft.scheduler.running import GROWN, Occupancy
from weft.scheduler.state import State


def picture(cluster: Cluster) -> dict[str, Any]:
    """All that can be seen of a cluster."""
    rooms = {
        name: (
            room.cpu,
            room.memory,
            tuple(sorted(room.cpu_ids)),
            tuple(sorted(gpu.index for gpu in room.gpus)),
            tuple(sorted(room.split.items())),
            room.tasks,
        )
        for name, room in cluster.rooms.items()
    }
    return {
        "free": cluster.free.tolist(),
        "share": cluster.share.tolist(),
        "idle": cluster.idle,
        "rooms": rooms,
    }


def books(state: State) -> dict[str, Any]:
    """All that can be seen of the books."""
    return {
        "cluster": picture(state.cluster),
        "pending": state.pending.in_order(),
        "running": {job.uid: (dict(job.tasks), dict(job.bands)) for job in state.running},
        "bands": {band: used.tolist() for band, used in state.running.bands.items()},
        "queues": {name: (a.used, _some(a.users), a.past, a.at) for name, a in state.queues.accounts.items()},
        "holds": dict(state.holds),
        "promises": dict(state.promises),
    }


def _some(users: dict[str, Amounts]) -> dict[str, Amounts]:
    return {user: amounts for user, amounts in users.items() if amounts != NONE}


def check(state: State) -> None:
    """The kept books are those that a recount gives."""
    counted = Cluster(state.cluster.nodes)
    for job in state.running:
        for name, binding in job.tasks.items():
            counted.take(binding, job.requests[name])
    for binding, request in state.others.values():
        counted.take(binding, request)
    assert picture(state.cluster) == picture(counted)
    assert (state.cluster.free >= 0).all() or state.others, "only others may take more than there is"
    check_fits(state.cluster)
    check_bands(state.running, state.cluster)
    check_queues(state)
    check_pending(state)


def check_fits(cluster: Cluster) -> None:
    """What is kept for each question is what asking every node gives."""
    for (request, selector, tolerations, wants), fit in list(cluster.fits.items()):
        fit.refresh(fit.mix)
        asked = [
            room.count(request) if room.matches(selector) and room.tolerated(tolerations) else 0
            for room in cluster.rooms.values()
        ]
        assert fit.count.tolist() == asked, f"{request}: {fit.count.tolist()} is kept, {asked} is true"
        anew = Fit(cluster, _ask(request, selector, tolerations, wants), fit.mix).refresh(fit.mix)
        assert fit.key.tolist() == anew.key.tolist()


def _ask(*parts: Any) -> Any:
    from weft.scheduler.fit import Ask

    return Ask(*parts)


def check_bands(running: Occupancy, cluster: Cluster) -> None:
    """By node and band, from the bands that the tasks say they are in."""
    used: dict[Any, Any] = {}
    sums: dict[Any, list[int]] = {}
    on_node: list[set[tuple[str, str]]] = [set() for _ in cluster.nodes]
    for job in running:
        assert {*job.bands} == {*job.tasks}
        assert {band[:2] for band in job.bands.values()} <= {(job.priority, job.queue)}
        for name, binding in job.tasks.items():
            band, request = job.bands[name], job.requests[name]
            node = cluster.index[binding.node]
            used.setdefault(band, np.zeros_like(cluster.free))[node] += cluster.amounts(binding, request)
            total = sums.setdefault(band, [0, 0, 0])
            total[0] += request.cpu
            total[1] += request.gpu or bool(request.gpu_share)
            total[2] += 1
            on_node[node].add((job.uid, name))
    assert {band: array.tolist() for band, array in running.bands.items()} == {
        band: array.tolist() for band, array in used.items()
    }
    assert running.sums == sums
    assert [{*here} for here in running.on_node] == on_node
    assert {*running.elastic} == {job.uid for job in running if job.gang.elastic}
    assert {*running.broken} == {job.uid for job in running if job.missing}


def grown_as_booked(running: Occupancy) -> bool:
    """Whether the tasks beyond their job's wish, and no others, are booked as given back on demand."""
    return all(
        {name for name, band in job.bands.items() if band[2] == GROWN} == {*job.beyond()} for job in running
    )


def usage(state: State, queue: str, user: str | None = None) -> Amounts:
    """What the jobs of a queue, and of all queues below it, have."""
    total = NONE
    for job in state.running:
        account = state.queues.accounts.get(job.queue)
        if account is not None and queue in account.path and user in (None, job.owner):
            total = plus(total, amounts_of(job.requests[name] for name in job.tasks))
    return total


def check_queues(state: State) -> None:
    for name, account in state.queues.accounts.items():
        assert account.used == usage(state, name)
        for user, amounts in account.users.items():
            assert amounts == usage(state, name, user)


def check_pending(state: State) -> None:
    groups: Counter[Any] = Counter(job.key for job in state.pending)
    for order in [name for name in Group.__slots__ if name.startswith("by_")]:
        assert {key: len(getattr(group, order)) for key, group in state.pending.groups.items()} == groups


def over_limit(queues: Queues, held: list[tuple[str, str, Amounts]]) -> list[str]:
    """Limits that this use (queue, user, amounts) would exceed, counted from scratch."""
    by_queue: Counter[tuple[str, int]] = Counter()
    by_user: Counter[tuple[str, str, int]] = Counter()
    for queue, user, amounts in held:
        for name in queues.accounts[queue].path:
            for i in range(3):
                by_queue[name, i] += amounts[i]
                by_user[name, user, i] += amounts[i]
    found = []
    for name, account in queues.accounts.items():
        for i, resource in enumerate(("cpu", "memory", "gpu")):
            if by_queue[name, i] > account.rule.limit.get(resource, 1 << 62):
                found.append(f"{name}: {resource}")
            for user in {user for _, user, _ in held}:
                if by_user[name, user, i] > account.rule.user_limit.get(resource, 1 << 62):
                    found.append(f"{user} in {name}: {resource}")
    return found


def plus(a: Amounts, b: Amounts, sign: int = 1) -> Amounts:
    return (a[0] + sign * b[0], a[1] + sign * b[1], a[2] + sign * b[2])


def amounts(gang: Gang, names: Any) -> Amounts:
    return amounts_of(gang.task(name).request for name in names)
