"""A task's log on disk, as its supervisor writes it (`backends/logs.py` reads it)."""

from __future__ import annotations

import os

from weft.runtime.regularfile import open_to_append

INDEX_INTERVAL = 0.02


class TaskLog:
    """A task's output in segments named by their first offset; the oldest go when there are too many.

    Beside each segment an index notes (offset, time) pairs, so that the logs of several tasks can be
    merged by time long after they were written. Offsets count from the task's first byte for ever.
    """

    def __init__(self, folder: str, segment: int, keep: int):
        self.folder = folder
        self.segment = segment
        self.keep = keep
        self.dropped = 0
        self._starts: list[int] | None = None
        """Of the segments that there are; looked for when the task first prints: most that are short never do."""
        self._fd = -1
        self._index = -1
        self._indexed = 0.0
        self._start = self._offset = 0

    @property
    def offset(self) -> int:
        """Where the next byte goes."""
        self._find()
        return self._offset

    def _find(self) -> list[int]:
        if self._starts is None:
            names = [n[4:] for n in os.listdir(self.folder) if n.startswith("log.")]
            self._starts = sorted(int(n) for n in names if n.isdigit())
            if self._starts:
                self._open(self._starts[-1])
        return self._starts

    def _open(self, start: int) -> None:
        path = f"{self.folder}/log.{start:015d}"
        fd = open_to_append(path)
        try:
            index = open_to_append(f"{path}.index")
        except OSError:
            os.close(fd)
            raise
        self.close()
        self._fd, self._index, self._start = fd, index, start
        self._offset = start + os.fstat(fd).st_size
        starts = self._find()
        if start not in starts:
            starts.append(start)
        while len(starts) > self.keep:
            old = starts.pop(0)
            for name in (f"log.{old:015d}", f"log.{old:015d}.index"):
                unlink(f"{self.folder}/{name}")

    def write(self, data: bytes, now: float) -> None:
        """Append; what a full disk refuses is dropped and counted, the task never suffers for it."""
        view = memoryview(data)
        try:
            self._find()
            if self._fd < 0 or self._offset - self._start >= self.segment:
                self._open(self._offset)
            if now - self._indexed >= INDEX_INTERVAL:
                os.write(self._index, b"%d %.3f\n" % (self._offset, now))
                self._indexed = now
            while view:
                written = os.write(self._fd, view)
                self._offset += written
                view = view[written:]
        except OSError:  # no room, or the task put something else in its log's place
            self.dropped += len(view)

    def close(self) -> None:
        for fd in (self._fd, self._index):
            if fd >= 0:
                os.close(fd)
        self._fd = self._index = -1


def unlink(path: str) -> None:
    try:
        os.unlink(path)
    except FileNotFoundError:
        pass
