"""PostgreSQL, by its URL: for a control plane of several replicas that should not depend on one volume.

One server writes, and the database itself sees to it: the writer's session holds a lock for as long as it lives, and every
transaction is that session's. Whoever lost its session asks for the lock again before it writes anything.
"""

from __future__ import annotations

import itertools
import logging
import os
import secrets
import socket
import sqlite3
import time
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

from sqlalchemy import (
    BigInteger,
    Column,
    Connection,
    Float,
    Integer,
    MetaData,
    Table,
    Text,
    create_engine,
    insert,
    select,
    text,
)
from sqlalchemy.exc import DBAPIError

from weft.store import address
from weft.store.database import Database, StoreError, StoreFull, Superseded, check_known, migrate, version_of
from weft.store.schema import HEAD, metadata, metrics

LOCK = 0x776566740001
"""The lock of the one writer, within the database."""
CONNECTING, READING, STATEMENT = 5, 2, 30_000
"""Seconds to connect, for the writer and for who reads; milliseconds of a statement."""
SESSION = (
    f"-c statement_timeout={STATEMENT} -c tcp_keepalives_idle=5 -c tcp_keepalives_interval=2 -c tcp_keepalives_count=3 "
    "-c tcp_user_timeout=10000"
)
PATIENCE = 15.0
"""Seconds that a session has in which to end whose server died."""
AT_ONCE = 1000
log = logging.getLogger("weft.store")

own = MetaData()
last_commit = Table(
    "last_commit",
    own,
    Column("id", Integer, primary_key=True, autoincrement=False),
    Column("token", Text, nullable=False),
)
"""One row, written by every transaction: which of them was the last, and whose it was."""
NOTE = (
    "INSERT INTO last_commit (id, token) VALUES (1, %s) ON CONFLICT (id) DO UPDATE SET token = excluded.token"
)


class PostgreSQL(Database):
    begin: ClassVar[str] = "BEGIN"

    def __init__(self, url: str, *, take_over: bool = False):
        """With `take_over` who has the lock now loses it: for a server that was told that it is its turn."""
        self._given = address.read(url)
        import psycopg

        self._url, self.name = url, address.shown(url)
        self._secrets = address.secrets_of(url)
        self.own_fault = (
            psycopg.IntegrityError,
            psycopg.DataError,
            psycopg.ProgrammingError,
            psycopg.NotSupportedError,
            ValueError,
            TypeError,
            OverflowError,
        )
        self.conflict = psycopg.IntegrityError
        self.engine = create_engine(
            "postgresql+psycopg://",
            creator=partial(self._connect, READING),
            pool_size=8,
            pool_pre_ping=True,
        )
        self._me, self._numbers = secrets.token_hex(8), itertools.count()
        self._first: Any = None
        self._first = self._locked(take_over)  # nobody else migrates meanwhile
        try:
            with self.engine.connect() as connection:
                version = version_of(connection)
            with self.engine.begin() as connection:
                if version != HEAD:
                    check_known(version, self.name)
                    migrate(connection)
                own.create_all(connection)
                self._found = connection.scalar(select(last_commit.c.token))
        except BaseException as problem:
            self._first.close()
            if isinstance(problem, DBAPIError):
                raise StoreError(f"cannot use database {self.name}: {self.words(problem)}") from None
            raise

    def _connect(self, timeout: int, **more: Any) -> Any:
        """Sessions of a machine that died must not keep the lock for the hours that TCP would wait."""
        import psycopg

        options = self._given.get("options") or os.environ.get("PGOPTIONS", "")
        kind = self._given.get("target_session_attrs") or os.environ.get("PGTARGETSESSIONATTRS", "read-write")
        connection = psycopg.connect(
            self._url,
            connect_timeout=timeout,
            application_name=f"weft {socket.gethostname()} {os.getpid()}",
            options=f"{options} {SESSION}".strip(),
            target_session_attrs=kind,
            keepalives_idle=5,
            keepalives_interval=2,
            keepalives_count=3,
            tcp_user_timeout=10_000,
            **more,
        )
        connection.adapters.register_dumper(str, _without_nul())
        return connection

    def writing(self) -> Any:
        first, self._first = self._first, None
        return first or self._locked(take_over=False, again=True)

    def _locked(self, take_over: bool, again: bool = False) -> Any:
        import psycopg

        try:
            connection = self._connect(CONNECTING, autocommit=True)
        except psycopg.Error as problem:
            raise StoreError(
                f"cannot reach database {self.name}: {self.words(problem)}; check the address, and PGPASSWORD or PGPASSFILE "
                "for its password"
            ) from None
        try:
            self._lock(connection, take_over)
            if again:
                self._check_alone(connection)
        except BaseException as problem:
            connection.close()
            if isinstance(problem, psycopg.Error):
                raise StoreError(
                    f"cannot get the writer's lock of database {self.name}: {self.words(problem)}"
                ) from None
            raise
        return connection

    def _lock(self, connection: Any, take_over: bool) -> None:
        """A session that is gone gives it back by itself, once the database has heard of its end."""
        deadline = time.monotonic() + PATIENCE
        while not connection.execute("SELECT pg_try_advisory_lock(%s)", (LOCK,)).fetchone()[0]:
            holder = connection.execute(HOLDER, (LOCK >> 32, LOCK & 0xFFFFFFFF)).fetchone()
            if holder and take_over:
                log.warning("the session of %s is ended: it is this server's turn", holder[1])
                connection.execute("SELECT pg_terminate_backend(%s)", (holder[0],))
            if time.monotonic() > deadline:
                who = f" ({holder[1]})" if holder else ""
                raise Superseded(
                    f"another server{who} uses database {self.name}; stop it, or name another database with --database"
                )
            time.sleep(0.1)

    def _check_alone(self, connection: Any) -> None:
        """Who lost its session and has the lock again goes on only if nobody else had it in between."""
        last = self._last(connection)
        if last != self._found and not (last or "").startswith(self._me):
            raise Superseded(
                f"another server wrote to database {self.name} while this one had no session; start it again"
            )

    def _last(self, connection: Any) -> str | None:
        found = connection.execute("SELECT token FROM last_commit").fetchone()
        return found[0] if found else None

    def mark(self, column: Column[Any]) -> str:
        """With its type, which is not known from the values where all of them are missing."""
        match column.type:
            case Float():
                return "%s::double precision"
            case BigInteger():
                return "%s::bigint"
            case Integer():
                return "%s::integer"
            case _:
                return "%s::text"

    def is_full(self, problem: BaseException) -> bool:
        return getattr(problem, "sqlstate", None) == "53100"

    def lost(self, connection: Any) -> bool:
        return bool(connection.closed)

    def words(self, problem: BaseException) -> str:
        said = super().words(problem)
        for secret in self._secrets:
            said = said.replace(secret, "…")
        return said

    def ticket(self, connection: Any) -> str | None:
        """Not the transaction's id: after a crash of PostgreSQL another transaction may get the same."""
        token = f"{self._me} {next(self._numbers)}"
        connection.execute(NOTE, (token,))
        return token

    def committed(self, connection: Any, ticket: str) -> bool:
        """The session that may have done it is over: the lock was its own."""
        return self._last(connection) == ticket

    def unreachable(self, problem: DBAPIError) -> bool:
        """What fails within a session has a state, or has ended that session."""
        return getattr(problem.orig, "sqlstate", None) is None and not problem.connection_invalidated

    def copy(self, target: Path) -> None:
        from weft.store.sqlite import SQLite

        kept = SQLite(target)
        try:
            with self.engine.connect() as source, kept.engine.begin() as copy:
                transfer(source.execution_options(isolation_level="REPEATABLE READ"), copy)
            kept.close()
            with closing(sqlite3.connect(target)) as connection:
                connection.execute("PRAGMA journal_mode=DELETE")  # one file, not three
        except (DBAPIError, sqlite3.Error) as problem:
            cause = getattr(problem, "orig", problem)
            if isinstance(cause, sqlite3.Error) and kept.is_full(cause):
                raise StoreFull(f"no room for a copy of {self.name} in {target.parent}") from None
            raise StoreError(f"cannot copy database {self.name}: {self.words(problem)}") from None
        finally:
            kept.close()

    def fill(self, source: Path) -> None:
        """Take over all of an SQLite file; Refused unless this database is empty."""
        from weft.store.sqlite import SQLite

        given = SQLite(source)
        try:
            with given.engine.connect() as rows, self.engine.begin() as target:
                if any(target.execute(select(table).limit(1)).first() for table in metadata.sorted_tables):
                    raise StoreError(
                        f"database {self.name} already has data; name an empty one with --database"
                    )
                transfer(rows, target)
                last = select(metrics.c.id).order_by(metrics.c.id.desc()).limit(1)
                if (newest := target.scalar(last)) is not None:
                    target.execute(
                        text("SELECT setval(pg_get_serial_sequence('metrics', 'id'), :last)"),
                        {"last": newest},
                    )
        except DBAPIError as problem:
            raise StoreError(f"cannot fill database {self.name}: {self.words(problem)}") from None
        finally:
            given.close()

    def close(self) -> None:
        if self._first is not None:
            self._first.close()
        super().close()


HOLDER = """
    SELECT pid, coalesce(application_name, '') || coalesce(' at ' || host(client_addr), '')
    FROM pg_locks JOIN pg_stat_activity USING (pid)
    WHERE locktype = 'advisory' AND granted AND classid = %s AND objid = %s
        AND pg_locks.database = (SELECT oid FROM pg_database WHERE datname = current_database())
"""


def transfer(source: Connection, target: Connection) -> None:
    """Every row of every table."""
    for table in metadata.sorted_tables:
        rows = source.execution_options(stream_results=True, yield_per=AT_ONCE).execute(select(table))
        for some in rows.mappings().partitions(AT_ONCE):
            target.execute(insert(table), [dict(row) for row in some])


def _without_nul() -> Any:
    """PostgreSQL has no character 0; what a task printed or named may have one."""
    from psycopg.types.string import StrDumper

    class WithoutNul(StrDumper):
        def dump(self, obj: str) -> Any:
            return super().dump(obj.replace("\0", "\N{REPLACEMENT CHARACTER}") if "\0" in obj else obj)

    return WithoutNul
