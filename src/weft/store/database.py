"""Opening the database: durable settings, migrations, and errors that say what to do."""

from __future__ import annotations

import shutil
import sqlite3
from pathlib import Path

from sqlalchemy import Connection, Engine, create_engine, event, inspect, text
from sqlalchemy.exc import DatabaseError
from sqlalchemy.pool import QueuePool

from weft.store.schema import HEAD

STATEMENTS = 256
"""Kept prepared, of each connection: the writer has one for every number of rows."""


class StoreError(Exception):
    """The database cannot be used; the message says why and what to do next."""


class StoreFull(StoreError):
    """There is no room for a write; nothing of it was kept."""


def open_database(path: Path) -> Engine:
    """An engine on a database at the newest version, migrated if it was older."""
    try:
        engine = _engine(path)
        with engine.connect() as connection:
            version = _version(connection)
        if version != HEAD:
            _migrate(engine, path, version)
    except (DatabaseError, sqlite3.DatabaseError, OSError) as problem:
        raise StoreError(_explain(problem, path)) from None
    return engine


def _engine(path: Path) -> Engine:
    engine = create_engine(
        f"sqlite:///{path}",
        poolclass=QueuePool,
        pool_size=8,
        connect_args={"check_same_thread": False, "timeout": 30, "cached_statements": STATEMENTS},
    )

    @event.listens_for(engine, "connect")
    def _settings(connection: sqlite3.Connection, _record: object) -> None:
        connection.isolation_level = None  # BEGIN is ours, below: Python's own would begin too late
        for pragma in ("journal_mode=WAL", "synchronous=FULL", "busy_timeout=30000", "cache_size=-8000"):
            connection.execute(f"PRAGMA {pragma}")

    @event.listens_for(engine, "begin")
    def _begin(connection: Connection) -> None:
        connection.exec_driver_sql("BEGIN")

    return engine


def _version(connection: Connection) -> str | None:
    if "alembic_version" not in inspect(connection).get_table_names():
        return None
    row = connection.execute(text("select version_num from alembic_version")).first()
    return str(row[0]) if row else None


def _migrate(engine: Engine, path: Path, version: str | None) -> None:
    from alembic import command
    from alembic.config import Config
    from alembic.script import ScriptDirectory

    config = Config()
    config.set_main_option("script_location", str(Path(__file__).parent / "migrations"))
    known = {script.revision for script in ScriptDirectory.from_config(config).walk_revisions()}
    if version is not None and version not in known:
        raise StoreError(
            f"{path} was written by a newer Weft (schema {version}, this one knows up to {HEAD}); "
            "upgrade Weft, or restore a backup made with this version"
        )
    if version is not None:
        copy = path.with_suffix(f".before-{HEAD}.db")
        with sqlite3.connect(path) as source, sqlite3.connect(copy) as target:
            source.backup(target)
    with engine.begin() as connection:
        config.attributes["connection"] = connection
        command.upgrade(config, "head")


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


def is_full(problem: BaseException) -> bool:
    return "full" in str(getattr(problem, "orig", problem)) or getattr(problem, "errno", None) == 28


def check_integrity(path: Path) -> None:
    """Raise StoreError unless SQLite finds every page and index sound."""
    try:
        with sqlite3.connect(f"file:{path}?mode=ro", uri=True) as connection:
            found = connection.execute("PRAGMA integrity_check").fetchone()[0]
    except sqlite3.DatabaseError as problem:
        raise StoreError(_explain(problem, path)) from None
    if found != "ok":
        raise StoreError(f"{path} is damaged: {found}")


def copy_database(source: Path, target: Path) -> None:
    """A consistent copy, while others write."""
    free = shutil.disk_usage(target.parent).free
    if free < source.stat().st_size:
        raise StoreFull(f"no room for a copy of {source} in {target.parent}")
    with sqlite3.connect(source, timeout=30) as origin, sqlite3.connect(target) as copy:
        origin.backup(copy)
