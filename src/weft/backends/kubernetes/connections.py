"""Requests to the API server, thousands of them, and answers that are read as they come: HTTP/1.1 over connections that are kept.

One request at a time on each connection, and the one used last is used next, so that those which a burst has opened and
nobody needs are closed by the other side. A request costs a quarter of the processor time that it costs with httpx, and what a
watch brings a fifth.
"""

from __future__ import annotations

import asyncio
import ssl
import zlib
from collections import deque
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import cast
from urllib.parse import urlsplit

from httptools import HttpParserError, HttpResponseParser

CONNECT = 5.0
SILENCE = 90.0
"""Seconds that an answer which is read as it comes may say nothing, or that nobody takes what is sent."""
UNREAD = 1 << 20
"""Bytes that come before they are read; then the other side has to wait."""
GZIP = 16 + zlib.MAX_WBITS


class Unanswered(ConnectionError):
    """The server cannot be asked, or does not answer, or not to the end."""


@dataclass(frozen=True, slots=True)
class Answer:
    status: int
    body: bytes


class Reply:
    """An answer as it comes in. It is read once, by one reader."""

    def __init__(self, transport: asyncio.Transport, patience: float):
        self.status = 0
        self.packed = False
        self.ended = False
        self._transport = transport
        self._patience = patience
        """Seconds in which something must come."""
        self._parts: deque[bytes] = deque()
        self._unread = 0
        self._paused = False
        self._as_a_whole = False
        self._problem: Unanswered | None = None
        self._reader: asyncio.Future[None] | None = None

    async def begun(self) -> None:
        while not self.status:
            await self._news()

    async def chunks(self) -> AsyncIterator[bytes]:
        while True:
            while self._parts:
                part = self._parts.popleft()
                self._unread -= len(part)
                yield part
            if self.ended:
                return
            self._go_on()
            await self._news()

    async def read(self) -> bytes:
        """All of it."""
        self._as_a_whole = True
        self._go_on()
        while not self.ended:
            await self._news()
        return b"".join(self._parts)

    async def _news(self) -> None:
        if self._problem is None:
            loop = asyncio.get_running_loop()
            self._reader = loop.create_future()
            timer = loop.call_later(self._patience, self._fall_silent)
            try:
                await self._reader
            finally:
                timer.cancel()
        if self._problem is not None:
            raise self._problem

    def _go_on(self) -> None:
        if self._paused:
            self._paused = False
            self._transport.resume_reading()

    def _fall_silent(self) -> None:
        self.fail(Unanswered(f"nothing comes within {self._patience:g} s"))

    # ── what the connection tells ──

    def begin(self, status: int) -> None:
        self.status = status
        if not self._as_a_whole:
            self._wake()

    def add(self, part: bytes) -> None:
        self._parts.append(part)
        if self._as_a_whole:
            return
        self._unread += len(part)
        if self._unread > UNREAD and not self._paused:
            self._paused = True
            self._transport.pause_reading()
        self._wake()

    def end(self) -> None:
        self.ended = True
        self._go_on()
        self._wake()

    def fail(self, problem: Unanswered) -> None:
        if not self.ended:
            self._problem = problem
            self._wake()

    def _wake(self) -> None:
        if self._reader is not None and not self._reader.done():
            self._reader.set_result(None)


class Connections:
    """To one server: so many at most for requests (who comes when all are busy waits), and any number that are read as they
    come."""

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
        """Unanswered if it cannot be asked, or does not answer in time."""
        head = self._head(method, path, {**headers, "Accept-Encoding": "gzip"}, len(content))
        async with self._room:
            connection = await self._connection()
            try:
                reply = connection.begin(head + content, self._patience)
                body = await reply.read()
            except BaseException:
                connection.close()  # an answer that nobody waits for must not be taken for the next one
                raise
        if reply.packed:
            try:
                body = zlib.decompress(body, GZIP)
            except zlib.error as problem:
                raise Unanswered(f"an answer that cannot be unpacked: {problem}") from problem
        return Answer(reply.status, body)

    @asynccontextmanager
    async def stream(
        self,
        method: str,
        path: str,
        headers: Mapping[str, str],
        content: bytes | AsyncIterator[bytes] = b"",
        size: int | None = None,
    ) -> AsyncIterator[Reply]:
        """The answer once it has begun. `size`: of what is sent piece by piece."""
        whole = content if isinstance(content, bytes) else b""
        head = self._head(method, path, headers, len(whole) if size is None else size)
        connection = await self._connection()
        reply = connection.begin(head + whole, SILENCE)
        try:
            if not isinstance(content, bytes):
                await connection.send(content, reply)
            await reply.begun()
            yield reply
        finally:
            if not reply.ended:
                connection.close()

    def _head(self, method: str, path: str, headers: Mapping[str, str], size: int) -> bytes:
        lines = [f"{method} {self._prefix}{path} HTTP/1.1", f"Host: {self._named}"]
        lines += [f"{name}: {value}" for name, value in headers.items()]
        return "\r\n".join((*lines, f"Content-Length: {size}", "", "")).encode("latin-1")

    async def _connection(self) -> _Connection:
        if self._idle:
            return self._idle.pop()
        loop = asyncio.get_running_loop()
        named = self._host if self._tls is not None else None
        try:
            async with asyncio.timeout(CONNECT):
                _, made = await loop.create_connection(
                    lambda: _Connection(self), self._host, self._port, ssl=self._tls, server_hostname=named
                )
        except TimeoutError as problem:
            raise Unanswered(f"no connection within {CONNECT:g} s") from problem
        except OSError as problem:
            raise Unanswered(str(problem) or type(problem).__name__) from problem
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
        self._reply: Reply | None = None
        self._parser = HttpResponseParser(self)
        self._sending = False
        self._full: asyncio.Future[None] | None = None
        """Until when nothing more is taken."""

    def begin(self, request: bytes, patience: float) -> Reply:
        if self._transport is None or self._transport.is_closing():
            raise Unanswered("the connection was closed")
        self._reply = Reply(self._transport, patience)
        self._parser = HttpResponseParser(self)
        self._transport.write(request)
        return self._reply

    async def send(self, content: AsyncIterator[bytes], reply: Reply) -> None:
        """Until all of it has gone, or the other side has said what it thinks of it already."""
        assert self._transport is not None
        self._sending = True
        async for part in content:
            if reply.status or self._transport.is_closing():
                return
            self._transport.write(part)
            if self._full is not None:
                try:
                    async with asyncio.timeout(SILENCE):
                        await self._full
                except TimeoutError as problem:
                    raise Unanswered(f"nothing is taken within {SILENCE:g} s") from problem
        self._sending = False

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
        self.resume_writing()
        self._fail(str(why) if why is not None and str(why) else "the connection was closed")

    def pause_writing(self) -> None:
        self._full = asyncio.get_running_loop().create_future()

    def resume_writing(self) -> None:
        if self._full is not None and not self._full.done():
            self._full.set_result(None)
        self._full = None

    def data_received(self, data: bytes) -> None:
        try:
            self._parser.feed_data(data)
        except HttpParserError as problem:
            self._fail(f"an answer that is not HTTP: {problem}")
            self.close()

    def _fail(self, why: str) -> None:
        if self._reply is not None:
            self._reply.fail(Unanswered(why))

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._reply is not None and name.lower() == b"content-encoding" and value.lower() == b"gzip":
            self._reply.packed = True

    def on_headers_complete(self) -> None:
        if self._reply is not None:
            self._reply.begin(self._parser.get_status_code())

    def on_body(self, body: bytes) -> None:
        if self._reply is not None:
            self._reply.add(body)

    def on_message_complete(self) -> None:
        reply, self._reply = self._reply, None
        if reply is None:
            return  # nobody asked
        reply.end()
        if self._parser.should_keep_alive() and not self._sending:
            self._pool.free(self)
        else:
            self.close()
