"""Jobs that wait, grouped by what they ask for: if one of a group does not fit, none of it does."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from weft.model.gang import Gang

Order = tuple[int, float, str]
"""Higher priority first, then who has waited longer, then the uid: a total order, the same everywhere."""


@dataclass(frozen=True, slots=True)
class Waiting:
    uid: str
    name: str
    gang: Gang
    priority: int
    since: float
    queue: str = "default"

    @property
    def order(self) -> Order:
        return (-self.priority, self.since, self.uid)


class Pending:
    """Kept in order as jobs come and go, so that a cycle costs what it places and not what waits."""

    def __init__(self) -> None:
        self.groups: dict[tuple[Any, ...], list[Order]] = {}
        self._jobs: dict[str, Waiting] = {}

    def add(self, job: Waiting) -> None:
        self._jobs[job.uid] = job
        insort(self.groups.setdefault(job.gang.signature, []), job.order)

    def remove(self, uid: str) -> None:
        job = self._jobs.pop(uid, None)
        if job is None:
            return
        group = self.groups[job.gang.signature]
        del group[bisect_left(group, job.order)]
        if not group:
            del self.groups[job.gang.signature]

    def __getitem__(self, uid: str) -> Waiting:
        return self._jobs[uid]

    def __contains__(self, uid: str) -> bool:
        return uid in self._jobs

    def __len__(self) -> int:
        return len(self._jobs)

    def in_order(self) -> list[Waiting]:
        return sorted(self._jobs.values(), key=lambda job: job.order)

    def __iter__(self) -> Iterator[Waiting]:
        return iter(self._jobs.values())
