"""Answers leave in one piece."""

from __future__ import annotations

import asyncio
from typing import Any

from weft.server.protocol import Together


class Transport:
    def __init__(self) -> None:
        self.sent: list[Any] = []

    def write(self, data: bytes) -> None:
        self.sent.append(data)

    def close(self) -> None:
        self.sent.append("closed")

    def is_closing(self) -> bool:
        return "closed" in self.sent


def test_what_is_written_in_one_turn_is_sent_at_once() -> None:
    async def story() -> list[Any]:
        transport: Any = Transport()
        together = Together(transport, asyncio.get_running_loop())
        together.write(b"head ")
        together.write(b"body")
        assert transport.sent == []
        await asyncio.sleep(0)
        together.write(b"later")  # as a stream does
        await asyncio.sleep(0)
        return list(transport.sent)

    assert asyncio.run(story()) == [b"head body", b"later"]


def test_nothing_is_lost_when_the_connection_is_closed() -> None:
    async def story() -> tuple[list[Any], bool]:
        transport: Any = Transport()
        together = Together(transport, asyncio.get_running_loop())
        together.write(b"goodbye")
        together.close()
        await asyncio.sleep(0)
        return transport.sent, together.is_closing()

    assert asyncio.run(story()) == ([b"goodbye", "closed"], True)
