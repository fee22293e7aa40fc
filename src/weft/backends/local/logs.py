"""Reading the logs that supervisors write: from any offset, by line, with the time each was written."""

from __future__ import annotations

import os
import re
from bisect import bisect_right
from dataclasses import dataclass

from weft.runtime.regularfile import open_to_read

LONGEST_LINE = 1 << 16
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
