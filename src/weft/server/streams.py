"""Server-sent events: one JSON line a message, a comment now and then to keep the line open."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

from pydantic_core import to_json
from starlette.responses import StreamingResponse

KEEP_ALIVE = 15.0


@dataclass(frozen=True, slots=True)
class Message:
    event: str
    data: Any
    id: str | None = None

    def encode(self) -> bytes:
        head = f"id: {self.id}\n" if self.id is not None else ""
        return f"{head}event: {self.event}\ndata: ".encode() + to_json(self.data) + b"\n\n"


def stream(messages: AsyncIterator[Message]) -> StreamingResponse:
    return StreamingResponse(
        _with_keep_alive(messages),
        media_type="text/event-stream",
        headers={"Cache-Control": "no-store", "X-Accel-Buffering": "no"},
    )


async def _with_keep_alive(messages: AsyncIterator[Message]) -> AsyncIterator[bytes]:
    yield b": weft\n\n"
    pending: asyncio.Task[Message] | None = None
    try:
        while True:
            if pending is None:
                pending = asyncio.ensure_future(anext(messages))
            done, _ = await asyncio.wait({pending}, timeout=KEEP_ALIVE)
            if not done:
                yield b": keep-alive\n\n"
                continue
            finished, pending = pending, None
            try:
                yield finished.result().encode()
            except StopAsyncIteration:
                return
    finally:
        if pending is not None:
            pending.cancel()
