"""What readers got, by job and dataset: how much of what they read was there, what had to come from where, how long they waited.

Hits and misses are of the newest epoch that a job reads, as its readers tell: what the cache does for a job shows from its
second epoch on, and the first would hide it for a long time. All else is since the job began.

Kept in the books, so that the next agent goes on counting; one that is killed loses at most the last second.
"""

from __future__ import annotations

import json
import threading
from dataclasses import asdict, dataclass, fields, replace
from typing import Any

from weft.data.cache.books import Books


@dataclass(slots=True)
class Counted:
    hits: int = 0
    """Samples whose bytes were on the node."""
    misses: int = 0
    """That came from elsewhere, by themselves or with a part that was brought for them."""
    hitBytes: int = 0
    missBytes: int = 0
    found: int = 0
    """Parts that were on the node when a reader asked for the file."""
    lacked: int = 0
    givenBytes: int = 0
    """Of parts that were handed out as files."""
    remoteBytes: int = 0
    """That came from an origin, kept or not."""
    peerBytes: int = 0
    stallSeconds: float = 0.0
    """That readers waited for bytes that were not on the node."""

    turn: int = -1
    """The epoch of the hits and misses."""

    def __add__(self, other: Counted) -> Counted:
        added = Counted(*(getattr(self, f.name) + getattr(other, f.name) for f in fields(Counted)))
        added.turn = max(self.turn, other.turn)
        return added

    @property
    def ratio(self) -> float | None:
        """By bytes, as is the share of a dataset that a cache holds."""
        read = self.hitBytes + self.missBytes
        return self.hitBytes / read if read else None


OF_A_TURN = dict.fromkeys(("hits", "misses", "hitBytes", "missBytes"), 0)


class Counts:
    def __init__(self, books: Books):
        self._books = books
        self._lock = threading.Lock()
        self._changed: set[tuple[str, str]] = set()
        self._counted: dict[tuple[str, str], Counted] = {}
        self._since: dict[tuple[str, str], float] = {}
        for job, dataset, since, counted in books.ask("select job, dataset, since, counted from counts"):
            self._counted[job, dataset] = _kept(json.loads(counted))
            self._since[job, dataset] = since

    def add(self, job: str, dataset: str, more: Counted, now: float) -> None:
        key = job, dataset
        with self._lock:
            known = self._counted.get(key, Counted())
            if more.turn > known.turn:
                known = replace(known, **OF_A_TURN)
            elif 0 <= more.turn < known.turn:
                more = replace(more, **OF_A_TURN)  # of one who is late
            self._counted[key] = known + more
            self._since.setdefault(key, now)
            self._changed.add(key)

    def of(self, job: str) -> Counted:
        with self._lock:
            return sum((got for (of, _), got in self._counted.items() if of == job), start=Counted())

    def shown(self) -> list[dict[str, Any]]:
        """For people and engines: every job and dataset, with the hit ratio and since when."""
        with self._lock:
            return [
                {
                    "job": job,
                    "dataset": dataset,
                    "since": self._since[job, dataset],
                    **asdict(got),
                    "ratio": got.ratio,
                }
                for (job, dataset), got in sorted(self._counted.items())
            ]

    def forget(self, job: str) -> None:
        """Of a job that is over; what was counted has been told with its end."""
        with self._lock:
            for key in [key for key in self._counted if key[0] == job]:
                del self._counted[key], self._since[key]
                self._changed.discard(key)
        with self._books.writing() as db:
            db.execute("delete from counts where job = ?", (job,))

    def flush(self) -> None:
        with self._lock:
            rows = [
                (*key, self._since[key], json.dumps(asdict(self._counted[key])))
                for key in sorted(self._changed)
            ]
            self._changed.clear()
        if rows:
            with self._books.writing() as db:
                db.executemany("insert or replace into counts values (?, ?, ?, ?)", rows)


def _kept(counted: dict[str, Any]) -> Counted:
    """As an agent wrote it; an older one had other fields."""
    names = {field.name for field in fields(Counted)}
    return Counted(**{name: value for name, value in counted.items() if name in names})
