"""The line: all that wait, in the order in which they would start if each got what it asks for in its turn.

The same order as the cycle's own (`schedule._order`), which only looks as far down as there is room. Queues
take turns, so what the first of a queue would get counts when the second is compared with others. Far down,
where nobody can say who starts when, turns are no longer worked out. What can never start here stands last
and takes nobody's turn.
"""

from __future__ import annotations

import heapq

from weft.scheduler.empty import could_ever_fit
from weft.scheduler.pending import Waiting
from weft.scheduler.state import State

FORESEEN = 1000


def startable(state: State, job: Waiting) -> bool:
    """Whether the cluster, and the limits of its queue, could ever let the job run."""
    return could_ever_fit(state.cluster, job.gang) and state.queues.could_ever(job.queue, job.least)


def line(state: State, now: float) -> list[Waiting]:
    queues, policy = state.queues, state.policy

    def place(job: Waiting, *, fair: bool) -> tuple[object, ...]:
        if job.late(now, policy) and (not job.attained or state.running.settles(job.gang, policy)):
            return (-job.priority, False, (), job.origin, job.since, job.uid)
        turn: tuple[object, ...] = ()
        if fair:
            turn = (not queues.guaranteed(job.queue, job.least), queues.turn(job.queue, now))
        return (-job.priority, True, turn, job.rank, job.origin, job.uid)

    everybody = sorted(state.pending, key=lambda job: place(job, fair=False))
    jobs = [job for job in everybody if startable(state, job)]
    never = [job for job in everybody if not startable(state, job)] if len(jobs) < len(everybody) else []
    if not (policy.fair and queues.fair):
        return [*jobs, *never]
    behind: dict[str, list[Waiting]] = {}
    for job in reversed(jobs):
        behind.setdefault(job.queue, []).append(job)
    heads = [(place(waiting[-1], fair=True), name) for name, waiting in behind.items()]
    heapq.heapify(heads)
    found: list[Waiting] = []
    mark = queues.mark()
    while heads and len(found) < FORESEEN:
        _, name = heapq.heappop(heads)
        now_at = place(behind[name][-1], fair=True)
        if heads and now_at > heads[0][0]:  # a sister queue has had its turn meanwhile
            heapq.heappush(heads, (now_at, name))
            continue
        job = behind[name].pop()
        found.append(job)
        queues.plan(job.queue, job.owner, job.amounts)
        if behind[name]:
            heapq.heappush(heads, (place(behind[name][-1], fair=True), name))
    queues.revert(mark)
    if not heads:
        return [*found, *never]
    ahead = {job.uid for job in found}
    return [*found, *(job for job in jobs if job.uid not in ahead), *never]
