"""Requests to the API server, each a few hundred bytes, thousands of them: HTTP/1.1 over connections that are kept.

One request at a time on each connection, and the one used last is used next, so that those which a burst has opened and
nobody needs are closed by the other side. A request costs a quarter of the processor time that it costs with httpx.
"""

from __future__ import annotations

import asyncio
import ssl
import zlib
from collections import deque
from collections.abc import Mapping
from typing import cast
from urllib.parse import urlsplit

from httptools import HttpParserError, HttpResponseParser

CONNECT = 5.0
GZIP = 16 + zlib.MAX_WBITS


class Answer:
    """Status and body, as they come in."""

    def __init__(self) -> None:
        self.status = 0
        self.body = b""
        self.packed = False


class Connections:
    """To one server, so many at most; who comes when all are busy waits."""

    def __init__(self, server: str, tls: ssl.SSLContext | None, most: int, patience: float):
        address = urlsplit(server)
        secure = address.scheme == "https"
        self._host = address.hostname or "localhost"
        self._port = address.port or (443 if secure else 80)
        self._tls = tls if secure else None
        self._prefix = address.path.rstrip("/")
        self._named = address.netloc.rpartition("@")[2]
        self._patience = patience
        self._room = asyncio.Semaphore(most)
        self._idle: deque[_Connection] = deque()
        self._open: set[_Connection] = set()

    async def ask(self, method: str, path: str, headers: Mapping[str, str], content: bytes) -> Answer:
        """OSError if it cannot be asked, or does not answer in time."""
        lines = [f"{method} {self._prefix}{path} HTTP/1.1", f"Host: {self._named}", "Accept-Encoding: gzip"]
        lines += [f"{name}: {value}" for name, value in headers.items()]
        request = "\r\n".join((*lines, f"Content-Length: {len(content)}", "", "")).encode("latin-1") + content
        async with self._room:
            connection = self._idle.pop() if self._idle else await self._connect()
            try:
                async with asyncio.timeout(self._patience):
                    answer = await connection.exchange(request)
            except BaseException:
                connection.close()  # an answer that nobody waits for must not be taken for the next one
                raise
        if answer.packed:
            try:
                answer.body = zlib.decompress(answer.body, GZIP)
            except zlib.error as problem:
                raise ConnectionError(f"an answer that cannot be unpacked: {problem}") from problem
        return answer

    async def _connect(self) -> _Connection:
        loop = asyncio.get_running_loop()
        named = self._host if self._tls is not None else None
        async with asyncio.timeout(CONNECT):
            _, made = await loop.create_connection(
                lambda: _Connection(self), self._host, self._port, ssl=self._tls, server_hostname=named
            )
        return made

    def close(self) -> None:
        for connection in list(self._open):
            connection.close()

    def opened(self, connection: _Connection) -> None:
        self._open.add(connection)

    def free(self, connection: _Connection) -> None:
        self._idle.append(connection)

    def closed(self, connection: _Connection) -> None:
        self._open.discard(connection)
        if connection in self._idle:
            self._idle.remove(connection)


class _Connection(asyncio.Protocol):
    """One, with at most one request on its way. The names `on_…` are httptools'."""

    def __init__(self, pool: Connections):
        self._pool = pool
        self._transport: asyncio.Transport | None = None
        self._answered: asyncio.Future[Answer] | None = None
        self._answer = Answer()
        self._parts: list[bytes] = []
        self._parser = HttpResponseParser(self)

    async def exchange(self, request: bytes) -> Answer:
        if self._transport is None or self._transport.is_closing():
            raise ConnectionResetError("the connection was closed")
        self._answered = asyncio.get_running_loop().create_future()
        self._answer, self._parts = Answer(), []
        self._parser = HttpResponseParser(self)
        self._transport.write(request)
        return await self._answered

    def close(self) -> None:
        if self._transport is not None:
            self._transport.abort()
        self._pool.closed(self)

    # ── what the other side does ──

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's says nothing of what it is
        self._pool.opened(self)

    def connection_lost(self, why: Exception | None) -> None:
        self._pool.closed(self)
        self._fail(why or ConnectionResetError("the connection was closed"))

    def data_received(self, data: bytes) -> None:
        try:
            self._parser.feed_data(data)
        except HttpParserError as problem:
            self._fail(ConnectionError(f"an answer that is not HTTP: {problem}"))
            self.close()

    def _fail(self, why: Exception) -> None:
        if self._answered is not None and not self._answered.done():
            self._answered.set_exception(why if isinstance(why, OSError) else ConnectionError(str(why)))

    def on_header(self, name: bytes, value: bytes) -> None:
        if name.lower() == b"content-encoding" and value.lower() == b"gzip":
            self._answer.packed = True

    def on_body(self, body: bytes) -> None:
        self._parts.append(body)

    def on_message_complete(self) -> None:
        answer, waiting = self._answer, self._answered
        answer.status = self._parser.get_status_code()
        answer.body = b"".join(self._parts)
        if waiting is None or waiting.done():
            return  # nobody asked, or nobody waits any more: whoever gave up has closed it
        self._answered = None
        if self._parser.should_keep_alive():
            self._pool.free(self)
        else:
            self.close()
        waiting.set_result(answer)
