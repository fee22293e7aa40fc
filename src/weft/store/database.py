"""What the store asks of a database. `sqlite` and `postgres` answer, each in its own way; errors say what to do."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from pathlib import Path
from typing import Any, ClassVar

from sqlalchemy import Column, Connection, Engine, inspect, text
from sqlalchemy.exc import DBAPIError

from weft.store.schema import HEAD


class StoreError(Exception):
    """The database cannot be used; the message says why and what to do next."""


class StoreFull(StoreError):
    """There is no room for a write; nothing of it was kept."""


class Superseded(StoreError):
    """Another server has the database now: nothing may be written to it any more."""


class Database(ABC):
    """At the newest version, migrated if it was older. One server writes to it; any number of threads read."""

    name: str
    """For people: a path, or an address without a password."""
    engine: Engine
    """For reading."""
    begin: ClassVar[str]
    own_fault: tuple[type[Exception], ...]
    """What a write itself causes: trying it again would fail again."""
    conflict: type[Exception]
    _away: tuple[float, str] = (0.0, "")

    @abstractmethod
    def writing(self) -> Any:
        """A connection for the one writer, which begins and commits by itself; Superseded if another server has one."""

    @abstractmethod
    def mark(self, column: Column[Any]) -> str:
        """Where a value of this column goes into a statement."""

    @abstractmethod
    def is_full(self, problem: BaseException) -> bool: ...

    def lost(self, connection: Any) -> bool:
        """Whether a writer's connection is of no use any more."""
        return False

    def ticket(self, connection: Any) -> str | None:
        """A name of the transaction that has begun, where its commit may be done and not be heard of."""
        return None

    def committed(self, connection: Any, ticket: str) -> bool:
        """What became of it, asked over another connection."""
        raise NotImplementedError

    def words(self, problem: BaseException) -> str:
        """What the driver says of it, in one line."""
        return " ".join(str(getattr(problem, "orig", problem)).split())

    def unreachable(self, problem: DBAPIError) -> bool:
        """Whether no session could be had, which may have taken its time."""
        return False

    def away(self) -> str | None:
        """Why there is no use in asking just now, of a database that could not be reached a moment ago."""
        until, why = self._away
        return why if time.monotonic() < until else None

    def went_away(self, why: str, seconds: float) -> None:
        """It could not be reached: whoever asks within these seconds need not wait to hear the same."""
        self._away = (time.monotonic() + seconds, why)

    def came_back(self) -> None:
        self._away = (0.0, "")

    @abstractmethod
    def copy(self, target: Path) -> None:
        """A consistent copy as an SQLite file, while others write."""

    def close(self) -> None:
        self.engine.dispose()


def open_database(place: Path | str, *, take_over: bool = False) -> Database:
    """An SQLite file, or a PostgreSQL database by its URL, which may be taken over from whoever has it."""
    if isinstance(place, Path):
        from weft.store.sqlite import SQLite

        return SQLite(place)
    from weft.store.postgres import PostgreSQL

    return PostgreSQL(place, take_over=take_over)


def version_of(connection: Connection) -> str | None:
    """The migration that a database is at; None if it has none of our tables."""
    if "alembic_version" not in inspect(connection).get_table_names():
        return None
    row = connection.execute(text("select version_num from alembic_version")).first()
    return str(row[0]) if row else None


def check_known(version: str | None, name: str) -> None:
    """Raise StoreError for a database that this Weft is too old for."""
    from alembic.script import ScriptDirectory

    known = {script.revision for script in ScriptDirectory.from_config(_migrations()).walk_revisions()}
    if version is not None and version not in known:
        raise StoreError(
            f"{name} was written by a newer Weft (schema {version}, this one knows up to {HEAD}); "
            "upgrade Weft, or restore a backup made with this version"
        )


def migrate(connection: Connection) -> None:
    from alembic import command

    config = _migrations()
    config.attributes["connection"] = connection
    command.upgrade(config, "head")


def _migrations() -> Any:
    from alembic.config import Config

    config = Config()
    config.set_main_option("script_location", str(Path(__file__).parent / "migrations"))
    return config
