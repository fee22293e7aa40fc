"""Jobs that wait, grouped by what they ask for: if one of a group does not fit, none of it does."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Hashable, Iterator
from dataclasses import dataclass, replace

from weft.model.gang import Gang
from weft.model.lazy import lazy
from weft.scheduler.fit import Mix
from weft.scheduler.history import Likeness, likeness
from weft.scheduler.policy import Policy
from weft.scheduler.queues import Amounts, amounts_of

Key = tuple[int, str, str, Hashable]
"""Priority, queue, owner, and what is asked for."""
MIXED = 6


@dataclass(frozen=True)
class Waiting:
    uid: str
    name: str
    gang: Gang
    priority: int
    since: float
    """When it began to wait."""
    queue: str = "default"
    owner: str = ""
    waited: float = 0.0
    """Seconds that it waited before, in earlier turns."""
    attained: float = 0.0
    """Seconds that it ran before, and has kept in a checkpoint."""
    rank: float = 0.0
    """Among jobs of its priority and queue: the lowest first, then who has waited longer."""

    @lazy
    def amounts(self) -> Amounts:
        """What it asks of its queue."""
        return amounts_of(task.request for task in self.gang.preferred)

    @lazy
    def least(self) -> Amounts:
        return amounts_of(task.request for task in self.gang.least)

    @lazy
    def like(self) -> Likeness:
        return likeness(self.owner, self.name, self.gang.gpus)

    @lazy
    def key(self) -> Key:
        return (self.priority, self.queue, self.owner, self.gang.signature)

    @property
    def came(self) -> float:
        """When it was submitted, by what it has waited and run since."""
        return self.since - self.waited - self.attained

    @property
    def origin(self) -> float:
        """When it would have begun to wait, had it waited all its time at once."""
        return self.since - self.waited

    def late(self, now: float, policy: Policy) -> bool:
        """Whether it has waited too long."""
        return now - self.origin > (policy.bound_again if self.attained else policy.bound)

    @property
    def order(self) -> tuple[float, float, str]:
        return (self.rank, self.origin, self.uid)


class Group:
    """Equal jobs: equal in what they ask for, how important they are, and whose they are."""

    __slots__ = ("by_origin", "by_rank", "first", "key")

    def __init__(self, key: Key, first: Waiting):
        self.key = key
        self.first = first
        """Any of them, to ask what all of them ask."""
        self.by_rank: list[tuple[float, float, str]] = []
        self.by_origin: list[tuple[float, str]] = []

    def add(self, job: Waiting) -> None:
        insort(self.by_rank, job.order)
        insort(self.by_origin, (job.origin, job.uid))

    def remove(self, job: Waiting) -> None:
        del self.by_rank[bisect_left(self.by_rank, job.order)]
        del self.by_origin[bisect_left(self.by_origin, (job.origin, job.uid))]


class Pending:
    """Kept in order as jobs come and go, so that a cycle costs what it places and not what waits."""

    def __init__(self) -> None:
        self.groups: dict[Key, Group] = {}
        self._jobs: dict[str, Waiting] = {}
        self.blocked: dict[Hashable, tuple[int, tuple[object, ...]]] = {}
        """Signatures that did not fit, how much had been given back by then, and what was kept from them: until that
        changes, they still do not."""
        self._wanted: dict[int, int] = {}
        self._mix: Mix | None = ()

    def add(self, job: Waiting) -> None:
        self.remove(job.uid)
        self._jobs[job.uid] = job
        group = self.groups.get(job.key)
        if group is None:
            group = self.groups[job.key] = Group(job.key, job)
        group.add(job)
        self._count(job, 1)

    def remove(self, uid: str) -> Waiting | None:
        job = self._jobs.pop(uid, None)
        if job is None:
            return None
        group = self.groups[job.key]
        group.remove(job)
        if not group.by_rank:
            del self.groups[job.key]
            if len(self.blocked) > 4 * len(self.groups) + 64:
                self.blocked.clear()
        self._count(job, -1)
        return job

    def _count(self, job: Waiting, sign: int) -> None:
        for task in job.gang.least:
            if task.request.gpu:
                wanted = self._wanted.get(task.request.gpu, 0) + sign * task.request.gpu
                self._wanted[task.request.gpu] = wanted
                self._mix = None

    @property
    def mix(self) -> Mix:
        """What sizes of task are waited for, in eighths, so that it changes seldom."""
        if self._mix is None:
            most = sorted(((gpus, size) for size, gpus in self._wanted.items() if gpus > 0), reverse=True)[
                :MIXED
            ]
            total = sum(gpus for gpus, _ in most)
            self._mix = tuple(
                sorted((size, round(8 * gpus / total) / 8) for gpus, size in most if 16 * gpus >= total)
            )
        return self._mix

    def wanted(self) -> list[tuple[int, int]]:
        """GPUs a task, and how many of them are waited for in all."""
        return [(size, gpus) for size, gpus in self._wanted.items() if gpus > 0]

    def as_large(self, gpus: float) -> list[Waiting]:
        """Those that ask for so many GPUs or more."""
        large = (group for group in self.groups.values() if group.first.gang.gpus >= gpus)
        return [self._jobs[uid] for group in large for _, uid in group.by_origin]

    def rank(self, uid: str, rank: float) -> None:
        """Put a job elsewhere in its group."""
        job = self._jobs[uid]
        group = self.groups[job.key]
        group.remove(job)
        moved = self._jobs[uid] = replace(job, rank=rank)
        group.add(moved)

    def __getitem__(self, uid: str) -> Waiting:
        return self._jobs[uid]

    def get(self, uid: str) -> Waiting | None:
        return self._jobs.get(uid)

    def __contains__(self, uid: str) -> bool:
        return uid in self._jobs

    def __len__(self) -> int:
        return len(self._jobs)

    def in_order(self) -> list[Waiting]:
        """By priority, then rank, then who has waited longer; whose queue has its turn is the cycle's to say."""
        return sorted(self._jobs.values(), key=lambda job: (-job.priority, *job.order))

    def __iter__(self) -> Iterator[Waiting]:
        return iter(self._jobs.values())
