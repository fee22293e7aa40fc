"""Promised starts: a job that does not fit is told when it will, and nothing that starts meanwhile may delay it.

Jobs leave in the order in which they are predicted to end, on the undo stack, until the waiting one fits. The
nodes where it fits then are kept for it: what is free there is only lent to jobs that end before its start.
"""

from __future__ import annotations

from collections.abc import Iterable
from math import inf

from weft.scheduler.cluster import Cluster
from weft.scheduler.feasible import place
from weft.scheduler.fit import Mix
from weft.scheduler.history import History
from weft.scheduler.pending import Waiting
from weft.scheduler.plan import Promise
from weft.scheduler.policy import Policy
from weft.scheduler.running import Occupancy, Running

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
    running: Occupancy,
    history: History,
    policy: Policy,
    now: float,
    job: Waiting,
    mix: Mix = (),
) -> Promise | None:
    """The earliest start that can be promised; None if the job does not fit even when all others have left."""
    ends = sorted((end_of(other, history, policy, now), other.uid) for other in running)
    start = cluster.mark()
    left, marks = 0, [cluster.mark()]
    bindings = None
    step = 1
    while bindings is None and left < len(ends):  # let ever more leave, until it fits
        for _, uid in ends[left : left + step]:
            _leave(cluster, running[uid])
            marks.append(cluster.mark())
        left = min(left + step, len(ends))
        bindings = _try(cluster, job, mix)
        step *= 2
    if bindings is None:
        cluster.revert(start)
        return None
    low, high = (
        max(0, left - step // 2),
        left,
    )  # between these lies the first number of leavers that is enough
    while high - low > 1:
        middle = (low + high) // 2
        cluster.revert(marks[low])
        for _, uid in ends[low:middle]:
            _leave(cluster, running[uid])
        found = _try(cluster, job, mix)
        if found is None:
            low = middle
            marks[low] = cluster.mark()
        else:
            high, bindings = middle, found
    cluster.revert(start)
    when = ends[high - 1][0] if high else now
    return None if when == inf else Promise(job.uid, when, bindings, now)


def _leave(cluster: Cluster, job: Running) -> None:
    for name, binding in job.tasks.items():
        cluster.vacate(binding, job.requests[name])


def _try(cluster: Cluster, job: Waiting, mix: Mix):  # type: ignore[no-untyped-def]
    mark = cluster.mark()
    bindings = place(cluster, job.gang, job.gang.least, mix)
    cluster.revert(mark)
    return bindings


def protect(cluster: Cluster, job: Waiting, promises: Iterable[Promise]) -> None:
    """Keep what is free now of the room that was promised."""
    requests = {task.name: task.request for task in job.gang.tasks}
    for made in promises:
        for binding in made.bindings:
            room = cluster.rooms.get(binding.node)
            if room is not None and room.fits(requests[binding.task]):
                cluster.reserve(binding.task, room.index, requests[binding.task])
