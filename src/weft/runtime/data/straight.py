"""Straight from the disk: many reads on their way at once, past the kernel's memory, without a thread.

To put into the kernel's memory what a disk gives costs more than the disk itself takes, and is worth it only for what
is read again. So what is read for the first time, and what would not stay there anyway, goes around it: O_DIRECT, by
Linux' own asynchronous reads. One call begins a batch of them and none waits for the interpreter's lock, as threads
would. Whatever goes wrong with a read here, the sample is read the plain way, which says what is wrong.
"""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import platform
import struct
import time
from collections import deque
from collections.abc import Iterable, Iterator

from weft.runtime.data.files import Files, Held
from weft.runtime.data.index import Row

RING = 16 << 20
"""Bytes that are on their way, or wait to be taken."""
DEPTH = 256
"""Reads on their way."""
FEW = DEPTH * 3 // 4
REFILL = RING // 4
"""More reads are begun when there are so few, and so much is free: a call costs as much as several reads."""
JOINED = 1 << 20
"""What lies side by side is one read up to this size."""
LARGEST = RING // 4
"""A larger sample is read the plain way: it keeps a disk busy by itself."""
PATIENCE, SLOW = 1.0, 100e6
"""A disk is slow if one has waited so many seconds for it, and got fewer bytes a second."""
PAGE = mmap.PAGESIZE
SMALLEST_BLOCK = 512
NOWHERE = 2**64 - 1
"""MAP_FAILED"""
READ = struct.Struct("<QIIHhIQQqQII")
"""struct iocb: number, …, file, memory, size, offset, …"""
DONE = struct.Struct("<QQqq")
"""struct io_event: number, …, bytes or a negative errno, …"""
CALLS = {"x86_64": (206, 207, 209, 208), "aarch64": (0, 1, 2, 4), "riscv64": (0, 1, 2, 4)}
"""Numbers of the system calls io_setup, io_destroy, io_submit and io_getevents."""


class Span:
    """Samples that one read brings, or a single one to be read the plain way."""

    __slots__ = ("begin", "end", "got", "held", "memory", "room", "rows")

    def __init__(self, held: Held | None, begin: int, end: int, row: Row):
        self.held, self.begin, self.end, self.rows = held, begin, end, [row]
        self.memory = self.room = 0
        self.got: int | None = 0 if held is None else None
        """Bytes that came, once it is over."""

    def takes(self, part: int, offset: int, length: int) -> bool:
        """Whether a sample lies right behind, and is to be read with these."""
        beside = self.end == offset and self.rows[0][1] == part
        return beside and self.held is not None and offset + length - self.begin <= JOINED


class Memory:
    """Bytes of one process. In huge pages, for a disk is told of every piece: with small ones it gives half as much.
    Not there in a forked process: the kernel would part them, and what is on its way might arrive at the wrong ones."""

    forks = 0
    """That led to this process."""

    def __init__(self, size: int):
        self._size, self._forks = size, Memory.forks
        kernel = ctypes.CDLL(None, use_errno=True)
        kernel.mmap.restype = ctypes.c_void_p
        kernel.mmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t, *(ctypes.c_int,) * 3, ctypes.c_long)
        self._advise, self._unmap = kernel.madvise, kernel.munmap
        self._advise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
        self._unmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t)
        how = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
        self.address: int = kernel.mmap(None, size, mmap.PROT_READ | mmap.PROT_WRITE, how, -1, 0)
        if self.address == NOWHERE or self._advise(self.address, size, mmap.MADV_DONTFORK):
            raise OSError(ctypes.get_errno(), f"no {size} bytes of memory to read into")
        self._advise(self.address, size, mmap.MADV_HUGEPAGE)
        self.view = memoryview((ctypes.c_char * size).from_address(self.address)).cast("B")

    @property
    def mine(self) -> bool:
        return self._forks == Memory.forks

    def __del__(self) -> None:
        if self.mine:
            self._unmap(self.address, self._size)


def _forked() -> None:
    Memory.forks += 1


os.register_at_fork(after_in_child=_forked)


class Ring:
    """Memory that is filled in the order in which it is taken, and the queue of reads that fill it."""

    def __init__(self, held: Held):
        """`held` is one of those that will be read; OSError where it is not possible."""
        self._memory = Memory(RING)
        self._view = self._memory.view
        self._block = SMALLEST_BLOCK
        try:
            os.preadv(held.file, [self._view[: self._block]], self._block)
        except OSError:
            self._block = PAGE
            os.preadv(held.file, [self._view[: self._block]], 0)
        self._reads = ctypes.create_string_buffer(READ.size * DEPTH)
        first = ctypes.addressof(self._reads)
        self._places = (ctypes.c_void_p * DEPTH)(*range(first, first + READ.size * DEPTH, READ.size))
        self._done = ctypes.create_string_buffer(DONE.size * DEPTH)
        self._next, self._free, self._number = 0, RING, 0
        self._waited, self._brought = 0.0, 0
        self._batch: list[Span] = []
        self._coming: dict[int, Span] = {}
        self._system = ctypes.CDLL(None, use_errno=True).syscall
        self._system.argtypes, self._system.restype = (ctypes.c_long, *(ctypes.c_void_p,) * 5), ctypes.c_long
        if platform.machine() not in CALLS or ctypes.sizeof(ctypes.c_void_p) != 8:
            raise OSError(errno.ENOSYS, f"not known how to read like this on {platform.machine()}")
        setup, self._destroy, self._submit, self._events = CALLS[platform.machine()]
        queue = ctypes.c_void_p()
        self._call(setup, DEPTH, ctypes.addressof(queue))
        self._queue = queue.value

    def begin(self, span: Span) -> bool:
        """Put a read into the batch; False if there is no room now."""
        if span.held is None or not self.mine:
            span.got = 0
            return True
        begin = span.begin // self._block * self._block
        size = -(-(span.end - begin) // self._block) * self._block
        room = -(-size // PAGE) * PAGE
        left = RING - self._next
        skipped = left if left < room else 0
        if skipped + room > self._free:
            return False
        at = 0 if skipped else self._next
        self._next = (at + room) % RING
        self._free -= skipped + room
        span.room, span.memory = skipped + room, at + span.begin - begin
        self._number += 1
        place, file = READ.size * len(self._batch), span.held.file
        READ.pack_into(
            self._reads,
            place,
            self._number,
            0,
            0,
            0,
            0,
            file,
            self._memory.address + at,
            size,
            begin,
            0,
            0,
            0,
        )
        self._batch.append(span)
        return True

    def submit(self) -> None:
        """Send the batch to the disk. What the kernel does not take has brought nothing."""
        if not self._batch:
            return
        taken = self._system(self._submit, self._queue, len(self._batch), self._places, None, None)
        first = self._number - len(self._batch) + 1
        for i, span in enumerate(self._batch):
            if i < taken:
                self._coming[first + i] = span
            else:
                span.got = 0
        self._batch = []

    def wait(self, span: Span) -> memoryview | None:
        """The bytes of a span, until it ends; None if they are to be read the plain way."""
        while span.got is None:
            if not self.mine:
                return None
            begin = time.perf_counter()
            count = self._call(self._events, self._queue, 1, DEPTH, self._done)
            self._waited += time.perf_counter() - begin
            for i in range(count):
                number, _, got, _ = DONE.unpack_from(self._done, DONE.size * i)
                done = self._coming.pop(number)
                done.got = got - (done.memory % self._block)
                self._brought += max(0, got)
        size = span.end - span.begin
        return self._view[span.memory : span.memory + size] if span.got >= size else None

    def end(self, span: Span) -> None:
        """Its memory may be filled anew."""
        self._free += span.room

    @property
    def low(self) -> bool:
        return self._free >= REFILL

    @property
    def slow(self) -> bool:
        return self._waited > PATIENCE and self._brought < SLOW * self._waited

    @property
    def mine(self) -> bool:
        """Not in a process that was forked since: it has neither the memory nor the queue."""
        return self._memory.mine

    def close(self) -> None:
        """Waits for what is on its way."""
        if self.mine:
            self._call(self._destroy, self._queue)

    def _call(self, number: int, *given: object) -> int:
        while (got := self._system(number, *given, *(None,) * (5 - len(given)))) < 0:
            problem = ctypes.get_errno()
            if problem != errno.EINTR:
                raise OSError(problem, os.strerror(problem))
        return int(got)


class Straight:
    """Samples of one run: those that come next are on their way while one is taken."""

    def __init__(self, files: Files, held: Held, lock: Held | None = None, hasty: bool = False):
        """`held` is one of the parts, `lock` is kept until the end; `hasty`: give up if the disk is slow at this.
        OSError where it is not possible."""
        self._files = files
        self._ring = Ring(held)
        self._lock = lock
        self._hasty = hasty

    def __enter__(self) -> Straight:
        return self

    def __exit__(self, *_: object) -> None:
        self._ring.close()
        self._files.forget()

    def read(self, chunks: Iterator[Iterable[Row]]) -> Iterator[tuple[str, bytes]]:
        """Name and bytes of every sample, in their order. It ends before the end where whole parts, one after the
        other, are better: on a disk that has to move its head."""
        files, ring = self._files, self._ring
        planned: deque[Span] = deque()
        begun: deque[Span] = deque()
        while True:
            if len(begun) <= FEW and ring.low:
                while len(begun) < DEPTH:
                    if not planned and not (self._hasty and ring.slow):
                        planned.extend(self._spans(next(chunks, ())))
                    if not planned or not ring.begin(planned[0]):
                        break
                    begun.append(planned.popleft())
                ring.submit()
            if not begun:
                return
            span = begun.popleft()
            memory = ring.wait(span)
            for number, _, offset, length, name in span.rows:
                if memory is None or not ring.mine:
                    content = files.read(number)
                    if files.is_far(span.rows[0][1]):
                        files.counting.far(length)
                else:
                    content = bytes(memory[offset - span.begin : offset - span.begin + length])
                yield name, content
            files.passed += len(span.rows)
            files.counting.took([row[0] for row in span.rows])
            ring.end(span)

    def _spans(self, rows: Iterable[Row]) -> Iterator[Span]:
        """What lies side by side is one read."""
        last: Span | None = None
        for row in rows:
            _, part, offset, length, _ = row
            if last is not None and last.takes(part, offset, length):
                last.rows.append(row)
                last.end += length
                continue
            if last is not None:
                yield last
            held = self._files.straight(part) if 0 < length <= LARGEST else None
            last = Span(held, offset, offset + length, row)
        if last is not None:
            yield last
