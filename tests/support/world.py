"""The scheduler's books on virtual time: jobs last as long as they are told, and everything is looked at from outside.

`audit` counts from scratch what the bindings take of the nodes; it shares no code with the scheduler.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import inf

from weft.model.gang import Gang, Request, Within
from weft.model.node import Node
from weft.model.status import Binding
from weft.scheduler.history import History, likeness
from weft.scheduler.pending import Waiting
from weft.scheduler.plan import Plan, Promise
from weft.scheduler.policy import DEFAULT, Policy
from weft.scheduler.queues import QueueRule
from weft.scheduler.running import Running
from weft.scheduler.schedule import schedule
from weft.scheduler.state import State

ROUNDS = 50
"""More cycles than this at one moment, each of which changes something, are a loop."""
Held = tuple[Gang, tuple[Binding, ...]]


@dataclass
class Facts:
    """What only the world knows of a job."""

    lasts: float
    saves: bool
    """It saves what it did whenever it is told to stop."""


class World:
    def __init__(
        self,
        nodes: Iterable[Node],
        rules: Iterable[QueueRule] = (),
        policy: Policy = DEFAULT,
        history: History | None = None,
    ):
        self.nodes = list(nodes)
        self.state = State(self.nodes, rules, policy, history)
        self.now = 0.0
        self.facts: dict[str, Facts] = {}
        self.submitted: dict[str, float] = {}
        self.first_start: dict[str, float] = {}
        self.stopped: list[tuple[float, str]] = []
        self.promised: list[Promise] = []

    # ── what people do ──

    def submit(
        self,
        uid: str,
        gang: Gang,
        priority: int = 0,
        *,
        queue: str = "default",
        owner: str = "",
        name: str | None = None,
        lasts: float = inf,
        saves: bool = False,
        since: float | None = None,
    ) -> None:
        self.facts[uid] = Facts(lasts, saves)
        when = self.now if since is None else since
        self.submitted[uid] = when
        self.state.submit(Waiting(uid, name or uid, gang, priority, when, queue, owner))

    def runs(self, uid: str, gang: Gang, priority: int = 0, **facts: object) -> Running:
        """Submit it and see it start at once."""
        self.submit(uid, gang, priority, **facts)  # type: ignore[arg-type]
        plan = self.cycle()
        assert uid in self.state.running, f"{uid} did not start: {plan}"
        return self.state.running[uid]

    def runs_on(
        self, uid: str, gang: Gang, nodes: Mapping[str, str], priority: int = 0, **rest: object
    ) -> Running:
        """Put a job's tasks on these nodes, as if they had been found there after a restart."""
        cluster = self.state.cluster
        mark = cluster.mark()
        bindings = [
            cluster.reserve(task, cluster.index[node], gang.task(task).request)
            for task, node in nodes.items()
        ]
        cluster.revert(mark)
        queue, owner = str(rest.get("queue", "default")), str(rest.get("owner", ""))
        self.facts[uid] = Facts(float(rest.get("lasts", inf)), bool(rest.get("saves", False)))  # type: ignore[arg-type]
        job = Running(
            uid, uid, gang, priority, queue, owner, self.now, {b.task: b for b in bindings}, resized=self.now
        )
        self.state.restore(job, self.now)
        return job

    # ── what the scheduler does ──

    def plan(self) -> Plan:
        """What would be decided now."""
        return schedule(self.state.snapshot(self.now), self.state.policy)

    def cycle(self) -> Plan:
        """Decide, and carry out all but the stopping: who must go is told, and goes with `let_go`."""
        plan = self.plan()
        self.state.decided(plan)
        self.promised += [made for made in plan.promises if made.made == self.now]
        for placement in plan.placements:
            self.first_start.setdefault(placement.uid, self.now)
            saved = inf if self.facts[placement.uid].saves else None
            self.state.start(placement.uid, placement.bindings, self.now, saved)
        for change in (*plan.repairs, *plan.growths):
            self.state.join(change.uid, change.bindings, self.now)
        return plan

    def let_go(self) -> list[str]:
        """Everybody who was told to stop has stopped; who was stopped whole waits again."""
        gone = []
        for job in list(self.state.running):
            if job.leaving:
                self.stop(job.uid)
                gone.append(job.uid)
            elif job.shrinking:
                self.state.leave_tasks(job.uid, sorted(job.shrinking), self.now)
                gone.append(job.uid)
        return gone

    def stop(self, uid: str) -> None:
        """A job is stopped and waits again."""
        job = self.state.leave(uid, self.now)
        assert job is not None
        self.stopped.append((self.now, uid))
        kept = job.ran(self.now) if self.facts[uid].saves else 0.0
        self.state.submit(
            Waiting(uid, job.name, job.gang, job.priority, self.now, job.queue, job.owner, job.waited, kept)
        )

    def finish(self, uid: str) -> None:
        job = self.state.leave(uid, self.now)
        assert job is not None
        self.state.ended(job, job.ran(self.now))

    # ── time ──

    def settle(self) -> None:
        """Cycles until nothing changes any more."""
        for _ in range(ROUNDS):
            plan = self.cycle()
            if not self.let_go() and plan.empty:
                return
        raise AssertionError(f"{ROUNDS} cycles at {self.now} and still no rest: {plan}")

    def end_of(self, job: Running) -> float:
        return job.started + self.facts[job.uid].lasts - job.attained

    def run(
        self,
        until: float,
        arrivals: Iterable[tuple[float, str, Gang, dict[str, object]]] = (),
        *,
        timers: bool = True,
    ) -> None:
        """Let time pass: jobs arrive and end, and every change is followed by cycles; so are the ends of patience,
        and promised moments. Without `timers` there is one cycle a change, and none besides."""
        coming = sorted(arrivals, key=lambda arrival: (arrival[0], arrival[1]))
        follow = self.settle if timers else self.cycle
        follow()
        while True:
            ends = min(((self.end_of(job), job.uid) for job in self.state.running), default=(inf, ""))
            arrives = coming[0][0] if coming else inf
            when = min(ends[0], arrives, self._next_timer() if timers else inf)
            if when > until:
                self.now = until
                return
            self.now = max(self.now, when)
            if ends[0] <= self.now:
                self.finish(ends[1])
            while coming and coming[0][0] <= self.now:
                _, uid, gang, facts = coming.pop(0)
                self.submit(uid, gang, **facts)  # type: ignore[arg-type]
            follow()

    def _next_timer(self) -> float:
        """When a patience, a bound or a promise ends: a moment at which a cycle may decide otherwise."""
        policy = self.state.policy
        times = [
            job.since + wait for job in self.state.pending for wait in (policy.patience, policy.bound + 1)
        ]
        times += [made.start + late for made in self.state.promises.values() for late in (0.0, 1.0)]
        return min((time for time in times if time > self.now), default=inf)

    # ── what is so ──

    @property
    def running(self) -> set[str]:
        return {job.uid for job in self.state.running}

    def held(self) -> list[Held]:
        return [(job.gang, tuple(job.tasks.values())) for job in self.state.running]

    def places(self, uid: str) -> Counter[str]:
        return Counter(binding.node for binding in self.state.running[uid].tasks.values())


def known(*durations: tuple[str, float, float], owner: str = "", times: int = 20) -> History:
    """A history of jobs: name, GPUs, seconds."""
    history = History()
    for name, gpus, seconds in durations:
        for _ in range(times):
            history.record(likeness(owner, name, gpus), seconds)
    return history


# ── counting from scratch ──


def audit(nodes: Iterable[Node], held: Iterable[Held]) -> None:
    """No node gives more than it has, and every task has what it asked for."""
    by_name = {node.name: node for node in nodes}
    on_node: dict[str, list[tuple[Binding, Request]]] = {name: [] for name in by_name}
    for gang, bindings in held:
        assert len({b.task for b in bindings}) == len(bindings), "a task has two places"
        for binding in bindings:
            on_node[binding.node].append((binding, gang.task(binding.task).request))
        _rules(by_name, gang, bindings)
    for name, tasks in on_node.items():
        _not_overdrawn(by_name[name], tasks)


def _not_overdrawn(node: Node, tasks: list[tuple[Binding, Request]]) -> None:
    assert sum(r.cpu for _, r in tasks) <= node.cpu, f"{node.name}: cpu"
    assert sum(r.memory for _, r in tasks) <= node.memory, f"{node.name}: memory"
    used: Counter[str] = Counter()
    for _, request in tasks:
        used.update(dict(request.devices))
    assert all(count <= dict(node.devices).get(name, 0) for name, count in used.items()), (
        f"{node.name}: {used}"
    )
    cpus = Counter(cpu for binding, _ in tasks for cpu in binding.cpus)
    assert not cpus or max(cpus.values()) == 1, f"{node.name}: a CPU is given twice"
    assert {*cpus} <= {*node.cpu_ids}
    gpus: Counter[int] = Counter()
    for binding, request in tasks:
        for index in binding.gpus:
            gpus[index] += request.gpu_share or 1000
    assert all(amount <= 1000 for amount in gpus.values()), f"{node.name}: a GPU is given twice: {gpus}"
    assert {*gpus} <= {gpu.index for gpu in node.gpus}


def _rules(nodes: Mapping[str, Node], gang: Gang, bindings: tuple[Binding, ...]) -> None:
    for binding in bindings:
        node, request = nodes[binding.node], gang.task(binding.task).request
        got = [gpu for gpu in node.gpus if gpu.index in binding.gpus]
        assert len(got) == len(binding.gpus) == (request.gpu or bool(request.gpu_share))
        assert all(request.gpu_type in (None, gpu.type) for gpu in got)
        assert all(gpu.memory >= request.gpu_memory for gpu in got)
        assert all(gpu.generation >= request.gpu_generation for gpu in got)
        assert len(binding.cpus) == (request.whole_cpus if node.cpu_ids else 0)
        assert node.schedulable
        assert dict(gang.selector).items() <= dict(node.labels).items()
        assert {*node.taints} <= {*gang.tolerations}
    used = [nodes[binding.node] for binding in bindings]
    if gang.within is Within.NODE:
        assert len({node.name for node in used}) <= 1
    if gang.within is Within.RACK:
        assert len({node.rack for node in used}) <= 1
    if gang.within is Within.FABRIC:
        assert len({node.fabric for node in used}) <= 1


def whole(gang: Gang, bindings: Iterable[Binding]) -> bool:
    """Whether a gang has at least what it needs, and no more than it may have."""
    have = {binding.task for binding in bindings}
    roles = Counter(task.role for task in gang.tasks if task.name in have)
    least = Counter(task.role for task in gang.least)
    return all(roles[role] >= count for role, count in least.items()) and have <= {t.name for t in gang.tasks}
