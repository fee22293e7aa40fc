"""A read-only folder with a version's samples as files, served from their parts: for programs that must see files.

    python -m weft.data.fuse --store STORE VERSION FOLDER       # what lies in a store on this machine
    python -m weft.data.fuse --socket SOCKET VERSION FOLDER     # through the node's agent, filling its cache

Nothing is unpacked. A name is found by bisection of the index, so ten million samples need no more memory than ten, and
a read is one `pread` of a part. The content never changes, so the kernel may keep all that it was told.
"""

from __future__ import annotations

import argparse
import ctypes
import errno
import logging
import os
import re
import shutil
import signal
import stat
import subprocess
import sys
import threading
from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from weft.data.errors import DataError, Denied, Missing, Refused, Unreachable
from weft.runtime.data.counting import Counting
from weft.runtime.data.index import Index
from weft.runtime.data.link import Link
from weft.runtime.data.parts import AgentParts, Parts, StoreParts

KEPT = 1e9
"""Seconds for which the kernel may remember names and sizes: for ever."""
KNOWN = 65536
"""Paths whose numbers are remembered."""
OPEN = 512
"""Parts that are open at once."""
DETACH = 2
"""MNT_DETACH: gone now for those who come, and for those who are in it when they leave."""
ERRORS: dict[type[DataError], int] = {Missing: errno.ENOENT, Denied: errno.EACCES, Unreachable: errno.EAGAIN}
READ = stat.S_IFREG | 0o444
FILE = {"st_mode": READ}
FOLDER = {"st_mode": stat.S_IFDIR | 0o555, "st_nlink": 2}
VERSION = re.compile(r"[0-9a-f]{32}")
log = logging.getLogger("weft.data.fuse")


class Samples:
    """What the kernel asks, answered from an index and its parts. (An `Operations` of mfusepy by its names.)"""

    use_ns = True

    def __init__(self, parts: Parts, version: str, ready: Callable[[], None] = lambda: None):
        self._parts = parts
        self._index: Index = parts.open(version)
        self._names = self._index.names
        self._numbers: dict[str, int] = {}
        self._files: dict[int, _File] = {}
        self._turn: deque[int] = deque()
        self._lock = threading.Lock()
        self._ready = ready
        self._counting = Counting(parts, self._index)

    # ── names ──

    def getattr(self, path: str, fh: int | None = None) -> dict[str, Any]:
        number = self._number(path)
        if number is None:
            if path != "/" and not self._is_folder(path[1:]):
                raise OSError(errno.ENOENT, path)
            return FOLDER
        size = self._index.length[number]
        return {"st_mode": READ, "st_nlink": 1, "st_size": size, "st_blocks": (size + 511) // 512}

    def readdir_with_offset(
        self, path: str, offset: int, fh: int
    ) -> Iterator[tuple[str, dict[str, Any], int]]:
        """The entries from one on: an offset is where in the index the next begins."""
        prefix = "" if path == "/" else path[1:] + "/"
        if prefix and not self._is_folder(path[1:]):
            raise OSError(errno.ENOTDIR if self._number(path) is not None else errno.ENOENT, path)
        if offset < 2:
            for number, name in enumerate((".", "..")[offset:], offset + 1):
                yield name, FOLDER, number
        at = offset - 2 if offset >= 2 else 0
        at = max(at, bisect_left(self._names, prefix))
        while at < len(self._names) and (name := self._names[at]).startswith(prefix):
            entry, inner, _ = name[len(prefix) :].partition("/")
            if inner:
                at = bisect_left(self._names, f"{prefix}{entry}0", at)  # 0 follows / in every order of bytes
                yield entry, FOLDER, at + 2
            else:
                at += 1
                yield entry, FILE, at + 2

    def _number(self, path: str) -> int | None:
        number = self._numbers.get(path)
        if number is None:
            try:
                number = self._index.number(path[1:])
            except (KeyError, UnicodeEncodeError):
                return None
            if len(self._numbers) >= KNOWN:
                self._numbers.clear()
            self._numbers[path] = number
        return number

    def _is_folder(self, path: str) -> bool:
        at = bisect_left(self._names, path + "/")
        return at < len(self._names) and self._names[at].startswith(path + "/")

    # ── bytes ──

    def open(self, path: str, flags: int) -> int:
        """Not needed: the kernel then opens and closes files itself, which halves what is asked of us."""
        raise OSError(errno.ENOSYS, path)

    def read(self, path: str, size: int, offset: int, fh: int) -> bytes:
        number, index = self._number(path), self._index
        if number is None:
            raise OSError(errno.ENOENT, path)
        size = min(size, index.length[number] - offset)
        if size <= 0:
            return b""
        part, begin = index.part[number], index.offset[number] + offset
        file, first = self._files.get(part), offset == 0
        if file is None:
            file = self._opened(part)
            came = file.number < 0 or part in self._counting.fresh
            self._counting.add(first and not came, first and came, 0 if came else size, size if came else 0)
            self._counting.tell()
        elif file.number >= 0:
            self._counting.add(first, 0, size, 0)
        else:
            self._counting.add(0, first, 0, size)
        if file.number >= 0:
            data = os.pread(file.number, size, begin)
            if len(data) == size:
                return data
        return self._far(part, begin, size, file)

    def tell(self) -> None:
        """How much was read, and was there."""
        self._counting.tell()

    def _opened(self, part: int) -> _File:
        with told():
            number = self._parts.part(self._index.version, part)
        file = _File(-1 if number is None else number)
        with self._lock:
            while len(self._turn) >= OPEN:
                self._files.pop(self._turn.popleft(), None)
            self._turn.append(part)
            self._files[part] = file
        return file

    def _far(self, part: int, begin: int, size: int, file: _File) -> bytes:
        """From another machine; or in several pieces, if one call gave less."""
        pieces = []
        while size:
            with told():
                if file.number >= 0:
                    piece = os.pread(file.number, size, begin)
                else:
                    piece = self._parts.read(self._index.version, part, begin, size)
            if not piece:
                log.error(
                    "part %d of version %s ends early; run weft data verify", part, self._index.version[:12]
                )
                raise OSError(errno.EIO, "part ends early")
            pieces.append(piece)
            begin, size = begin + len(piece), size - len(piece)
        return b"".join(pieces)

    def statfs(self, path: str) -> dict[str, int]:
        blocks = (self._index.bytes + 4095) // 4096
        return {
            "f_bsize": 4096,
            "f_frsize": 4096,
            "f_blocks": blocks,
            "f_files": len(self._index),
            "f_namemax": 255,
        }

    def init_with_config(self, connection: Any, config: Any) -> None:
        if config is not None:
            config.entry_timeout = config.attr_timeout = config.negative_timeout = KEPT
            config.kernel_cache = 1
        self._ready()


class _File:
    """An open part; closed when no thread uses it any more."""

    __slots__ = ("number",)

    def __init__(self, number: int):
        self.number = number

    def __del__(self) -> None:
        if self.number >= 0:
            os.close(self.number)


@contextmanager
def told() -> Iterator[None]:
    """Our errors as the system's, which is all that a reader of a file can be told; the rest is in the log."""
    try:
        yield
    except DataError as problem:
        log.error("%s", problem)
        raise OSError(ERRORS.get(type(problem), errno.EIO), str(problem)) from None


def serve(
    parts: Parts,
    version: str,
    folder: Path,
    threads: bool = True,
    ready: Callable[[], None] = lambda: None,
) -> None:
    """Mount and answer until the folder is unmounted or the process is told to end.

    Without `threads` one request is answered after the other: the fastest where every part is on this machine, because
    Python runs one thread at a time. Where parts come from elsewhere, one reader's wait must not be everybody's.
    """
    try:
        import mfusepy
    except (ImportError, OSError):
        raise Refused(
            "mounting needs mfusepy (pip install 'weft[data]') and libfuse 3 (Debian: apt-get install libfuse3-3)"
        ) from None
    samples = Samples(parts, version, ready)
    settle(folder)
    _end_when_told(folder, samples.tell)
    try:
        mfusepy.FUSE(
            samples,
            str(folder.absolute()),
            foreground=True,
            nothreads=not threads,
            ro=True,
            nosuid=True,
            nodev=True,
            allow_other=os.geteuid() == 0,
            fsname="weft",
            subtype="weft",
        )
    except RuntimeError as problem:
        raise Refused(
            f"{folder} cannot be mounted (libfuse gives {problem}); this needs /dev/fuse, and either root or fusermount3"
        ) from None


def _end_when_told(folder: Path, last: Callable[[], None]) -> None:
    """A thread waits for the signals. Left to libfuse, one that came between two requests was seen only at the next."""
    told = {signal.SIGTERM, signal.SIGINT, signal.SIGHUP}
    signal.pthread_sigmask(signal.SIG_BLOCK, told)

    def wait() -> None:
        signal.sigwait(told)
        with suppress(DataError):  # not mounted yet
            unmount(folder)
        last()
        os._exit(0)  # whoever has a file open gets an error; nothing here is unfinished

    threading.Thread(target=wait, daemon=True).start()


def settle(folder: Path) -> None:
    """Make the folder ready to be mounted on: what a killed process left there is taken away."""
    try:
        entries = [entry.name for entry in folder.iterdir()]
    except FileNotFoundError:
        raise Missing(f"{folder} is not there; make the folder first") from None
    except OSError as problem:
        if problem.errno != errno.ENOTCONN:
            raise Refused(f"{folder} cannot be mounted on: {problem.strerror}") from None
        unmount(folder)
        return settle(folder)
    if folder.is_mount():
        raise Refused(f"something is mounted on {folder} already; unmount it, or take another folder")
    if entries:
        raise Refused(f"{folder} is not empty: {entries[0]!r} would be hidden; take another folder")
    return None


def unmount(folder: Path) -> None:
    """At once, also while files in it are open; their readers keep them or get an error."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.umount2(os.fsencode(folder), DETACH) == 0:
        return
    number = ctypes.get_errno()
    helper = shutil.which("fusermount3")
    if number == errno.EPERM and helper is not None:
        done = subprocess.run([helper, "-u", "-z", str(folder)], capture_output=True, text=True, check=False)
        if done.returncode == 0:
            return
    raise Refused(f"{folder} cannot be unmounted: {os.strerror(number)}; as root: umount -l {folder}")


def _parts(options: argparse.Namespace) -> Parts:
    if options.store is not None:
        return StoreParts(str(options.store.absolute()))
    token = options.token_file.read_text().strip() if options.token_file else ""
    return AgentParts(Link(options.socket, token))


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m weft.data.fuse", description=__doc__)
    where = parser.add_mutually_exclusive_group(required=True)
    where.add_argument("--store", type=Path)
    where.add_argument("--socket", help="of the node's agent")
    parser.add_argument("--token-file", type=Path, help="with the token of a job that may read it")
    parser.add_argument("version")
    parser.add_argument("folder", type=Path)
    options = parser.parse_args()
    try:
        if not VERSION.fullmatch(options.version):
            raise Refused(f"{options.version!r} is no version: 32 hexadecimal digits")
        serve(
            _parts(options),
            options.version,
            options.folder,
            threads=options.store is None,
            ready=lambda: print(f"mounted {options.folder}", flush=True),
        )
    except DataError as problem:
        print(problem, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
