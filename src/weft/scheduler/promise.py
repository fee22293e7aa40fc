"""Promised starts: a job that does not fit is told when it will, and nothing that starts meanwhile may delay it.

Jobs leave in the order in which they are predicted to end, on the undo stack, until the waiting one fits. The
nodes where it fits then are kept for it: what is free there is only lent to jobs that end before its start.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import inf

from weft.model.gang import Request
from weft.model.status import Binding
from weft.scheduler.cluster import Cluster
from weft.scheduler.feasible import place
from weft.scheduler.fit import Mix
from weft.scheduler.history import History
from weft.scheduler.pending import Waiting
from weft.scheduler.plan import Promise
from weft.scheduler.policy import Policy
from weft.scheduler.running import Running

Place = tuple[Binding, Request]
Leaver = tuple[float, str, list[Place]]
"""When a job is expected to have left, who it is, and what it leaves."""

CAREFUL = 0.75
"""The quantile of the predicted time left that a promise is made on."""


def end_of(job: Running, history: History, policy: Policy, now: float, quantile: float = CAREFUL) -> float:
    """When a running job is expected to have ended: by its deadline at the latest."""
    if job.leaving:
        return now + job.gang.grace
    ran = job.ran(now)
    left = history.remaining(job.like, ran, quantile) * policy.margin
    if job.gang.deadline is not None:
        limit = max(0.0, job.gang.deadline - ran)
        left = min(left, limit) if history.knows(job.like, ran) else limit
    return now + left


def length_of(job: Waiting, history: History, policy: Policy, quantile: float = CAREFUL) -> float:
    """How long a waiting job is expected to run."""
    left = history.remaining(job.like, job.attained, quantile) * policy.margin
    if job.gang.deadline is None:
        return left
    limit = max(0.0, job.gang.deadline - job.attained)
    return min(left, limit) if history.knows(job.like, job.attained) else limit


def promise(
    cluster: Cluster,
    leavers: Sequence[Leaver],
    now: float,
    job: Waiting,
    mix: Mix = (),
    kept: Iterable[Place] = (),
    promised: Sequence[Place] = (),
) -> Promise | None:
    """The earliest start that can be promised; None if the job does not fit even when all others have left.

    `kept` is what is reserved now of the places that were `promised` to others before; when more is free, more
    of these is theirs.
    """
    start = cluster.mark()
    for binding, request in kept:
        cluster.vacate(binding, request)
    empty = cluster.mark()

    def leave(first: int, last: int) -> None:
        for _, _, places in leavers[first:last]:
            for binding, request in places:
                cluster.vacate(binding, request)

    def tried() -> tuple[Binding, ...] | None:
        mark = cluster.mark()
        for binding, request in promised:
            cluster.hold_free(binding, request)
        bindings = place(cluster, job.gang, job.gang.least, mix)
        cluster.revert(mark)
        return bindings

    low, high, step = 0, 0, 1
    bindings = None
    while bindings is None and high < len(leavers):  # let ever more leave, until it fits
        low, high = high, min(high + step, len(leavers))
        leave(low, high)
        bindings = tried()
        step *= 2
    while (
        bindings is not None and high - low > 1
    ):  # the first number of leavers that is enough lies in between
        middle = (low + high) // 2
        cluster.revert(empty)
        leave(0, middle)
        found = tried()
        if found is None:
            low = middle
        else:
            high, bindings = middle, found
    cluster.revert(start)
    if bindings is None or leavers[high - 1][0] == inf:
        return None
    return Promise(job.uid, leavers[high - 1][0], bindings, now)
