"""The books of `weft.shards`, and who keeps them: a process for itself, or a file that all tasks of a job share."""

from __future__ import annotations

import errno
import json
import os
import re
import struct
import sys
import threading
import time
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import NamedTuple, Protocol

from weft.runtime import leases
from weft.runtime.hidden import hidden, locked
from weft.runtime.identity import boot_id, start_time
from weft.runtime.leases import Books, Held, Holder, Lease, Plan
from weft.runtime.preempt import uninterrupted

LEASE_SECONDS = 120.0
"""Silence after which a holder on another machine is taken for dead; on this one it is looked up."""
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}")
SYNC_SECONDS = 1.0
"""A crash of the machine may undo so much; the death of processes undoes nothing."""


class ShardsError(Exception):
    """The books cannot be read or written, or tasks do not agree on how an epoch is cut."""


class Answer(NamedTuple):
    counted: list[int]
    """The leases that were marked done just now."""
    lease: Lease | None
    over: bool


class Coordinator(Protocol):
    """Hands out the shards of one set of data."""

    def begin(self, epoch: int | None, plan: Plan | None, otherwise: Plan) -> tuple[int, Plan]: ...
    def step(
        self, epoch: int, *, done: Sequence[int] = (), back: Sequence[int] = (), want: bool = False
    ) -> Answer: ...


class Keeper:
    """Answers from books that `change` opens and keeps; decides who is dead."""

    def __init__(self, clock: Callable[[], float] = time.monotonic):
        self._clock = clock
        self._seen: dict[int, tuple[int, float]] = {}

    def change(self) -> AbstractContextManager[Books]:
        """The books, for one change that is kept whole or not at all; nobody else changes them meanwhile."""
        raise NotImplementedError

    def me(self) -> Holder:
        raise NotImplementedError

    def known_gone(self, holder: Holder) -> bool | None:
        """Whether that process has ended, if it can be looked up: one of this machine."""
        return not self.alive(holder) if holder.machine and holder.machine == self.me().machine else None

    def alive(self, holder: Holder) -> bool:
        return runs(holder.pid, holder.birth)

    def begin(self, epoch: int | None, plan: Plan | None, otherwise: Plan) -> tuple[int, Plan]:
        with self.change() as books:
            books.take_from(self._gone)
            try:
                return books.begin(epoch, plan, otherwise)
            except leases.Mismatch as problem:
                raise ShardsError(f"{problem}; finish it as it was begun, or use another name=") from None

    def step(
        self, epoch: int, *, done: Sequence[int] = (), back: Sequence[int] = (), want: bool = False
    ) -> Answer:
        with self.change() as books:
            counted = books.done(epoch, done, self.me())
            books.give_back(epoch, back)
            lease = books.take(epoch, self.me()) if want else None
            if want and lease is None:
                books.take_from(self._gone)
                lease = books.take(epoch, self.me())
            return Answer(counted, lease, books.over(epoch))

    def beat(self) -> None:
        with self.change() as books:
            books.beat(self.me())

    def _gone(self, lease: int, held: Held) -> bool:
        holder, me = held.holder, self.me()
        if holder == me:
            return False
        if (known := self.known_gone(holder)) is not None:
            return known
        if holder.task == me.task and (holder.launch, holder.restarts) < (me.launch, me.restarts):
            return True
        # Only silence tells, by this clock, as clocks differ.
        beat, since = self._seen.get(lease, (-1, 0.0))
        if beat != held.beat:
            self._seen[lease] = (held.beat, self._clock())
            return False
        return self._clock() - since > LEASE_SECONDS


class OwnBooks(Keeper):
    """In memory: for a script that is tried by hand, alone."""

    def __init__(self) -> None:
        super().__init__()
        self._books = Books()
        self._lock = threading.Lock()

    @contextmanager
    def change(self) -> Iterator[Books]:
        with uninterrupted(), self._lock:
            yield self._books

    def me(self) -> Holder:
        return Holder("", 0, 0, "", 0, 0)


class Beating:
    """Who this process is. From the moment that it is asked for, it is heard of."""

    def __init__(self, beat: Callable[[], None]):
        self._beat = beat
        self._me: Holder | None = None

    def me(self) -> Holder:
        if self._me is None or self._me.pid != os.getpid():
            self._me = this_process()
            threading.Thread(target=self._beat_on, daemon=True, name="weft-shards").start()
        return self._me

    def _beat_on(self) -> None:
        while True:
            time.sleep(LEASE_SECONDS / 4)
            try:
                self._beat()
            except (OSError, ShardsError):
                continue  # who asks for the next shard is told


class FileBooks(Keeper):
    """In a file in `.weft/shards` of CHECKPOINT_DIR, locked while it is read and changed.

    The file has two places, written by turns, each with a checksum: who is killed while writing one leaves the other.
    (To replace the file took 2.4 ms a shard instead of 0.13: ext4 then writes it out.) A copy is synced every second.
    """

    def __init__(self, folder: str, name: str, clock: Callable[[], float] = time.monotonic):
        super().__init__(clock)
        self._folder = folder
        self._name = name
        self._process = Beating(self.beat)

    def me(self) -> Holder:
        return self._process.me()

    @contextmanager
    def change(self) -> Iterator[Books]:
        try:
            path = os.path.join(hidden(self._folder, "shards"), self._name)
            with locked(path) as file:
                turn, before = newest(file, path)
                books = leases.from_json(json.loads(before)) if before else Books()
                yield books
                after = json.dumps(leases.to_json(books), separators=(",", ":")).encode()
                if after != before:
                    _keep(file, path, turn + 1, after)
        except OSError as problem:
            raise ShardsError(
                f"shards {self._name!r} in {self._folder}: {problem.strerror or problem}"
            ) from problem


HEAD = struct.Struct("<IQI")
PLACE = 1 << 20


def _packed(turn: int, text: bytes) -> bytes:
    head = HEAD.pack(0, turn, len(text))[4:]
    return zlib.crc32(head + text).to_bytes(4, "little") + head + text


def _unpacked(file: int, at: int) -> tuple[int, bytes] | None:
    head = os.pread(file, HEAD.size, at)
    if len(head) < HEAD.size:
        return None
    _, turn, length = HEAD.unpack(head)
    text = os.pread(file, min(length, PLACE), at + HEAD.size)
    return (turn, text) if _packed(turn, text) == head + text else None


def newest(file: int, path: str) -> tuple[int, bytes]:
    """The last change and the books after it; (0, b"") for new ones."""
    found = [kept for at in (0, PLACE) if (kept := _unpacked(file, at))]
    if found:
        return max(found)
    try:
        with open(f"{path}.safe", "rb") as copy:
            kept = _unpacked(copy.fileno(), 0)
    except FileNotFoundError:
        if not os.fstat(file).st_size:
            return 0, b""
        kept = None
    if kept is None:
        raise ShardsError(f"{path} is damaged; remove it and {path}.safe, and all epochs begin anew")
    print(f"weft: {path} is damaged; going on from its copy of a second before", file=sys.stderr, flush=True)
    return kept


def newest_copy(path: str) -> bytes:
    """The books as another file of the same kind would have them."""
    with locked(path) as file:
        return _packed(*newest(file, path))


def _keep(file: int, path: str, turn: int, text: bytes) -> None:
    data = _packed(turn, text)
    if len(data) > PLACE:
        raise ShardsError(f"{path} would be {len(data)} bytes, over {PLACE}: too many tasks hold shards")
    if os.pwrite(file, data, turn % 2 * PLACE) < len(data):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    try:
        if abs(time.time() - os.stat(f"{path}.safe").st_mtime) < SYNC_SECONDS:
            return
    except FileNotFoundError:
        pass
    with open(f"{path}.new", "wb") as copy:
        copy.write(data)
        copy.flush()
        os.fsync(copy.fileno())
    os.replace(f"{path}.new", f"{path}.safe")


# ── who is who ──


def this_process() -> Holder:
    birth = start_time(os.getpid())
    try:
        machine = f"{boot_id()} {os.readlink('/proc/self/ns/pid')}" if birth else ""
    except OSError:
        machine = ""
    task = os.environ.get("WEFT_TASK", "")
    return Holder(task, _count("WEFT_LAUNCH"), _count("WEFT_RESTARTS"), machine, os.getpid(), birth)


def _count(name: str) -> int:
    text = os.environ.get(name, "")
    return int(text) if text.isdecimal() else 0


def runs(pid: int, birth: int) -> bool:
    """Whether a process lives; one that has ended and is not collected yet does not."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            fields = file.read().rpartition(b")")[2].split()
        return int(fields[19]) == birth and fields[0] not in (b"Z", b"X")
    except (OSError, IndexError, ValueError):
        return False
