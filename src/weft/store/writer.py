"""The one writer: a thread that takes everything queued and commits it together.

A commit costs one fsync however many callers wait for it, so throughput rises with load while each
caller still hears only of what is on disk. When there is no room, or no database, callers who can be refused are
(`StoreFull`, `StoreError`), and what the system itself must remember is tried again until it is kept.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, partial
from operator import attrgetter
from typing import Any

from sqlalchemy import Column, Table

from weft.store.changes import Create, Delete, Happened, Measured
from weft.store.database import Database, StoreError, StoreFull, Superseded
from weft.store.schema import events, metric_offsets, metrics, resources

RETRY_SECONDS = 0.5
AWAY_SECONDS = 6.0
"""Longer than an attempt to reach the database takes: until the next one it counts as away."""
MOST_AT_ONCE = 2000
log = logging.getLogger("weft.store")

_RESOURCE = tuple(resources.c)
_EVENT = tuple(events.c)
_METRIC = tuple(column for column in metrics.c if column.name != "id")
_OFFSET = tuple(metric_offsets.c[name] for name in ("uid", "task", "offset"))
ROWS = 32
Mark = Callable[[Column[Any]], str]
"""Where a value of a column goes."""


@cache
def _deletes(mark: Mark) -> list[str]:
    tables = (resources, events, metrics, metric_offsets)
    return [f"DELETE FROM {table.name} WHERE uid = {mark(table.c.uid)}" for table in tables]  # noqa: S608  (names of our own tables)


@cache
def _insert(mark: Mark, table: Table, columns: tuple[Column[Any], ...], rows: int) -> str:
    again = 'ON CONFLICT (uid, task) DO UPDATE SET "offset" = excluded."offset"'
    end = again if table is metric_offsets else ""
    names = ", ".join(_name(column) for column in columns)
    return f"INSERT INTO {table.name} ({names}) VALUES {_marks(mark, columns, rows)} {end}"  # noqa: S608


@cache
def _update(mark: Mark, columns: tuple[str, ...], rows: int) -> str:
    """The first of the values is the resource's uid."""
    found = [resources.c[name] for name in columns]
    new = ", ".join(f"{_name(column)} = new.column{number}" for number, column in enumerate(found, 2))
    values = _marks(mark, (resources.c.uid, *found), rows)
    return f"UPDATE resources SET {new} FROM (VALUES {values}) AS new WHERE resources.uid = new.column1"  # noqa: S608


def _name(column: Column[Any]) -> str:
    """`offset` is a word of PostgreSQL's own."""
    return f'"{column.name}"'


def _marks(mark: Mark, columns: Sequence[Column[Any]], rows: int) -> str:
    return ", ".join([f"({', '.join(mark(column) for column in columns)})"] * rows)


def _execute(connection: Any, statement: Callable[[int], str], rows: Sequence[Sequence[Any]]) -> None:
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


@dataclass(frozen=True, slots=True)
class Doubt:
    """A commit that was asked for, and of which nothing was heard."""

    ticket: str
    batch: list[Write]


class Writer:
    def __init__(
        self,
        database: Database,
        committed: Callable[[Sequence[Write]], None],
        superseded: Callable[[Superseded], None] = lambda problem: None,
    ):
        self._database = database
        self._committed = committed
        self._superseded = superseded
        self._queue: list[Write] = []
        self._wake = threading.Condition()
        self._stopping = False
        self._loop = asyncio.get_running_loop()
        self.full = False
        self._troubled = self._away = False
        self._doubt: Doubt | None = None
        self._ended: Superseded | None = None
        self._connection: Any = None
        self._thread = threading.Thread(target=self._run, name="weft-store", daemon=True)
        self._thread.start()

    def put(self, write: Write) -> None:
        """Queue a transaction; its future is done when it is on disk."""
        with self._wake:
            if self._ended is None:
                self._queue.append(write)
                self._wake.notify()
                return
        self._tell([write], self._ended)

    def close(self) -> None:
        """Write what is queued, then end."""
        with self._wake:
            self._stopping = True
            self._wake.notify()
        self._thread.join(timeout=30)

    def _run(self) -> None:
        try:
            while self._asked():
                self._turn()
        except Superseded as problem:
            self._give_up(problem)
        finally:
            if self._connection is not None:
                self._connection.close()

    def _turn(self) -> None:
        """Whatever goes wrong, those who wait for it are answered, and the next turn comes."""
        batch: list[Write] = []
        try:
            try:
                connection = self._connected()
            except Superseded:
                raise
            except Exception as problem:
                batch = self._take()
                self._refuse_or_retry(batch, problem)
            else:
                batch = self._take()
                if batch:
                    self._commit(connection, batch)
        except Superseded:
            raise
        except Exception as problem:
            log.exception("the writer failed")
            self._let_go()
            self._tell(batch, StoreError(f"the writer failed: {type(problem).__name__}: {problem}"))
            time.sleep(RETRY_SECONDS)

    def _asked(self) -> bool:
        """Wait until there is something to do; False when there never will be. A lost connection is made again by itself."""
        with self._wake:
            while not self._queue and not self._stopping and self._doubt is None and not self._away:
                self._wake.wait()
            return bool(self._queue) or self._doubt is not None or not self._stopping

    def _take(self) -> list[Write]:
        with self._wake:
            batch, self._queue = self._queue[:MOST_AT_ONCE], self._queue[MOST_AT_ONCE:]
        return batch

    def _connected(self) -> Any:
        """What became of a commit that nothing was heard of is asked first: it must not be done twice, nor after others."""
        if self._connection is None:
            self._connection = self._database.writing()
            self._database.came_back()
            self._away = self._troubled = False
        if self._doubt is not None:
            kept = self._database.committed(self._connection, self._doubt.ticket)
            batch, self._doubt = self._doubt.batch, None
            if kept:
                self._kept(batch, {})
            else:
                with self._wake:
                    self._queue[:0] = batch
        return self._connection

    def _commit(self, connection: Any, batch: list[Write]) -> None:
        try:
            connection.execute(self._database.begin)
            ticket = self._database.ticket(connection)
            self._apply(connection, [change for write in batch for change in write.changes])
        except self._database.own_fault:
            self._separate(connection, batch)
        except Exception as problem:
            self._refuse_or_retry(batch, problem)
        else:
            self._finally(connection, ticket, batch, {})

    def _finally(
        self, connection: Any, ticket: str | None, batch: list[Write], refused: dict[int, Exception]
    ) -> None:
        """The commit itself, after which there is no taking back."""
        try:
            connection.execute("COMMIT")
        except Exception as problem:
            if ticket is not None and self._database.lost(connection):
                self._doubt = Doubt(ticket, [w for number, w in enumerate(batch) if number not in refused])
                batch = [batch[number] for number in refused]
            self._refuse_or_retry(batch, problem)
        else:
            self._kept(batch, refused)

    def _kept(self, batch: list[Write], refused: dict[int, Exception]) -> None:
        self.full = self._troubled = False
        self._tell([write for number, write in enumerate(batch) if number not in refused], None)
        for number, problem in refused.items():
            self._tell([batch[number]], problem)

    def _give_up(self, problem: Superseded) -> None:
        """Another server writes now. Nobody may believe that anything else was kept."""
        log.error("%s", problem)
        with self._wake:
            self._ended = problem
            left, self._queue = self._queue, []
        self._tell([*(self._doubt.batch if self._doubt else ()), *left], problem)
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._superseded, problem)

    def _separate(self, connection: Any, batch: list[Write]) -> None:
        """Some write of the batch is itself at fault: only that one fails, the others share a commit.

        Of a write that cannot be refused only the faulty change is left out: a name that no database can
        hold, in one task's metrics, must not keep Weft from remembering anything ever again.
        """
        refused: dict[int, Exception] = {}
        try:
            connection.rollback()
            connection.execute(self._database.begin)
            ticket = self._database.ticket(connection)
            for number, write in enumerate(batch):
                parts = [write.changes] if write.refusable else [[change] for change in write.changes]
                for part in parts:
                    problem = self._attempt(connection, list(part))
                    if problem is not None and write.refusable:
                        refused[number] = problem
                    elif problem is not None:
                        log.error("left out of the database: %s: %s", type(part[0]).__name__, problem)
        except Exception as failure:
            self._refuse_or_retry(batch, failure)
            return
        self._finally(connection, ticket, batch, refused)

    def _attempt(self, connection: Any, changes: list[Any]) -> Exception | None:
        connection.execute("SAVEPOINT attempt")
        try:
            self._apply(connection, changes)
        except self._database.own_fault as problem:
            connection.execute("ROLLBACK TO attempt")
            connection.execute("RELEASE attempt")
            if isinstance(problem, self._database.conflict):
                return Conflict(str(problem))
            return StoreError(f"the database refused a write: {self._database.words(problem)}")
        connection.execute("RELEASE attempt")
        return None

    def _refuse_or_retry(self, batch: list[Write], problem: Exception) -> None:
        self._let_go()
        full, said = self._database.is_full(problem), self._database.words(problem)
        if self._connection is None:
            self._away = True
            self._database.went_away(said, AWAY_SECONDS)
        if not self._troubled:
            log.error("cannot write to the database: %s", said)
        self.full, self._troubled = full, True
        reason = (
            StoreFull("no room on the disk")
            if full
            else problem
            if isinstance(problem, StoreError)
            else StoreError(f"the database refused a write: {said}")
        )
        self._tell([write for write in batch if write.refusable], reason)
        must = [write for write in batch if not write.refusable]
        if self._stopping:
            self._tell([*(self._doubt.batch if self._doubt else ()), *must], reason)
            self._doubt = None
        else:
            with self._wake:
                self._queue[:0] = must
            time.sleep(RETRY_SECONDS)

    def _let_go(self) -> None:
        """Of the transaction, and of a connection that is no use."""
        if self._connection is not None:
            with contextlib.suppress(Exception):
                self._connection.rollback()
            if self._database.lost(self._connection):
                with contextlib.suppress(Exception):
                    self._connection.close()
                self._connection = None

    def _tell(self, batch: Sequence[Write], problem: Exception | None) -> None:
        if batch:
            try:
                self._loop.call_soon_threadsafe(self._finish, batch, problem)
            except RuntimeError:
                return  # the loop is closed: nobody is left to tell

    def _finish(self, batch: Sequence[Write], problem: Exception | None) -> None:
        if problem is None:
            try:
                self._committed(batch)
            except Exception:
                log.exception("what was kept could not be told to all who watch")
        for write in batch:
            if write.done.done():
                continue
            if problem is None:
                write.done.set_result(None)
            else:
                write.done.set_exception(problem)
                write.done.exception()  # whoever does not wait has been logged already

    # ── statements: as few as possible for the whole batch ──

    def _apply(self, connection: Any, changes: list[Any]) -> None:
        """In order, as far as order can be seen: a deletion frees its name for what comes after it."""
        start = 0
        for index, change in enumerate(changes):
            if isinstance(change, Delete):
                self._apply_together(connection, changes[start:index])
                for statement in _deletes(self._database.mark):
                    connection.execute(statement, (change.uid,))
                start = index + 1
        self._apply_together(connection, changes[start:])

    def _apply_together(self, connection: Any, changes: list[Any]) -> None:
        mark = self._database.mark
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
            rows = [[row.get(column.name) for column in _RESOURCE] for row in created.values()]
            _execute(connection, partial(_insert, mark, resources, _RESOURCE), rows)
        by_columns: dict[tuple[str, ...], list[list[Any]]] = {}
        for uid, row in updated.items():
            by_columns.setdefault(tuple(row), []).append([uid, *row.values()])
        for columns, rows in by_columns.items():
            _execute(connection, partial(_update, mark, columns), rows)
        if points:
            _execute(connection, partial(_insert, mark, metrics, _METRIC), points)
        if offsets:
            rows = [[*key, offset] for key, offset in offsets.items()]
            _execute(connection, partial(_insert, mark, metric_offsets, _OFFSET), rows)
        if happened:
            _execute(connection, partial(_insert, mark, events, _EVENT), happened)


_event: Callable[[Happened], Sequence[Any]] = attrgetter(*(column.name for column in _EVENT))


def _point(uid: str, point: Any) -> list[Any]:
    """SQLite keeps no NaN and JSON no infinity: both are written as words."""
    finite = math.isfinite(point.value)
    value, special = (point.value, None) if finite else (None, str(point.value))
    return [uid, point.task, point.name, point.step, point.time, value, special]
