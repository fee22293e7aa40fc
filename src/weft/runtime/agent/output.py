"""What a task prints: one file that only grows, freed from its beginning, and read by several at their own pace."""

from __future__ import annotations

import errno
import os
import threading
import time
from bisect import bisect_right

from weft.runtime.regularfile import open_to_append, open_to_read

BEHIND = 8 << 20
"""Bytes that stay after they were sent: whoever read them may have died before they were safe."""
STEP = 1 << 20
"""The least that is freed at once."""
LINE = 1 << 16
MARKS = 4096
TOGETHER = 0.5
"""Seconds that one piece of output may span."""


class Output:
    """The file, and when each part of it was first seen. Offsets count from the task's first byte for ever."""

    def __init__(self, path: str):
        self.lock = threading.RLock()
        self._writable = open_to_append(path)
        self._file = open_to_read(path)
        self._fd = self._file.fileno()
        self._size = 0
        self._marks: list[tuple[int, float]] = []
        self.look()
        try:
            self.floor = os.lseek(self._fd, 0, os.SEEK_DATA)
        except OSError as problem:  # all of it was freed, or there is none
            self.floor = self._size if problem.errno == errno.ENXIO else 0

    def close(self) -> None:
        self._file.close()
        os.close(self._writable)

    def look(self) -> int:
        """Its size; what is new was seen now."""
        with self.lock:
            size = os.fstat(self._fd).st_size
            if size > self._size:
                self._marks.append((self._size, time.time()))
                if len(self._marks) > MARKS:
                    self._marks = self._marks[::2]
                self._size = size
            return size

    def read(self, offset: int, most: int) -> bytes:
        """Some bytes from there; none if they were freed."""
        with self.lock:
            return os.pread(self._fd, most, offset) if offset >= self.floor else b""

    def seen(self, offset: int) -> tuple[float, int]:
        """When this byte was first seen, and where the bytes begin that were seen clearly later."""
        with self.lock:
            at = max(bisect_right(self._marks, offset, key=lambda mark: mark[0]) - 1, 0)
            if not self._marks:
                return time.time(), self._size
            first = self._marks[at][1]
            for begin, when in self._marks[at + 1 :]:
                if when - first > TOGETHER:
                    return first, begin
            return first, self._size

    def free(self, sent: int) -> None:
        """Give the disk back what lies far enough behind what was sent."""
        floor = (sent - BEHIND) // STEP * STEP
        with self.lock:
            if floor <= self.floor:
                return
            _punch(self._writable, self.floor, floor)
            self.floor = floor


class Follower:
    """Reads the output on from an offset, at most `rate` bytes a second in the long run, and at first `kept` at once.

    One that is more than `kept` bytes behind leaves out the oldest of them, an eighth more than it must: otherwise a
    task that prints too fast would be shown in crumbs.
    """

    def __init__(self, output: Output, position: int, kept: int, rate: float | None = None):
        self.position = position
        self.left_out = 0
        self._output = output
        self._kept = kept
        self._rate = rate
        self._allowance = float(kept)
        self._refilled = time.monotonic()

    def take(self, most: int, hurry: bool = False) -> tuple[int, float, bytes]:
        """The next bytes with their offset and the time at which they were printed. None while it must wait, unless
        there is a `hurry`."""
        output = self._output
        with output.lock:
            size = output.look()
            self._leave_out(size)
            when, until = output.seen(self.position)
            allowed = min(most, until - self.position)
            if self._rate is not None and not hurry:
                allowed = min(allowed, self._allowed(self._rate))
            data = output.read(self.position, allowed) if allowed > 0 else b""
        offset = self.position
        self.position += len(data)
        self._allowance = max(self._allowance - len(data), 0.0)
        return offset, when, data

    def _leave_out(self, size: int) -> None:
        oldest = self._output.floor
        if size - self.position > self._kept:
            oldest = max(oldest, size - self._kept + self._kept // 8)
        if self.position < oldest:
            before = max(oldest - 1, self._output.floor)
            line = self._output.read(before, LINE).find(b"\n")
            oldest = max(oldest, before + line + 1)
            self.left_out += oldest - self.position
            self.position = oldest

    def _allowed(self, rate: float) -> int:
        now = time.monotonic()
        self._allowance = min(self._allowance + (now - self._refilled) * rate, float(self._kept))
        self._refilled = now
        return int(self._allowance)


def _punch(fd: int, begin: int, end: int) -> None:
    """FALLOC_FL_PUNCH_HOLE. A file system that cannot do it keeps the bytes."""
    import ctypes

    keep_size, punch_hole = 1, 2
    try:
        fallocate = ctypes.CDLL(None, use_errno=True).fallocate64
    except (OSError, AttributeError):
        return
    fallocate.argtypes = (ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64)
    fallocate(fd, keep_size | punch_hole, begin, end - begin)
