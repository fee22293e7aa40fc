"""`weft.shards`: the samples of an epoch, shared out among whatever tasks there are.

    for shard in weft.shards(50_000, epoch=epoch, size=512):
        train(data[list(shard)])

Every task of a job runs the same loop and gets shards that nobody else has. A shard is done when its task asks for
the next one; the shards of a task that dies or leaves go to the others. The loop ends for all when the last is done.
"""

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
from math import isqrt
from typing import NamedTuple, Protocol, overload

from weft.runtime import leases
from weft.runtime.hidden import hidden, locked
from weft.runtime.identity import boot_id, start_time
from weft.runtime.leases import Books, Held, Holder, Lease, Plan
from weft.runtime.preempt import asked, uninterrupted

LEASE_SECONDS = 120.0
"""Silence after which a holder on another machine is taken for dead; on this one it is looked up."""
SYNC_SECONDS = 1.0
"""A crash of the machine may undo so much; the death of processes undoes nothing."""
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}")


class ShardsError(Exception):
    """The books cannot be read or written, or tasks do not agree on how an epoch is cut."""


def shards(
    n: int,
    epoch: int | None = None,
    size: int | None = None,
    *,
    shuffle: bool = True,
    seed: int = 0,
    name: str = "train",
) -> Shards:
    """The samples 0 to n-1 in shards of `size`, for all tasks together, each once an epoch.

    An epoch that is complete yields nothing, so every task may run `for epoch in range(…)` from the beginning;
    None is the one that is open, or else the next. The order is a permutation made of `seed` and `epoch`, the same for
    any number of tasks; shuffle=False gives ranges. Several sets of data need a `name` each.
    """
    if n < 0 or (size is not None and size < 1) or (epoch is not None and epoch < 0):
        raise ValueError(f"n={n}, epoch={epoch}, size={size}: n and epoch must be 0 or more, size 1 or more")
    if not NAME.fullmatch(name):
        raise ValueError(f"name={name!r}: letters, digits, '_' and '-', at most 64")
    folder = os.environ.get("CHECKPOINT_DIR") or None
    return Shards(
        _keeper(folder, name), epoch, size, Plan(n, size or max(1, min(1024, n // 100)), shuffle, seed)
    )


class Shard(Sequence[int]):
    """Indices of samples that this task alone has. In a `for` loop it is done when the next one is asked for."""

    def __init__(
        self, epoch: int, lease: Lease, plan: Plan, order: Permutation | None, finish: Callable[[], bool]
    ):
        self.epoch = epoch
        self.number = lease.shard
        self._range = range(lease.shard * plan.size, min(plan.n, (lease.shard + 1) * plan.size))
        self._order = order
        self._finish = finish

    def done(self) -> bool:
        """Mark it done now. False if it was given to another task, because this one was silent for too long."""
        return self._finish()

    def __len__(self) -> int:
        return len(self._range)

    @overload
    def __getitem__(self, at: int) -> int: ...
    @overload
    def __getitem__(self, at: slice) -> Sequence[int]: ...
    def __getitem__(self, at: int | slice) -> int | Sequence[int]:
        found = self._range[at]
        if self._order is None:
            return found
        return self._order[found] if isinstance(found, int) else [self._order[i] for i in found]

    def __iter__(self) -> Iterator[int]:
        return iter(self._range) if self._order is None else map(self._order.__getitem__, self._range)

    def __repr__(self) -> str:
        return f"<shard {self.number} of epoch {self.epoch}: {len(self)} samples>"


class Shards:
    """What `weft.shards` gives: iterate over it. Leaving the loop early gives the unfinished shard back."""

    def __init__(self, coordinator: Coordinator, epoch: int | None, size: int | None, plan: Plan):
        self._coordinator = coordinator
        self._epoch = epoch
        self._size = size
        self._plan = plan

    def __iter__(self) -> Iterator[Shard]:
        coordinator = self._coordinator
        epoch, plan = coordinator.begin(self._epoch, None if self._size is None else self._plan, self._plan)
        if (plan.n, plan.shuffle, plan.seed) != (self._plan.n, self._plan.shuffle, self._plan.seed):
            raise ShardsError(
                f"epoch {epoch} was begun with {plan}, not with {self._plan}; use another name="
            )
        order = Permutation(plan.n, plan.seed, epoch) if plan.shuffle else None
        current = _Current(coordinator, epoch)
        try:
            while (lease := current.next()) is not None:
                yield Shard(epoch, lease, plan, order, current.finisher(lease))
        finally:
            current.give_back()


class _Current:
    """The lease of one loop."""

    def __init__(self, coordinator: Coordinator, epoch: int):
        self._coordinator = coordinator
        self._epoch = epoch
        self._held: int | None = None
        self._pid = os.getpid()

    def next(self) -> Lease | None:
        """Finish the current one and wait for the next; None when the epoch is over or the task has to stop."""
        pause = 0.01
        while True:
            finished, stop = self._own(), asked()
            answer = self._coordinator.step(self._epoch, done=finished, want=not stop)
            self._held = None
            self._check(finished, answer)
            if answer.lease is not None:
                self._held = answer.lease.number
                return answer.lease
            if answer.over or stop:
                return None
            time.sleep(pause)
            pause = min(pause * 1.5, 0.5)

    def finisher(self, lease: Lease) -> Callable[[], bool]:
        counted: list[bool] = []

        def finish() -> bool:
            if not counted:
                answer = self._coordinator.step(self._epoch, done=[lease.number])
                counted.append(lease.number in answer.counted)
                if self._held == lease.number:
                    self._held = None
            return counted[0]

        return finish

    def give_back(self) -> None:
        if mine := self._own():
            self._held = None
            self._coordinator.step(self._epoch, back=mine)

    def _own(self) -> list[int]:
        if self._pid != os.getpid():  # a forked child: what is held is its parent's
            self._pid, self._held = os.getpid(), None
        return [] if self._held is None else [self._held]

    def _check(self, finished: list[int], answer: Answer) -> None:
        if len(answer.counted) < len(finished):
            text = f"weft: a shard of epoch {self._epoch} was given to another task, which will do it again: "
            print(f"{text}nothing was heard of this one for too long", file=sys.stderr, flush=True)


# ── the order ──


class Permutation:
    """A shuffle of 0 to n-1 without a table: any index of it at once, the same on every machine.

    Four rounds of a Feistel network over the squares of a board that has at least n of them; an index that falls
    beyond n goes round again.
    """

    def __init__(self, n: int, seed: int, epoch: int):
        from hashlib import blake2b

        digest = blake2b(f"{seed}/{epoch}".encode(), digest_size=32).digest()
        self._keys = [int.from_bytes(digest[i : i + 8], "little") for i in range(0, 32, 8)]
        self._n = n
        self._side = isqrt(max(n - 1, 0)) + 1

    def __getitem__(self, index: int) -> int:
        side = self._side
        while True:
            left, right = divmod(index, side)
            for key in self._keys:
                mixed = (right + key) * 0x9E3779B97F4A7C15 & 0xFFFFFFFFFFFFFFFF
                mixed = (mixed ^ mixed >> 32) * 0xD6E8FEB86659FD93 & 0xFFFFFFFFFFFFFFFF
                left, right = right, (left + (mixed >> 16)) % side
            index = left * side + right
            if index < self._n:
                return index


# ── who keeps the books ──


class Answer(NamedTuple):
    counted: list[int]
    """The leases that were marked done just now."""
    lease: Lease | None
    over: bool


class Coordinator(Protocol):
    """Hands out the shards of one set of data. Files do it here; a server could."""

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

    def alive(self, holder: Holder) -> bool:
        """Of this machine: whether that process still runs."""
        return _runs(holder.pid, holder.birth)

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
            counted = books.done(epoch, done)
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
        if holder.machine and holder.machine == me.machine:
            return not self.alive(holder)
        if holder.task == me.task and (holder.launch, holder.restarts) < (me.launch, me.restarts):
            return True
        # Another machine: only silence tells, by this clock, as clocks differ.
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


class FileBooks(Keeper):
    """In a file in `.weft/shards` of CHECKPOINT_DIR, locked while it is read and changed.

    The file has two places, written by turns, each with a checksum: who is killed while writing one leaves the other.
    (To replace the file took 2.4 ms a shard instead of 0.13: ext4 then writes it out.) A copy is synced every second.
    """

    def __init__(self, folder: str, name: str):
        super().__init__()
        self._folder = folder
        self._name = name
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
                self.beat()
            except (OSError, ShardsError):
                continue  # who asks for the next shard is told

    @contextmanager
    def change(self) -> Iterator[Books]:
        try:
            path = os.path.join(hidden(self._folder, "shards"), self._name)
            with locked(path) as file:
                turn, before = _newest(file, path)
                books = leases.from_json(json.loads(before)) if before else Books()
                yield books
                after = json.dumps(leases.to_json(books), separators=(",", ":")).encode()
                if after != before:
                    _keep(file, path, turn + 1, after)
        except OSError as problem:
            raise ShardsError(
                f"shards {self._name!r} in {self._folder}: {problem.strerror or problem}"
            ) from problem


_keepers: dict[tuple[str | None, str], OwnBooks | FileBooks] = {}


def _keeper(folder: str | None, name: str) -> OwnBooks | FileBooks:
    if (folder, name) not in _keepers:
        _keepers[folder, name] = FileBooks(folder, name) if folder else OwnBooks()
    return _keepers[folder, name]


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


def _newest(file: int, path: str) -> tuple[int, bytes]:
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


def _runs(pid: int, birth: int) -> bool:
    """Whether a process lives; one that has ended and is not collected yet does not."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            fields = file.read().rpartition(b")")[2].split()
        return int(fields[19]) == birth and fields[0] not in (b"Z", b"X")
    except (OSError, IndexError, ValueError):
        return False
