"""Frames on a Unix socket: four bytes of length, a header in JSON, then as many raw bytes as its `body` says, and
open files beside them. A frame that makes no sense ends its connection, and only that."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import struct
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from weft.data.errors import DataError, Refused, Unreachable

LENGTH = struct.Struct("<I")
LARGEST_HEADER = 1 << 20
CHUNK = 1 << 16


class BadFrame(Exception):
    """What came is no request."""


@dataclass(slots=True)
class Answer:
    header: dict[str, Any] = field(default_factory=dict)
    body: bytes | memoryview = b""
    files: list[int] = field(default_factory=list)
    """Closed when they are sent."""

    def close(self) -> None:
        for fd in self.files:
            os.close(fd)


class Connection:
    def __init__(self, sock: socket.socket):
        self._socket = sock
        self._loop = asyncio.get_running_loop()
        self._pending = bytearray()
        self.about: dict[str, Any] = {}
        """What its requests so far have made known."""
        self.ended = self._loop.create_future()
        """Done when nothing more comes."""

    async def receive(self) -> dict[str, Any] | None:
        """The next request; None when the other side has ended, even in the middle of one."""
        if not await self._fill(LENGTH.size):
            return None
        (length,) = LENGTH.unpack_from(self._pending)
        if length > LARGEST_HEADER:
            raise BadFrame(f"a header of {length} bytes; at most {LARGEST_HEADER} are read")
        if not await self._fill(LENGTH.size + length):
            return None
        text = bytes(self._pending[LENGTH.size : LENGTH.size + length])
        del self._pending[: LENGTH.size + length]
        try:
            header = json.loads(text)
        except (ValueError, RecursionError):
            raise BadFrame("a header that is not JSON") from None
        if not isinstance(header, dict):
            raise BadFrame("a header that is not an object")
        return header

    async def _fill(self, size: int) -> bool:
        while len(self._pending) < size:
            data = await self._loop.sock_recv(self._socket, CHUNK)
            if not data:
                return False
            self._pending += data
        return True

    async def send(self, answer: Answer) -> None:
        header = {"ok": True, **answer.header}
        if len(answer.body):
            header["body"] = len(answer.body)
        text = json.dumps(header, separators=(",", ":")).encode()
        frame = LENGTH.pack(len(text)) + text
        try:
            if answer.files:
                frame = frame[await self._send_files(frame, answer.files) :]
        finally:
            answer.close()
        if frame:
            await self._loop.sock_sendall(self._socket, frame)
        if len(answer.body):
            await self._loop.sock_sendall(self._socket, answer.body)

    async def _send_files(self, frame: bytes, files: Sequence[int]) -> int:
        while True:
            try:
                return socket.send_fds(self._socket, [frame], files)
            except BlockingIOError:
                await self._writable()

    async def _writable(self) -> None:
        ready = self._loop.create_future()

        def set_ready() -> None:
            self._loop.remove_writer(self._socket)
            ready.set_result(None)

        self._loop.add_writer(self._socket, set_ready)
        try:
            await ready
        finally:
            self._loop.remove_writer(self._socket)

    def close(self) -> None:
        self._socket.close()
        if not self.ended.done():
            self.ended.set_result(None)


Handle = Callable[[Connection, dict[str, Any]], Awaitable[Answer]]


def refusal(problem: DataError) -> Answer:
    return Answer({"ok": False, "code": type(problem).__name__.lower(), "message": str(problem)})


async def converse(sock: socket.socket, handle: Handle, first_within: float | None = None) -> None:
    """Answer one connection's requests in order until it ends. Who says nothing at all is not waited for."""
    sock.setblocking(False)
    connection = Connection(sock)
    try:
        async with asyncio.timeout(first_within):
            request = await connection.receive()
        while request is not None:
            try:
                answer = await handle(connection, request)
            except DataError as problem:
                answer = refusal(problem)
            except OSError as problem:
                answer = refusal(Unreachable(f"the agent could not do it: {problem}; see to its node's disk"))
            if request.get("quiet") is True:
                answer.close()
            else:
                await connection.send(answer)
            request = await connection.receive()
    except BadFrame as problem:
        with suppress(OSError):
            await connection.send(refusal(Refused(f"the connection ends: {problem}")))
    except (OSError, TimeoutError):
        pass
    finally:
        connection.close()


class Door:
    """A listening Unix socket and its conversations."""

    def __init__(self, path: Path, mode: int, handle: Handle, first_within: float | None = None):
        self._path = path
        self._handle = handle
        self._first_within = first_within
        self._talks: set[asyncio.Task[None]] = set()
        self._socket = _listening(path, mode)
        self._task = asyncio.create_task(self._accept())

    async def _accept(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                sock, _ = await loop.sock_accept(self._socket)
            except OSError:  # out of files: those who are here will leave some
                await asyncio.sleep(0.1)
                continue
            talk = asyncio.create_task(converse(sock, self._handle, self._first_within))
            self._talks.add(talk)
            talk.add_done_callback(self._talks.discard)

    async def close(self) -> None:
        tasks = [self._task, *self._talks]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._socket.close()


def _listening(path: Path, mode: int) -> socket.socket:
    """In place of what a dead agent left, in one step; nobody can connect before the mode is set."""
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = path.with_name(f".{path.name}.{os.getpid()}")
    fresh.unlink(missing_ok=True)
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
    try:
        sock.bind(str(fresh))
        fresh.chmod(mode)
        sock.listen(1024)
        fresh.rename(path)
    except OSError as problem:
        sock.close()
        raise Refused(
            f"cannot listen at {path}: {problem}; a path of at most 90 characters in a folder of one's own"
        ) from None
    sock.setblocking(False)
    return sock
