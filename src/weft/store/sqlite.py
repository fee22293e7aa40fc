"""SQLite: a file, durable at every commit, and nothing to set up."""

from __future__ import annotations

import shutil
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any, ClassVar

from sqlalchemy import Column, Connection, Engine, create_engine, event
from sqlalchemy.exc import DatabaseError
from sqlalchemy.pool import QueuePool

from weft.store.database import Database, StoreError, StoreFull, check_known, migrate, version_of
from weft.store.schema import HEAD

STATEMENTS = 256
"""Kept prepared, of each connection: the writer has one for every number of rows."""


class SQLite(Database):
    begin: ClassVar[str] = "BEGIN IMMEDIATE"
    own_fault = (
        sqlite3.IntegrityError,
        sqlite3.DataError,
        sqlite3.InterfaceError,
        sqlite3.ProgrammingError,
        ValueError,
        TypeError,
        OverflowError,
    )
    conflict = sqlite3.IntegrityError

    def __init__(self, path: Path):
        self.path, self.name = path, str(path)
        try:
            self.engine = _engine(path)
            with self.engine.connect() as connection:
                version = version_of(connection)
            if version != HEAD:
                self._migrate(version)
        except (DatabaseError, sqlite3.DatabaseError, OSError) as problem:
            kind = StoreFull if self.is_full(problem) else StoreError
            raise kind(_explain(problem, path)) from None

    def _migrate(self, version: str | None) -> None:
        check_known(version, self.name)
        if version is not None:
            copy = self.path.with_suffix(f".before-{HEAD}.db")
            with sqlite3.connect(self.path) as source, sqlite3.connect(copy) as target:
                source.backup(target)
        with self.engine.begin() as connection:
            migrate(connection)

    def writing(self) -> Any:
        return _connect(self.path)

    def mark(self, column: Column[Any]) -> str:
        return "?"

    def is_full(self, problem: BaseException) -> bool:
        return "full" in str(getattr(problem, "orig", problem)) or getattr(problem, "errno", None) == 28

    def copy(self, target: Path) -> None:
        free = shutil.disk_usage(target.parent).free
        if free < self.path.stat().st_size:
            raise StoreFull(f"no room for a copy of {self.path} in {target.parent}")
        try:
            with (
                closing(sqlite3.connect(self.path, timeout=30)) as origin,
                closing(sqlite3.connect(target)) as copy,
            ):
                origin.backup(copy)
        except sqlite3.Error as problem:
            if self.is_full(problem):
                raise StoreFull(f"no room for a copy of {self.path} in {target.parent}") from None
            raise StoreError(f"cannot copy {self.path}: {problem}") from None


def _connect(path: Path) -> sqlite3.Connection:
    connection = sqlite3.connect(
        path,
        timeout=30,
        check_same_thread=False,
        cached_statements=STATEMENTS,
        isolation_level=None,  # BEGIN is ours: Python's own would begin too late
    )
    for pragma in ("journal_mode=WAL", "synchronous=FULL", "busy_timeout=30000", "cache_size=-8000"):
        connection.execute(f"PRAGMA {pragma}")
    return connection


def _engine(path: Path) -> Engine:
    engine = create_engine("sqlite://", creator=lambda: _connect(path), poolclass=QueuePool, pool_size=8)

    @event.listens_for(engine, "begin")
    def _begin(connection: Connection) -> None:
        connection.exec_driver_sql("BEGIN")

    return engine


def _explain(problem: Exception, path: Path) -> str:
    cause = str(getattr(problem, "orig", problem))
    if (
        "readonly" in cause
        or "read-only" in cause
        or "unable to open" in cause
        or isinstance(problem, PermissionError)
    ):
        return f"cannot write {path}: {cause}; check the folder's owner and permissions, or set WEFT_HOME to another"
    if "full" in cause:
        return f"cannot write {path}: no room on the disk; free some and start again"
    if "malformed" in cause or "not a database" in cause:
        return f"{path} is damaged ({cause}); restore the last backup: weft restore FILE"
    return f"cannot open {path}: {cause}"


def check_integrity(path: Path) -> None:
    """Raise StoreError unless SQLite finds every page and index sound."""
    try:
        with sqlite3.connect(f"file:{path}?mode=ro", uri=True) as connection:
            found = connection.execute("PRAGMA integrity_check").fetchone()[0]
    except sqlite3.DatabaseError as problem:
        raise StoreError(_explain(problem, path)) from None
    if found != "ok":
        raise StoreError(f"{path} is damaged: {found}")
