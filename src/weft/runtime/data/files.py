"""The parts of one version that this process has open, and how a sample is read from them."""

from __future__ import annotations

import fcntl
import os
import random
import resource
import threading
import time
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from weft.runtime.data.counting import Counting
from weft.runtime.data.errors import Corrupt, DataError
from weft.runtime.data.index import Index
from weft.runtime.data.order import Order
from weft.runtime.data.parts import Parts

AHEAD_PARTS = 16
"""So many parts may be on their way to this node for one reader."""
AHEAD_SAMPLES = 4096
"""No part is asked for that is wanted later than this."""
AHEAD_BYTES = 32 << 20
"""So much of a disk may be on its way to memory for one batch."""
READAHEAD = 128 << 10
"""The kernel takes advice for no more at once on most disks."""
BRINGERS = 8
"""Threads for a cold disk: it needs that many requests to show what it can."""
BROUGHT = 1 << 20
"""Bytes of one request of theirs."""
PROBES = 4
ANYWHERE = random.SystemRandom()
"""Not the chance of the program, which may have seeded it."""
FROM_MEMORY = 30e-6
"""Seconds: a byte in memory is read in a tenth of this, no disk has one so soon."""
WAITS_NOT = getattr(os, "RWF_NOWAIT", 0)


class Held:
    """An open part; closed when nobody uses it any more, so no thread reads from a number that was given to another."""

    __slots__ = ("_own", "file", "ready", "straight", "was_looked_at")

    def __init__(self, file: int, ready: threading.Event | None = None):
        self._own = file
        self.ready = ready
        """Set when the part has been brought from the disk; None if there is nothing to wait for."""
        self.file = file if ready is None else -1
        """To read from; -1 if it is on its way, or far away."""
        self.straight: Held | None = None
        """The same part, to read from past the kernel's memory, if that is good for it."""
        self.was_looked_at = False

    def arrived(self) -> None:
        self.file = self._own
        if self.ready is not None:
            self.ready.set()

    def bring(self, nowhere: int) -> None:
        """From the disk to the kernel's memory, and no further: to copy it to ours costs several times as much."""
        offset = 0
        while got := os.sendfile(nowhere, self._own, offset, BROUGHT):
            offset += got

    def look(self, size: int) -> None:
        """Whether it is to be read past the kernel's memory: not if most is there already, or its file system refuses.
        To look brings the place into memory, so who looks next must look elsewhere."""
        looks = [cold(self.file, ANYWHERE.randrange(size)) for _ in range(PROBES)]
        if 2 * sum(looks) >= PROBES:
            with suppress(OSError):
                how = os.O_RDONLY | os.O_DIRECT | os.O_CLOEXEC
                self.straight = Held(os.open(f"/proc/self/fd/{self.file}", how))
        self.was_looked_at = True

    def __del__(self) -> None:
        if self._own >= 0:
            os.close(self._own)


class Files:
    """A bounded number of open parts; those that are not on this node are read through the agent."""

    def __init__(self, parts: Parts, index: Index, most: int | None = None):
        self.parts = parts
        self.index = index
        self.held: dict[int, Held] = {}
        self.ready: dict[int, Held] = {}
        """Those of them that can be read from now."""
        self.far = False
        """Some are not on this node, and will not be."""
        self._most = most or max(16, min(4096, resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 4))
        self._turn: deque[int] = deque()
        self._part, self._offset, self._length = index.part, index.offset, index.length
        self._bringing = Bringing()
        self.counting = Counting(parts, index)
        self.passed = 0
        """Samples that were read past the kernel's memory."""

    def one(self, number: int) -> bytes:
        """A sample that is read by itself, and counted. That its part came for it makes it a miss, but not those after it."""
        part, length = self._part[number], self._length[number]
        known = part in self.held
        data = self.read(number)
        if self.is_far(part) or (not known and part in self.counting.fresh):
            self.counting.add(0, 1, 0, length)
        else:
            self.counting.add(1, 0, length, 0)
        return data

    def is_far(self, part: int) -> bool:
        held = self.held.get(part)
        return held is not None and held.file < 0 and held.ready is None

    def read(self, number: int) -> bytes:
        """All bytes of a sample, or an error: never fewer."""
        return self.read_from(self.reach(self._part[number]), number)

    def read_from(self, held: Held, number: int) -> bytes:
        if held.file >= 0:
            data = os.pread(held.file, self._length[number], self._offset[number])
            if len(data) == self._length[number]:
                return data
        return self._long(held, number)

    def reach(self, part: int) -> Held:
        """A part that is wanted now."""
        held = self.held.get(part)
        if held is None:
            file = self.parts.part(self.index.version, part)
            held = self._hold(part, Held(-1 if file is None else file))
            self.far = self.far or file is None
        elif held.file < 0 and held.ready is not None:
            self._bringing.wait(held)
        if held.file >= 0 and self.held.get(part) is held:
            self.ready[part] = held
        return held

    def bring(self, part: int) -> None:
        """A part that will be wanted soon, if it is on this node: from its disk to memory. Who wants a sample of it waits
        for the part: two who read the same from a disk are slower than one, in order and even more so in none."""
        file = self.parts.part(self.index.version, part, wait=False)
        if file is None:
            return
        if not any(cold(file, self.index.parts[part]["size"] * i // PROBES) for i in range(PROBES)):
            self._hold(part, Held(file))
            return
        self._bringing.bring(self._hold(part, Held(file, threading.Event())))

    def straight(self, part: int) -> Held | None:
        """A part to be read past the kernel's memory; None if it is better read the plain way."""
        held = self.held.get(part)
        if held is None:
            try:
                file = self.parts.part(self.index.version, part, wait=False)
            except DataError:
                return None  # the read itself will say what is wrong
            if file is None:
                return None
            held = self._hold(part, Held(file))
        if not held.was_looked_at and held.file >= 0:
            held.look(max(1, self.index.parts[part]["size"]))
        return held.straight

    def alone(self) -> Held | None:
        """As long as one holds what it gets, no other reader on this node gets anything: of several who read the same
        at the same time one goes past the kernel's memory, and the others share what they read there."""
        with suppress(DataError):
            file = self.parts.part(self.index.version, 0, wait=False)
            held = Held(-1 if file is None else file)
            try:
                fcntl.flock(held.file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return None
            except (OSError, ValueError):
                pass  # there are file systems without
            return held
        return None

    def forget(self) -> None:
        """The next run looks anew what is where."""
        self._turn.clear()
        self.ready.clear()
        self.held.clear()

    def _hold(self, part: int, held: Held) -> Held:
        while len(self._turn) >= self._most:
            oldest = self._turn.popleft()
            self.ready.pop(oldest, None)
            self.held.pop(oldest, None)
        self._turn.append(part)
        self.held[part] = held
        return held

    def _long(self, held: Held, number: int) -> bytes:
        """From far away, or too much for a single call."""
        version, part = self.index.version, self._part[number]
        offset, length = self._offset[number], self._length[number]
        pieces, done = [], 0
        while done < length:
            if held.file >= 0:
                piece = os.pread(held.file, length - done, offset + done)
            else:
                sample = number if done == 0 else None
                piece = self.parts.read(version, part, offset + done, length - done, sample)
            if not piece:
                raise Corrupt(
                    f"sample {self.index.name(number)} of version {version[:12]}: its part {part} ends after {done} of "
                    f"{length} bytes; weft data verify says what else is damaged"
                )
            pieces.append(piece)
            done += len(piece)
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def advise(self, numbers: Sequence[int]) -> None:
        """Let the kernel bring these samples from the disk meanwhile, if they are not in memory."""
        step = max(1, len(numbers) // PROBES)
        if not any(self._cold(number) for number in numbers[::step]):
            return
        left = AHEAD_BYTES
        for number in numbers:
            held = self.held.get(self._part[number])
            if held is None or held.file < 0:
                continue
            offset, length = self._offset[number], self._length[number]
            left -= length
            if left < 0:
                return
            for begin in range(offset, offset + length, READAHEAD):
                size = min(READAHEAD, offset + length - begin)
                os.posix_fadvise(held.file, begin, size, os.POSIX_FADV_WILLNEED)

    def _cold(self, number: int) -> bool:
        held = self.held.get(self._part[number])
        return held is not None and held.file >= 0 and cold(held.file, self._offset[number])

    def fit_in_memory(self) -> bool:
        """Whether all of the version could stay in this process's share of the machine's memory."""
        return self.index.bytes < memory() * 3 // 4


class Bringing:
    """Threads that read parts from the disk from beginning to end, which is what disks are good at."""

    def __init__(self) -> None:
        self._waiting: deque[Held] = deque()
        self._threads: list[threading.Thread] = []

    def bring(self, held: Held) -> None:
        self._waiting.append(held)
        self._threads = [thread for thread in self._threads if thread.is_alive()]
        if len(self._threads) < BRINGERS:
            self._threads.append(threading.Thread(target=self._work, name="weft-data", daemon=True))
            self._threads[-1].start()

    def wait(self, held: Held) -> None:
        assert held.ready is not None
        while not held.ready.wait(1.0):
            if not any(thread.is_alive() for thread in self._threads):  # as in a forked process
                held.arrived()

    def _work(self) -> None:
        with open(os.devnull, "wb") as nowhere:
            while True:
                try:
                    held = self._waiting.popleft()
                except IndexError:
                    return
                try:
                    held.bring(nowhere.fileno())
                except OSError:
                    pass  # whoever wants the sample will see it
                finally:
                    held.arrived()


def cold(file: int, offset: int) -> bool:
    """Whether reading there would have to wait for a disk. The kernel begins to read although it was told not to wait,
    and the disk of a virtual machine may be done before the kernel looks: then the time tells."""
    begin = time.perf_counter()
    try:
        os.preadv(file, [bytearray(1)], offset, WAITS_NOT)
    except OSError:
        return True
    return time.perf_counter() - begin > FROM_MEMORY


def memory() -> int:
    """Bytes that this process may fill: of the machine, or of its control group if that has less."""
    with open("/proc/meminfo") as file:
        told = dict(line.split(":", 1) for line in file)
    most = int(told["MemAvailable"].split()[0]) << 10
    try:
        with open("/proc/self/cgroup") as file:
            group = file.read().strip().rpartition("0::")[2]
        with open(f"/sys/fs/cgroup{group}/memory.max") as file:
            return min(most, int(file.read()))
    except (OSError, ValueError):
        return most


class Lookahead:
    """Tells which parts come next: in the order in which they are wanted, a bounded number, each once."""

    def __init__(self, files: Files, order: Order, places: range, bring: bool, elsewhere: bool = False):
        """`bring`: from the node's disk to memory, too. `elsewhere`: other processes read, so that nobody here knows
        which parts are there, and each is told once."""
        self._files = files
        self._there: dict[int, Any] = {} if elsewhere else files.held
        self._elsewhere = elsewhere
        self._bring = bring
        self._order = order
        self._places = places
        self._scanned = 0
        self._told: dict[int, int] = {}
        """Parts on their way, and when each is wanted first."""

    def move(self, at: int) -> None:
        """The reader has got to its sample number `at`."""
        if len(self._there) == len(self._files.index.parts):
            return
        told = self._told = {part: first for part, first in self._told.items() if first >= at}
        self._scanned = max(self._scanned, at)
        end = min(at + AHEAD_SAMPLES, len(self._places))
        fresh = []
        while self._scanned < end and len(told) < AHEAD_PARTS:
            step = min(AHEAD_PARTS, end - self._scanned)
            for number in self._order.take(self._places[self._scanned : self._scanned + step]):
                if len(told) == AHEAD_PARTS:
                    break
                part = self._files.index.part[number]
                if part not in told and part not in self._there:
                    told[part] = self._scanned
                    fresh.append(part)
                self._scanned += 1
        if self._elsewhere:
            self._there.update(dict.fromkeys(fresh))
        if fresh:
            try:
                self._files.parts.ahead(self._files.index.version, fresh)
                for part in fresh if self._bring else ():
                    self._files.bring(part)
            except DataError:
                pass  # the read itself will say what is wrong
