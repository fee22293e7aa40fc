"""Requests over kept connections, to a server in the same process that does what the test says."""

from __future__ import annotations

import asyncio
import contextlib
import gzip
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from typing import Any

import pytest

from weft.backends.kubernetes import connections as module
from weft.backends.kubernetes.connections import Connections, Reply, Unanswered

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
        inside: set[asyncio.Task[None]] = set()

        async def enter(*ends: Any) -> None:
            inside.add(asyncio.current_task())  # type: ignore[arg-type]
            await door.enter(*ends)

        server = await asyncio.start_server(enter, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        connections = Connections(f"http://127.0.0.1:{port}/behind", None, most, patience)
        try:
            await story(connections, door)
        finally:
            connections.close()
            server.close()
            if inside:
                await asyncio.wait(inside)

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
        with pytest.raises(Unanswered):
            await connections.ask("POST", "/", {}, b"badly")
        assert (await connections.ask("POST", "/", {}, b"well")).body == b"well"

    told(badly, story, most=1)


def test_an_answer_that_comes_too_late_is_not_taken_for_the_next_one() -> None:
    async def late(asked: bytes, writer: asyncio.StreamWriter) -> None:
        if asked.endswith(b"late"):
            await asyncio.sleep(0.1)
        await well(asked, writer)

    async def story(connections: Connections, door: Door) -> None:
        with pytest.raises(Unanswered, match="within"):
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
        with pytest.raises(Unanswered):
            await connections.ask("GET", "/", {}, b"")

    asyncio.run(story())


async def read(reply: Reply) -> list[bytes]:
    return [chunk async for chunk in reply.chunks()]


class TestAnswersThatAreReadAsTheyCome:
    def test_each_piece_when_it_comes(self) -> None:
        go_on = asyncio.Event()

        async def slowly(asked: bytes, writer: asyncio.StreamWriter) -> None:
            writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\none\r\n")
            await go_on.wait()
            writer.write(b"3\r\ntwo\r\n0\r\n\r\n")

        async def story(connections: Connections, door: Door) -> None:
            async with connections.stream("GET", "/x", {"A": "b"}) as reply:
                assert reply.status == 200
                chunks = reply.chunks()
                assert await anext(chunks) == b"one"
                go_on.set()
                assert await anext(chunks) == b"two"
                with pytest.raises(StopAsyncIteration):
                    await anext(chunks)

        told(slowly, story)

    def test_many_at_once_beside_all_requests_that_are_allowed(self) -> None:
        ends: list[asyncio.StreamWriter] = []

        async def lasting(asked: bytes, writer: asyncio.StreamWriter) -> None:
            if b"/watch" in asked:
                writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
                ends.append(writer)
            else:
                await well(asked, writer)

        async def story(connections: Connections, door: Door) -> None:
            async with AsyncExitStack() as stack:
                for _ in range(5):
                    await stack.enter_async_context(connections.stream("GET", "/watch", {}))
                assert (await connections.ask("POST", "/", {}, b"beside")).body == b"beside"
            assert len(ends) == 5

        told(lasting, story, most=1)

    def test_a_connection_is_used_again_once_all_was_read_and_not_if_it_was_left(self) -> None:
        async def story(connections: Connections, door: Door) -> None:
            async with connections.stream("PUT", "/", {}, b"all of it") as reply:
                assert await reply.read() == b"all of it"
            assert (await connections.ask("POST", "/", {}, b"next")).body == b"next"
            assert door.connections == 1

        told(well, story)

        async def endless(asked: bytes, writer: asyncio.StreamWriter) -> None:
            if b"/watch" in asked:
                writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\none\r\n")
            else:
                await well(asked, writer)

        async def left(connections: Connections, door: Door) -> None:
            async with connections.stream("GET", "/watch", {}):
                pass
            assert (await connections.ask("POST", "/", {}, b"next")).body == b"next"
            assert door.connections == 2

        told(endless, left)

    def test_who_does_not_read_makes_the_other_side_wait_and_gets_all_of_it_in_the_end(self) -> None:
        size = 64 << 20
        sent = 0

        async def gushing(asked: bytes, writer: asyncio.StreamWriter) -> None:
            nonlocal sent
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % size)
            while sent < size:
                writer.write(bytes(1 << 20))
                await writer.drain()
                sent += 1 << 20

        async def story(connections: Connections, door: Door) -> None:
            async with connections.stream("GET", "/", {}) as reply:
                before = -1
                while before != sent:
                    before = sent
                    await asyncio.sleep(0.05)
                assert sent < size / 2, "it is all here already"
                assert sum(map(len, await read(reply))) == size

        told(gushing, story)

    @pytest.mark.parametrize("broken", [b"", b"good morning\r\n\r\n"])
    def test_one_that_does_not_begin(self, broken: bytes) -> None:
        async def badly(asked: bytes, writer: asyncio.StreamWriter) -> None:
            writer.write(broken)
            writer.close()

        async def story(connections: Connections, door: Door) -> None:
            with pytest.raises(Unanswered):
                async with connections.stream("GET", "/", {}):
                    pass

        told(badly, story)

    def test_one_that_breaks_off_is_an_error_after_what_came(self) -> None:
        async def badly(asked: bytes, writer: asyncio.StreamWriter) -> None:
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nfour")
            writer.close()

        async def story(connections: Connections, door: Door) -> None:
            async with connections.stream("GET", "/", {}) as reply:
                chunks = reply.chunks()
                assert await anext(chunks) == b"four"
                with pytest.raises(Unanswered):
                    await anext(chunks)

        told(badly, story)

    def test_one_that_says_nothing_any_more_is_given_up(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(module, "SILENCE", 0.05)

        async def silent(asked: bytes, writer: asyncio.StreamWriter) -> None:
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nfour")

        async def story(connections: Connections, door: Door) -> None:
            async with connections.stream("GET", "/", {}) as reply:
                with pytest.raises(Unanswered, match=r"within 0\.05 s"):
                    await read(reply)

        told(silent, story)


async def pieces(count: int, size: int) -> AsyncIterator[bytes]:
    for _ in range(count):
        yield bytes(size)


class TestWhatIsSentPieceByPiece:
    def test_it_arrives(self) -> None:
        async def story(connections: Connections, door: Door) -> None:
            async with connections.stream("PUT", "/", {}, pieces(40, 1 << 20), 40 << 20) as reply:
                assert await reply.read() == bytes(40 << 20)
            async with connections.stream("PUT", "/", {}, b"and again") as reply:
                assert await reply.read() == b"and again"
            assert door.connections == 1

        told(well, story)

    def test_who_says_no_before_all_has_come_is_heard_and_that_connection_is_not_used_again(self) -> None:
        taken = 0

        async def refusing(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            head = await reader.readuntil(b"\r\n\r\n")
            if b"/full" in head:
                writer.write(b"HTTP/1.1 507 Insufficient Storage\r\nContent-Length: 4\r\n\r\nfull")
            else:
                writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
            with contextlib.suppress(ConnectionError):
                while await reader.read(1 << 16):  # until the other side has closed it
                    pass
            writer.close()

        async def gently() -> AsyncIterator[bytes]:
            nonlocal taken
            async for piece in pieces(1000, 1 << 16):
                taken += 1
                yield piece
                await asyncio.sleep(0.001)

        async def story(connections: Connections, door: Door) -> None:
            door.enter = refusing  # type: ignore[method-assign]
            async with connections.stream("PUT", "/full", {}, gently(), 1000 << 16) as reply:
                assert (reply.status, await reply.read()) == (507, b"full")
            assert taken < 1000
            assert (await connections.ask("GET", "/", {}, b"")).body == b"ok"

        told(well, story)
