"""The scheduling cycle: `schedule(snapshot, policy) -> Plan`, pure and deterministic.

The books come back as they were lent: everything is tried on undo stacks. What is remembered between
cycles (which requests did not fit, what is free by request) only saves work; it never changes a plan.
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping
from dataclasses import dataclass, field

from weft.model.gang import Request, Signature
from weft.model.status import Binding
from weft.scheduler.claim import Claim
from weft.scheduler.cluster import Cluster
from weft.scheduler.empty import could_ever_fit
from weft.scheduler.feasible import place, place_elastic
from weft.scheduler.fit import Mix
from weft.scheduler.history import History
from weft.scheduler.pending import Group, Key, Pending, Waiting
from weft.scheduler.plan import Change, Placement, Plan, Preemption, Promise, Shrink, Wait
from weft.scheduler.policy import DEFAULT, Policy
from weft.scheduler.preempt import Preempting
from weft.scheduler.promise import Leaver, end_of, length_of, promise
from weft.scheduler.queues import Queues, amounts_of
from weft.scheduler.running import Occupancy, Running, grow_after, level_of, width

Heads = dict[str, list[tuple[tuple[object, ...], Waiting, Group]]]
"""A heap for each queue: the order of each job in it, itself, and its group."""
OVERDUE = -100
"""The level of a job that has waited longer than the policy's bound."""


@dataclass(frozen=True)
class Snapshot:
    """All that a decision may depend on. The books are lent, and come back unchanged."""

    cluster: Cluster
    pending: Pending
    now: float
    running: Occupancy = field(default=None)  # type: ignore[assignment]
    queues: Queues = field(default_factory=Queues)
    history: History = field(default_factory=History)
    holds: Mapping[str, Preemption] = field(default_factory=dict)
    promises: Mapping[str, Promise] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.running is None:
            object.__setattr__(self, "running", Occupancy(self.cluster))


def schedule(snapshot: Snapshot, policy: Policy = DEFAULT) -> Plan:
    """Decide what starts, stops, shrinks and grows now, and what is promised to the rest."""
    cycle = _Cycle(snapshot, policy)
    try:
        return _decide(cycle)
    finally:
        cycle.unwind()  # whatever happens: the books are only lent


def _decide(cycle: _Cycle) -> Plan:
    # 1. what was begun: lost tasks, room that others gave up for somebody, starts that were promised
    cycle.repair()
    cycle.keep_holds()
    cycle.protect_promises()
    # 2. heads: the first of each group of equal jobs
    heads = cycle.heads()
    # 3. order: the best of them, by priority, whose queue has its turn, and its rank
    while (best := cycle.best(heads)) is not None:
        job, group = best
        # 4. nominate: a place for all of it, where there is one and its queue allows it
        bindings, why = cycle.nominate(job)
        if bindings is not None:
            # 5. admit: it starts, and whoever comes next sees a fuller cluster
            cycle.admit(job, bindings)
        elif why is not Wait.ROOM or not cycle.make_room(job):
            # 6. requeue: it waits, with all who ask for the same; one that waits long is promised a start
            if cycle.requeue(job, why, heads):
                break
            continue
        cycle.push(heads, group)
    # 7. what nobody who waits can use
    cycle.grow()
    return cycle.plan()


class _Cycle:
    def __init__(self, snapshot: Snapshot, policy: Policy):
        self._snapshot = snapshot
        self._policy = policy
        self._now = snapshot.now
        self._cluster = snapshot.cluster
        self._pending = snapshot.pending
        self._running = snapshot.running
        self._queues = snapshot.queues
        self._history = snapshot.history
        self._marks = (self._cluster.mark(), self._queues.mark())
        self._mix: Mix = self._pending.mix
        self._settled = self._running.settled
        self._placements: list[Placement] = []
        self._repairs: list[Change] = []
        self._given_up: list[str] = []
        self._growths: list[Change] = []
        self._preemptions: list[Preemption] = []
        self._holds: list[Preemption] = []
        self._promises: dict[str, Promise] = {}
        self._waiting: list[tuple[str, Wait]] = []
        self._planned: set[str] = set()
        """Jobs that are dealt with."""
        self._reach: dict[tuple[int, int, str], tuple[int, int] | None] = {}
        self._not_lent: set[tuple[object, ...]] = set()
        """What does not fit even with the room of these promises; as the cycle goes on there is only less."""
        self._unpromised: set[Signature] = set()
        """For what no start can be foreseen; who starts meanwhile makes none sooner."""
        self._at: dict[Key, list[int]] = {}
        self._turns: dict[str, tuple[float, ...]] = {}
        """Whose turn it is, as long as nothing of the queue has changed."""
        self._ends: list[Leaver] | None = None
        self._leaving: set[str] = set()
        self._kept: list[tuple[Promise, Binding, Request]] = []
        self._blocked: set[object] = set()
        """What does not fit any more in this cycle."""
        self._full: list[tuple[Signature, tuple[object, ...]]] = []
        """What of that will not fit in the next cycle either, if the same is kept then and no room is given back."""
        self._hopeless: dict[tuple[object, ...], int] = {}
        """For whom nobody gives way: what is asked for, by whom, and the best level that was tried."""
        self._terms: tuple[object, ...] | None = ()
        """What is kept from everybody, by name: while the same is, what did not fit beside it still does not."""

    # ── first: what was begun ──

    def repair(self) -> None:
        """Tasks that were lost come before everything else, near the rest of their gang."""
        for job in sorted((self._running[uid] for uid in self._running.broken), key=_oldest):
            if job.leaving:
                continue
            tasks = tuple(task for task in job.gang.tasks if task.name in job.missing)
            bindings = place(self._cluster, job.gang, tasks, self._mix, near=job.tasks.values())
            if bindings is not None:
                self._repairs.append(Change(job.uid, bindings))
                self._queues.plan(job.queue, job.owner, amounts_of(task.request for task in tasks))
            elif self._now - job.broken > self._policy.mend:
                self._given_up.append(job.uid)

    def keep_holds(self) -> None:
        """Room that others gave up for a job goes to that job: it starts once all of it is free."""
        for held in self._snapshot.holds.values():
            job = self._pending.get(held.uid)
            if job is None:
                self._keep_for_leaving(held)
                continue
            mark = self._cluster.mark()
            kept = self._keep(job, held.bindings)
            whole = len(kept) == len(held.bindings) and all(
                request == job.gang.task(binding.task).request for binding, request in kept
            )
            if whole and self._queues.refusal(job.queue, job.owner, job.least) is None:
                self.admit(job, tuple(binding for binding, _ in kept))
            elif any(self._still_leaving(held)):
                self._hold(job, held)
            else:  # everybody has left and it still does not fit: it waits as all others do
                self._cluster.revert(mark)

    def _keep_for_leaving(self, held: Preemption) -> None:
        """A job that is being moved has not arrived in the queue yet; its new place waits for it."""
        if held.uid not in self._running or not self._running[held.uid].leaving:
            return
        self._holds.append(held)
        self._keep(self._running[held.uid], held.bindings)

    def _keep(self, job: Waiting | Running, bindings: tuple[Binding, ...]) -> list[tuple[Binding, Request]]:
        """What is free of a place to come, all of it or a part, is out of reach for the rest of the cycle."""
        requests = {task.name: task.request for task in job.gang.tasks}
        return [
            part for binding in bindings for part in self._cluster.hold_free(binding, requests[binding.task])
        ]

    def _still_leaving(self, held: Preemption) -> list[str]:
        going = [uid for uid in held.evicted if uid in self._running and self._running[uid].leaving]
        for shrink in held.shrunk:
            if shrink.uid in self._running:
                going += [*(self._running[shrink.uid].shrinking & {*shrink.tasks})]
        return going

    def protect_promises(self) -> None:
        """What is free of the promised room is kept from all who would still be there at the promised time."""
        for made in self._snapshot.promises.values():
            job = self._pending.get(made.uid)
            if job is None or job.uid in self._planned or made.start < self._now:
                continue  # gone, or the prediction was wrong: it is promised anew
            self._promises[made.uid] = made
        for made in self._promises.values():
            self._kept += [(made, *part) for part in self._keep(self._pending[made.uid], made.bindings)]
        self._terms = self._kept_terms()

    def _kept_terms(self) -> tuple[object, ...]:
        promises = ((made.uid, made.made) for made in self._promises.values())
        return (*(held.uid for held in self._holds), *promises)

    # ── heads, order, nominate, admit, requeue ──

    def heads(self) -> Heads:
        heads: Heads = {}
        for group in self._pending.groups.values():
            self.push(heads, group)
        for (
            uid
        ) in self._promises:  # these stand for themselves: an equal job with a better rank must not hide them
            self._push(heads, self._pending[uid])
        return heads

    def push(self, heads: Heads, group: Group) -> None:
        """The next of a group, if there is one, takes its turn among the heads."""
        job = self._head(group)
        if job is not None:
            self._push(heads, job)

    def _push(self, heads: Heads, job: Waiting) -> None:
        fair = self._policy.fair and self._queues.fair
        heap = heads.setdefault(job.queue if fair else "", [])
        heapq.heappush(heap, (self._order(job), job, self._pending.groups[job.key]))

    def best(self, heads: Heads) -> tuple[Waiting, Group] | None:
        """The first of the queue whose turn it is. Only that changes as jobs start; the order in a queue does not."""
        first: tuple[tuple[object, ...], str] | None = None
        for queue, heap in list(heads.items()):
            while heap and heap[0][1].uid in self._planned:
                heapq.heappop(heap)
            if not heap:
                del heads[queue]
                continue
            order = self._turn(queue, heap[0][0], heap[0][1]) if queue else heap[0][0]
            if first is None or order < first[0]:
                first = (order, queue)
        if first is None:
            return None
        _, job, group = heapq.heappop(heads[first[1]])
        return job, group

    def _turn(self, queue: str, order: tuple[object, ...], job: Waiting) -> tuple[object, ...]:
        """Where the first of a queue stands among the first of all queues."""
        priority, on_time, *rest = order
        if not on_time:
            return (priority, False, (), *rest)
        turn = self._turns.get(queue)
        if turn is None:
            turn = self._turns[queue] = self._queues.turn(queue, self._now)
        return (priority, True, (not self._queues.guaranteed(queue, job.least), turn), *rest)

    def _head(self, group: Group) -> Waiting | None:
        """The first of a group that is not dealt with: who waits too long, else by rank."""
        at = self._at.setdefault(group.key, [0, 0])  # where in the two orders: what is before is dealt with
        while at[0] < len(group.by_origin) and group.by_origin[at[0]][-1] in self._planned:
            at[0] += 1
        if at[0] == len(group.by_origin):
            return None
        oldest = self._pending[group.by_origin[at[0]][-1]]
        if self._overdue(oldest):
            return oldest
        while group.by_rank[at[1]][-1] in self._planned:
            at[1] += 1
        return self._pending[group.by_rank[at[1]][-1]]

    def _overdue(self, job: Waiting) -> bool:
        """Whether it has waited too long, and may therefore have room until its end."""
        if not job.late(self._now, self._policy):
            return False
        return not job.attained or self._running.settles(job.gang, self._policy, self._settled)

    def _order(self, job: Waiting) -> tuple[object, ...]:
        """The one order of the jobs of a queue. Total, and the same everywhere."""
        if self._overdue(job):
            return (-job.priority, False, job.origin, job.since, job.uid)
        return (-job.priority, True, job.rank, job.origin, job.uid)

    def nominate(self, job: Waiting) -> tuple[tuple[Binding, ...] | None, Wait]:
        """Where all of it goes, or what keeps it."""
        if self._queues.refusal(job.queue, job.owner, job.least) is not None:
            return None, Wait.LIMIT
        return self._place(job), Wait.ROOM

    def requeue(self, job: Waiting, why: Wait, heads: Heads) -> bool:
        """Leave the job waiting. True if nothing may pass it, and the cycle is over."""
        self._waiting.append((job.uid, why))
        if why is not Wait.ROOM:
            return False
        if self._policy.backfill:
            self._promise(job)
            return False
        if not could_ever_fit(self._cluster, job.gang):
            return False  # a job that can never start holds nobody up
        self._waiting += [(other.uid, Wait.BEHIND) for heap in heads.values() for _, other, _ in heap]
        return True

    def _place(self, job: Waiting) -> tuple[Binding, ...] | None:
        signature = job.gang.signature
        known = self._pending.blocked.get(signature)
        if signature in self._blocked or (known is not None and known == (self._cluster.freed, self._terms)):
            return self._borrow(job)
        bindings = place_elastic(self._cluster, job.gang, self._mix)
        if bindings is not None and job.gang.elastic:
            bindings = self._within_limit(job, bindings)
        if bindings is not None:
            return bindings
        self._blocked.add(signature)
        if self._terms is not None:
            self._full.append((signature, self._terms))
        return self._borrow(job)

    def _within_limit(self, job: Waiting, bindings: tuple[Binding, ...]) -> tuple[Binding, ...] | None:
        """An elastic job whose queue does not allow all of it starts with the least."""
        asked = amounts_of(job.gang.task(binding.task).request for binding in bindings)
        if self._queues.refusal(job.queue, job.owner, asked) is None:
            return bindings
        for binding in bindings:
            self._cluster.vacate(binding, job.gang.task(binding.task).request)
        return place(self._cluster, job.gang, job.gang.least, self._mix)

    def _borrow(self, job: Waiting) -> tuple[Binding, ...] | None:
        """Room that is promised to others may be used by who is gone before they come; by the promised one, always."""
        if not self._kept:
            return None
        ends = self._now + length_of(job, self._history, self._policy)
        lent = [kept for kept in self._kept if kept[0].uid == job.uid or ends <= kept[0].start]
        asked = (job.gang.signature, *(kept[0].uid for kept in lent))
        if not lent or asked in self._not_lent or self._too_few_gpus(job, lent):
            return None
        mark = self._cluster.mark()
        for _, binding, request in lent:
            self._cluster.vacate(binding, request)
        bindings = place(self._cluster, job.gang, job.gang.least, self._mix)
        if bindings is None:
            self._cluster.revert(mark)
            self._not_lent.add(asked)
            return None
        for kept in lent:  # what is left of it is kept again
            made, binding, request = kept
            self._kept.remove(kept)
            if made.uid != job.uid:
                self._kept += [(made, *part) for part in self._cluster.hold_free(binding, request)]
        return bindings

    def _too_few_gpus(self, job: Waiting, lent: list[tuple[Promise, Binding, Request]]) -> bool:
        """By the sums alone: with few promises nearly all who wait are told so, and need not be tried."""
        within_reach = self._cluster.idle[1] + sum(request.gpu for _, _, request in lent)
        if job.least[2] <= 1000 * within_reach:
            return False
        return not any(task.request.gpu_share for task in job.gang.least)

    def admit(self, job: Waiting, bindings: tuple[Binding, ...]) -> None:
        self._placements.append(Placement(job.uid, bindings))
        self._planned.add(job.uid)
        self._turns = self._queues.unmoved(self._turns, job.queue)
        self._promises.pop(job.uid, None)
        if job.attained and self._overdue(job):
            self._settled += width(job.gang)
        if job.gang.elastic:
            requests = {task.name: task.request for task in job.gang.tasks}
            self._queues.plan(job.queue, job.owner, amounts_of(requests[b.task] for b in bindings))
        else:
            self._queues.plan(job.queue, job.owner, job.amounts)

    def make_room(self, job: Waiting) -> bool:
        """Others give way, if that makes it fit; what is free of its future place is kept for it at once."""
        if not self._policy.preempt or not len(self._running):
            return False
        if self._wait_for_leaving(job):
            return True
        level = OVERDUE if self._overdue(job) else level_of(job.rank, self._policy.factor)
        kind = (job.gang.signature, job.priority, job.queue if self._queues.guarantees else "")
        if level >= self._hopeless.get(kind, 1 << 30):
            return False
        spared = frozenset(self._leaving)
        claim = Claim(
            self._cluster, self._running, self._queues, self._policy, self._now, job, level, self._mix, spared
        )
        if not self._worth_trying(claim):
            return False
        preemption = Preempting(claim).plan()
        if preemption is None:
            self._hopeless[kind] = level
            return False
        self._preemptions.append(preemption)
        self._planned.add(job.uid)
        self._promises.pop(job.uid, None)
        self._leaving.update(preemption.evicted)
        self._leaving.update(shrink.uid for shrink in preemption.shrunk)
        self._keep(job, preemption.bindings)
        for moved in preemption.moved:
            self._keep(self._running[moved.uid], moved.bindings)
        self._queues.plan(job.queue, job.owner, job.least)
        self._terms = (
            None  # others are still there where the job is to be: until they have left, nothing is known
        )
        return True

    def _wait_for_leaving(self, job: Waiting) -> bool:
        """Nobody more gives way where enough is being given up already, for a job that has gone away since or by the
        word of a server that was restarted."""
        leaving = self._left_to_nobody()
        if not leaving:
            return False
        mark = self._cluster.mark()
        for other, tasks in leaving:
            for name in tasks:
                self._cluster.vacate(other.tasks[name], other.requests[name])
        bindings = place(self._cluster, job.gang, job.gang.least, self._mix)
        self._cluster.revert(mark)
        if bindings is None:
            return False
        nodes = {binding.node for binding in bindings}
        there = [(o, tasks) for o, tasks in leaving if any(o.tasks[name].node in nodes for name in tasks)]
        evicted = tuple(other.uid for other, _ in there if other.leaving)
        shrunk = tuple(Shrink(other.uid, tasks) for other, tasks in there if not other.leaving)
        self._hold(job, Preemption(job.uid, evicted, shrunk, bindings))
        self._keep(job, bindings)
        self._terms = None
        return True

    def _left_to_nobody(self) -> list[tuple[Running, tuple[str, ...]]]:
        """Who is leaving, with which tasks, and is waited for by no job."""
        if not self._running.leaving:
            return []
        awaited = {
            uid
            for held in (*self._holds, *self._preemptions)
            for uid in (*held.evicted, *(shrink.uid for shrink in held.shrunk))
        }
        going = (self._running[uid] for uid in self._running.leaving if uid not in awaited)
        return [
            (job, tuple(job.tasks if job.leaving else sorted(job.shrinking & {*job.tasks}))) for job in going
        ]

    def _hold(self, job: Waiting, held: Preemption) -> None:
        self._holds.append(held)
        self._planned.add(job.uid)
        self._waiting.append((job.uid, Wait.HELD))
        self._queues.plan(job.queue, job.owner, job.least)

    def _worth_trying(self, claim: Claim) -> bool:
        """By the sums, which are the same for all jobs of one priority, level and queue."""
        job = claim.job
        kind = (job.priority, claim.level, job.queue if self._queues.guarantees else "")
        if kind not in self._reach:
            self._reach[kind] = claim.within_reach()
        reach = self._reach[kind]
        if reach is not None and claim.enough(reach):
            return True
        return self._policy.move and 1000 < job.least[2] <= 1000 * self._cluster.idle[1]

    def _promise(self, job: Waiting) -> None:
        """Who has waited long enough for more than the smallest room is told when it will start."""
        if (
            job.uid in self._promises
            or len(self._promises) >= self._policy.promises
            or not self._policy.backfill
        ):
            return
        if self._now - job.since < self._policy.patience or not _wide(job):
            return
        if job.attained and self._policy.time_share:
            return  # it has had its start; others of its priority give way to it when its turn comes again
        if job.gang.signature in self._unpromised or not could_ever_fit(self._cluster, job.gang):
            return
        made = promise(
            self._cluster,
            self._leavers(),
            self._now,
            job,
            self._mix,
            [(binding, request) for _, binding, request in self._kept],
            [
                (binding, self._pending[other.uid].gang.task(binding.task).request)
                for other in self._promises.values()
                for binding in other.bindings
            ],
        )
        if made is None:
            self._unpromised.add(job.gang.signature)
            return
        self._promises[job.uid] = made
        self._kept += [(made, *part) for part in self._keep(job, made.bindings)]
        self._terms = self._kept_terms() if self._terms is not None else None

    def _leavers(self) -> list[Leaver]:
        """Who will have left when, of those that run and those that start now."""
        if self._ends is None:
            self._ends = [
                (end_of(job, self._history, self._policy, self._now), job.uid, job.places())
                for job in self._running
            ]
            self._ends.sort(key=lambda leaver: leaver[:2])
        started = []
        for placement in self._placements:
            job = self._pending[placement.uid]
            requests = {task.name: task.request for task in job.gang.tasks}
            end = self._now + length_of(job, self._history, self._policy)
            started.append(
                (end, job.uid, [(binding, requests[binding.task]) for binding in placement.bindings])
            )
        return sorted((*self._ends, *started), key=lambda leaver: leaver[:2]) if started else self._ends

    # ── last: what is idle ──

    def grow(self) -> None:
        """Elastic jobs grow into what nobody who waits can use; the least served first."""
        if not self._policy.grow or not self._running.elastic:
            return
        able = [job for uid in self._running.elastic if self._may_grow(job := self._running[uid])]
        for job in sorted(able, key=lambda job: (-job.priority, len(job.tasks), job.started, job.uid)):
            bindings = self._grown(job)
            if bindings:
                self._growths.append(Change(job.uid, bindings))

    def _may_grow(self, job: Running) -> bool:
        return (
            not job.leaving
            and not job.missing
            and not job.shrinking
            and job.uid not in self._leaving
            and len(job.tasks) < len(job.gang.tasks)
            and self._now - job.resized >= grow_after(job.gang, self._policy)
        )

    def _grown(self, job: Running) -> tuple[Binding, ...]:
        """As many more as fit and are allowed."""
        more = job.addable()
        low, high = 0, len(more) + 1  # so many fit, so many do not
        best: tuple[Binding, ...] = ()
        while high - low > 1:
            middle = len(more) if high > len(more) and not low and not best else (low + high) // 2
            tasks = tuple(more[:middle])
            mark = self._cluster.mark()
            bindings = None
            if self._queues.refusal(job.queue, job.owner, amounts_of(t.request for t in tasks)) is None:
                bindings = place(self._cluster, job.gang, tasks, self._mix, near=job.tasks.values())
                self._cluster.revert(mark)
            if bindings is None:
                high = middle
            else:
                low, best = middle, bindings
        for binding in best:
            self._cluster.hold(binding, job.requests[binding.task])
        self._queues.plan(job.queue, job.owner, amounts_of(job.requests[b.task] for b in best))
        return best

    def unwind(self) -> None:
        self._cluster.revert(self._marks[0])
        self._queues.revert(self._marks[1])

    def plan(self) -> Plan:
        return Plan(
            tuple(self._placements),
            tuple(self._repairs),
            tuple(self._given_up),
            tuple(self._growths),
            tuple(self._preemptions),
            tuple(self._holds),
            tuple(self._promises.values()),
            tuple(self._waiting),
            tuple(self._full),
        )


def _oldest(job: Running) -> tuple[int, float, str]:
    return (-job.priority, job.started, job.uid)


def _wide(job: Waiting) -> bool:
    """More than one task, GPU or (where it has none) CPU: the smallest jobs find room by themselves."""
    cpu, _, gpu = job.least
    return len(job.gang.least) > 1 or gpu > 1000 or (not gpu and cpu > 1000)
