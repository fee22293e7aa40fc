"""The event-driven simulation: jobs arrive, run and end in virtual time; the scheduler decides the rest."""

from __future__ import annotations

import heapq
import time
from collections.abc import Callable, Iterable, Iterator
from copy import copy
from math import inf

from weft.model.gang import Request
from weft.model.node import Node
from weft.model.status import Binding
from weft.scheduler.history import History
from weft.scheduler.kin import Kin
from weft.scheduler.pending import Waiting
from weft.scheduler.plan import Plan
from weft.scheduler.policy import DEFAULT, Policy
from weft.scheduler.queues import QueueRule
from weft.scheduler.running import Running, grow_after
from weft.scheduler.schedule import schedule
from weft.scheduler.state import State
from weft.sim.failures import Failure
from weft.sim.fragments import stranded
from weft.sim.live import Live
from weft.sim.oracle import Oracle
from weft.sim.outcome import Outcome, Record, Sample
from weft.sim.usage import Usage
from weft.sim.workload import Arrival

__all__ = ["Arrival", "Oracle", "Outcome", "Record", "Sample", "Simulation"]

Progress = Callable[[int, int], None]
"""Told how many jobs have ended, of how many."""
Watch = Callable[[float, State], None]
"""Shown the books at every sample."""
CYCLES = 100
"""Room that is made is used in a cycle of its own; a scheduler that makes room without end is broken."""


class Simulation:
    def __init__(
        self,
        nodes: Iterable[Node],
        arrivals: Iterable[Arrival],
        policy: Policy = DEFAULT,
        rules: Iterable[QueueRule] = (),
        *,
        history: History | None = None,
        kin: Kin | None = None,
        failures: Iterable[Failure] = (),
        restart: float = 60.0,
        save: float = 1800.0,
        mend: float = 900.0,
        tick: float = 1.0,
        sample: float = 3600.0,
        until: float = inf,
        progress: Progress | None = None,
        watch: Watch | None = None,
    ):
        self.state = State(nodes, rules, policy, history, kin)
        self._arrivals = sorted(arrivals, key=lambda arrival: (arrival.time, arrival.name))
        self._failures: Iterator[Failure] = iter(failures)
        self._restart = restart
        """Seconds that a start from a checkpoint takes."""
        self._save = save
        """Work is saved so often: what a node took with it since is done again."""
        self._mend = mend
        """A gang that lost tasks keeps its other ones for so long; then it gives up its place and waits."""
        self._tick = tick
        """Decisions are made at most this often, as a server does that has other work."""
        self._every = sample
        self._until = until
        self._progress = progress
        self._watch = watch
        self._live: dict[str, Live] = {}
        self._ends: list[tuple[float, str, int]] = []
        self._mends: list[tuple[float, str, int]] = []
        self._wakes: list[float] = []
        """When an elastic job may change its size again, which no event would tell."""
        self._down: list[tuple[float, str]] = []
        self._outages: dict[str, tuple[Binding, Request]] = {}
        cluster = self.state.cluster
        gpus = int(cluster.total[:, cluster.gpu_columns].sum())
        begin = self._arrivals[0].time if self._arrivals else 0.0
        self._usage = Usage(gpus, begin, begin)
        self.outcome = Outcome([], [], gpus, self._usage, self._usage)
        self._now = begin
        self._ended = 0

    def run(self) -> Outcome:
        begun = time.perf_counter()
        arrivals = iter(self._arrivals)
        coming = next(arrivals, None)
        failure = next(self._failures, None)
        sample = self._now
        while True:
            upcoming = self._upcoming(coming, failure)
            if upcoming == inf or upcoming > self._until:
                break
            while sample <= upcoming:
                self._sample(sample)
                sample += self._every
            horizon = max(upcoming, self._now) + self._tick
            changed = False
            while self._ends and self._ends[0][0] <= horizon:
                changed = self._end(*heapq.heappop(self._ends)) or changed
            while coming is not None and coming.time <= horizon:
                self._arrive(coming)
                coming = next(arrivals, None)
                changed = True
                if coming is None:
                    self.outcome.arriving = copy(self._usage)
            self._now = horizon
            while failure is not None and failure.time <= horizon:
                self._fail(failure)
                failure = next(self._failures, None)
                changed = True
            changed = self._return_nodes() or changed
            changed = self._give_up() or changed
            while self._wakes and self._wakes[0] <= horizon:
                heapq.heappop(self._wakes)
                changed = True
            if self.state.relevel(self._now) or changed:
                self._cycle()
        self._usage.until(self._now)
        self.outcome.wall = time.perf_counter() - begun
        return self.outcome

    def _upcoming(self, coming: Arrival | None, failure: Failure | None) -> float:
        """When something happens next. Nodes go on failing for ever, so that alone is no reason to go on."""
        for heap in (self._ends, self._mends):
            while heap and not self._current(*heap[0][1:]):
                heapq.heappop(heap)
        moments = [heap[0][0] for heap in (self._ends, self._mends, self._down) if heap]
        if coming is not None:
            moments.append(coming.time)
        if self._wakes:
            moments.append(self._wakes[0])
        if len(self.state.pending) and (look := self.state.running.next_look()):
            moments.append(look)
        if moments and failure is not None and (coming is not None or self._live):
            moments.append(failure.time)
        return min(moments, default=inf)

    def _current(self, uid: str, run: int) -> bool:
        """Whether what was foreseen for this run of the job still holds."""
        live = self._live.get(uid)
        return live is not None and live.run == run

    # ── events ──

    def _arrive(self, arrival: Arrival) -> None:
        self._usage.until(arrival.time)
        record = Record(arrival)
        self.outcome.records.append(record)
        live = self._live[arrival.name] = Live(record, self._usage.contention)
        self._wait(live, arrival.time)

    def _wait(self, live: Live, now: float) -> None:
        arrival = live.record.arrival
        live.since, live.rate = now, 0.0
        self._usage.wanted += arrival.gang.gpus
        name = Oracle.name_of(arrival) if isinstance(self.state.history, Oracle) else arrival.name
        self.state.submit(
            Waiting(
                arrival.name,
                name,
                arrival.gang,
                arrival.priority,
                now,
                arrival.queue,
                arrival.owner,
                waited=live.record.waited,
                attained=live.done,
            )
        )

    def _end(self, when: float, name: str, run: int) -> bool:
        if not self._current(name, run):
            return False
        live = self._live[name]
        self._usage.until(when)
        self._count(live, when)
        assert abs(live.done - live.record.arrival.seconds) <= 1e-6 * live.done, (
            f"{name} ended with work undone"
        )
        del self._live[name]
        record = live.record
        record.finished = when
        present = when - record.arrival.time
        record.contention = (self._usage.contention - live.contention) / present if present > 0 else 1.0
        self._hold(live, None)
        job = self.state.leave(name, when)
        assert job is not None
        self.state.ended(job, record.arrival.seconds)
        self._ended += 1
        if self._progress is not None:
            self._progress(self._ended, len(self._arrivals))
        return True

    def _fail(self, failure: Failure) -> None:
        """The node is gone, with all tasks on it. To the scheduler it is full until it comes back."""
        if failure.node in self._outages:
            return
        cluster = self.state.cluster
        row = cluster.index[failure.node]
        lost: dict[str, list[str]] = {}
        for uid, task in self.state.running.on_node[row]:
            lost.setdefault(uid, []).append(task)
        for uid, tasks in lost.items():
            self._lose(uid, tasks)
        node = cluster.nodes[row]
        whole = Request(node.cpu, node.memory, len(node.gpus), devices=node.devices)
        binding = Binding("outage", node.name, node.cpu_ids, tuple(gpu.index for gpu in node.gpus))
        cluster.take(binding, whole)
        self._outages[node.name] = (binding, whole)
        heapq.heappush(self._down, (self._now + failure.seconds, node.name))
        self._usage.until(self._now)
        self._usage.down += len(node.gpus)

    def _lose(self, uid: str, tasks: list[str]) -> None:
        """An elastic job that can do without them goes on smaller; any other gang stands still until it is repaired."""
        live, job = self._live[uid], self.state.running[uid]
        self._count(live, self._now)
        self._undo(live, self._save if live.record.arrival.checkpoints else inf)
        live.record.failures += 1
        chief = any(task.chief for task in job.gang.tasks if task.name in tasks)
        spare = not chief and not job.missing and len(tasks) <= len(job.spare())
        self.state.leave_tasks(uid, tasks, self._now, missing=not spare)
        self._begin_again(live, job)

    def _return_nodes(self) -> bool:
        changed = False
        while self._down and self._down[0][0] <= self._now:
            name = heapq.heappop(self._down)[1]
            binding, whole = self._outages.pop(name)
            self._usage.until(self._now)
            self._usage.down -= len(binding.gpus)
            self.state.cluster.release(binding, whole)
            changed = True
        return changed

    def _give_up(self) -> bool:
        """Gangs that could not be made whole in time let others have what they hold."""
        changed = False
        while self._mends and self._mends[0][0] <= self._now:
            _, uid, run = heapq.heappop(self._mends)
            if self._current(uid, run):
                self._send_back(self._live[uid], uid)
                changed = True
        return changed

    # ── what was decided ──

    def _cycle(self) -> None:
        for _ in range(CYCLES):
            begun = time.perf_counter()
            plan = schedule(self.state.snapshot(self._now), self.state.policy)
            self.outcome.decisions.append(time.perf_counter() - begun)
            self.outcome.cycles += 1
            self.state.decided(plan)
            self._carry_out(plan)
            if not plan.preemptions:
                return
        self.outcome.endless += 1

    def _carry_out(self, plan: Plan) -> None:
        now = self._now
        self._usage.until(now)
        for placement in plan.placements:
            live = self._live[placement.uid]
            record = live.record
            record.waited += now - live.since
            self._usage.wanted -= record.arrival.gang.gpus
            again = record.started is not None
            if not again:
                record.started = now
                record.nodes = len({binding.node for binding in placement.bindings})
            saved = inf if record.arrival.checkpoints else None
            job = self.state.start(placement.uid, placement.bindings, now, saved)
            if again:
                self._begin_again(live, job)
            else:
                live.ready = now
                self._work(live, job)
        for change in plan.repairs:
            self.state.join(change.uid, change.bindings, now)
            self._begin_again(self._live[change.uid], self.state.running[change.uid])
        for change in plan.growths:
            self._count(self._live[change.uid], now)
            self.state.join(change.uid, change.bindings, now)
            self._resized(change.uid)
        for preemption in plan.preemptions:
            moved = {placement.uid for placement in preemption.moved}
            for uid in preemption.evicted:
                self._evict(uid, moved=uid in moved)
            for shrink in preemption.shrunk:
                self._count(self._live[shrink.uid], now)
                self.state.leave_tasks(shrink.uid, shrink.tasks, now)
                self._resized(shrink.uid)

    def _resized(self, uid: str) -> None:
        live = self._live[uid]
        live.record.resizes += 1
        self._work(live, self.state.running[uid])

    def _evict(self, uid: str, *, moved: bool) -> None:
        """It gives its place up: to wait, or to go on at another that is held for it."""
        live = self._live[uid]
        self._count(live, self._now)
        if not live.record.arrival.checkpoints:
            self._undo(live, inf)
        live.record.moves += moved
        live.record.preemptions += not moved
        self._send_back(live, uid)

    def _send_back(self, live: Live, uid: str) -> None:
        live.run += 1
        self._hold(live, None)
        self.state.leave(uid, self._now)
        self._wait(live, self._now)

    # ── work ──

    def _count(self, live: Live, now: float) -> None:
        """Bring the work done up to date."""
        if live.rate:
            ready = min(max(live.since, live.ready), now)
            live.done += (now - ready) * live.rate
            self._lost(live, (ready - live.since) * live.gpus)
        live.since = now

    def _undo(self, live: Live, saved: float) -> None:
        """Work is kept in pieces of so many seconds; what was done of the next is lost."""
        kept = live.done // saved * saved if saved < inf else 0.0
        self._lost(live, (live.done - kept) * live.record.arrival.gang.gpus)
        live.done = kept

    def _lost(self, live: Live, gpu_seconds: float) -> None:
        live.record.lost += gpu_seconds
        self._usage.lost += gpu_seconds

    def _begin_again(self, live: Live, job: Running) -> None:
        live.ready = self._now + self._restart
        self._work(live, job)

    def _work(self, live: Live, job: Running) -> None:
        """From now on it works at the rate of its size, until the end that follows from it, or stands still."""
        live.since = self._now
        live.run += 1
        self._hold(live, job)
        if job.missing:
            live.rate = 0.0
            heapq.heappush(self._mends, (self._now + self._mend, job.uid, live.run))
            return
        live.rate = len(job.tasks) / len(job.gang.preferred)
        left = max(0.0, live.record.arrival.seconds - live.done) / live.rate
        heapq.heappush(self._ends, (max(self._now, live.ready) + left, job.uid, live.run))
        if len(job.tasks) < len(job.gang.tasks):
            heapq.heappush(self._wakes, self._now + grow_after(job.gang, self.state.policy))

    def _hold(self, live: Live, job: Running | None) -> None:
        """What the job holds from now on."""
        if self._usage.at < self._now:
            self._usage.until(self._now)
        if live.stuck:
            self._usage.stuck -= live.gpus
        self._usage.held -= live.gpus
        live.gpus = job.held()[2] / 1000 if job is not None else 0.0
        live.stuck = job is not None and bool(job.missing)
        self._usage.held += live.gpus
        if live.stuck:
            self._usage.stuck += live.gpus

    # ── looking ──

    def _sample(self, when: float) -> None:
        usage = self._usage
        self.outcome.samples.append(
            Sample(
                when,
                usage.held,
                usage.wanted,
                len(self.state.pending),
                len(self.state.running),
                stranded(self.state),
                usage.stuck,
                int(usage.down),
            )
        )
        if self._watch is not None:
            self._watch(when, self.state)
