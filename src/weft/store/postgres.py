"""PostgreSQL, by its URL: for a control plane of several replicas that should not depend on one volume.

One server writes, and the database itself sees to it: the writer's session holds a lock for as long as it lives, and every
transaction is that session's. Whoever lost its session asks for the lock again before it writes anything.
"""

from __future__ import annotations

import logging
import os
import socket
import sqlite3
import time
from contextlib import closing
from pathlib import Path
from typing import Any, ClassVar
from urllib.parse import urlsplit

from sqlalchemy import BigInteger, Column, Connection, Float, Integer, create_engine, insert, select, text
from sqlalchemy.exc import DBAPIError

from weft.store.database import Database, StoreError, Superseded, check_known, migrate, version_of
from weft.store.schema import HEAD, metadata, metrics

LOCK = 0x776566740001
"""The lock of the one writer, within the database."""
CONNECTING, STATEMENT = 5, 30_000
PATIENCE = 15.0
"""Seconds that a session has in which to end whose server died."""
AT_ONCE = 1000
log = logging.getLogger("weft.store")


class PostgreSQL(Database):
    begin: ClassVar[str] = "BEGIN"

    def __init__(self, url: str, *, take_over: bool = False):
        """With `take_over` who has the lock now loses it: for a server that was told that it is its turn."""
        try:
            import psycopg
        except ImportError:
            raise StoreError(
                "a PostgreSQL database needs psycopg: pip install 'weft[postgres]', or leave --database out for SQLite"
            ) from None
        self._url, self.name = url, without_password(url)
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
            "postgresql+psycopg://", creator=self._connect, pool_size=8, pool_pre_ping=True
        )
        self._first: Any = None
        self._first = self._writing(take_over)  # nobody else migrates meanwhile
        try:
            with self.engine.connect() as connection:
                version = version_of(connection)
            if version != HEAD:
                check_known(version, self.name)
                with self.engine.begin() as connection:
                    migrate(connection)
        except BaseException as problem:
            self._first.close()
            if isinstance(problem, DBAPIError):
                raise StoreError(f"cannot use database {self.name}: {_words(problem)}") from None
            raise

    def _connect(self, **more: Any) -> Any:
        """Sessions of a machine that died must not keep the lock for the hours that TCP would wait."""
        import psycopg

        connection = psycopg.connect(
            self._url,
            connect_timeout=CONNECTING,
            application_name=f"weft {socket.gethostname()} {os.getpid()}",
            options=f"-c statement_timeout={STATEMENT} -c tcp_keepalives_idle=5 -c tcp_keepalives_interval=2 "
            "-c tcp_keepalives_count=3",
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
        return first or self._writing(take_over=False)

    def _writing(self, take_over: bool) -> Any:
        import psycopg

        try:
            connection = self._connect(autocommit=True)
        except psycopg.Error as problem:
            raise StoreError(
                f"cannot reach database {self.name}: {_words(problem)}; check the address, and PGPASSWORD or PGPASSFILE "
                "for its password"
            ) from None
        try:
            self._lock(connection, take_over)
        except BaseException:
            connection.close()
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

    def ticket(self, connection: Any) -> str | None:
        return str(connection.execute("SELECT pg_current_xact_id()").fetchone()[0])

    def committed(self, connection: Any, ticket: str) -> bool:
        """The session that may have done it is over: the lock was its own."""
        found = connection.execute("SELECT pg_xact_status(%s::xid8)", (ticket,)).fetchone()[0]
        return bool(found == "committed")

    def copy(self, target: Path) -> None:
        from weft.store.sqlite import SQLite

        kept = SQLite(target)
        try:
            with self.engine.connect() as source, kept.engine.begin() as copy:
                transfer(source.execution_options(isolation_level="REPEATABLE READ"), copy)
        except DBAPIError as problem:
            raise StoreError(f"cannot copy database {self.name}: {_words(problem)}") from None
        finally:
            kept.close()
        with closing(sqlite3.connect(target)) as connection:
            connection.execute("PRAGMA journal_mode=DELETE")  # one file, not three

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
            raise StoreError(f"cannot fill database {self.name}: {_words(problem)}") from None
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


def without_password(url: str) -> str:
    parts = urlsplit(url)
    user, at, place = parts.netloc.rpartition("@")
    query = "&".join(word for word in parts.query.split("&") if not word.startswith("password="))
    return f"{parts.scheme}://{user.partition(':')[0]}{at}{place}{parts.path}{query and f'?{query}'}"


def _words(problem: BaseException) -> str:
    return " ".join(str(getattr(problem, "orig", problem)).split())


def _without_nul() -> Any:
    """PostgreSQL has no character 0; what a task printed or named may have one."""
    from psycopg.types.string import StrDumper

    class WithoutNul(StrDumper):
        def dump(self, obj: str) -> Any:
            return super().dump(obj.replace("\0", "\N{REPLACEMENT CHARACTER}") if "\0" in obj else obj)

    return WithoutNul
