"""Nodes that divide a dataset among them: each part has one owner, and the others read it there.

The owner follows from the names of the nodes alone (rendezvous hashing): all agree without talking, and when a node
joins or leaves only its parts move. A peer that does not answer is left alone for a while; the origin is always there.
"""

from __future__ import annotations

import asyncio
import hmac
import os
import re
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from urllib.parse import parse_qs, urlsplit

from blake3 import blake3

from weft.data.agent.remote import Remote
from weft.data.cache.books import Books
from weft.data.cache.versions import Part
from weft.data.errors import DataError, Unreachable

AVOIDED = 5.0
"""Seconds in which nobody asks a peer that did not answer."""
PATIENCE = 10.0
LARGEST_HEAD = 16 << 10
RANGE = re.compile(rb"bytes=(\d{1,18})-(\d{1,18})")


def owner(digest: str, nodes: Sequence[str]) -> str:
    """The node to which a part belongs."""
    return max(nodes, key=lambda node: (blake3(f"{node}\0{digest}".encode()).digest(), node))


class Peers:
    """The other nodes, as this one reaches them."""

    def __init__(self, node: str, key: str, books: Books, now: Callable[[], float] = time.monotonic):
        self.node = node
        self._key = key
        self._books = books
        self._now = now
        self._remotes: dict[str, Remote] = {}
        self._avoided: dict[str, float] = {}
        self.refresh()

    def refresh(self) -> None:
        for name, address in self._books.ask("select node, address from peers"):
            known = self._remotes.get(name)
            if known is None or known.base != f"http://{address}":
                self._remotes[name] = Remote(f"http://{address}", lambda: self._key, PATIENCE)
                self._avoided.pop(name, None)

    def introduce(self, addresses: dict[str, str]) -> None:
        """Where nodes are; kept for the next agent."""
        for address in addresses.values():
            Remote(f"http://{address}", lambda: "")
        with self._books.writing() as db:
            db.executemany("insert or replace into peers values (?, ?)", addresses.items())
        self.refresh()

    def close(self) -> None:
        for remote in self._remotes.values():
            remote.close()

    @property
    def addresses(self) -> dict[str, str]:
        return {name: remote.base for name, remote in sorted(self._remotes.items())}

    def owns(self, digest: str, share: Sequence[str] | None) -> bool:
        return not share or owner(digest, share) == self.node

    def read(
        self, version: str, part: Part, share: Sequence[str], offset: int, length: int
    ) -> Iterator[bytes]:
        """From the part's owner, or Unreachable at once if it did not answer a moment ago."""
        name = owner(part.digest, share)
        remote = self._remotes.get(name)
        if remote is None:
            raise Unreachable(f"nobody said where node {name} is")
        if self._now() < self._avoided.get(name, 0):
            raise Unreachable(f"node {name} did not answer a moment ago")
        try:
            yield from remote.read(f"/parts/{part.digest}?version={version}", offset, length, part.size)
        except Unreachable:
            self._avoided[name] = self._now() + AVOIDED
            raise


Find = Callable[[str, str], Awaitable[int]]
"""An open file of a part (digest) of a version; DataError if there is none."""


class PeerDoor:
    """Answers `GET /parts/DIGEST?version=VERSION` with a range, to those who know the key."""

    def __init__(self, key: str, find: Find):
        self._key = key.encode()
        self._find = find
        self._server: asyncio.Server | None = None
        self._talks: set[asyncio.Task[object] | None] = set()
        self.address = ""

    async def listen(self, address: str) -> None:
        host, _, port = address.rpartition(":")
        self._server = await asyncio.start_server(
            self._converse, host.strip("[]") or None, int(port), limit=LARGEST_HEAD
        )
        self.address = "{}:{}".format(*self._server.sockets[0].getsockname()[:2])

    async def close(self) -> None:
        if self._server is not None:
            self._server.close()
        talks = [talk for talk in self._talks if talk is not None]
        for talk in talks:
            talk.cancel()
        await asyncio.gather(*talks, return_exceptions=True)

    async def _converse(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._talks.add(asyncio.current_task())
        try:
            while await self._answer(await reader.readuntil(b"\r\n\r\n"), writer):
                pass
        except (OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError, asyncio.CancelledError):
            pass  # the end of a conversation, however it came
        finally:
            self._talks.discard(asyncio.current_task())
            writer.close()

    async def _answer(self, head: bytes, writer: asyncio.StreamWriter) -> bool:
        """One request; whether another may follow."""
        first, *lines = head.split(b"\r\n")
        headers = {
            name.strip().lower(): value.strip() for name, _, value in (line.partition(b":") for line in lines)
        }
        scheme, _, key = headers.get(b"authorization", b"").partition(b" ")
        if not hmac.compare_digest(key, self._key) or scheme.lower() != b"bearer":
            return await _say(writer, 401, "Unauthorized")
        words = first.split(b" ")
        if len(words) != 3 or words[0] != b"GET" or headers.get(b"content-length", b"0") != b"0":
            return await _say(writer, 400, "Bad Request")
        url = urlsplit(words[1].decode("latin-1"))
        digest = url.path.removeprefix("/parts/")
        try:
            fd = await self._find(parse_qs(url.query).get("version", [""])[0], digest)
        except Unreachable:
            return await _say(writer, 503, "Service Unavailable", ends=False)
        except DataError:
            return await _say(writer, 404, "Not Found", ends=False)
        with os.fdopen(fd, "rb", buffering=0) as file:
            size = os.fstat(fd).st_size
            found = RANGE.fullmatch(headers.get(b"range", b""))
            begin, last = (int(found[1]), int(found[2])) if found else (0, size - 1)
            if not 0 <= begin <= last < size:
                return await _say(writer, 416, "Range Not Satisfiable", ends=False)
            length = last - begin + 1
            writer.write(
                f"HTTP/1.1 206 Partial Content\r\nContent-Length: {length}\r\n"
                f"Content-Range: bytes {begin}-{last}/{size}\r\n\r\n".encode()
            )
            await writer.drain()
            await asyncio.get_running_loop().sendfile(writer.transport, file, begin, length)
        return True


async def _say(writer: asyncio.StreamWriter, status: int, reason: str, *, ends: bool = True) -> bool:
    more = "Connection: close\r\n" if ends else ""
    writer.write(f"HTTP/1.1 {status} {reason}\r\nContent-Length: 0\r\n{more}\r\n".encode())
    await writer.drain()
    return not ends
