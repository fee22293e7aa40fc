"""The one writer: a thread that takes everything queued and commits it together.

A commit costs one fsync however many callers wait for it, so throughput rises with load while each
caller still hears only of what is on disk. When there is no room, callers who can be refused are
(`StoreFull`), and what the system itself must remember is tried again until it fits.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import sqlite3
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Engine, bindparam, delete, insert, literal_column, update
from sqlalchemy.dialects import sqlite

from weft.store.changes import Create, Delete, Happened, Measured
from weft.store.database import StoreError, StoreFull, is_full
from weft.store.schema import events, metric_offsets, metrics, resources

RETRY_SECONDS = 0.5
MOST_AT_ONCE = 2000
log = logging.getLogger("weft.store")

_DIALECT = sqlite.dialect(paramstyle="named")


def _sql(statement: Any) -> str:
    """Compiled once: the writer hands plain SQL to the driver, since it runs for every change there is."""
    return str(statement.compile(dialect=_DIALECT))


_INSERT = _sql(insert(resources))
_EVENT = _sql(insert(events))
_METRIC = _sql(insert(metrics).values({c.name: bindparam(c.name) for c in metrics.c if c.name != "id"}))
_OFFSET = _sql(
    sqlite.insert(metric_offsets).on_conflict_do_update(
        index_elements=["uid", "task"], set_={"offset": literal_column("excluded.offset")}
    )
)
_DELETES = [
    _sql(delete(table).where(table.c.uid == bindparam("the_uid")))
    for table in (resources, events, metrics, metric_offsets)
]
_EMPTY = dict.fromkeys(column.name for column in resources.c)


@dataclass(frozen=True, slots=True)
class Written:
    """An update whose columns have been read."""

    uid: str
    row: dict[str, Any]


@dataclass(slots=True)
class Write:
    changes: Sequence[Create | Written | Delete | Happened | Measured]
    refusable: bool
    done: asyncio.Future[None]


class Conflict(Exception):
    """Another resource has this name or submit key."""


OWN_FAULT = (
    sqlite3.IntegrityError,
    sqlite3.DataError,
    sqlite3.InterfaceError,
    sqlite3.ProgrammingError,
    ValueError,
    TypeError,
    OverflowError,
)
"""What a write itself causes: trying it again would fail again."""


class Writer:
    def __init__(self, engine: Engine, committed: Callable[[Sequence[Write]], None]):
        self._engine = engine
        self._committed = committed
        self._queue: list[Write] = []
        self._wake = threading.Condition()
        self._stopping = False
        self._loop = asyncio.get_running_loop()
        self._updates: dict[tuple[str, ...], str] = {}
        self.full = False
        self._thread = threading.Thread(target=self._run, name="weft-store", daemon=True)
        self._thread.start()

    def put(self, write: Write) -> None:
        """Queue a transaction; its future is done when it is on disk."""
        with self._wake:
            self._queue.append(write)
            self._wake.notify()

    def close(self) -> None:
        """Write what is queued, then end."""
        with self._wake:
            self._stopping = True
            self._wake.notify()
        self._thread.join(timeout=30)

    def _run(self) -> None:
        with contextlib.closing(self._engine.raw_connection()) as pooled:
            connection: Any = pooled.driver_connection
            while True:
                with self._wake:
                    while not self._queue and not self._stopping:
                        self._wake.wait()
                    if not self._queue:
                        return
                    batch, self._queue = self._queue[:MOST_AT_ONCE], self._queue[MOST_AT_ONCE:]
                self._commit(connection, batch)

    def _commit(self, connection: sqlite3.Connection, batch: list[Write]) -> None:
        try:
            connection.execute("BEGIN IMMEDIATE")
            self._apply(connection, [change for write in batch for change in write.changes])
            connection.execute("COMMIT")
        except OWN_FAULT:
            connection.rollback()
            self._separate(connection, batch)
        except Exception as problem:
            connection.rollback()
            self._refuse_or_retry(batch, problem)
        else:
            self.full = False
            self._tell(batch, None)

    def _separate(self, connection: sqlite3.Connection, batch: list[Write]) -> None:
        """Some write of the batch is itself at fault: only that one fails, the others share a commit.

        Of a write that cannot be refused only the faulty change is left out: a name that no database can
        hold, in one task's metrics, must not keep Weft from remembering anything ever again.
        """
        refused: dict[int, Exception] = {}
        try:
            connection.execute("BEGIN IMMEDIATE")
            for number, write in enumerate(batch):
                parts = [write.changes] if write.refusable else [[change] for change in write.changes]
                for part in parts:
                    problem = self._attempt(connection, list(part))
                    if problem is not None and write.refusable:
                        refused[number] = problem
                    elif problem is not None:
                        log.error("left out of the database: %s: %s", type(part[0]).__name__, problem)
            connection.execute("COMMIT")
        except Exception as failure:
            connection.rollback()
            self._refuse_or_retry(batch, failure)
            return
        self.full = False
        self._tell([write for number, write in enumerate(batch) if number not in refused], None)
        for number, problem in refused.items():
            self._tell([batch[number]], problem)

    def _attempt(self, connection: sqlite3.Connection, changes: list[Any]) -> Exception | None:
        connection.execute("SAVEPOINT attempt")
        try:
            self._apply(connection, changes)
        except OWN_FAULT as problem:
            connection.execute("ROLLBACK TO attempt")
            connection.execute("RELEASE attempt")
            if isinstance(problem, sqlite3.IntegrityError):
                return Conflict(str(problem))
            return StoreError(f"the database refused a write: {problem}")
        connection.execute("RELEASE attempt")
        return None

    def _refuse_or_retry(self, batch: list[Write], problem: Exception) -> None:
        full = is_full(problem)
        if not self.full:
            log.error("cannot write to the database: %s", getattr(problem, "orig", problem))
        self.full = full
        reason = (
            StoreFull("no room on the disk")
            if full
            else StoreError(f"the database refused a write: {problem}")
        )
        self._tell([write for write in batch if write.refusable], reason)
        must = [write for write in batch if not write.refusable]
        if must and self._stopping:
            self._tell(must, reason)
        elif must:
            with self._wake:
                self._queue[:0] = must
            time.sleep(RETRY_SECONDS)

    def _tell(self, batch: Sequence[Write], problem: Exception | None) -> None:
        if batch:
            try:
                self._loop.call_soon_threadsafe(self._finish, batch, problem)
            except RuntimeError:
                return  # the loop is closed: nobody is left to tell

    def _finish(self, batch: Sequence[Write], problem: Exception | None) -> None:
        if problem is None:
            self._committed(batch)
        for write in batch:
            if write.done.cancelled():
                continue
            if problem is None:
                write.done.set_result(None)
            else:
                write.done.set_exception(problem)
                write.done.exception()  # whoever does not wait has been logged already

    # ── statements: as few as possible for the whole batch ──

    def _apply(self, connection: sqlite3.Connection, changes: list[Any]) -> None:
        """In order, as far as order can be seen: a deletion frees its name for what comes after it."""
        start = 0
        for index, change in enumerate(changes):
            if isinstance(change, Delete):
                self._apply_together(connection, changes[start:index])
                for statement in _DELETES:
                    connection.execute(statement, {"the_uid": change.uid})
                start = index + 1
        self._apply_together(connection, changes[start:])

    def _apply_together(self, connection: sqlite3.Connection, changes: list[Any]) -> None:
        created: dict[str, dict[str, Any]] = {}
        updated: dict[str, dict[str, Any]] = {}
        happened: list[dict[str, Any]] = []
        points: list[dict[str, Any]] = []
        offsets: dict[tuple[str, str], int] = {}
        for change in changes:
            match change:
                case Happened():
                    happened.append({name: getattr(change, name) for name in change.__slots__})
                case Written(uid, row):
                    if uid in created:
                        created[uid].update(row)
                    else:
                        updated.setdefault(uid, {}).update(row)
                case Create(row):
                    created[row["uid"]] = dict(row)
                case Measured():
                    points += (_point(change.uid, point) for point in change.points)
                    offsets[change.uid, change.task] = change.offset
        if created:
            connection.executemany(_INSERT, [{**_EMPTY, **row} for row in created.values()])
        if updated:
            self._update(connection, updated)
        if points:
            connection.executemany(_METRIC, points)
        if offsets:
            rows = [{"uid": uid, "task": task, "offset": offset} for (uid, task), offset in offsets.items()]
            connection.executemany(_OFFSET, rows)
        if happened:
            connection.executemany(_EVENT, happened)

    def _update(self, connection: sqlite3.Connection, updated: dict[str, dict[str, Any]]) -> None:
        by_columns: dict[tuple[str, ...], list[dict[str, Any]]] = {}
        for uid, row in updated.items():
            by_columns.setdefault(tuple(sorted(row)), []).append({**row, "the_uid": uid})
        for columns, rows in by_columns.items():
            statement = self._updates.get(columns)
            if statement is None:
                values: dict[str, Any] = {column: bindparam(column) for column in columns}
                statement = _sql(
                    update(resources).where(resources.c.uid == bindparam("the_uid")).values(values)
                )
                self._updates[columns] = statement
            connection.executemany(statement, rows)


def _point(uid: str, point: Any) -> dict[str, Any]:
    """SQLite keeps no NaN and JSON no infinity: both are written as words."""
    finite = math.isfinite(point.value)
    return {
        "uid": uid,
        "task": point.task,
        "name": point.name,
        "step": point.step,
        "time": point.time,
        "value": point.value if finite else None,
        "special": None if finite else str(point.value),
    }
