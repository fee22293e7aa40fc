"""What a waiting job may take, and from whom: the one comparator, and the moves on the undo stack that try it out."""

from __future__ import annotations

from dataclasses import dataclass, field

from weft.model.gang import Request
from weft.model.status import Binding
from weft.scheduler.cluster import Cluster, Ints
from weft.scheduler.feasible import groups_of, place
from weft.scheduler.fit import Mix, fit_of
from weft.scheduler.pending import Waiting
from weft.scheduler.policy import Policy
from weft.scheduler.queues import Amounts, Queues, amounts_of
from weft.scheduler.running import GROWN, Band, Occupancy, Running


@dataclass(frozen=True, slots=True)
class Victim:
    """What leaves together: one task of an elastic job, or a whole job."""

    job: Running
    tasks: tuple[str, ...]
    whole: bool
    cost: tuple[float, ...]

    def amounts(self) -> Amounts:
        return amounts_of(self.job.requests[name] for name in self.tasks)


@dataclass(frozen=True, slots=True)
class Claim:
    """One job that waits, and the books it claims room in."""

    cluster: Cluster
    running: Occupancy
    queues: Queues
    policy: Policy
    now: float
    job: Waiting
    level: int
    mix: Mix = ()
    spared: frozenset[str] = frozenset()
    """Jobs that give way to another already, in this very cycle."""
    owed: bool = field(init=False)
    """Whether the job's queue is guaranteed what it asks for."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "owed", self.queues.guaranteed(self.job.queue, self.job.least))

    # ── who may be asked ──

    def gives_way(self, band: Band) -> bool:
        """The one comparator: whether what is in this band may be taken for the job."""
        priority, queue, level = band
        if priority < self.job.priority or (level == GROWN and priority <= self.job.priority):
            return True
        if (
            priority == self.job.priority
            and self.policy.time_share
            and level >= max(0, self.level + self.policy.gap)
        ):
            return True
        return self.owed and queue != self.job.queue  # a guarantee is taken back whoever borrowed it

    def bands(self) -> list[Band]:
        """The least important first."""
        bands = [band for band in self.running.bands if self.gives_way(band)]
        return sorted(bands, key=lambda band: (band[0], -band[2], band[1]))

    def within_reach(self) -> tuple[int, int] | None:
        """CPU and whole GPUs of all who might give way; None if nobody might."""
        bands = [sums for band, sums in self.running.sums.items() if self.gives_way(band)]
        return (sum(sums[0] for sums in bands), sum(sums[1] for sums in bands)) if bands else None

    def may_take(self, job: Running) -> bool:
        if job.leaving or job.uid in self.spared or job.uid == self.job.uid:
            return False
        if not self.queue_spares(job, job.held()) and not job.gang.elastic:
            return False
        if job.priority < self.job.priority:
            return True
        bands = [*job.bands.values()]
        if not any(self.gives_way(band) for band in bands):
            return False
        by_rank = (
            job.priority == self.job.priority
            and any(0 <= level < GROWN for _, _, level in bands)
            and job.unsaved(self.now) <= self.policy.quantum
        )
        by_right = self.owed and job.queue != self.job.queue
        return by_rank or by_right or any(level == GROWN for _, _, level in bands)

    def queue_spares(self, job: Running, held: Amounts) -> bool:
        """No other queue is taken below its guarantee, by nobody: it would take it back, and so on for ever."""
        return job.queue == self.job.queue or self.queues.borrows(job.queue, held, self.job.queue)

    def below(self, job: Running) -> bool:
        """Whether the job gives way as a whole, and not only with what it has beyond its wish."""
        return job.priority < self.job.priority or any(
            self.gives_way(band) for band in job.bands.values() if band[2] != GROWN
        )

    def allowed(self, victim: Victim) -> bool:
        """What a job has beyond its wish is anybody's; else its queue must be able to spare it."""
        if all(victim.job.bands[name][2] == GROWN for name in victim.tasks):
            return True
        return self.queue_spares(victim.job, victim.amounts())

    def enough(self, reach: tuple[int, int]) -> bool:
        """A look at the sums, before any closer look: is there as much as the job needs?"""
        cpu, _, gpu = self.job.least
        idle_cpu, idle_gpu = self.cluster.idle
        return idle_cpu + reach[0] >= cpu and 1000 * (idle_gpu + reach[1]) >= gpu - gpu % 1000

    # ── trying it out ──

    def counts(self, request: Request, room: Ints) -> Ints:
        return fit_of(self.cluster, self.job.gang, request, self.mix).counts_in(room)

    def room(self, bands: set[Band]) -> Ints:
        """What would be free if all of these had left."""
        room: Ints = self.cluster.free + sum(self.running.bands[band] for band in bands)
        return room

    def tried(self) -> tuple[Binding, ...] | None:
        """Where the job would fit now. A look at the counts says "nowhere" much sooner than `place` does."""
        gang = self.job.gang
        for request, tasks in groups_of(gang.least):
            if fit_of(self.cluster, gang, request, self.mix).count.sum() < len(tasks):
                return None
        mark = self.cluster.mark()
        bindings = place(self.cluster, gang, gang.least, self.mix)
        self.cluster.revert(mark)
        return bindings

    def let_go(self, victim: Victim, gone: list[Victim]) -> list[Victim]:
        """One more leaves. A job that is stopped is not shrunk as well: says what of it had left before."""
        parts = [other for other in gone if victim.whole and other.job is victim.job]
        for part in parts:
            self.restore(part)
            gone.remove(part)
        self.vacate(victim)
        gone.append(victim)
        return parts

    def vacate(self, victim: Victim) -> None:
        for name in victim.tasks:
            self.cluster.vacate(victim.job.tasks[name], victim.job.requests[name])

    def restore(self, victim: Victim) -> None:
        for name in victim.tasks:
            self.cluster.hold(victim.job.tasks[name], victim.job.requests[name])

    def sound(self, victim: Victim) -> bool:
        """Whether nothing is overdrawn where the victim came back."""
        nodes = (binding.node for binding in victim.job.tasks.values())
        rows = [self.cluster.index[node] for node in nodes if node in self.cluster.index]
        return bool((self.cluster.free[rows] >= 0).all())

    def account(self, victim: Victim, sign: int) -> None:
        self.queues.plan(victim.job.queue, victim.job.owner, victim.amounts(), sign)
