"""Server-sent events: one JSON line a message, a comment now and then to keep the line open."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

from pydantic_core import to_json
from starlette.requests import Request
from starlette.responses import StreamingResponse

from weft.model.problems import Problem
from weft.server.operations import Param, Query
from weft.server.problems import ApiProblem

KEEP_ALIVE = 15.0
HEADERS = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
LAST_EVENT = Param(
    "Last-Event-ID", "integer", "A stream goes on after this event: what an EventSource sends to reconnect."
)


NOTHING = {"type": "object", "additionalProperties": False}


def events_of(**kinds: dict[str, Any]) -> dict[str, Any]:
    """The schema of a stream, which is that of each message in it: of what kind it is, and the JSON that it brings."""
    return {
        "oneOf": [
            {
                "type": "object",
                "required": ["event", "data"],
                "additionalProperties": False,
                "properties": {
                    "id": {"type": "string"},
                    "event": {"const": kind},
                    "data": {
                        "type": "string",
                        "contentMediaType": "application/json",
                        "contentSchema": schema,
                    },
                },
            }
            for kind, schema in kinds.items()
        ]
    }


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
        headers=HEADERS,
    )


def begin(request: Request, query: Query) -> int:
    """After which event to go on. An EventSource reconnects with the address it began with, so of the header
    and `after` the later one counts."""
    after: int = query["after"]
    return max(after, last_event(request) or 0)


def last_event(request: Request) -> int | None:
    """The last event that a reader who connects again has seen."""
    text = request.headers.get(LAST_EVENT.name)
    if text is None:
        return None
    try:
        seen: int = LAST_EVENT.parse(text)
        return seen
    except ValueError as error:
        problem = Problem(f"header.{LAST_EVENT.name}", str(error), f'"{text[:80]}"')
        raise ApiProblem(422, "Not valid", str(problem), problems=[problem]) from None


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
