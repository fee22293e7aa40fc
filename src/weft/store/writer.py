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
from functools import cache, partial
from operator import attrgetter
from typing import Any

from sqlalchemy import Engine

from weft.store.changes import Create, Delete, Happened, Measured
from weft.store.database import StoreError, StoreFull, is_full
from weft.store.schema import events, metric_offsets, metrics, resources

RETRY_SECONDS = 0.5
MOST_AT_ONCE = 2000
log = logging.getLogger("weft.store")

_DELETES = [
    f"DELETE FROM {table.name} WHERE uid = ?"  # noqa: S608  (names of our own tables)
    for table in (resources, events, metrics, metric_offsets)
]
_RESOURCE = tuple(column.name for column in resources.c)
_EVENT = tuple(column.name for column in events.c)
_METRIC = tuple(column.name for column in metrics.c if column.name != "id")
_OFFSET = ("uid", "task", "offset")
ROWS = 32


@cache
def _insert(table: str, columns: tuple[str, ...], rows: int) -> str:
    again = "ON CONFLICT (uid, task) DO UPDATE SET offset = excluded.offset"
    end = again if table == metric_offsets.name else ""
    return f"INSERT INTO {table} ({', '.join(columns)}) VALUES {_marks(len(columns), rows)} {end}"  # noqa: S608


@cache
def _update(columns: tuple[str, ...], rows: int) -> str:
    """The first of the values is the resource's uid."""
    new = ", ".join(f"{name} = new.column{number}" for number, name in enumerate(columns, 2))
    values = _marks(1 + len(columns), rows)
    return f"UPDATE resources SET {new} FROM (VALUES {values}) AS new WHERE resources.uid = new.column1"  # noqa: S608


def _marks(columns: int, rows: int) -> str:
    return ", ".join([f"({', '.join('?' * columns)})"] * rows)


def _execute(
    connection: sqlite3.Connection, statement: Callable[[int], str], rows: Sequence[Sequence[Any]]
) -> None:
    """Many rows with few statements: each lets go of the interpreter's lock, and under load its thread then waits for
    the event loop to let go of it too."""
    for start in range(0, len(rows), ROWS):
        some = rows[start : start + ROWS]
        connection.execute(statement(len(some)), [value for row in some for value in row])


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
                    connection.execute(statement, (change.uid,))
                start = index + 1
        self._apply_together(connection, changes[start:])

    def _apply_together(self, connection: sqlite3.Connection, changes: list[Any]) -> None:
        created: dict[str, dict[str, Any]] = {}
        updated: dict[str, dict[str, Any]] = {}
        happened: list[Sequence[Any]] = []
        points: list[list[Any]] = []
        offsets: dict[tuple[str, str], int] = {}
        for change in changes:
            match change:
                case Happened():
                    happened.append(_event(change))
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
            rows = [[row.get(name) for name in _RESOURCE] for row in created.values()]
            _execute(connection, partial(_insert, resources.name, _RESOURCE), rows)
        by_columns: dict[tuple[str, ...], list[list[Any]]] = {}
        for uid, row in updated.items():
            by_columns.setdefault(tuple(row), []).append([uid, *row.values()])
        for columns, rows in by_columns.items():
            _execute(connection, partial(_update, columns), rows)
        if points:
            _execute(connection, partial(_insert, metrics.name, _METRIC), points)
        if offsets:
            rows = [[*key, offset] for key, offset in offsets.items()]
            _execute(connection, partial(_insert, metric_offsets.name, _OFFSET), rows)
        if happened:
            _execute(connection, partial(_insert, events.name, _EVENT), happened)


_event: Callable[[Happened], Sequence[Any]] = attrgetter(*_EVENT)


def _point(uid: str, point: Any) -> list[Any]:
    """SQLite keeps no NaN and JSON no infinity: both are written as words."""
    finite = math.isfinite(point.value)
    value, special = (point.value, None) if finite else (None, str(point.value))
    return [uid, point.task, point.name, point.step, point.time, value, special]
