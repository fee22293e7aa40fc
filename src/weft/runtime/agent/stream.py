"""The stream: everything about a task, in frames, to one reader. A frame is a line of JSON and `size` bytes."""

from __future__ import annotations

import json
import threading
import time

from weft.runtime.agent.output import Follower
from weft.runtime.agent.state import describe, vital
from weft.runtime.agent.usage import Usage
from weft.runtime.regularfile import open_to_read

TYPE_CHECKING = False
if TYPE_CHECKING:
    import socket
    from collections.abc import Callable
    from typing import Any

    from weft.runtime.agent.desk import Desk
    from weft.runtime.agent.gate import Gate
    from weft.runtime.agent.settings import Settings
    from weft.runtime.agent.watch import Watch

PIECE = 1 << 16
LONGEST_LINE = 1 << 20
REST = 5.0
"""Seconds after which the state is told even if it is the same."""
BOOKS = 1.0
"""Seconds after which the books of shards are told again: so much the loss of the pod that keeps them may undo."""
THROTTLED = 0.05


class Streams:
    """One stream at a time: a reader that comes back must not wait for its former connection to be given up."""

    def __init__(self, settings: Settings, gate: Gate, watch: Watch, desk: Desk):
        self._settings = settings
        self._gate = gate
        self._watch = watch
        self._desk = desk
        self._usage = Usage()
        self._lock = threading.Lock()
        self._current: tuple[Stream, socket.socket] | None = None

    def run(self, log: int, metrics: int, connection: socket.socket, send: Callable[[bytes], None]) -> None:
        """Until the connection ends or another stream begins."""
        stream = Stream(self._settings, self._gate, self._watch, self._desk, self._usage, log, metrics, send)
        with self._lock:
            former, self._current = self._current, (stream, connection)
            self._watch.sent = log
        if former is not None:
            former[0].over = True
            _shut(former[1])
        try:
            stream.run()
        finally:
            with self._lock:
                if self._current is not None and self._current[0] is stream:
                    self._current = None


class Stream:
    """Frames for a reader who has `log` bytes of the output and `metrics` bytes of the metrics."""

    def __init__(
        self,
        settings: Settings,
        gate: Gate,
        watch: Watch,
        desk: Desk,
        usage: Usage,
        log: int,
        metrics: int,
        send: Callable[[bytes], None],
    ):
        self._settings = settings
        self._gate = gate
        self._watch = watch
        self._desk = desk
        self._usage = usage
        self._log = Follower(watch.output, log, settings.kept, settings.rate)
        self._metrics = Lines(settings.task("metrics.jsonl"), metrics)
        self._send = send
        self._turns: dict[str, int] = {}
        self._books_at = 0.0
        self._told: dict[str, Any] = {}
        self._told_at = 0.0
        self.over = False

    def run(self) -> None:
        self._tell(all_sent=False)
        change = -1
        while not self.over:
            finished = self._watch.finished  # looked at first: what is read afterwards is then all there is
            more = self._send_log(finished) | self._send_metrics()
            self._send_books(finished)
            behind = self._log.position < self._watch.output.look()
            self._tell(all_sent=finished and not more and not behind)
            if not more:
                rest = BOOKS if self._desk.turns() else REST
                change = self._watch.wait_for_change(change, THROTTLED if behind else rest)

    def _send_log(self, finished: bool) -> bool:
        """The last of it is not held back by the rate: there is no more than was allowed at once."""
        offset, when, data = self._log.take(PIECE, hurry=finished)
        if not data:
            return False
        self._frame({"kind": "log", "offset": offset, "size": len(data), "time": when}, data)
        if not self.over:
            self._watch.sent = self._log.position
        return True

    def _send_metrics(self) -> bool:
        offset, data = self._metrics.take()
        if data:
            self._frame({"kind": "metrics", "offset": offset, "size": len(data)}, data)
        return self._metrics.more

    def _send_books(self, finished: bool) -> None:
        """Who got which shards: small, and changed all the time."""
        now, turns = time.monotonic(), self._desk.turns()
        if turns == self._turns or (now - self._books_at < BOOKS and not finished):
            return
        for name in turns.keys() - {name for name, turn in self._turns.items() if turns[name] == turn}:
            data = self._desk.copy(name)
            self._frame({"kind": "books", "name": name, "size": len(data)}, data)
        self._turns, self._books_at = turns, now

    def _tell(self, all_sent: bool) -> None:
        state = describe(self._settings, self._gate, self._watch.notes, self._desk, all_sent)
        now = time.monotonic()
        if state == self._told and now - self._told_at < REST - THROTTLED:
            return
        cpu, memory = self._usage.now()
        header = {"kind": "state", "size": 0, **state, **vital(self._settings), "cpu": cpu, "memory": memory}
        self._told, self._told_at = state, now
        self._frame(header, b"")

    def _frame(self, header: dict[str, Any], data: bytes) -> None:
        self._send(json.dumps(header, separators=(",", ":")).encode() + b"\n" + data)


class Lines:
    """Whole lines of a file that grows. One that is too long for a metric is left out."""

    def __init__(self, path: str, position: int):
        self._path = path
        self._position = position
        self._skipping = False
        self.more = False

    def take(self) -> tuple[int, bytes]:
        """The next lines and their offset."""
        offset = self._position
        try:
            with open_to_read(self._path) as file:
                file.seek(offset)
                data = file.read(LONGEST_LINE)
        except OSError:
            data = b""
        self.more = len(data) == LONGEST_LINE
        if self._skipping:
            end = data.find(b"\n") + 1 or len(data)
            self._skipping = b"\n" not in data
            self._position += end
            self.more = self.more or not self._skipping
            return offset, b""
        end = data.rfind(b"\n") + 1
        if not end and self.more:
            self._skipping = True
            end = len(data)
            data = b""
        self._position += end
        return offset, data[:end]


def _shut(connection: socket.socket) -> None:
    try:
        connection.shutdown(2)
    except OSError:
        pass
