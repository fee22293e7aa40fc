"""Several tasks' logs as one: merged by time, read once or followed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any

from weft.backends.api import LogLine, TaskLog
from weft.server.streams import Message

POLL = 0.05
CHUNK = 1 << 18


def read_logs(
    logs: Mapping[str, TaskLog], offset: int, limit: int, tail: int | None, final: bool
) -> tuple[list[dict[str, Any]], dict[str, int]]:
    """Lines of every task from an offset on, or the last ones, and where each goes on."""
    lines: list[LogLine] = []
    after = {}
    for task, log in logs.items():
        if tail is not None:
            found, after[task] = log.tail(tail, final=final)
        else:
            found, after[task] = log.lines(offset, limit, final=final)
        lines += found
    merged = sorted(lines, key=lambda line: (line.time, line.task, line.offset))
    if tail is not None:
        merged = merged[-tail:] if tail else []
    return [_dump(line) for line in merged], after


class LogFollower:
    """Sends what is there, then what comes, until the job is idle and all is sent."""

    def __init__(self, logs: Mapping[str, TaskLog], offset: int, tail: int | None, idle: Callable[[], bool]):
        self._logs = logs
        self._offsets = dict.fromkeys(logs, offset)
        self._tail = tail
        self._idle = idle

    async def messages(self) -> AsyncIterator[Message]:
        if self._tail is not None:
            lines, self._offsets = await asyncio.to_thread(
                read_logs, self._logs, 0, CHUNK, self._tail, self._idle()
            )
            yield Message("lines", {"items": lines})
        while True:
            idle = self._idle()
            lines = await asyncio.to_thread(self._next, idle)  # a chunk of short lines takes 60 ms to cut up
            if lines:
                yield Message("lines", {"items": lines})
            elif idle:
                yield Message("end", {})
                return
            await asyncio.sleep(POLL if not idle else 0)

    def _next(self, final: bool) -> list[dict[str, Any]]:
        found: list[tuple[float, dict[str, Any]]] = []
        for task, log in self._logs.items():
            offset = self._offsets[task]
            lines, after = log.lines(offset, CHUNK, final=final)
            if lines and lines[0].offset > offset:
                gone = lines[0].offset - offset
                note = {
                    "task": task,
                    "offset": offset,
                    "time": lines[0].time,
                    "text": f"[weft: {gone} bytes rotated away]",
                }
                found.append((lines[0].time, note))
            found += [(line.time, _dump(line)) for line in lines]
            self._offsets[task] = after
        found.sort(key=lambda pair: pair[0])
        return [line for _, line in found]


def _dump(line: LogLine) -> dict[str, Any]:
    return {"task": line.task, "offset": line.offset, "time": line.time, "text": line.text}
