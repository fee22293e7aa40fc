"""Bringing a part here: read, checked on the way, and only then kept.

What is temporary is tried again, later each time and never at the same moment as others; bytes that have come are
not asked for twice. A part whose content is not what its digest says is fetched once more, and then refused.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator
from typing import Protocol

from blake3 import blake3

from weft.data.cache.versions import Part
from weft.data.errors import Corrupt, NoRoom, Unreachable
from weft.data.patience import PATIENT, Patience

FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
Read = Callable[[Part, int, int], Iterator[bytes]]
"""Bytes of a part from an offset on, so many."""


class Sink(Protocol):
    size: int

    def write(self, chunk: bytes) -> None: ...
    def restart(self) -> None: ...


def fetch(
    part: Part,
    read: Read,
    into: Sink,
    patience: Patience = PATIENT,
    count: Callable[[int], None] | None = None,
) -> None:
    """All of a part, proven: by its digest, or by size and mark where the content stays in its source."""
    for last in (False, True):
        hashed = _stream(part, read, into, patience, count)
        if part.stays or hashed == part.digest:
            return
        if last:
            raise Corrupt(
                f"part {part.digest[:12]} came twice with other bytes than it should have (they hash to {hashed[:12]}); "
                "`weft data verify` says whether the store still has it"
            )
        into.restart()


def _stream(
    part: Part, read: Read, into: Sink, patience: Patience, count: Callable[[int], None] | None
) -> str:
    hashed, failures = blake3(), 0
    while into.size < part.size:
        before = into.size
        try:
            for chunk in read(part, before, part.size - before):
                if into.size + len(chunk) > part.size:
                    raise Corrupt(f"part {part.digest[:12]}: more bytes came than its {part.size}")
                into.write(chunk)
                hashed.update(chunk)
                if count is not None:
                    count(len(chunk))
            if into.size < part.size:
                raise Unreachable(f"part {part.digest[:12]} ended after {into.size} bytes of {part.size}")
        except Unreachable:
            failures = failures + 1 if into.size == before else 1
            if failures >= patience.tries:
                raise
            if into.size < part.size:
                patience.wait(failures - 1)
        except OSError as problem:
            if problem.errno in FULL:
                raise NoRoom(f"part {part.digest[:12]} ({part.size} bytes): {problem.strerror}") from None
            raise
    return hashed.hexdigest()


def fetch_range(part: Part, read: Read, offset: int, length: int, patience: Patience = PATIENT) -> bytes:
    """A piece of a part. Whole parts are checked here; a sample by who knows its mark."""

    def once() -> bytes:
        data = b"".join(read(part, offset, length))
        if len(data) != length:
            raise Unreachable(f"part {part.digest[:12]}: {len(data)} bytes of {length} came; try again")
        return data

    data = patience.ask(once)
    if length == part.size and not part.stays and blake3(data).hexdigest() != part.digest:
        raise Corrupt(f"part {part.digest[:12]} came with other bytes than it should have")
    return data


def space_left(folder: str | os.PathLike[str], part: Part, reserve: int) -> bool:
    """Whether the disk itself has room; asked first, so that nothing is fetched only to be thrown away."""
    disk = os.statvfs(folder)
    inodes = disk.f_files == 0 or disk.f_favail > 2  # file systems without inode tables say 0 of 0
    return inodes and disk.f_bavail * disk.f_frsize - reserve >= part.size
