"""One folder as a copy of another: what is new is added whole, what is gone is removed, nothing is ever half there."""

from __future__ import annotations

import os
import shutil
import stat
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

UNFINISHED = ".unfinished"
SETTLED = 2.0
"""A file that was changed less than this many seconds ago may still be written to."""


@dataclass(slots=True)
class Mirrored:
    files: int = 0
    bytes: int = 0
    unsettled: int = 0
    """Files that seem to be written just now, left for the next time."""


def mirror(
    source: Path,
    target: Path,
    *,
    final: bool = False,
    wanted: Callable[[str], bool] = lambda path: True,
    now: Callable[[], float] = time.time,
) -> Mirrored:
    """Make `target` a copy of `source`; OSError names what could not be written.

    Only regular files: a link may lead anywhere. Names that begin with a dot are somebody's books, not to be copied.
    `final`: nobody writes any more. What is gone from the source is removed only once all that is there was copied,
    and never the last of it: an empty source is more often a disk that was lost than a wish.
    """
    done = Mirrored()
    there: set[str] = set()
    for path, found in _files(source):
        if not wanted(path):
            continue
        there.add(path)
        if _same(target / path, found):
            continue
        if (final or now() - found.st_mtime >= SETTLED) and _copy(source / path, target, path, final=final):
            done.files += 1
            done.bytes += found.st_size
        else:
            done.unsettled += 1
    if there and not done.unsettled:
        _remove_others(target, there)
    return done


def _files(folder: Path, below: str = "") -> Iterator[tuple[str, os.stat_result]]:
    try:
        entries = sorted(os.scandir(folder / below), key=lambda entry: entry.name)
    except (FileNotFoundError, NotADirectoryError):
        return  # removed this moment, as old checkpoints are
    for entry in entries:
        path = f"{below}/{entry.name}" if below else entry.name
        if entry.name.startswith("."):
            continue
        if entry.is_dir(follow_symlinks=False):
            yield from _files(folder, path)
            continue
        try:
            found = entry.stat(follow_symlinks=False)
        except FileNotFoundError:
            continue
        if stat.S_ISREG(found.st_mode):
            yield path, found


def _same(path: Path, found: os.stat_result) -> bool:
    try:
        there = path.lstat()
    except OSError:
        return False
    return (there.st_size, there.st_mtime_ns) == (found.st_size, found.st_mtime_ns)


def _copy(source: Path, target: Path, path: str, *, final: bool) -> bool:
    """False if the file is gone or changed meanwhile."""
    try:
        file = os.open(source, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError:
        return False
    unfinished = target / UNFINISHED
    with os.fdopen(file, "rb") as reader:
        before = os.fstat(file)
        if not stat.S_ISREG(before.st_mode):
            return False
        target.mkdir(parents=True, exist_ok=True)
        with unfinished.open("wb") as writer:
            shutil.copyfileobj(reader, writer, 1 << 20)
            writer.flush()
            os.fsync(writer.fileno())
        after = os.fstat(file)
    if not final and (before.st_size, before.st_mtime_ns) != (after.st_size, after.st_mtime_ns):
        unfinished.unlink()
        return False
    os.utime(unfinished, ns=(after.st_atime_ns, after.st_mtime_ns))
    place = target / path
    place.parent.mkdir(parents=True, exist_ok=True)
    unfinished.replace(place)
    return True


def _remove_others(target: Path, there: set[str]) -> None:
    folders = {str(parent) for path in there for parent in PurePosixPath(path).parents}
    for path, _ in list(_files(target)):
        if path not in there:
            (target / path).unlink(missing_ok=True)
    for base, names, _ in os.walk(target):
        for name in list(names):
            folder = Path(base, name)
            if folder.relative_to(target).as_posix() not in folders:
                names.remove(name)
                shutil.rmtree(folder, ignore_errors=True)
