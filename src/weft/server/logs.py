"""Several tasks' logs as one, merged by time: read from any place in either direction, searched, or followed."""

from __future__ import annotations

import asyncio
import heapq
import re
import time
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from operator import itemgetter
from typing import Any

from weft.backends.api import LogLine, TaskLog
from weft.backends.logsearch import Wanted
from weft.server.streams import Message

POLL = 0.05
CHUNK = 1 << 18
PATIENCE = 1.0
"""Seconds that a search may take; then it says how far it is."""

STRAY = re.compile(rb"(?:^|(?<=[\r\n]))\r+")
"""What goes back to the begin of a line that is still empty."""
Logs = Mapping[str, TaskLog]
Place = dict[str, int]
"""Where one is in the merged log: an offset for each task."""


@dataclass(frozen=True, slots=True)
class Page:
    lines: list[LogLine]
    previous: Place | None
    """Before its first line; None: nothing is before it."""
    next: Place

    def document(self) -> dict[str, Any]:
        return {
            "items": [_dump(line) for line in self.lines],
            "previous": self.previous,
            "next": self.next,
        }


def ends(logs: Logs) -> Place:
    return {task: log.end() for task, log in logs.items()}


def from_offset(logs: Logs, offset: int, limit: int, final: bool) -> Page:
    """Lines of every task from an offset on, about `limit` bytes of each."""
    lines: list[LogLine] = []
    after: Place = {}
    for task, log in logs.items():
        found, after[task] = log.lines(offset, limit, final=final)
        lines += found
    return Page(sorted(lines, key=_order), _previous(logs, dict.fromkeys(logs, offset)), after)


def last(logs: Logs, count: int, final: bool) -> Page:
    lines: list[LogLine] = []
    after: Place = {}
    for task, log in logs.items():
        found, after[task] = log.tail(count, final=final)
        lines += found
    merged = sorted(lines, key=_order)[-count:] if count else []
    return Page(merged, _previous(logs, _starts(merged, after)), after)


def before(logs: Logs, place: Place, count: int) -> Page:
    """The last `count` lines before a place."""
    found = (line for task, log in logs.items() for line in log.before(place.get(task, 0), count))
    merged = sorted(found, key=_order)[-count:]
    return Page(merged, _previous(logs, _starts(merged, place)), place)


def after(logs: Logs, place: Place, count: int, final: bool) -> Page:
    """The first `count` lines from a place on."""
    lines: list[LogLine] = []
    beyond: Place = {}
    for task, log in logs.items():
        found, beyond[task] = _first(log, place.get(task, 0), count, final)
        lines += found
    lines.sort(key=_order)
    merged = lines[:count]
    return Page(merged, _previous(logs, place), {**beyond, **_starts(lines[count:], {})})


def _first(log: TaskLog, offset: int, count: int, final: bool) -> tuple[list[LogLine], int]:
    found: list[LogLine] = []
    while len(found) < count:
        lines, beyond = log.lines(offset, max(1 << 14, (count - len(found)) * 80), final=final)
        found += lines
        if beyond == offset:
            break
        offset = beyond
    return found, offset


def _starts(lines: Iterable[LogLine], others: Place) -> Place:
    """Where each task's part of these lines begins."""
    found: Place = {}
    for line in lines:
        found.setdefault(line.task, line.offset)
    return {**others, **found}


def _previous(logs: Logs, place: Place) -> Place | None:
    return place if any(place.get(task, 0) > log.start() for task, log in logs.items()) else None


# ── searching ──


@dataclass(frozen=True, slots=True)
class Found:
    lines: list[tuple[LogLine, Place]]
    """Nearest first, each with its place in the merged log."""
    searched: Place
    """How far; to go on from, if `more`."""
    more: bool

    def document(self) -> dict[str, Any]:
        items = [{**_dump(line), "place": place} for line, place in self.lines]
        return {"items": items, "searched": self.searched, "more": self.more}


def search(logs: Logs, wanted: Wanted, place: Place, count: int, *, backward: bool) -> Found:
    """The nearest `count` lines before or after a place that match."""
    deadline = time.monotonic() + PATIENCE
    lines: list[LogLine] = []
    searched = dict(place)
    more = False
    for task, log in logs.items():
        here = place.get(task, 0)
        begin, end = (0, here) if backward else (here, log.end())
        hits = 0
        for found in log.matching(wanted, begin, end, backward=backward):
            if isinstance(found, int):
                searched[task] = found
                if time.monotonic() > deadline and (log.start() if backward else end) != found:
                    more = True
                    break
                continue
            lines.append(found)
            hits += 1
            if hits == count:
                break
    lines.sort(key=_order, reverse=backward)
    return Found([(line, _place_of(logs, line)) for line in lines[:count]], searched, more)


def _place_of(logs: Logs, line: LogLine) -> Place:
    return {task: line.offset if task == line.task else log.at(line.time) for task, log in logs.items()}


# ── following ──


class LogFollower:
    """Sends what is there, then what comes, until the job is idle and all is sent."""

    def __init__(self, logs: Logs, place: Place, tail: int | None, idle: Callable[[], bool]):
        self._logs = logs
        self._offsets = {task: place.get(task, 0) for task in logs}
        self._tail = tail
        self._idle = idle

    async def messages(self) -> AsyncIterator[Message]:
        if self._tail is not None:
            page = await asyncio.to_thread(last, self._logs, self._tail, self._idle())
            self._offsets = page.next
            yield Message("lines", page.document())
        while True:
            idle = self._idle()
            lines = await asyncio.to_thread(self._next, idle)  # a chunk of short lines takes 60 ms to cut up
            if lines:
                yield Message("lines", {"items": lines, "next": dict(self._offsets)})
            elif idle:
                yield Message("end", {})
                return
            await asyncio.sleep(POLL if not idle else 0)

    def _next(self, final: bool) -> list[dict[str, Any]]:
        found: list[tuple[float, dict[str, Any]]] = []
        for task, log in self._logs.items():
            offset = self._offsets[task]
            lines, beyond = log.lines(offset, CHUNK, final=final)
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
            self._offsets[task] = beyond
        found.sort(key=lambda pair: pair[0])
        return [line for _, line in found]


def as_text(logs: Logs, final: bool) -> Iterator[bytes]:
    """One task's log as it was written; of several the lines, each beginning with whose it is."""
    if len(logs) == 1:
        for log in logs.values():
            yield from log.pieces()
        return
    whole = bytearray()
    for _, task, run in heapq.merge(*(_runs(*pair, final) for pair in logs.items()), key=itemgetter(0, 1)):
        whole += _marked(run, f"[{task}] ".encode())
        if len(whole) >= CHUNK:
            yield bytes(whole)
            whole.clear()
    yield bytes(whole)


def _runs(task: str, log: TaskLog, final: bool) -> Iterator[tuple[float, str, bytes]]:
    return ((time, task, run) for time, run in log.runs(final=final))


def _marked(run: bytes, mark: bytes) -> bytes:
    """Its lines, each with a mark before it and a line feed after it."""
    if b"\r" in run:
        run = STRAY.sub(b"", run.replace(b"\r\n", b"\n")).replace(b"\r", b"\n")
    return mark + run.removesuffix(b"\n").replace(b"\n", b"\n" + mark) + b"\n" if run else b""


def _order(line: LogLine) -> tuple[float, str, int]:
    return line.time, line.task, line.offset


def _dump(line: LogLine) -> dict[str, Any]:
    return {"task": line.task, "offset": line.offset, "time": line.time, "text": line.text}
