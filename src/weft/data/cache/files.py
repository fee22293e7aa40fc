"""Parts as files, parts/ab/DIGEST: whole and never changed, or not there.

A part grows in tmp/DIGEST, a file that is its own lock: whoever fills it holds `flock` on it, so there is one filler
however many processes want the part, and the lock of one that was killed is free at once. When it is whole it is
synced and renamed, so no name in parts/ ever showed half of one. Nothing of a dead filler is used: the next begins anew.
"""

from __future__ import annotations

import errno
import fcntl
import os
import re
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from weft.data.errors import Refused

DIGEST = re.compile(r"[0-9a-f]{64}")
READ_ONLY = 0o444
IN_MEMORY = 64 << 20


class Temporary:
    """The file of a part that is being filled, under its lock."""

    def __init__(self, fd: int):
        self.fd = fd
        self.size = 0

    def write(self, chunk: bytes | memoryview) -> None:
        left = memoryview(chunk)
        while left:
            left = left[os.write(self.fd, left) :]
        self.size += len(chunk)

    def restart(self) -> None:
        os.ftruncate(self.fd, 0)
        os.lseek(self.fd, 0, os.SEEK_SET)
        self.size = 0


class Files:
    def __init__(self, folder: Path):
        self.parts = folder / "parts"
        self.tmp = folder / "tmp"
        for made in (self.parts, self.tmp):
            made.mkdir(mode=0o700, parents=True, exist_ok=True)

    def path(self, digest: str) -> Path:
        if not DIGEST.fullmatch(digest):
            raise Refused(f"{digest[:80]!r} is no digest of a part: 64 hexadecimal digits are")
        return self.parts / digest[:2] / digest

    def growing(self, digest: str) -> Path:
        return self.tmp / self.path(digest).name

    def open(self, digest: str, size: int) -> int | None:
        """To be read; None if it is not there. A file of another size was damaged from outside, and goes."""
        try:
            fd = os.open(self.path(digest), os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        except FileNotFoundError:
            return None
        if os.fstat(fd).st_size == size:
            return fd
        os.close(fd)
        self.remove(digest)
        return None

    def has(self, digest: str) -> bool:
        return self.path(digest).exists()

    def remove(self, digest: str) -> None:
        """Who has it open reads on."""
        self.path(digest).unlink(missing_ok=True)

    def held(self) -> Iterator[tuple[str, int]]:
        """Digest and size of all that is there."""
        for folder in self.parts.iterdir():
            with suppress(NotADirectoryError), os.scandir(folder) as entries:
                for entry in entries:
                    if DIGEST.fullmatch(entry.name):
                        with suppress(FileNotFoundError):
                            yield entry.name, entry.stat(follow_symlinks=False).st_size

    @contextmanager
    def filling(self, digest: str) -> Iterator[Temporary]:
        """The lock of a part and an empty file for it; waits for another filler. What is not kept is gone afterwards."""
        path = self.growing(digest)
        fd = _locked(path)
        try:
            yield Temporary(fd)
        finally:
            if _is(path, fd):
                path.unlink()
            os.close(fd)

    def passing(self, size: int) -> Temporary:
        """A file without a name, for what is used now and not kept; it is gone when it is closed, or its process is."""
        if size <= IN_MEMORY:
            return Temporary(os.memfd_create("passing"))
        try:
            fd = os.open(self.tmp, os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC, READ_ONLY)
            os.fchmod(fd, READ_ONLY)
        except OSError as problem:
            if problem.errno not in (errno.EOPNOTSUPP, errno.EISDIR, errno.ENOENT):
                raise
            with tempfile.TemporaryFile(dir=self.tmp) as file:
                fd = os.dup(file.fileno())
        return Temporary(fd)

    def keep(self, digest: str, temporary: Temporary) -> None:
        """The part is whole: make its bytes durable, then its name."""
        os.fsync(temporary.fd)
        path = self.path(digest)
        if not path.parent.exists():
            path.parent.mkdir(mode=0o700, exist_ok=True)
            sync_folder(self.parts)
        self.growing(digest).rename(path)
        sync_folder(path.parent)

    def sweep(self) -> int:
        """Remove what dead fillers left; how many there were."""
        swept = 0
        for path in self.tmp.iterdir():
            with suppress(FileNotFoundError, BlockingIOError):
                swept += _remove_unlocked(path, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return swept


def _locked(path: Path) -> int:
    """A new file under its lock. One that is there has a filler, which is waited for, or had one that died."""
    while True:
        try:
            fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, READ_ONLY)
        except FileExistsError:
            with suppress(FileNotFoundError):
                _remove_unlocked(path, fcntl.LOCK_EX)
            continue
        fcntl.flock(fd, fcntl.LOCK_EX)
        if _is(path, fd):
            os.fchmod(fd, READ_ONLY)
            return fd
        os.close(fd)  # somebody was quicker with the lock, and took it for a dead one's


def _remove_unlocked(path: Path, lock: int) -> bool:
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        fcntl.flock(fd, lock)
        if left := _is(path, fd):
            path.unlink()
        return left
    finally:
        os.close(fd)


def _is(path: Path, fd: int) -> bool:
    try:
        return os.path.samestat(path.lstat(), os.fstat(fd))
    except FileNotFoundError:
        return False


def sync_folder(folder: Path) -> None:
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
