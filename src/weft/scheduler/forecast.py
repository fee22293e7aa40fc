"""When a waiting job should start: the scheduler itself, run forward from a picture of the books.

Durations are those that jobs like these had, at three quantiles: if all are quick, as usual, or slow. What
starts in the first is the earliest, in the last the latest time to expect.
"""

from __future__ import annotations

import heapq
from copy import copy
from dataclasses import dataclass, replace
from math import inf

from weft.model.gang import Request
from weft.model.node import Node
from weft.model.status import Binding
from weft.scheduler.history import History
from weft.scheduler.kin import Kin
from weft.scheduler.pending import Waiting
from weft.scheduler.plan import Plan, Preemption, Promise
from weft.scheduler.policy import Policy
from weft.scheduler.promise import end_of, length_of
from weft.scheduler.queues import QueueRule
from weft.scheduler.rank import Ranking
from weft.scheduler.running import Running
from weft.scheduler.schedule import schedule
from weft.scheduler.state import State

QUICK, USUAL, SLOW = 0.25, 0.5, 0.9
CYCLES = 400
"""So many cycles are looked ahead; what has not started by then is beyond what can be said."""


@dataclass(frozen=True, slots=True)
class Estimate:
    """When a job should start. None: later than could be foreseen."""

    earliest: float | None
    likely: float | None
    latest: float | None


def forecast(seen: Picture, now: float, cycles: int = CYCLES) -> dict[str, Estimate]:
    """An estimate for every waiting job."""
    quick, usual, slow = (_Forward(seen, now, quantile).starts(cycles) for quantile in (QUICK, USUAL, SLOW))
    found = {}
    for job in seen.waiting:
        times = [starts[job.uid] for starts in (quick, usual, slow) if job.uid in starts]
        likely = usual.get(job.uid)
        whole = (
            len(times) == 3
        )  # quick durations may let others pass in another order: the range holds all three
        found[job.uid] = Estimate(
            min(times, default=None), likely, max(times) if whole and likely is not None else None
        )
    return found


class _Forward:
    """The near future, if every job takes as long as this quantile of jobs like it."""

    def __init__(self, seen: Picture, now: float, quantile: float):
        self._state = seen.books()
        self._policy = replace(seen.policy, margin=1.0)
        self._quantile = quantile
        self._now = now
        self._ends: list[tuple[float, str, float]] = []
        self._starts: dict[str, float] = {}
        for job in self._state.running:
            end = end_of(job, seen.history, self._policy, now, quantile)
            heapq.heappush(self._ends, (end, job.uid, job.started))

    def starts(self, cycles: int) -> dict[str, float]:
        for _ in range(cycles):
            plan = schedule(self._state.snapshot(self._now), self._state.policy)
            self._state.decided(plan)
            self._carry_out(plan)
            if not len(self._state.pending):
                break
            if not plan.preemptions and not self._pass_time():
                break
        return self._starts

    def _carry_out(self, plan: Plan) -> None:
        for placement in plan.placements:
            waiting = self._state.pending[placement.uid]
            self._begin(waiting, placement.bindings)
        for change in (*plan.repairs, *plan.growths):
            self._state.join(change.uid, change.bindings, self._now)
        for preemption in plan.preemptions:
            for uid in preemption.evicted:
                job = self._state.leave(uid, self._now)
                assert job is not None
                kept = job.ran(self._now) if job.checkpoint is not None else 0.0
                self._state.submit(
                    Waiting(
                        uid,
                        job.name,
                        job.gang,
                        job.priority,
                        self._now,
                        job.queue,
                        job.owner,
                        job.waited,
                        kept,
                    )
                )
            for shrink in preemption.shrunk:
                self._state.leave_tasks(shrink.uid, shrink.tasks, self._now)

    def _begin(self, job: Waiting, bindings: tuple[Binding, ...]) -> None:
        self._starts.setdefault(job.uid, self._now)
        end = self._now + length_of(job, self._state.history, self._policy, self._quantile)
        self._state.start(job.uid, bindings, self._now)
        heapq.heappush(self._ends, (end, job.uid, self._now))

    def _pass_time(self) -> bool:
        """To the next end, or the next moment at which somebody may have to give way."""
        look = self._state.running.next_look() or inf
        while self._ends:
            end, uid, started = self._ends[0]
            if end > look > self._now:
                self._now = look
                return True
            heapq.heappop(self._ends)
            if uid in self._state.running and self._state.running[uid].started == started:
                self._now = max(end, self._now)
                self._state.leave(uid, self._now)
                return True
        return False


@dataclass(frozen=True, slots=True)
class Picture:
    """The books at one moment: quickly taken, and made into books again in another thread."""

    nodes: tuple[Node, ...]
    policy: Policy
    history: History
    """Shared: nobody writes to it here."""
    kin: Kin
    ranking: Ranking
    queues: tuple[tuple[QueueRule, float, float], ...]
    """Each with its share in the past, and up to when."""
    running: tuple[Running, ...]
    waiting: tuple[Waiting, ...]
    holds: dict[str, Preemption]
    promises: dict[str, Promise]
    others: tuple[tuple[str, str, Request], ...]
    """What somebody else uses: who, where and how much. It is taken to stay."""

    @staticmethod
    def of(state: State) -> Picture:
        return Picture(
            tuple(state.cluster.nodes),
            state.policy,
            state.history,
            state.kin.still(),
            copy(state.ranking),
            tuple((account.rule, account.past, account.at) for account in state.queues.accounts.values()),
            tuple(_copied(job) for job in state.running),
            tuple(state.pending),
            dict(state.holds),
            dict(state.promises),
            tuple((uid, binding.node, request) for uid, (binding, request) in state.others.items()),
        )

    def books(self) -> State:
        state = State(self.nodes, [rule for rule, _, _ in self.queues], self.policy, self.history, self.kin)
        state.ranking = self.ranking.onto(self.kin)
        for rule, past, at in self.queues:
            account = state.queues.accounts[rule.name]
            account.past, account.at = past, at
        for job in self.running:
            state.restore(_copied(job), job.started)
        for other in self.others:
            state.occupy(*other)
        for waiting in self.waiting:
            state.pending.add(waiting)
        state.holds, state.promises = dict(self.holds), dict(self.promises)
        return state


def _copied(job: Running) -> Running:
    twin = copy(job)
    twin.tasks, twin.bands = dict(job.tasks), dict(job.bands)
    return twin
