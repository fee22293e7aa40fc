"""The agent's main thread: it looks at a task's files, feeds its collectors, and wakes whoever tells of it."""

from __future__ import annotations

import os
import threading
import time

from weft.runtime.agent.output import Follower, Output
from weft.runtime.agent.state import exited
from weft.runtime.regularfile import open_to_append

TYPE_CHECKING = False
if TYPE_CHECKING:
    from weft.runtime.agent.gate import Gate
    from weft.runtime.agent.settings import Settings
    from weft.runtime.collect import Collector

PAUSE = 0.05
COLLECT_INTERVAL = 1.0
READ_SIZE = 1 << 18
POSITION = b"%020d\n"


class Watch:
    """What is known of the task now. Patterns are run here: only the main thread can be stopped when one is slow."""

    def __init__(self, settings: Settings, gate: Gate):
        self._settings = settings
        self._gate = gate
        self.output = Output(settings.task("output"))
        self.sent = self.output.floor
        """How far a reader has got."""
        self.notes: list[str] = []
        self.finished = False
        """The task has exited and everything it left was collected."""
        self.done = threading.Event()
        self._changes = threading.Condition()
        self._count = 0
        self._known: tuple[object, ...] = ()
        self._feed: Feed | None = Feed(settings, self.output) if settings.metrics else None

    def run(self) -> None:
        while not self.done.is_set():
            if not self.turn():
                self.done.wait(PAUSE)

    def turn(self) -> bool:
        """Whether there is more to do at once."""
        size = self.output.look()
        end = exited(self._settings)
        more = self._feed is not None and self._feed.turn()
        if end is not None and not more and not self.finished:
            if self._feed is not None:
                self._feed.close()
            self.finished = True
        if self._feed is not None:
            self.notes = self._feed.notes
        self.output.free(max(self.sent, size - self._settings.kept))
        known = (size, self.finished, self._gate.open, self._gate.why(), len(self.notes), *self._looks())
        if known != self._known:
            self._known = known
            self.wake()
        return more

    def end(self) -> None:
        """Nobody needs the agent any more."""
        self.done.set()
        self.wake()

    def wake(self) -> None:
        with self._changes:
            self._count += 1
            self._changes.notify_all()

    def _looks(self) -> list[object]:
        looks: list[object] = []
        for name in ("metrics.jsonl", "begun", "url"):
            try:
                found = os.stat(self._settings.task(name), follow_symlinks=False)
            except OSError:
                looks.append(None)
            else:
                looks.append((found.st_size, found.st_mtime_ns))
        return looks

    def wait_for_change(self, known: int, seconds: float) -> int:
        """The number of the latest change, once it is another one than `known` or the time is over."""
        with self._changes:
            self._changes.wait_for(lambda: self._count != known, seconds)
            return self._count


class Feed:
    """A task's collectors, fed with its output. How far is kept in a file, for an agent that takes over."""

    def __init__(self, settings: Settings, output: Output):
        from weft.runtime.collect import Collector

        self._collector: Collector = Collector(
            settings.metrics, settings.folder("logs"), settings.task("metrics.jsonl")
        )
        self.notes = self._collector.notes
        self._polled = 0.0
        path = settings.task("collected")
        try:
            with open(path, "rb") as file:
                position = int(file.read(64))
        except (OSError, ValueError):
            position = 0
        os.close(open_to_append(path))
        self._position = os.open(path, os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        self._follower = Follower(output, position, settings.kept)
        self._closed = False

    def turn(self) -> bool:
        """Whether there is more."""
        if self._closed:
            return False
        offset, _, data = self._follower.take(READ_SIZE)
        if data:
            self._collector.feed(data)
            self._note(offset, data)
        now = time.monotonic()
        if now - self._polled >= COLLECT_INTERVAL:
            self._polled = now
            self._collector.poll()
            self.notes = self._collector.notes
        return bool(data)

    def _note(self, offset: int, data: bytes) -> None:
        """Up to the last whole line: the next agent reads the one that is half there from its beginning."""
        line = max(data.rfind(b"\n"), data.rfind(b"\r")) + 1
        if line:
            os.pwrite(self._position, POSITION % (offset + line), 0)

    def close(self) -> None:
        self._closed = True
        self._collector.close()
        self.notes = self._collector.notes
