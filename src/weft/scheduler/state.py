"""The books: what runs, what waits, what was promised. The engines, the forecast and the simulator keep one each.

`schedule` reads them through a snapshot and changes nothing; `State` is where what was decided, and what
happened, is written down.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Sequence
from dataclasses import replace

from weft.model.gang import Request
from weft.model.node import Node
from weft.model.status import Binding
from weft.scheduler.cluster import CPU, MEMORY, Cluster
from weft.scheduler.history import History
from weft.scheduler.kin import Kin, Kindred
from weft.scheduler.pending import Pending, Waiting
from weft.scheduler.plan import Plan, Preemption, Promise
from weft.scheduler.policy import DEFAULT, Order, Policy
from weft.scheduler.queues import QueueRule, Queues, amounts_of
from weft.scheduler.rank import Ranking
from weft.scheduler.running import Occupancy, Running
from weft.scheduler.schedule import Snapshot


class State:
    def __init__(
        self,
        nodes: Iterable[Node],
        rules: Iterable[QueueRule] = (),
        policy: Policy = DEFAULT,
        history: History | None = None,
        kin: Kin | None = None,
    ):
        self.policy = policy
        self._nodes = tuple(nodes)
        self.cluster = Cluster(self._nodes)
        self.pending = Pending()
        self.running = Occupancy(self.cluster)
        self.history = history or History()
        self.kin = kin or Kin()
        self.ranking = Ranking(policy, self.history, self.kin)
        self.queues = Queues(rules, self._capacity())
        self.holds: dict[str, Preemption] = {}
        self.promises: dict[str, Promise] = {}
        self.others: dict[str, tuple[Binding, Request]] = {}
        """What is used by somebody else, on nodes that are not ours alone."""
        self._short: set[str] = set()
        """Who of them came while tasks of ours held the GPUs: theirs they are as soon as those leave."""

    def _capacity(self) -> tuple[int, int, int]:
        total = self.cluster.total.sum(axis=0)
        return (int(total[CPU]), int(total[MEMORY]), 1000 * int(total[self.cluster.gpu_columns].sum()))

    def relevel(self, now: float) -> bool:
        """Look again at who would have to give way to whom by now. True if that has changed."""
        changed = False
        for uid in sorted(self.ranking.look(now, self.pending, self.running, self.cluster.width)):
            if uid in self.running:
                changed = self.running.reband(self.running[uid], now, self._level) or changed
            elif uid in self.pending:
                changed = self._rank(uid) or changed
        for uid in self.ranking.next(now, self.pending):
            changed = self._rank(uid) or changed
        return self.running.relevel(now, self.policy, self._level) or changed

    def _level(self, job: Running, attained: float) -> int:
        self.kin.ran(job, attained)
        return self.ranking.level(job, attained)

    def _rank(self, uid: str) -> bool:
        job = self.pending[uid]
        rank = self.ranking.of(job, job.attained)
        if rank == job.rank:
            return False
        self.pending.rank(uid, rank)
        return True

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
                account.past, account.at = before.lately(before.accounts[name], now), now
        for job in self.running:
            self.queues.take(job.queue, job.owner, job.held(), now)

    # ── nodes that are not ours alone ──

    def renew(self, nodes: Iterable[Node], now: float) -> bool:
        """The cluster has other nodes, or they are other than they were: the same use, counted on these. False if they
        only hold other data, which changes nothing that is counted."""
        before, self._nodes = self._nodes, tuple(nodes)
        if _alike(before, self._nodes):
            self.cluster.restock(self._nodes)
            return False
        self.cluster = Cluster(self._nodes)
        self.running = self.running.onto(self.cluster)
        for job in self.running:
            for name, binding in job.tasks.items():
                self.cluster.take(binding, job.requests[name])
        others, self.others = self.others, {}
        self._short.clear()
        for uid, (binding, request) in others.items():
            self.occupy(uid, binding.node, request)
        there = self.cluster.index
        self.holds = {uid: held for uid, held in self.holds.items() if _stands(held.bindings, there)}
        self.promises = {uid: made for uid, made in self.promises.items() if _stands(made.bindings, there)}
        self.pending.blocked.clear()
        self.rules([account.rule for account in self.queues.accounts.values()], now)
        return True

    def occupy(self, uid: str, node: str, request: Request) -> None:
        """Somebody else uses so much of a node. Of its GPUs which ones is not known: the last."""
        self._clear(uid)
        room = self.cluster.rooms.get(node)
        free = room.gpus if room is not None else []
        gpus = tuple(gpu.index for gpu in free[max(0, len(free) - request.gpu) :])
        binding = Binding(uid, node, (), gpus)
        self.others[uid] = (binding, request)
        if len(gpus) < request.gpu:
            self._short.add(uid)
        self.cluster.take(binding, request)

    def vacate(self, uid: str) -> None:
        """They have gone."""
        self._clear(uid)
        self._settle()

    def _clear(self, uid: str) -> None:
        self._short.discard(uid)
        if (used := self.others.pop(uid, None)) is not None:
            self.cluster.release(*used)

    def _settle(self) -> None:
        for uid in list(self._short):
            binding, request = self.others[uid]
            self.occupy(uid, binding.node, request)

    # ── waiting ──

    def submit(self, job: Waiting) -> None:
        self.kin.ran(job, job.attained)
        rank = self.ranking.of(job, job.attained)
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
            waited=now - waiting.origin,
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
        self._settle()
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
        self._settle()
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
                others = tuple(uid for uid in preemption.evicted if uid != moved.uid)
                self.holds[moved.uid] = Preemption(moved.uid, others, (), moved.bindings)
            for uid in preemption.evicted:
                self.running.tell_to_leave(uid)
            for shrink in preemption.shrunk:
                job = self.running[shrink.uid]
                job.shrinking |= {*shrink.tasks}
                self.running.told(job)

    def ended(self, job: Kindred, seconds: float, *, completed: bool = True) -> None:
        """The job has ended by itself after so long: what it took says something about jobs like it."""
        self.kin.ended(job, seconds)
        if completed:
            self.history.record(job.like, seconds)


def _alike(before: Sequence[Node], after: Sequence[Node]) -> bool:
    """Whether these are the same nodes, whatever they hold."""
    return len(before) == len(after) and all(
        old is new or replace(old, holds=new.holds) == new for old, new in zip(before, after, strict=True)
    )


def _stands(bindings: Iterable[Binding], nodes: Container[str]) -> bool:
    return all(binding.node in nodes for binding in bindings)
