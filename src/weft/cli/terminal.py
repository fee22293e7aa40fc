"""Speaking to a terminal: colours only where they are seen, and nothing that could take it over.

What a job prints is a stranger's text. Shown on a terminal it loses every control sequence but colours,
so that a log can neither retitle the window nor rewrite what stands above it.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
from collections.abc import Mapping
from typing import Any, TextIO

STYLES = {
    "bold": "1",
    "dim": "2",
    "red": "31",
    "green": "32",
    "yellow": "33",
    "blue": "34",
    "magenta": "35",
    "cyan": "36",
}
STATE_STYLES = {
    "PENDING": "dim",
    "QUEUED": "yellow",
    "DEPLOYING": "cyan",
    "DOWNLOADING": "cyan",
    "PROCESSING": "blue",
    "STORING": "cyan",
    "COMPLETED": "green",
    "FAILED": "red",
    "HALTED": "magenta",
    "CANCELLED": "dim",
    "PREEMPTED": "yellow",
    "RESTARTING": "yellow",
    "RUNNING": "blue",
    "SUCCEEDED": "green",
    "BACKOFF": "yellow",
    "STOPPED": "magenta",
}
TASK_STYLES = ("cyan", "magenta", "yellow", "green", "blue", "red")

_SEQUENCES = re.compile(
    r"(?P<sgr>\x1b\[[0-9;:]*m)"
    r"|\x1b\[[0-?]*[ -/]*[@-~]?"  # other control sequences: cursor, erase, modes
    r"|\x1b[\]P^_X].*?(?:\x07|\x1b\\|\x9c|$)"  # strings: titles, clipboard, links
    r"|\x1b."
    r"|[\x00-\x08\x0a-\x1f\x7f-\x9f]",
    re.DOTALL,
)


def colours(stream: TextIO) -> bool:
    return stream.isatty() and "NO_COLOR" not in os.environ and os.environ.get("TERM") != "dumb"


def paint(text: str, style: str | None, on: bool) -> str:
    return f"\x1b[{STYLES[style]}m{text}\x1b[0m" if on and style else text


def width() -> int | None:
    """Columns of the terminal, or None where output goes to a file or a program and must not be cut."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else None


def safe(text: str) -> str:
    """Text of a job for a terminal: tabs and colours stay, a progress bar shows its last state, and a
    colour left on ends with the line."""
    if text.isascii() and text.isprintable():
        return text
    text = text.rstrip("\r")
    if "\r" in text:
        text = text.rpartition("\r")[2]
    clean = _SEQUENCES.sub(lambda match: match["sgr"] or "", text)
    return f"{clean}\x1b[0m" if "\x1b[" in clean else clean


def say(text: str = "") -> None:
    """A result, to standard output."""
    print("\n".join(map(safe, text.split("\n"))) if sys.stdout.isatty() else text)


def note(text: str, style: str | None = "dim") -> None:
    """Something about the result, to standard error."""
    on = sys.stderr.isatty()
    shown = "\n".join(map(safe, text.split("\n"))) if on else text
    sys.stdout.flush()
    print(paint(shown, style, colours(sys.stderr)), file=sys.stderr, flush=True)


def next_step(*commands: str) -> None:
    note(f"next: {'   '.join(commands)}")


def advise(explanation: Mapping[str, Any]) -> bool:
    """What to do next, if an explanation says so."""
    if not explanation.get("next"):
        return False
    if explanation.get("advice"):
        note(explanation["advice"])
    next_step(explanation["next"])
    return True


def error(text: str, next: str | None = None) -> None:
    note(f"weft: {text}", "red" if colours(sys.stderr) else None)
    if next:
        next_step(next)


def state(name: str, pad: int = 0) -> str:
    """A state's name in its colour, on standard output."""
    return paint(name.ljust(pad), STATE_STYLES.get(name), colours(sys.stdout))


def interactive() -> bool:
    """Whether there is a person to ask."""
    return sys.stdin.isatty() and sys.stderr.isatty()


def ask(question: str) -> str:
    """A person's answer, lower case; empty when the input has ended."""
    sys.stdout.flush()
    print(question, end=" ", file=sys.stderr, flush=True)
    line = sys.stdin.readline()
    if not line:
        print(file=sys.stderr)
    return line.strip().lower()
