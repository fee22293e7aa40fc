"""A folder of files on the server's machine, or a single file."""

from __future__ import annotations

import errno
import os
import stat
import time
from collections.abc import Iterator
from pathlib import Path

from weft.data.errors import Changed, DataError, Denied, Missing, Refused
from weft.data.sources import Object

CHUNK = 4 << 20
FRESH = 2_000_000_000
"""Nanoseconds. A file changed so lately may change again without a new time: its mark is never trusted later."""


class FileSource:
    """All regular files below a folder. Links, devices and sockets are refused: where they lead is not in the folder."""

    stays = proves = False

    def __init__(self, path: Path):
        self._only: str | None = path.name if path.is_file() else None
        self._root = path if self._only is None else path.parent

    def objects(self) -> Iterator[Object]:
        now = time.time_ns()
        if self._only is not None:
            try:
                about = (self._root / self._only).stat()
            except OSError as problem:
                raise _told(self._root / self._only, problem) from None
            yield Object(self._only, about.st_size, _mark(about, now))
            return
        folders = [""]
        while folders:
            folder = folders.pop()
            try:
                with os.scandir(self._root / folder) as entries:
                    for entry in entries:
                        name = folder + entry.name
                        about = entry.stat(follow_symlinks=False)
                        if stat.S_ISDIR(about.st_mode):
                            folders.append(name + "/")
                        elif stat.S_ISREG(about.st_mode):
                            yield Object(name, about.st_size, _mark(about, now))
                        else:
                            raise Refused(
                                f"{entry.path} is a {_kind(about.st_mode)}, and a dataset holds plain files only; "
                                "put the file itself there, or take it away"
                            )
            except OSError as problem:
                raise _told(self._root / folder, problem) from None

    def read(self, item: Object, offset: int = 0, length: int | None = None) -> Iterator[bytes]:
        path = self._root / item.name
        try:
            file = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
        except OSError as problem:
            raise _told(path, problem) from None
        try:
            self._same(path, file, item)
            end = item.size if length is None else min(item.size, offset + length)
            while offset < end:
                chunk = os.pread(file, min(CHUNK, end - offset), offset)
                if not chunk:
                    raise _changed(path)
                offset += len(chunk)
                if offset == end:
                    self._same(path, file, item)
                yield chunk
        except OSError as problem:
            raise _told(path, problem) from None
        finally:
            os.close(file)

    def _same(self, path: Path, file: int, item: Object) -> None:
        if _mark(os.fstat(file)) != item.mark.partition("~")[0]:
            raise _changed(path)


def _mark(about: os.stat_result, now: int | None = None) -> str:
    mark = f"{about.st_mtime_ns:x}.{about.st_ctime_ns:x}.{about.st_ino:x}.{about.st_size:x}"
    if now is not None and max(about.st_mtime_ns, about.st_ctime_ns) > now - FRESH:
        return f"{mark}~{now:x}"
    return mark


def _kind(mode: int) -> str:
    kinds = {stat.S_IFLNK: "link", stat.S_IFSOCK: "socket", stat.S_IFIFO: "pipe"}
    return kinds.get(stat.S_IFMT(mode), "device")


def _changed(path: Path) -> Changed:
    return Changed(f"{path} changed while it was read; let its writer finish, then try again")


def _told(path: Path, problem: OSError) -> DataError:
    if isinstance(problem, PermissionError):
        return Denied(f"{path}: the server may not read it; change its mode or owner")
    if isinstance(problem, FileNotFoundError):
        return Missing(f"{path} is not there; see that the path is one of the server's machine")
    if isinstance(problem, NotADirectoryError):
        return Refused(f"{path} is neither a folder nor a file; give one of these")
    if problem.errno == errno.ELOOP:
        return Changed(f"{path} became a link while it was read; put the file itself there")
    return DataError(f"{path}: {problem.strerror}; look at the disk it lies on")
