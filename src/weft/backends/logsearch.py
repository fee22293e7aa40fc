"""What a person looks for in a log: words, or what went wrong."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

LINE_END = re.compile(rb"\r\n|\n|\r")
_ERROR = re.compile(
    rb"\b(?:ERROR|CRITICAL|FATAL|PANIC)\b|\b(?:panic|error):|(?:Error|Exception):|Traceback \(most recent"
)
_ERROR_WORDS = (
    b"ERROR", b"CRITICAL", b"FATAL", b"PANIC", b"panic:", b"rror:", b"Exception:", b"Traceback (most recent",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Wanted:
    """What to look for in a log: words in any case, lines that tell of an error, or both."""

    words: str = ""
    errors: bool = False

    def spans(self, data: bytes, base: int) -> Iterator[tuple[int, int]]:
        """The lines that match, as places from `base` on."""
        if self.errors and not any(word in data for word in _ERROR_WORDS):
            return  # looking for plain words is a hundred times as fast as the expression
        low, words = data.lower(), self.words.lower().encode()
        at = 0
        while at < len(data):
            if words:
                hit = low.find(words, at)
            else:
                match = _ERROR.search(data, at)
                hit = match.start() if match else -1
            if hit < 0:
                return
            start = max(data.rfind(b"\n", 0, hit), data.rfind(b"\r", 0, hit)) + 1
            end = LINE_END.search(data, hit)
            stop = end.start() if end else len(data)
            if not words or not self.errors or _ERROR.search(data[start:stop]):
                yield base + start, base + stop
            at = end.end() if end else len(data)
