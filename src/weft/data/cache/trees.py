"""All samples of a version as files in a folder, for programs that want files: made once a node, never changed.

A tree grows under a name of its own and is renamed when it is whole. Its files are its own: who has the agent's user can
write to them whatever their mode, and a part is read by many. They share blocks with the part where the file system
can. Where jobs see the tree through a read-only mount, a part that is one sample is linked, so it costs nothing. What
is not in the cache passes through without being kept there: the tree has it.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import secrets
import shutil
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path

from weft.data.cache.admission import Room
from weft.data.cache.books import TREE, Books, Claim
from weft.data.cache.files import READ_ONLY, sync_folder
from weft.data.cache.versions import Part, Sample, Version, check_name, checked
from weft.data.errors import Corrupt, NoRoom

AT_ONCE = 4
FOLDER = 0o755
Bring = Callable[[Part], int]
"""An open file with all of a part; the caller closes it."""


class Trees:
    def __init__(self, folder: Path, books: Books, *, mounted: bool = False):
        """`mounted`: jobs see trees through read-only mounts alone."""
        self._mounted = mounted
        self.folder = folder / "trees"
        self.folder.mkdir(mode=0o711, parents=True, exist_ok=True)
        self._books = books

    def path(self, version: str) -> Path:
        return self.folder / checked(version)

    def growing(self, version: str) -> Path:
        return self.folder / f".{checked(version)}"

    def make(
        self, version: Version, dataset: str, quota: int | None, now: float, bring: Bring,
        room: Callable[[Claim], object] = lambda claim: None,
    ) -> Path:  # fmt: skip
        """The folder of a version's files. `room` is told of a claim before it is made, and may free some."""
        done = self.path(version.name)
        with self._alone(version.name):
            if done.exists():
                return done
            growing = self.growing(version.name)
            remove_tree(growing)
            growing.mkdir(mode=0o700)
            claim = Claim(TREE, version.name, dataset, needed(version), quota)
            room(claim)
            if not self._books.reserve(claim, now):
                free = self._books.free(claim)
                growing.rmdir()
                need, left = (
                    (f"{claim.need.inodes} inodes", str(free.inodes))
                    if free.bytes >= claim.need.bytes
                    else (f"{claim.need.bytes} bytes", str(free.bytes))
                )
                raise NoRoom(
                    f"the files of dataset {dataset} need {need}, the cache has {left} left; use mode stream or shard, or a "
                    "larger quota"
                )
            try:
                _grow(version, growing, bring, linking=self._mounted)
                growing.chmod(FOLDER)
                _sync_all(growing)
                growing.rename(done)
                sync_folder(self.folder)
            except BaseException as problem:
                remove_tree(growing)
                self._books.drop(TREE, version.name)
                if isinstance(problem, OSError) and problem.errno in (errno.ENOSPC, errno.EDQUOT):
                    raise NoRoom(f"the files of dataset {dataset}: {problem.strerror}") from None
                raise
            self._books.arrived(TREE, version.name)
            return done

    def remove(self, version: str) -> None:
        """First out of sight, then gone: nobody is shown half a tree."""
        remove_tree(self.leave(version))

    def leave(self, version: str) -> Path:
        """Out of sight; what is then to be removed."""
        return out_of_sight(self.path(version))

    def sweep(self) -> int:
        """Remove what dead makers and removers left; how many there were."""
        swept = 0
        for path in self.folder.glob(".*"):
            if not path.is_dir():
                continue
            version = path.name[1:33]
            with suppress(BlockingIOError), self._alone(version, fcntl.LOCK_NB):
                remove_tree(path)
                swept += 1
        return swept

    @contextmanager
    def _alone(self, version: str, waiting: int = 0) -> Iterator[None]:
        fd = os.open(self.folder / f".{version}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | waiting)
            yield
        finally:
            os.close(fd)


def needed(version: Version) -> Room:
    """Every sample is a file, and every folder above one costs an inode too."""
    folders = {name.rpartition("/")[0] for name in (sample.name for sample in version.all_samples())}
    above = {folder[:at] for folder in folders for at, letter in enumerate(folder + "/") if letter == "/"}
    return Room(version.bytes, version.samples + len(above - {""}) + 1)


def _grow(version: Version, root: Path, bring: Bring, *, linking: bool) -> None:
    """Part after part, so that each is brought once; several at a time, because bringing is waiting."""
    by_part: dict[int, list[int]] = {}
    for number in range(version.samples):
        by_part.setdefault(version.part_of(number), []).append(number)
    with ThreadPoolExecutor(AT_ONCE) as pool:
        made = [
            pool.submit(_unpack, version, root, part, numbers, bring, linking)
            for part, numbers in by_part.items()
        ]
        try:
            for future in made:
                future.result()
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise


def _unpack(
    version: Version, root: Path, number: int, samples: list[int], bring: Bring, linking: bool
) -> None:
    part = version.part(number)
    fd = bring(part)
    try:
        whole = len(samples) == 1 and version.sample(samples[0]).length == part.size
        for sample in map(version.sample, samples):
            target = _place(root, sample)
            if not (whole and _linked(fd, target, linking)):
                _copied(fd, sample, target)
    finally:
        os.close(fd)


def _place(root: Path, sample: Sample) -> Path:
    """Where a sample goes. The folder is new and nobody else's, so only the name itself could lead out of it."""
    check_name(sample.name)
    target = root / sample.name
    try:
        _make_folder(target.parent)
    except (FileExistsError, NotADirectoryError):
        raise Corrupt(
            f"sample {sample.name!r}: a part of its name is also a file; ingest the dataset again"
        ) from None
    return target


def _make_folder(folder: Path) -> None:
    """With those above it, none of which others may write to, whatever the umask."""
    try:
        folder.mkdir(mode=FOLDER)
    except FileNotFoundError:
        _make_folder(folder.parent)
        folder.mkdir(mode=FOLDER, exist_ok=True)
    except FileExistsError:
        if not folder.is_dir():
            raise


def _linked(fd: int, target: Path, linking: bool) -> bool:
    """A name for the open file itself, if it has no other or may have two, nobody may write to it, and the file system can."""
    about = os.fstat(fd)
    if about.st_mode & 0o222 or (about.st_nlink and not linking):
        return False
    folder = os.open(target.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.link(f"/proc/self/fd/{fd}", target.name, dst_dir_fd=folder)
    except FileExistsError:
        raise Corrupt(
            f"there are two samples {target.name!r} in one folder; ingest the dataset again"
        ) from None
    except OSError:
        return False
    finally:
        os.close(folder)
    return True


def _copied(fd: int, sample: Sample, target: Path) -> None:
    """By the kernel, which shares blocks where the file system can."""
    try:
        out = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, READ_ONLY)
    except (FileExistsError, IsADirectoryError):
        raise Corrupt(f"there are two samples {sample.name!r}; ingest the dataset again") from None
    try:
        os.fchmod(out, READ_ONLY)
        at, left = sample.offset, sample.length
        while left:
            done = _copy_some(fd, out, left, at)
            if done == 0:
                raise Corrupt(
                    f"sample {sample.name!r}: its part ended {left} bytes early; forget the version here"
                )
            at, left = at + done, left - done
    finally:
        os.close(out)


def _copy_some(source: int, target: int, count: int, offset: int) -> int:
    try:
        return os.copy_file_range(source, target, count, offset)
    except OSError as problem:
        if problem.errno not in (errno.EXDEV, errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP, errno.EPERM):
            raise
        return os.write(target, os.pread(source, min(count, 1 << 20), offset))


def _sync_all(folder: Path) -> None:
    """One sync for all files: one each would take minutes for a million."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        if ctypes.CDLL(None, use_errno=True).syncfs(fd) != 0:
            os.sync()
    finally:
        os.close(fd)


def out_of_sight(folder: Path) -> Path:
    """Under a name of its own, which a sweep takes for a leftover; there may be nothing."""
    leaving = folder.with_name(f".{folder.name}.leaving-{secrets.token_hex(4)}")
    with suppress(FileNotFoundError):
        folder.rename(leaving)
    return leaving


def remove_tree(folder: Path) -> None:
    with suppress(FileNotFoundError):
        shutil.rmtree(folder)
