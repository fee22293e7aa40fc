"""Files that are replaced so often that none of them ever seems to be finished.

A file that was put into another one's place proves that the other one was whole: nobody writes to a file that has no name any
more. So of every young file the one that was there at the last look is kept open, and handed over once it was replaced.
"""

from __future__ import annotations

import os
import stat
import threading

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, BinaryIO

SETTLED = 2.0
"""Seconds after which a file that nobody wrote to is taken to be finished."""
MOST = 64
"""Files that are kept open at most."""


class Generations:
    """Of one folder, and of files that lie in it directly: several that belong together are not replaced as one."""

    def __init__(self, folder: str, settled: float):
        self._folder = folder
        self._settled = settled
        self._one = threading.Lock()
        self._latest: dict[str, _Kept] = {}
        self._whole: dict[str, _Kept] = {}

    def told(self, files: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """The files as they are told of: of one that is young, the last that is known to be whole, if there is one."""
        young = {
            file["path"]: file for file in files if file["age"] < self._settled and "/" not in file["path"]
        }
        with self._one:
            for path in {*self._latest, *self._whole} - young.keys():
                self._forget(path)
            return [self._told(file) if file["path"] in young else file for file in files]

    def _told(self, file: dict[str, Any]) -> dict[str, Any]:
        path = file["path"]
        self._look(path)
        whole = self._whole.get(path)
        if whole is None:
            return file
        return {**file, "size": whole.size, "modified": whole.modified, "whole": True}

    def _look(self, path: str) -> None:
        """Once more: what lay there before is whole, if it was replaced and not changed."""
        now = self._opened(path)
        before = self._latest.pop(path, None)
        if before is not None and (now is None or before.identity != now.identity):
            if before.unchanged():
                if (older := self._whole.pop(path, None)) is not None:
                    older.close()
                self._whole[path] = before
            else:
                before.close()
        elif before is not None:
            before.close()
        if now is not None:
            self._latest[path] = now

    def _opened(self, path: str) -> _Kept | None:
        if path not in self._latest and len(self._latest) >= MOST:
            return None
        try:
            fd = os.open(
                os.path.join(self._folder, path),
                os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC,
            )
        except OSError:
            return None
        kept = _Kept(fd)
        if not kept.regular:
            kept.close()
            return None
        return kept

    def open(self, path: str) -> BinaryIO:
        """The whole one that was told of; FileNotFoundError if there is none any more."""
        with self._one:
            if (whole := self._whole.get(path)) is None:
                raise FileNotFoundError(path)
            return os.fdopen(os.open(f"/proc/self/fd/{whole.fd}", os.O_RDONLY | os.O_CLOEXEC), "rb")

    def _forget(self, path: str) -> None:
        for kept in (self._latest.pop(path, None), self._whole.pop(path, None)):
            if kept is not None:
                kept.close()


class _Kept:
    def __init__(self, fd: int):
        about = os.fstat(fd)
        self.fd = fd
        self.regular = stat.S_ISREG(about.st_mode)
        self.identity = (about.st_dev, about.st_ino)
        self.size, self.modified = about.st_size, about.st_mtime
        self._written = about.st_mtime_ns

    def unchanged(self) -> bool:
        about = os.fstat(self.fd)
        return (about.st_size, about.st_mtime_ns) == (self.size, self._written)

    def close(self) -> None:
        os.close(self.fd)
