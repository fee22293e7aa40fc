"""Reading the logs that supervisors write: from any offset, by line, with the time each was written."""

from __future__ import annotations

import os
import re
from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from dataclasses import dataclass

from weft.backends.logsearch import LINE_END, Wanted
from weft.runtime.regularfile import open_to_read

LONGEST_LINE = 1 << 16
PIECE = 1 << 20
"""Bytes that a search looks through or a download holds at a time."""
_LINE = re.compile(rb"([^\r\n]*)(\r\n|\n|\r)")


@dataclass(frozen=True, slots=True)
class Line:
    task: str
    offset: int
    time: float
    text: str


class TaskLogReader:
    """One task's log, which may be growing and losing its oldest segments at the same time."""

    def __init__(self, folder: str, task: str):
        self.folder = folder
        self.task = task

    def segments(self) -> list[int]:
        """The first offsets of the segments that are kept, in order."""
        try:
            names = os.listdir(self.folder)  # noqa: PTH208
        except OSError:
            return []
        return sorted(int(name[4:]) for name in names if name.startswith("log.") and name[4:].isdigit())

    def newest(self) -> str | None:
        """The file of the segment that is being written."""
        segments = self.segments()
        return f"{self.folder}/log.{segments[-1]:015d}" if segments else None

    def end(self) -> int:
        segments = self.segments()
        return segments[-1] + self._size(segments[-1]) if segments else 0

    def start(self) -> int:
        segments = self.segments()
        return segments[0] if segments else 0

    def lines(self, offset: int, limit: int, *, final: bool = False) -> tuple[list[Line], int]:
        """Whole lines from an offset on, about `limit` bytes of them, and the offset after the last.

        An offset that is no longer kept becomes the first one that is. With `final`, what follows the
        last line end counts as a line too: nothing more will come.
        """
        data, offset, at_end = self._read(offset, limit)
        if not at_end and b"\n" not in data and b"\r" not in data[:-1]:  # a line longer than was asked for
            data, offset, at_end = self._read(offset, max(limit, LONGEST_LINE))
        times = _Times(self.folder, self.segments())
        found = []
        position = 0
        whole = max(data.rfind(b"\n"), data.rfind(b"\r")) + 1
        for match in _LINE.finditer(data, 0, whole):  # further on it would look for an end from every byte
            if match.end() == len(data) and match[2] == b"\r" and not (final and at_end):
                break  # perhaps half of \r\n
            if match[1] or match[2] != b"\r":
                found.append(self._line(match[1], offset + position, times))
            position = match.end()
        rest = data[position:]
        if rest and ((final and at_end) or len(rest) >= LONGEST_LINE):
            found.append(self._line(rest, offset + position, times))
            position = len(data)
        return found, offset + position

    def tail(self, count: int, *, final: bool = False) -> tuple[list[Line], int]:
        """The last lines, and the offset after them."""
        end = self.end()
        size = max(1 << 14, count * 160)
        while True:
            begin = max(self.start(), end - size)
            lines, after = self.lines(begin, end - begin + 1, final=final)
            if begin > self.start():
                lines = lines[1:]  # may have begun before
            if len(lines) >= count or begin <= self.start() or size > 64 << 20:
                return lines[-count:] if count else [], after
            size *= 4

    def before(self, offset: int, count: int) -> list[Line]:
        """The last lines that begin before an offset."""
        size = max(1 << 14, count * 160)
        while count:
            begin = max(self.start(), offset - size)
            lines, _ = self.lines(begin, offset - begin + 1, final=True)
            if begin > self.start():
                lines = lines[1:]  # may have begun before
            lines = [line for line in lines if line.offset < offset]
            if len(lines) >= count or begin <= self.start() or size > 64 << 20:
                return lines[-count:]
            size *= 4
        return []

    def at(self, time: float) -> int:
        """Where the lines begin that were written at a time or later."""
        segments = self.segments()
        offset = _Times(self.folder, segments).first(time) if segments else None
        if offset is None:
            return self.end()
        if offset <= segments[0]:
            return segments[0]
        data, begin, _ = self._read(offset - 1, LONGEST_LINE)
        end = LINE_END.search(data)
        return begin + end.end() if end else offset

    def matching(self, wanted: Wanted, begin: int, end: int, *, backward: bool) -> Iterator[Line | int]:
        """Lines from `begin` to `end` that match; between them how far the search is, after each piece of the log."""
        begin, end = max(begin, self.start()), min(end, self.end())
        times = _Times(self.folder, self.segments())
        while begin < end:
            first = max(begin, end - PIECE) if backward else begin
            data, first, _ = self._read(first, min(PIECE, end - first))
            if not data:
                return
            whole = 0
            if backward and first > begin and (start := LINE_END.search(data)) and start.end() < len(data):
                whole = start.end()  # what is before began in the piece before
            last = len(data)
            if (
                not backward
                and first + last < end
                and (cut := max(data.rfind(b"\n"), data.rfind(b"\r"))) >= 0
            ):
                last = cut + 1
            found = [
                self._line(data[a : min(b, a + LONGEST_LINE)], first + a, times)
                for a, b in wanted.spans(data[whole:last], whole)
            ]
            yield from reversed(found) if backward else found
            if backward:
                end = first + whole
                yield end
            else:
                begin = first + last
                yield begin

    def pieces(self) -> Iterator[bytes]:
        """All that is kept, as it was written."""
        offset = self.start()
        while (found := self._read(offset, PIECE))[0]:
            data, offset, _ = found
            offset += len(data)
            yield data

    def runs(self, *, final: bool = False) -> Iterator[tuple[float, bytes]]:
        """Whole lines, those that were written at one moment together, with that moment; much of one moment comes in
        several. What is written meanwhile is left out; `final` is as for `lines`."""
        offset, end = self.start(), self.end()
        times = _Times(self.folder, self.segments())
        rest, begin = b"", offset
        while offset < end:
            data, found, _ = self._read(offset, min(PIECE, end - offset))
            if not data:
                break
            if found != offset:  # rotated away: what began there has no end
                rest, begin = b"", found
            offset = found + len(data)
            data = rest + data
            whole = (
                max(data.rfind(b"\n"), data.rfind(b"\r", 0, -1)) + 1
            )  # a \r at the end may be half of \r\n
            if not whole and len(data) >= LONGEST_LINE:
                whole = len(data)
            yield from _moments(data[:whole], begin, times)
            rest, begin = data[whole:], begin + whole
        if rest and final:
            yield from _moments(rest, begin, times)

    def _line(self, raw: bytes, offset: int, times: _Times) -> Line:
        return Line(self.task, offset, times.at(offset), raw.decode("utf-8", "replace"))

    def _read(self, offset: int, limit: int) -> tuple[bytes, int, bool]:
        segments = self.segments()
        if not segments:
            return b"", offset, True
        offset = max(offset, segments[0])
        index = max(0, bisect_right(segments, offset) - 1)
        pieces: list[bytes] = []
        total = 0
        position = offset
        while index < len(segments) and total < limit:
            try:
                with open_to_read(f"{self.folder}/log.{segments[index]:015d}") as file:
                    file.seek(position - segments[index])
                    piece = file.read(limit - total)
            except OSError:  # rotated away, or not what a log is
                break
            pieces.append(piece)
            total += len(piece)
            position += len(piece)
            if total < limit:
                index += 1
                if index < len(segments) and position != segments[index]:
                    break
        return b"".join(pieces), offset, total < limit

    def _size(self, segment: int) -> int:
        try:
            return os.stat(f"{self.folder}/log.{segment:015d}").st_size  # noqa: PTH116
        except OSError:
            return 0


def _moments(data: bytes, begin: int, times: _Times) -> Iterator[tuple[float, bytes]]:
    """Lines by the moment at which each began."""
    position, time = 0, times.at(begin)
    for mark, moment in times.between(begin, begin + len(data)):
        end = LINE_END.search(data, mark - begin - 1)
        cut = end.end() if end else len(data)
        if cut > position:
            yield time, data[position:cut]
            position = cut
        time = moment
    if position < len(data):
        yield time, data[position:]


class _Times:
    """When the byte at an offset was written, to about 20 ms."""

    def __init__(self, folder: str, segments: list[int]):
        self._folder = folder
        self._segments = segments
        self._loaded: dict[int, tuple[list[int], list[float]]] = {}

    def at(self, offset: int) -> float:
        index = bisect_right(self._segments, offset) - 1
        if index < 0:
            return 0.0
        offsets, times = self._load(self._segments[index])
        place = bisect_right(offsets, offset) - 1
        return times[place] if place >= 0 else (times[0] if times else 0.0)

    def first(self, time: float) -> int | None:
        """The first offset that was written at this time or later."""
        for segment in self._segments:
            offsets, times = self._load(segment)
            if times and times[-1] >= time:
                return offsets[bisect_left(times, time)]
        return None

    def between(self, begin: int, end: int) -> Iterator[tuple[int, float]]:
        """The offsets after `begin` and before `end` from which on another moment counts, with it."""
        first = max(0, bisect_right(self._segments, begin) - 1)
        for segment in self._segments[first : bisect_left(self._segments, end)]:
            offsets, times = self._load(segment)
            for place in range(bisect_right(offsets, begin), bisect_left(offsets, end)):
                yield offsets[place], times[place]

    def _load(self, segment: int) -> tuple[list[int], list[float]]:
        if segment not in self._loaded:
            offsets: list[int] = []
            times: list[float] = []
            try:
                with open_to_read(f"{self._folder}/log.{segment:015d}.index") as file:
                    for line in file:
                        if line.endswith(b"\n"):
                            offset, _, time = line.partition(b" ")
                            offsets.append(int(offset))
                            times.append(float(time))
            except (OSError, ValueError):
                pass
            self._loaded[segment] = (offsets, times)
        return self._loaded[segment]
