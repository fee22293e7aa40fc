"""Requests over kept connections, to a server in the same process that does what the test says."""

from __future__ import annotations

import asyncio
import gzip
from collections.abc import Awaitable, Callable

import pytest

from weft.backends.kubernetes.connections import Connections

Answering = Callable[[bytes, asyncio.StreamWriter], Awaitable[None]]


class Door:
    """A server; knows how many came, and what they asked."""

    def __init__(self, answering: Answering):
        self.answering = answering
        self.connections = 0
        self.asked: list[bytes] = []

    async def enter(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                length = int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0])
                self.asked.append(head + await reader.readexactly(length))
                await self.answering(self.asked[-1], writer)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()


def told(
    answering: Answering,
    story: Callable[[Connections, Door], Awaitable[None]],
    most: int = 2,
    patience: float = 5.0,
) -> None:
    async def whole() -> None:
        door = Door(answering)
        server = await asyncio.start_server(door.enter, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        connections = Connections(f"http://127.0.0.1:{port}/behind", None, most, patience)
        try:
            await story(connections, door)
        finally:
            connections.close()
            server.close()

    asyncio.run(whole())


async def well(asked: bytes, writer: asyncio.StreamWriter) -> None:
    body = asked.rpartition(b"\r\n\r\n")[2]
    writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(body) + body)


def test_a_connection_is_used_again() -> None:
    async def story(connections: Connections, door: Door) -> None:
        for text in (b"one", b"two", b""):
            answer = await connections.ask("POST", "/x", {"A": "b"}, text)
            assert (answer.status, answer.body) == (200, text)
        assert door.connections == 1
        assert door.asked[0].startswith(b"POST /behind/x HTTP/1.1\r\nHost: 127.0.0.1:")
        assert b"\r\nA: b\r\n" in door.asked[0]

    told(well, story)


def test_no_more_connections_than_allowed_and_everybody_gets_their_own_answer() -> None:
    async def slowly(asked: bytes, writer: asyncio.StreamWriter) -> None:
        await asyncio.sleep(0.001)
        await well(asked, writer)

    async def story(connections: Connections, door: Door) -> None:
        texts = [b"%d" % n for n in range(50)]
        answers = await asyncio.gather(*(connections.ask("PUT", "/", {}, text) for text in texts))
        assert [answer.body for answer in answers] == texts
        assert door.connections == 2

    told(slowly, story)


def test_answers_in_pieces_in_chunks_and_packed() -> None:
    packed = gzip.compress(b"a long list")

    async def oddly(asked: bytes, writer: asyncio.StreamWriter) -> None:
        head = b"HTTP/1.1 404 Not Found\r\nContent-Encoding: gzip\r\nTransfer-Encoding: chunked\r\n\r\n"
        for part in (head[:20], head[20:], b"5\r\n" + packed[:5] + b"\r\n"):
            writer.write(part)
            await writer.drain()
            await asyncio.sleep(0.005)
        writer.write(b"%x\r\n" % len(packed[5:]) + packed[5:] + b"\r\n0\r\n\r\n")

    async def story(connections: Connections, door: Door) -> None:
        for _ in range(2):
            answer = await connections.ask("GET", "/", {}, b"")
            assert (answer.status, answer.body) == (404, b"a long list")
        assert door.connections == 1

    told(oddly, story)


def test_a_connection_that_the_server_ends_is_not_used_again() -> None:
    async def once(asked: bytes, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\nok")
        writer.close()

    async def story(connections: Connections, door: Door) -> None:
        for number in (1, 2, 3):
            assert (await connections.ask("GET", "/", {}, b"")).body == b"ok"
            assert door.connections == number

    told(once, story)


def test_a_connection_that_was_closed_while_nobody_used_it_is_not_used_again() -> None:
    writers: list[asyncio.StreamWriter] = []

    async def remembered(asked: bytes, writer: asyncio.StreamWriter) -> None:
        writers.append(writer)
        await well(asked, writer)

    async def story(connections: Connections, door: Door) -> None:
        await connections.ask("GET", "/", {}, b"")
        writers[0].close()
        await asyncio.sleep(0.02)
        await connections.ask("GET", "/", {}, b"")
        assert door.connections == 2

    told(remembered, story)


@pytest.mark.parametrize("broken", [b"", b"HTTP/1.1 200 OK\r\nContent-Le", b"good morning\r\n\r\n"])
def test_what_breaks_off_or_is_no_answer_is_an_error_for_whoever_asked_and_nobody_else(broken: bytes) -> None:
    async def badly(asked: bytes, writer: asyncio.StreamWriter) -> None:
        if asked.endswith(b"well"):
            await well(asked, writer)
        else:
            writer.write(broken)
            writer.close()

    async def story(connections: Connections, door: Door) -> None:
        with pytest.raises(OSError):
            await connections.ask("POST", "/", {}, b"badly")
        assert (await connections.ask("POST", "/", {}, b"well")).body == b"well"

    told(badly, story, most=1)


def test_an_answer_that_comes_too_late_is_not_taken_for_the_next_one() -> None:
    async def late(asked: bytes, writer: asyncio.StreamWriter) -> None:
        if asked.endswith(b"late"):
            await asyncio.sleep(0.1)
        await well(asked, writer)

    async def story(connections: Connections, door: Door) -> None:
        with pytest.raises(TimeoutError):
            await connections.ask("POST", "/", {}, b"late")
        asking = asyncio.ensure_future(connections.ask("POST", "/", {}, b"late"))
        await asyncio.sleep(0.01)
        asking.cancel()
        await asyncio.wait({asking})
        for _ in range(3):
            assert (await connections.ask("POST", "/", {}, b"next")).body == b"next"

    told(late, story, most=1, patience=0.05)


def test_nobody_is_there() -> None:
    async def story() -> None:
        connections = Connections("http://127.0.0.1:1", None, 1, 1)
        with pytest.raises(OSError):
            await connections.ask("GET", "/", {}, b"")

    asyncio.run(story())
