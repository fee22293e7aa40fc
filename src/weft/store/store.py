"""The store as the rest of Weft sees it: write and wait, read, watch."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from sqlalchemy import Row, Select, func, select
from sqlalchemy.exc import DBAPIError

from weft.store.changes import Change, Happened, Measured, Update
from weft.store.database import Database, StoreError, Superseded, open_database
from weft.store.schema import events, metric_offsets, metrics, resources
from weft.store.writer import Write, Writer, Written

SUMMARY = tuple(
    resources.c[name]
    for name in (
        "uid", "name", "state", "type", "owner", "queue", "priority", "created", "queued", "started", "finished",
        "tasks", "cpus", "gpus", "restarts", "reason", "project",
    )
)  # fmt: skip

MOMENT = 1.0
"""For how many seconds a database that could not be reached is not asked again."""
Watcher = Callable[[Happened], None]


class Store:
    """Must be made inside the event loop that will use it."""

    def __init__(self, place: Path | str | Database):
        """An SQLite file, a PostgreSQL database by its URL, or one that was opened elsewhere."""
        self._database = place if isinstance(place, Database) else open_database(place)
        self._superseded: Callable[[Superseded], None] = lambda problem: None
        self._ended: Superseded | None = None
        self._writer = Writer(self._database, self._committed, self._lost)
        self._watchers: set[Watcher] = set()
        self._loop = asyncio.get_running_loop()
        self.measured: Counter[str] = Counter()
        """Points that were written since this server runs, by uid."""
        self._updates: dict[str, Update] = {}
        self._others: list[Change] = []
        self._tick: asyncio.Future[None] | None = None
        self._seq = int(self._rows(select(func.max(events.c.seq)))[0][0] or 0)

    @classmethod
    async def opened(cls, place: Path | str, *, take_over: bool = False) -> Store:
        """The event loop goes on meanwhile: a database may take its time, and who has it now to let go of it."""
        return cls(await asyncio.to_thread(open_database, place, take_over=take_over))

    def close(self) -> None:
        self._flush()
        self._writer.close()
        self._database.close()

    def when_superseded(self, tell: Callable[[Superseded], None]) -> None:
        """Told, at once if it has happened already, that another server has the database; nothing is written from then on."""
        self._superseded = tell
        if self._ended is not None:
            tell(self._ended)

    def _lost(self, problem: Superseded) -> None:
        self._ended = problem
        self._superseded(problem)

    @property
    def place(self) -> str:
        """Where it is, for people."""
        return self._database.name

    def copy(self, target: Path) -> None:
        """All of it as of one moment, as an SQLite file."""
        self._database.copy(target)

    @property
    def full(self) -> bool:
        """The last write found no room."""
        return self._writer.full

    # ── writing ──

    def write(self, changes: Iterable[Change], *, refusable: bool = False) -> asyncio.Future[None]:
        """Await the result (shielded: others may share it) to know that it is on disk.

        A refusable write is a transaction of its own and fails with StoreFull when there is no room; all
        others of one turn of the event loop are one transaction, tried until it fits.
        """
        if refusable:
            self._flush()
        for change in changes:
            if isinstance(change, Update):
                self._updates[change.uid] = change
                continue
            if isinstance(change, Happened):
                self._seq += 1
                change.seq = self._seq
            self._others.append(change)
        if self._tick is None:
            self._tick = self._loop.create_future()
            if not refusable:
                self._loop.call_soon(self._flush)
        written = self._tick
        if refusable:
            self._flush(refusable=True)
        return written

    def _flush(self, *, refusable: bool = False) -> None:
        """Hand over what this turn of the event loop wrote: one transaction, each resource once."""
        if self._tick is None:
            return
        changes: list[Any] = [Written(update.uid, update.row()) for update in self._updates.values()]
        changes += self._others
        self._writer.put(Write(changes, refusable, self._tick))
        self._updates, self._others, self._tick = {}, [], None

    def _committed(self, batch: Sequence[Write]) -> None:
        for write in batch:
            for change in write.changes:
                if isinstance(change, Measured):
                    self.measured[change.uid] += len(change.points)
                elif isinstance(change, Happened):
                    for watcher in tuple(self._watchers):
                        watcher(change)

    # ── watching ──

    def watch(self, watcher: Watcher) -> Callable[[], None]:
        """Call `watcher` with every event once it is on disk; returns how to stop."""
        self._watchers.add(watcher)
        return lambda: self._watchers.discard(watcher)

    @property
    def last_seq(self) -> int:
        return self._seq

    # ── reading ──

    def _rows(self, query: Select[Any]) -> list[Row[Any]]:
        if (why := self._database.away()) is not None:
            raise StoreError(f"the database {self.place} cannot be read: {why}")
        try:
            with self._database.engine.connect() as connection:
                return list(connection.execute(query))
        except DBAPIError as problem:
            why = self._database.words(problem)
            if self._database.unreachable(problem):
                self._database.went_away(why, MOMENT)
            raise StoreError(f"the database {self.place} cannot be read: {why}") from None

    def resource(self, kind: str, name: str) -> Row[Any] | None:
        found = self._rows(select(resources).where(resources.c.kind == kind, resources.c.name == name))
        return found[0] if found else None

    def by_submit_key(self, kind: str, key: str) -> Row[Any] | None:
        found = self._rows(select(resources).where(resources.c.kind == kind, resources.c.submit_key == key))
        return found[0] if found else None

    def with_states(self, kind: str, states: Sequence[str]) -> list[Row[Any]]:
        query = select(resources).where(resources.c.kind == kind, resources.c.state.in_(states))
        return self._rows(query.order_by(resources.c.created, resources.c.uid))

    def expired(self, now: float) -> list[Row[Any]]:
        return self._rows(
            select(resources.c.uid, resources.c.kind, resources.c.name).where(resources.c.expires <= now)
        )

    def next_expiry(self) -> float | None:
        rows = self._rows(select(func.min(resources.c.expires)))
        value = rows[0][0]
        return float(value) if value is not None else None

    def uids(self) -> set[str]:
        return {row.uid for row in self._rows(select(resources.c.uid))}

    def page(
        self,
        kind: str,
        *,
        states: Sequence[str] = (),
        limit: int = 100,
        before: tuple[float, str] | None = None,
        summary: bool = False,
    ) -> list[Row[Any]]:
        """Newest first, beginning after the place that `before` marks."""
        query = select(*SUMMARY) if summary else select(resources)
        query = query.where(resources.c.kind == kind)
        if states:
            query = query.where(resources.c.state.in_(states))
        if before is not None:
            created, uid = before
            older = (resources.c.created < created) | (
                (resources.c.created == created) & (resources.c.uid < uid)
            )
            query = query.where(older)
        return self._rows(query.order_by(resources.c.created.desc(), resources.c.uid.desc()).limit(limit))

    def summaries(self, kind: str, uids: Sequence[str]) -> list[Row[Any]]:
        """Those of these that there still are."""
        return self._rows(select(*SUMMARY).where(resources.c.kind == kind, resources.c.uid.in_(uids)))

    def counts(self, kind: str) -> dict[str, int]:
        query = (
            select(resources.c.state, func.count().label("jobs"))
            .where(resources.c.kind == kind)
            .group_by(resources.c.state)
        )
        return {row.state: row.jobs for row in self._rows(query)}

    def names(self, kind: str, limit: int = 2000) -> list[str]:
        query = select(resources.c.name).where(resources.c.kind == kind)
        return [row.name for row in self._rows(query.order_by(resources.c.created.desc()).limit(limit))]

    def events(self, *, uid: str | None = None, after: int = 0, limit: int = 1000) -> list[Happened]:
        query = select(events).where(events.c.seq > after)
        if uid is not None:
            query = query.where(events.c.uid == uid)
        return [Happened(**row._mapping) for row in self._rows(query.order_by(events.c.seq).limit(limit))]

    def metrics(
        self, uid: str, *, names: Sequence[str] = (), after: int = 0, limit: int = 10_000
    ) -> list[dict[str, Any]]:
        query = select(metrics).where(metrics.c.uid == uid, metrics.c.id > after)
        if names:
            query = query.where(metrics.c.name.in_(names))
        return [
            {
                "id": row.id,
                "task": row.task,
                "name": row.name,
                "step": row.step,
                "time": row.time,
                "value": row.value if row.special is None else row.special,
            }
            for row in self._rows(query.order_by(metrics.c.id).limit(limit))
        ]

    def points(self, uid: str, after: int) -> list[Row[Any]]:
        """All later ones, as they are stored."""
        columns = (metrics.c[name] for name in ("id", "task", "name", "step", "time", "value", "special"))
        query = select(*columns).where(metrics.c.uid == uid, metrics.c.id > after)
        return self._rows(query.order_by(metrics.c.id))

    def metric_offsets(self, uid: str) -> dict[str, int]:
        query = select(metric_offsets.c.task, metric_offsets.c.offset).where(metric_offsets.c.uid == uid)
        return {row.task: row.offset for row in self._rows(query)}
