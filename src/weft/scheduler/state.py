"""The books: what runs, what waits, what was promised. The engines, the forecast and the simulator keep one each.

`schedule` reads them through a snapshot and changes nothing; `State` is where what was decided, and what
happened, is written down.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from weft.model.node import Node
from weft.model.status import Binding
from weft.scheduler.cluster import CPU, MEMORY, Cluster
from weft.scheduler.history import History
from weft.scheduler.pending import Pending, Waiting
from weft.scheduler.plan import Plan, Preemption, Promise
from weft.scheduler.policy import DEFAULT, Order, Policy
from weft.scheduler.queues import QueueRule, Queues, amounts_of
from weft.scheduler.running import Occupancy, Running, rank_of
from weft.scheduler.schedule import Snapshot


class State:
    def __init__(
        self,
        nodes: Iterable[Node],
        rules: Iterable[QueueRule] = (),
        policy: Policy = DEFAULT,
        history: History | None = None,
    ):
        self.policy = policy
        self.cluster = Cluster(nodes)
        self.pending = Pending()
        self.running = Occupancy(self.cluster)
        self.history = history or History()
        self.queues = Queues(rules, self._capacity())
        self.holds: dict[str, Preemption] = {}
        self.promises: dict[str, Promise] = {}

    def _capacity(self) -> tuple[int, int, int]:
        total = self.cluster.total.sum(axis=0)
        return (int(total[CPU]), int(total[MEMORY]), 1000 * int(total[self.cluster.gpu_columns].sum()))

    def relevel(self, now: float) -> bool:
        """Look again at who would have to give way to whom by now. True if that has changed."""
        return self.running.relevel(now, self.policy, self.history)

    def snapshot(self, now: float) -> Snapshot:
        self.relevel(now)
        return Snapshot(
            self.cluster,
            self.pending,
            now,
            self.running,
            self.queues,
            self.history,
            self.holds,
            self.promises,
        )

    def rules(self, rules: Iterable[QueueRule], now: float) -> None:
        """The operator has changed the queues: the same use, counted by new rules."""
        before = self.queues
        self.queues = Queues(rules, self._capacity())
        for name, account in self.queues.accounts.items():
            if name in before.accounts:
                account.past, account.at = before.accounts[name].past, before.accounts[name].at
        for job in self.running:
            self.queues.take(job.queue, job.owner, job.held(), now)

    # ── waiting ──

    def submit(self, job: Waiting) -> None:
        rank = rank_of(self.policy.order, self.history, job.like, job.attained, job.gang)
        self.pending.add(job if job.rank == rank else replace(job, rank=rank))

    def withdraw(self, uid: str) -> Waiting | None:
        """The job no longer waits; what was held for it is anybody's."""
        self.promises.pop(uid, None)
        if self.holds.pop(uid, None) is not None:
            self.cluster.freed += 1
        return self.pending.remove(uid)

    # ── running ──

    def start(
        self, uid: str, bindings: Iterable[Binding], now: float, checkpoint: float | None = None
    ) -> Running:
        """A waiting job has its place."""
        waiting = self.withdraw(uid)
        assert waiting is not None, f"job {uid} does not wait"
        job = Running(
            waiting.uid,
            waiting.name,
            waiting.gang,
            waiting.priority,
            waiting.queue,
            waiting.owner,
            now,
            {binding.task: binding for binding in bindings},
            attained=waiting.attained,
            checkpoint=checkpoint,
            left_alone=now + self.policy.quantum,
            settled=waiting.attained > 0
            and waiting.late(now, self.policy)
            and self.running.settles(waiting.gang, self.policy),
            resized=now,
        )
        self.restore(job, now)
        return job

    def restore(self, job: Running, now: float) -> None:
        """Take a job's place as it is: one that was just placed, or one found running after a restart."""
        for name, binding in job.tasks.items():
            self.cluster.take(binding, job.requests[name])
        self.queues.take(job.queue, job.owner, job.held(), now)
        timed = self.policy.time_share and self.policy.order is not Order.FIFO
        self.running.add(job, max(job.left_alone, job.started + self.policy.quantum) if timed else None)

    def leave(self, uid: str, now: float) -> Running | None:
        """All tasks of the job are gone."""
        if uid not in self.running:
            return None
        job = self.running[uid]
        held = job.held()
        tasks = dict(job.tasks)
        self.running.remove(uid)
        for name, binding in tasks.items():
            self.cluster.release(binding, job.requests[name])
        self.queues.give(job.queue, job.owner, held, now)
        return job

    def leave_tasks(self, uid: str, names: Iterable[str], now: float, *, missing: bool = False) -> None:
        """Some tasks of a job are gone; the job goes on. `missing`: they were lost and are to be replaced."""
        job = self.running[uid]
        gone = [name for name in names if name in job.tasks]
        bindings = [(job.tasks[name], job.requests[name]) for name in gone]
        self.running.remove_tasks(job, gone)
        job.shrinking -= {*gone}
        self.running.told(job)
        if missing:
            job.missing = (*job.missing, *gone)
            job.broken = now
            self.running.broken[uid] = None
        else:
            job.resized = now
        for binding, request in bindings:
            self.cluster.release(binding, request)
        self.queues.give(job.queue, job.owner, amounts_of(request for _, request in bindings), now)

    def join(self, uid: str, bindings: Iterable[Binding], now: float) -> None:
        """A running job has got more tasks: lost ones replaced, or grown."""
        job = self.running[uid]
        bindings = tuple(bindings)
        for binding in bindings:
            self.cluster.take(binding, job.requests[binding.task])
        self.running.add_tasks(job, bindings)
        job.missing = tuple(name for name in job.missing if name not in job.tasks)
        if not job.missing:
            self.running.broken.pop(uid, None)
        job.resized = now
        self.queues.take(job.queue, job.owner, amounts_of(job.requests[b.task] for b in bindings), now)

    # ── what was decided ──

    def decided(self, plan: Plan) -> None:
        """Remember what a plan holds and promises. Starts, stops and sizes are noted when they happen."""
        for signature, kept in plan.full:
            self.pending.blocked[signature] = (self.cluster.freed, kept)
        self.promises = {made.uid: made for made in plan.promises}
        self.holds = {held.uid: held for held in (*plan.holds, *plan.preemptions)}
        for preemption in plan.preemptions:
            for moved in preemption.moved:
                self.holds[moved.uid] = Preemption(moved.uid, (), (), moved.bindings)
            for uid in preemption.evicted:
                self.running.tell_to_leave(uid)
            for shrink in preemption.shrunk:
                job = self.running[shrink.uid]
                job.shrinking |= {*shrink.tasks}
                self.running.told(job)

    def completed(self, job: Running, now: float) -> None:
        """The job has ended by itself: what it took says something about jobs like it."""
        self.history.record(job.like, job.ran(now))
