"""Log lines on standard output: prefixed by their time if asked for and by their task where there are
several, harmless on a terminal."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

from weft.cli import moments
from weft.cli.terminal import TASK_STYLES, colours, paint, safe


class LogPrinter:
    def __init__(self, prefixed: bool, timed: bool = False):
        self._prefixed = prefixed
        self._timed = timed
        self._terminal = sys.stdout.isatty()
        self._colours = colours(sys.stdout)
        self._prefixes: dict[str, str] = {}

    def print(self, lines: Sequence[dict[str, Any]]) -> None:
        """One write for a batch: a chatty job must not be slowed down by its reader."""
        text = "".join(
            (f"{moments.instant(line['time'])} " if self._timed else "")
            + self._prefix(line["task"])
            + self._text(line["text"])
            + "\n"
            for line in lines
        )
        sys.stdout.write(text)
        sys.stdout.flush()

    def _text(self, text: str) -> str:
        return safe(text) if self._terminal else text

    def _prefix(self, task: str) -> str:
        if not self._prefixed:
            return ""
        if task not in self._prefixes:
            style = TASK_STYLES[len(self._prefixes) % len(TASK_STYLES)]
            self._prefixes[task] = paint(f"[{task}]", style, self._colours) + " "
        return self._prefixes[task]
