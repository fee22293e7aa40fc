"""The rows of a query to PostgreSQL, as files of JSON lines: 00000000.jsonl and so on, `rows` rows each.

The rows come in the order of the query: without an `order by`, the database may give the same rows in another one, and
that is another version.
"""

from __future__ import annotations

import errno
import json
import os
import re
import tempfile
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO, Any
from urllib.parse import parse_qsl, unquote, urlsplit

from weft.data import digest
from weft.data.errors import DataError, Denied, Missing, NoRoom, Refused, Unreachable
from weft.data.patience import PATIENT, Patience
from weft.data.sources import Object, needs, without

BATCH = 2000
AT_ONCE = 8 << 20
"""Rows and about as many bytes that are on their way together."""
CHUNK = 1 << 20
SETTINGS = {
    "DateStyle": "ISO",
    "IntervalStyle": "iso_8601",
    "TimeZone": "UTC",
    "extra_float_digits": "1",
    "bytea_output": "hex",
}
"""The same rows are the same text whatever the server and the role are set to."""
NOT_LET_IN = re.compile(r"authentication|no password|pg_hba|role .* (does not exist|is not permitted)")
"""Before there is a connection, the library gives no code."""
KNOWN = ("host", "port", "sslmode", "connect_timeout", "application_name", "target_session_attrs")
"""What a url may say after `?`: nothing that names files of this machine."""


class SqlSource:
    """Read once, in one read-only view of the database, into a file without a name; the samples are its pieces."""

    stays = proves = False

    def __init__(
        self,
        url: str,
        query: str,
        rows: int = 1,
        credentials: Mapping[str, str] | None = None,
        patience: Patience = PATIENT,
        scratch: Path | None = None,
    ):
        with needs("sql"):
            import psycopg  # noqa: F401
        self._query, self._rows = query, rows
        self._credentials = dict(credentials or {})
        self._patience = patience
        self._scratch = scratch
        self._shown, self._where = _where(url, self._credentials)
        self._file: IO[bytes] | None = None
        self._begins: dict[Object, int] = {}
        """Where each sample begins in the file."""

    def objects(self) -> Iterator[Object]:
        self._patience.ask(self._run)
        yield from self._begins

    def read(self, item: Object, offset: int = 0, length: int | None = None) -> Iterator[bytes]:
        if self._file is None:
            self._patience.ask(self._run)
        assert self._file is not None
        begin = self._begins.get(item)
        if begin is None:
            raise Missing(f"{item.name} is not among the rows of {self._shown}; list the source again")
        end = begin + (item.size if length is None else min(item.size, offset + length))
        at = begin + offset
        while at < end:
            chunk = os.pread(self._file.fileno(), min(CHUNK, end - at), at)
            at += len(chunk)
            yield chunk

    def _run(self) -> None:
        import psycopg

        file = tempfile.TemporaryFile(dir=self._scratch)  # noqa: SIM115 - it lives as long as the source
        try:
            with psycopg.connect(**self._where, prepare_threshold=None) as connection:
                connection.read_only = True
                connection.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
                self._begins = self._spool(connection, file)
                connection.rollback()
            file.flush()
        except psycopg.Error as problem:
            _drop(file)
            raise self._meant(problem) from None
        except OSError as problem:
            _drop(file)
            if problem.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
                raise
            where = self._scratch or tempfile.gettempdir()
            raise NoRoom(
                f"no room in {where} for the rows of {self._shown}; make room, then try again"
            ) from None
        except BaseException:
            _drop(file)
            raise
        weakref.finalize(self, file.close)
        self._file = file

    def _spool(self, connection: Any, file: IO[bytes]) -> dict[Object, int]:
        begins: dict[Object, int] = {}
        for setting in SETTINGS.items():
            connection.execute("select set_config(%s, %s, true)", setting)
        _teach(connection)
        with connection.cursor(name="weft") as cursor:
            cursor.execute(self._query)
            keys = self._columns([column.name for column in cursor.description])
            begin, held = 0, 0
            hashed = digest.new(self._query.encode() + b"\0")
            fresh = hashed.copy()

            def close() -> None:
                nonlocal begin, held, hashed
                name = f"{len(begins):08d}.jsonl"
                begins[Object(name, file.tell() - begin, hashed.hexdigest())] = begin
                begin, held, hashed = file.tell(), 0, fresh.copy()

            count = 16
            while rows := cursor.fetchmany(count):
                before = file.tell()
                for row in rows:
                    line = b"{%b}\n" % ",".join(map(_pair, keys, row)).encode()
                    file.write(line)
                    hashed.update(line)
                    held += 1
                    if held == self._rows:
                        close()
                count = max(1, min(BATCH, 2 * count, AT_ONCE * len(rows) // (file.tell() - before)))
            if held:
                close()
        return begins

    def _columns(self, names: Sequence[str]) -> list[str]:
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise Refused(
                f"the query to {self._shown} gives column {twice[0]!r} twice; name them apart (select … as …)"
            )
        return [json.dumps(name, ensure_ascii=False) + ":" for name in names]

    def _meant(self, problem: Any) -> DataError:
        state = problem.sqlstate or ""
        why = without(self._credentials, str(problem).strip().partition("\n")[0][:300])
        text = str(problem)
        if state.startswith("28") or state == "42501" or (not state and NOT_LET_IN.search(text)):
            return Denied(f"{self._shown}: {why}; see the secret that secretRef names")
        if state == "3D000" or (not state and 'database "' in text and "does not exist" in text):
            return Missing(f"{self._shown}: {why}; see the url")
        if state in ("42P01", "3F000"):
            return Missing(f"{self._shown}: {why}; see the query")
        if not state or state[:2] in ("08", "53", "57", "58", "40"):
            return Unreachable(f"{self._shown}: {why}; try again later")
        return Refused(f"{self._shown}: {why} ({state}); a query only reads: see it")


def _where(url: str, credentials: Mapping[str, str]) -> tuple[str, dict[str, Any]]:
    """How to name the database to people, and how to reach it: with what the secret says and with nothing of the
    server's own (its user, its files of passwords and certificates)."""
    parts = urlsplit(url)
    shown = f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"
    if parts.scheme != "postgresql":
        raise Refused(f"{shown} is no postgresql:// url; only that is known")
    where: dict[str, Any] = dict(parse_qsl(parts.query))
    if unknown := sorted(set(where) - set(KNOWN)):
        raise Refused(f"{shown}: {unknown[0]} cannot be set in a url; it may have {', '.join(KNOWN)}")
    if parts.hostname:
        where["host"] = unquote(parts.hostname)
    with suppress(ValueError):
        if parts.port is not None:
            where["port"] = parts.port
    if not where.get("host"):
        raise Refused(f"{shown} names no host; write postgresql://HOST/DATABASE")
    user = credentials.get("user") or (parts.username and unquote(parts.username))
    password = credentials.get("password") or credentials.get("token")
    if not user:
        raise Refused(
            f"{shown}: no user is given; put user and password into the secret that secretRef names"
        )
    if any(host.strip()[:1] in ("/", "@", "") for host in str(where["host"]).split(",")):
        if not password:
            raise Refused(
                f"{shown} is a socket of the server's machine, which needs a password; see secretRef"
            )
        where["require_auth"] = "scram-sha-256,md5"  # not: because the server's own user may
    where |= {
        "user": user,
        "password": password or "",
        "dbname": unquote(parts.path.strip("/")) or user,
        "passfile": os.devnull,
        "client_encoding": "UTF8",
        "sslcertmode": "disable",
        "gssencmode": "disable",
    }
    where.setdefault("connect_timeout", "10")
    return shown, where


def _drop(file: IO[bytes]) -> None:
    with suppress(OSError):  # what was not written cannot be written now, either
        file.close()


class _Json(str):
    """Text that is JSON already."""

    __slots__ = ()


def _pair(key: str, value: Any) -> str:
    return key + _json(value)


def _json(value: Any) -> str:
    if value is None:
        return "null"
    if isinstance(value, _Json):
        return value
    if isinstance(value, list):
        return "[" + ",".join(map(_json, value)) + "]"
    return json.dumps(value, ensure_ascii=False)


def _number(text: str) -> str:
    return _Json(text) if text[-1:].isdigit() else text  # else NaN or Infinity, which JSON has not


def _document(text: str) -> str:
    return _Json(text.replace("\n", " ").replace("\r", " "))


def _time(text: str) -> str:
    """2024-05-01 12:00:00+00 as ISO 8601 has it; infinity and years before Christ as they are."""
    if text[:1].isdigit() and text[-2:] != "BC":
        text = text.replace(" ", "T", 1)
        if text[-3:-2] in "+-" and ":" in text:
            text += ":00"
    return text


def _bytes(text: str) -> str:
    from base64 import b64encode

    return b64encode(bytes.fromhex(text[2:])).decode()


HOW: dict[str, Callable[[str], str]] = {
    **dict.fromkeys(("int2", "int4", "int8", "oid", "float4", "float8", "numeric"), _number),
    **dict.fromkeys(("json", "jsonb"), _document),
    **dict.fromkeys(("timestamp", "timestamptz"), _time),
    "bool": lambda text: _Json("true" if text == "t" else "false"),
    "bytea": _bytes,
}


def _teach(connection: Any) -> None:
    """Values as text, exactly as the database writes them: no number is rounded on the way. A type that JSON has
    nothing for is a string; lists of any known type are lists."""
    from psycopg.adapt import Loader

    def loader(how: Callable[[str], str]) -> type[Loader]:
        class Textual(Loader):
            def load(self, data: Any) -> str:
                return how(bytes(data).decode())

        return Textual

    for known in connection.adapters.types:
        connection.adapters.register_loader(known.oid, loader(HOW.get(known.name, str)))
