"""Collectors: metrics from what a task prints and writes anyway, for scripts that never heard of Weft.

A `Collector` runs in the task's own supervisor process. It is fed the task's output, looks at files in
LOG_DIR about once a second, and appends what it finds to the task's metrics file, in the same lines as
`weft.log()`. It never raises: a source that fails is switched off, with a note that a person can read. A
pattern that backtracks for ever can therefore hurt nobody but its own job, and is stopped after two
seconds of CPU.

How far the files have been read is kept in `<out>.positions`, so that a task that is restarted, or a job
that is resumed, goes on where the last supervisor stopped.
"""

from __future__ import annotations

import json
import os
import re
import signal
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from types import FrameType
from typing import TYPE_CHECKING, Any

from weft.runtime.metrics import MAX_INT, Appender, encode, number, whole

if TYPE_CHECKING:
    from weft.runtime.tensorboard import Events

MAX_LINE = 1 << 16
MAX_NAME = 253
READ = 1 << 21
"""Bytes of one file in one poll: the supervisor has other tasks to look after."""
PATTERN_SECONDS = 2.0
STEPS = ("step", "global_step", "iteration", "epoch")
"""What is taken for the step, best first."""

Emit = Callable[["int | None", "float | None", "dict[str, int | float]"], None]
Note = Callable[[str, str], None]


class TooSlow(Exception):
    """A pattern has used up its CPU time."""


class Notes:
    """What went wrong, each kind once, with its count and its first example."""

    def __init__(self) -> None:
        self._kinds: dict[str, tuple[int, str]] = {}

    def add(self, kind: str, example: str = "") -> None:
        count, first = self._kinds.get(kind, (0, example))
        self._kinds[kind] = (count + 1, first)

    def texts(self) -> list[str]:
        return [
            kind + (f" ({count} times)" if count > 1 else "") + (f", first: {first[:200]!r}" if first else "")
            for kind, (count, first) in self._kinds.items()
        ]


class Collector:
    """Turns a task's output and files into metric lines, as the job's `metrics` ask for.

    `feed()` takes output in any chunks, `poll()` looks at files and is cheap when they have not changed,
    `close()` takes what is left. `notes` says what could not be understood.
    """

    def __init__(self, sources: list[dict[str, Any]], log_dir: str, out: str):
        self._notes = Notes()
        self._out = Appender(out, self._notes.add)
        self._points: list[bytes] = []
        self._splitter = Lines()
        self._positions = Positions(f"{out}.positions", log_dir)
        self._readers: dict[str, Pairs | Pattern] = {}
        self._files: dict[str, JsonLines | Events] = {}
        for position, source in enumerate(sources, 1):
            what = source.get("path") or source.get("pattern")
            label = f"metrics {position} ({source['source']}{f' {what}' if what else ''})"
            try:
                self._add(label, source, log_dir)
            except (KeyError, TypeError, re.error, RecursionError, OverflowError) as problem:
                self._notes.add(f"{label}: not collected: {problem}")

    @property
    def notes(self) -> list[str]:
        return self._notes.texts()

    def feed(self, data: bytes) -> None:
        if self._readers:
            self._read(self._splitter.feed(data))

    def poll(self) -> None:
        if self._files:
            self._look(final=False)

    def close(self) -> None:
        self._read(self._splitter.rest())
        while self._look(final=True):
            pass
        self._readers.clear()
        self._files.clear()
        self._out.close()

    def _add(self, label: str, source: dict[str, Any], log_dir: str) -> None:
        kind, path, names = source["source"], source.get("path"), source.get("names") or []
        prefix = f"{source['group']}/" if source.get("group") else ""

        def note(text: str, example: str) -> None:
            self._notes.add(f"{label}: {text}", example)

        def emit(step: int | None, when: float | None, values: dict[str, int | float]) -> None:
            named = {prefix + name: value for name, value in values.items()}
            for name in [name for name in named if len(name) > MAX_NAME]:
                note(f"names of more than {MAX_NAME} characters", name)
                del named[name]
            if named:
                self._points.append(encode(step, time.time() if when is None else when, named))

        if kind == "log":
            self._readers[label] = Pairs(names, emit)
        elif kind == "regex":
            self._readers[label] = Pattern(source["pattern"], source.get("window") or 4, emit, note)
        elif kind == "file":
            file = os.path.join(log_dir, path or "metrics.jsonl")
            self._files[label] = JsonLines(self._positions.follow(file), names, emit, note)
        elif kind == "tensorboard":
            from weft.runtime.tensorboard import Events

            folder = os.path.join(log_dir, path) if path else log_dir
            self._files[label] = Events(folder, self._positions.follow, names, emit, note)

    def _read(self, lines: list[str]) -> None:
        for label, reader in list(self._readers.items()) if lines else ():
            with self._guard(label, self._readers):
                limited(partial(reader.read, lines), PATTERN_SECONDS)
        self._flush()

    def _look(self, final: bool) -> bool:
        """Whether there is more."""
        more = False
        for label, file in list(self._files.items()):
            with self._guard(label, self._files):
                more |= file.poll(final)
        self._flush()
        if not self._out.waiting:  # what is marked as read must have been written
            with self._guard("metrics", {}):
                self._positions.save()
        return more

    @contextmanager
    def _guard(self, label: str, sources: dict[str, Any]) -> Iterator[None]:
        """A source that fails is switched off; one that cannot read its files may be luckier next time."""
        try:
            yield
        except OSError as problem:
            self._notes.add(f"{label}: {problem.strerror}", str(problem.filename))
        except TooSlow:
            self._notes.add(f"{label}: switched off, the pattern takes too long; make it simpler")
            del sources[label]
        except Exception as problem:
            self._notes.add(f"{label}: switched off: {type(problem).__name__}: {problem}")
            sources.pop(label, None)

    def _flush(self) -> None:
        if self._points or self._out.waiting:
            self._out.append(self._points)
            self._points = []


def limited(work: Callable[[], None], seconds: float) -> None:
    """Run `work`; `TooSlow` after that much CPU. Without a limit outside of the main thread.

    The virtual timer counts the process's own CPU time, so a busy machine switches nothing off, and it
    leaves SIGALRM to whoever needs it.
    """
    if threading.current_thread() is not threading.main_thread():
        work()
        return

    def stop(_signal: int, _frame: FrameType | None) -> None:
        raise TooSlow

    before = signal.signal(signal.SIGVTALRM, stop)
    try:
        signal.setitimer(signal.ITIMER_VIRTUAL, seconds)
        work()
    finally:
        try:
            signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        finally:
            signal.signal(signal.SIGVTALRM, before)


# ── output ───────────────────────────────────────────────────────────────────────────────────────

_ESCAPE = re.compile(rb"\x1b\[[0-?]*[ -/]*[@-~]")


class Lines:
    """Cuts a stream into lines at \\n, \\r\\n and the \\r of progress bars; long lines lose their end."""

    def __init__(self) -> None:
        self._tail = bytearray()
        self._after_return = False

    def feed(self, data: bytes) -> list[str]:
        if self._after_return and data[:1] == b"\n":
            data = data[1:]
            self._after_return = False
        if not data:
            return []
        self._after_return = data.endswith(b"\r")
        first, *others = data.replace(b"\r\n", b"\n").replace(b"\r", b"\n").split(b"\n")
        self._tail += first[: MAX_LINE - len(self._tail)]
        if not others:
            return []
        lines = [bytes(self._tail), *others[:-1]]
        self._tail = bytearray(others[-1][:MAX_LINE])
        return [_text(line) for line in lines]

    def rest(self) -> list[str]:
        tail, self._tail = bytes(self._tail), bytearray()
        return [_text(tail)] if tail else []


def _text(line: bytes) -> str:
    line = line[:MAX_LINE]
    return (_ESCAPE.sub(b"", line) if b"\x1b" in line else line).decode("utf-8", "replace")


_PAIR = re.compile(
    r"""(?<![\w-]) (?<!\w[./]) (?P<name>[A-Za-z_][\w./-]{0,252}) [ \t]{0,8} = [ \t]{0,8}
        (?P<value> [-+]? (?: (?:[0-9]+\.?[0-9]*|\.[0-9]+) (?:[eE][-+]?[0-9]+)? | (?i:nan|inf(?:inity)?) ) )
        (?! \w | [.:-]\w | ,[0-9]{3}(?![0-9]) )""",  # not 1.2.3, 12:30, 2024-05-01, 10MB, 1,234
    re.VERBOSE,
)


class Pairs:
    """`name=value` in a line; its `step=`, or else its `epoch=`, is the step of the others."""

    def __init__(self, names: list[str], emit: Emit):
        self._names = names
        self._emit = emit

    def read(self, lines: Iterable[str]) -> None:
        for line in lines:
            if "=" not in line:
                continue
            step, pairs = take_step([(n, _number(text)) for n, text in _PAIR.findall(line)], self._names)
            values: dict[str, int | float] = {}
            for name, value in pairs:
                if name in values:
                    self._emit(step, None, values)
                    values = {}
                values[name] = value
            self._emit(step, None, values)


Named = list[tuple[str, "int | float"]]


def take_step(pairs: Named, names: list[str]) -> tuple[int | None, Named]:
    """The step among the pairs, and the metrics: those in `names`, or else all that are no step."""
    steps = {n.lower(): value for n, value in pairs if abs(value) < MAX_INT and float(value).is_integer()}
    step = next((int(steps[name]) for name in STEPS if name in steps), None)
    return step, [pair for pair in pairs if (pair[0] in names if names else pair[0].lower() not in STEPS)]


def _number(text: str) -> int | float:
    text = text.strip().rstrip("%")
    try:
        return number(int(text), "")
    except ValueError:
        return float(text)


class Pattern:
    """A regular expression over a window that slides over the lines.

    A match counts as soon as its last line is there. The window is searched again when a line comes, from
    where the last match began: an optional part that arrives later still counts, and no group is reported
    twice from the same place. `^` and `$` stand for the ends of a line.
    """

    def __init__(self, pattern: str, window: int, emit: Emit, note: Note):
        self._pattern = re.compile(pattern, re.MULTILINE)
        self._lines: deque[str] = deque()
        self._window = window
        self._base = 0  # where the window begins, in characters since the first line
        self._last = (0, 0)  # the last match
        self._given: set[tuple[str, int]] = set()  # its groups
        self._emit = emit
        self._note = note

    def read(self, lines: Iterable[str]) -> None:
        for line in lines:
            self._lines.append(line + "\n")
            if len(self._lines) > self._window:
                self._base += len(self._lines.popleft())
            self._search("".join(self._lines))

    def _search(self, text: str) -> None:
        begin, end = self._last
        start = begin if begin >= self._base else max(end, self._base)
        for match in self._pattern.finditer(text, start - self._base):
            if match.end() > match.start():
                found = {
                    (n, self._base + match.start(n)): value for n, value in match.groupdict().items() if value
                }
                if new := {name for name, _ in found.keys() - self._given}:
                    self._report({n: value for (n, _), value in found.items() if n in new or n == "step"})
                self._given = set(found)
                self._last = (self._base + match.start(), self._base + match.end())

    def _report(self, groups: dict[str, str]) -> None:
        step, values = None, {}
        for name, text in groups.items():
            try:
                if name == "step":
                    step = whole(_number(text))
                else:
                    values[name] = _number(text)
            except (ValueError, TypeError):
                self._note(f"group {name} is not a {'whole ' if name == 'step' else ''}number", text)
        self._emit(step, None, values)


# ── files ────────────────────────────────────────────────────────────────────────────────────────


class Followed:
    """A growing file: where to read on, and its first bytes, by which it is known to be the same file."""

    def __init__(self, path: str, offset: int = 0, head: str = ""):
        self.path = path
        self.offset = offset
        self.head = bytes.fromhex(head)
        self._seen: tuple[int, ...] | None = None

    def changed(self) -> bool:
        """Whether there may be something to read. A file that was cut or replaced begins again."""
        try:
            stat = os.stat(self.path)
        except (FileNotFoundError, NotADirectoryError):
            return False
        now = (stat.st_ino, stat.st_size, stat.st_mtime_ns)
        if now == self._seen:
            return False
        if stat.st_size < self.offset or self._first(len(self.head)) != self.head:
            self.offset, self.head = 0, b""
        self._seen = now
        return True

    def reached(self, offset: int, end: bool) -> None:
        """Reading has come to `offset`; unless that is the end, there is more without another change."""
        self.offset = offset
        if len(self.head) < 64:
            self.head = self._first(min(64, offset))
        if not end:
            self._seen = None

    def _first(self, size: int) -> bytes:
        with open(self.path, "rb") as file:
            return file.read(size)


class Positions:
    """The files that are followed, by their path in LOG_DIR, and where the last supervisor left them."""

    def __init__(self, path: str, log_dir: str):
        self._path = path
        self._log_dir = log_dir
        self._saved: dict[str, list[Any]] | None = None
        self._files: dict[str, Followed] = {}

    def follow(self, path: str) -> Followed:
        if self._saved is None:
            try:
                with open(self._path) as file:
                    self._saved = json.load(file)
            except (OSError, ValueError):
                self._saved = {}
        name = os.path.relpath(path, self._log_dir)
        if name not in self._files:
            self._files[name] = Followed(path, *self._saved.get(name, ()))
        return self._files[name]

    def save(self) -> None:
        now = {name: [file.offset, file.head.hex()] for name, file in self._files.items()}
        if self._files and now != self._saved:
            with open(f"{self._path}.new", "w") as file:
                json.dump(now, file)
            os.replace(f"{self._path}.new", self._path)
            self._saved = now


class JsonLines:
    """A file of JSON objects, one a line: as `weft.log()` writes them, flat, or as FfDL had them."""

    def __init__(self, file: Followed, names: list[str], emit: Emit, note: Note):
        self._file = file
        self._names = names
        self._emit = emit
        self._note = note

    def poll(self, final: bool) -> bool:
        """Read on; whether there is more. A line without an end counts at the `final` poll only."""
        file = self._file
        if not file.changed() and not (final and os.path.exists(file.path)):
            return False
        with open(file.path, "rb") as stream:
            stream.seek(file.offset)
            data = stream.read(READ)
        more = len(data) == READ
        end = data.rfind(b"\n") + 1 or (READ if more else 0)
        for line in data[:end].split(b"\n"):
            if line.strip() and not self._take(line):
                self._note("lines that are not JSON objects", line.decode("utf-8", "replace"))
        if final and not more and self._take(data[end:]):
            end = len(data)
        file.reached(file.offset + end, end=not more)
        return more

    def _take(self, line: bytes) -> bool:
        try:
            record = json.loads(line)
        except (ValueError, RecursionError):
            return False
        if not isinstance(record, dict):
            return False
        when, prefix = record.get("time"), ""
        if isinstance(record.get("values"), dict):
            prefix = f"{record['grouplabel']}/" if record.get("grouplabel") else ""
            record = {"step": record.get("step"), **(record.get("etimes") or {}), **record["values"]}
        elif is_date(when):
            del record["time"]
        numbers = [(name, value) for name, given in record.items() if (value := _plain(given)) is not None]
        step, pairs = take_step(numbers, self._names)
        self._emit(step, when if is_date(when) else None, {prefix + name: value for name, value in pairs})
        return True


def _plain(value: Any) -> int | float | None:
    """A JSON value as a number, or None. FfDL wraps it: {"type": 3, "value": "0.25"}."""
    if isinstance(value, dict):
        value = value.get("value")
    try:
        return _number(value) if isinstance(value, str) else number(value, "")
    except (ValueError, TypeError):
        return None


def is_date(value: Any) -> bool:
    """Seconds since 1970, and not the seconds that an epoch took."""
    return isinstance(value, (int, float)) and 1e9 < value < 1e11
