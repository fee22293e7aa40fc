"""The scheduling cycle."""

from __future__ import annotations

import heapq
from dataclasses import dataclass

from weft.scheduler.cluster import Cluster
from weft.scheduler.feasible import could_ever_fit, place
from weft.scheduler.pending import Order, Pending
from weft.scheduler.plan import Placement, Plan

PATIENCE = 300.0


@dataclass(frozen=True, slots=True)
class Snapshot:
    """All that a decision may depend on. The cluster and the queue are lent, and come back unchanged."""

    cluster: Cluster
    pending: Pending
    now: float
    patience: float = PATIENCE
    """How long a job may be overtaken by others that fit; after that, nothing behind it starts before it."""


def schedule(snapshot: Snapshot) -> Plan:
    """Decide what starts now: the best job first, each gang whole, smaller ones around what does not fit."""
    cluster, pending = snapshot.cluster, snapshot.pending
    placements: list[Placement] = []
    blocked: set[tuple[object, ...]] = set()
    held_for = None

    # 1. heads: the first of each group of equal requests, best first
    heads: list[tuple[Order, int, tuple[object, ...]]] = []
    for number, (signature, orders) in enumerate(pending.groups.items()):
        heads.append((orders[0], number, signature))
    heapq.heapify(heads)
    taken = dict.fromkeys(pending.groups, 0)

    # 2. nominate against a cluster that fills up as we go; undone at the end
    start = cluster.mark()
    while heads:
        order, number, signature = heapq.heappop(heads)
        job = pending[order[2]]
        bindings = place(cluster, job.gang)
        if bindings is None:
            # 3. the whole group waits: equal requests get equal answers
            blocked.add(signature)
            if snapshot.now - job.since > snapshot.patience and could_ever_fit(cluster, job.gang):
                held_for = job.uid  # a job that can never start holds nobody up
                break
            continue
        placements.append(Placement(job.uid, bindings))
        taken[signature] += 1
        group = pending.groups[signature]
        if taken[signature] < len(group):
            heapq.heappush(heads, (group[taken[signature]], number, signature))
    cluster.revert(start)
    return Plan(tuple(placements), held_for, frozenset(blocked))
