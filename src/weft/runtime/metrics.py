"""`weft.log()`: a training script says how it is doing.

Every call is one line of JSON, `{"step": 3, "time": 1712.5, "values": {"loss": 0.25}}`, appended with one
write to the file that Weft names in WEFT_METRICS_FILE. One write to an O_APPEND file is atomic between
threads and processes of a machine, so data loaders and forked workers may log as they like. Readers skip
blank lines and lines that do not parse: those are what a full disk or a SIGKILL leaves of a write.
"""

from __future__ import annotations

import atexit
import json
import math
import os
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any

MAX_PENDING = 10_000
MAX_BATCH = 1 << 16
MAX_INT = 1 << 63


def log(step: int | None = None, **values: Any) -> None:
    """Report numbers, at a step if there is one: `weft.log(step=10, loss=0.25)`.

    A value is an int, a float, or anything with one number inside (a numpy scalar, a tensor of one
    element). Anything else is a TypeError that names the metric. A full or failing disk never reaches
    the caller: lines wait in memory and go out with a later call or at exit. Outside of a job the same
    line is printed, so that a script can be tried by hand.
    """
    numbers = {name: number(value, name) for name, value in values.items()}
    at = None if step is None else whole(number(step, "step"))
    if not numbers:
        return
    path = os.environ.get("WEFT_METRICS_FILE")
    if path:
        _appender(path).append([encode(at, time.time(), numbers)])
    else:
        shown = {**({} if at is None else {"step": at}), **numbers}
        print(*(f"{name}={_short(value)}" for name, value in shown.items()), flush=True)


def encode(step: int | None, when: float, values: dict[str, int | float]) -> bytes:
    """The metric line. JSON has no NaN or infinity: they become "nan", "inf" and "-inf"."""
    safe = {name: value if math.isfinite(value) else str(float(value)) for name, value in values.items()}
    line = {"step": step, "time": round(when, 6), "values": safe}
    return json.dumps(line, separators=(",", ":")).encode() + b"\n"


def number(value: Any, name: str) -> int | float:
    """`value` as a plain int or float; TypeError if it is not one number."""
    plain = value
    if not isinstance(value, (int, float)) and callable(getattr(value, "item", None)):
        try:
            plain = value.item()
        except (ValueError, RuntimeError, TypeError):
            raise _not_a_number(value, name) from None
    if isinstance(plain, int):
        return int(plain) if -MAX_INT <= plain < MAX_INT else _big(plain)
    if isinstance(plain, (str, bytes)) or not hasattr(plain, "__float__"):
        raise _not_a_number(value, name)
    try:
        return float(plain)
    except (ValueError, TypeError, OverflowError):
        raise _not_a_number(value, name) from None


def whole(value: int | float) -> int:
    """A step: a whole number of 64 bits."""
    if isinstance(value, float) and not (value.is_integer() and abs(value) < MAX_INT):
        raise TypeError(f"step must be a whole number, not {value!r}")
    return int(value)


def _big(value: int) -> float:
    try:
        return float(value)
    except OverflowError:
        return math.inf if value > 0 else -math.inf


def _not_a_number(value: Any, name: str) -> TypeError:
    shape = getattr(value, "shape", None)
    kind = type(value).__name__ + (f" of shape {tuple(shape)}" if shape else "")
    return TypeError(f"metric {name!r} must be one number, not {kind}; use float(...), .mean() or .item()")


def _short(value: int | float) -> str:
    return str(value) if isinstance(value, int) else f"{value:.6g}"


class Appender:
    """Appends whole lines to a file that others append to as well, and never raises.

    What cannot be written now (no room, no folder yet) waits, at most `MAX_PENDING` lines, and goes first
    next time. When even that is full the newest lines are lost, counted, and reported once; the total is
    reported when the appender closes.
    """

    def __init__(self, path: str, report: Callable[[str], None]):
        self.path = path
        self._report = report
        self._fd = -1
        self._pending: deque[bytes] = deque()
        self._lost = 0
        self._why = ""
        self._lock = threading.RLock()  # re-entrant: a signal handler may log, too

    @property
    def waiting(self) -> int:
        """Lines that are not in the file yet."""
        return len(self._pending)

    def append(self, lines: Iterable[bytes]) -> None:
        with self._lock:
            self._pending.extend(lines)
            self._drain()
            while len(self._pending) > MAX_PENDING:
                self._pending.pop()
                self._lost += 1
                if self._lost == 1:
                    self._report(f"metrics are being lost: {self.path} cannot be written ({self._why})")

    def close(self) -> None:
        """Try the rest once more, and say what was lost for good."""
        with self._lock:
            self._drain()
            self._lost += len(self._pending)
            self._pending.clear()
            if self._lost:
                self._report(f"{self._lost} metric lines were lost: {self.path} ({self._why})")
                self._lost = 0
            if self._fd >= 0:
                os.close(self._fd)
                self._fd = -1

    def after_fork(self) -> None:
        """In the child: what waits belongs to the parent, who will write it."""
        self._lock = threading.RLock()
        self._pending.clear()
        self._lost = 0

    def _drain(self) -> None:
        while self._pending:
            batch: list[bytes] = []
            size = 0
            while self._pending and (not batch or size + len(self._pending[0]) <= MAX_BATCH):
                batch.append(self._pending.popleft())
                size += len(batch[-1])
            done = self._write(b"".join(batch))
            while batch and len(batch[0]) <= done:
                done -= len(batch.pop(0))
            if batch and len(batch[0]) - 1 == done:  # all but its end: written again it would count twice
                batch[0] = b"\n"
            self._pending.extendleft(reversed(batch))
            if done < 0:
                return

    def _write(self, data: bytes) -> int:
        """How many bytes of `data` went out; -1 after an error."""
        try:
            if self._fd < 0:
                flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC
                self._fd = os.open(self.path, flags, 0o644)
            mend = self._torn()
            return max(os.write(self._fd, b"\n" + data if mend else data) - mend, 0)
        except OSError as problem:
            self._why = problem.strerror or str(problem)
            return -1

    def _torn(self) -> bool:
        """Whether the file ends inside a line: a writer was killed, or the disk was full, half-way."""
        size = os.fstat(self._fd).st_size
        return size > 0 and os.pread(self._fd, 1, size - 1) not in (b"\n", b"")


_appenders: dict[str, Appender] = {}


def _appender(path: str) -> Appender:
    found = _appenders.get(path)
    if found is None:
        found = _appenders.setdefault(path, Appender(path, _complain))
    return found


def _complain(text: str) -> None:
    print(f"weft: {text}", file=sys.stderr)


@atexit.register
def _close() -> None:
    for appender in _appenders.values():
        appender.close()


def _after_fork() -> None:
    for appender in _appenders.values():
        appender.after_fork()


os.register_at_fork(after_in_child=_after_fork)
