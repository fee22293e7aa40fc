"""A folder as a package: a tar.gz that is the same bytes for the same content, wherever it was packed.

Entries are sorted, and owners, times and most of the mode are left out, so that the sha256 of the bytes
names the content: a folder that has not changed is uploaded once, however often it is submitted.
"""

from __future__ import annotations

import gzip
import hashlib
import heapq
import os
import stat
import tarfile
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from weft.client.errors import PackageError
from weft.client.home import is_home
from weft.client.ignore import DEFAULT_PATTERNS, IGNORE_FILE, IgnoreRules
from weft.client.progress import Progress

MAX_BYTES = 512 * 2**20
COMPRESSION = 1
"""The fastest: packages mostly cross the loopback, and level 6 costs five times the time for a tenth less."""


@dataclass(frozen=True, slots=True)
class Package:
    """The packed bytes in an open temporary file, at its beginning; gone when it is closed."""

    digest: str
    size: int
    file: IO[bytes]
    files: int

    def close(self) -> None:
        self.file.close()


@dataclass(frozen=True, slots=True)
class _Entry:
    path: str
    """Relative to the folder, with `/`."""
    source: Path
    stat: os.stat_result


class _Hashed:
    """A writer that remembers the sha256 and size of what passed, and stops at the limit."""

    def __init__(self, target: IO[bytes], limit: int, progress: Progress | None):
        self._target = target
        self._limit = limit
        self._progress = progress
        self.sha256 = hashlib.sha256()
        self.size = 0

    def write(self, data: bytes) -> int:
        self.size += len(data)
        if self.size > self._limit:
            raise _TooLarge
        self.sha256.update(data)
        if self._progress is not None:
            self._progress("packing", self.size, None)
        return self._target.write(data)

    def flush(self) -> None:
        self._target.flush()


class _TooLarge(Exception):
    pass


def pack(folder: str | os.PathLike[str], limit: int = MAX_BYTES, progress: Progress | None = None) -> Package:
    """Pack a folder by its ignore rules. Refuses links that leave it and packages over the limit."""
    root = Path(folder).expanduser().absolute()
    _check_folder(root)
    target = tempfile.TemporaryFile()  # noqa: SIM115  (the package keeps it open)
    hashed = _Hashed(target, limit, progress)
    files = 0
    try:
        with (
            gzip.GzipFile(
                filename="", mode="wb", compresslevel=COMPRESSION, fileobj=hashed, mtime=0
            ) as zipped,
            tarfile.open(fileobj=zipped, mode="w", format=tarfile.PAX_FORMAT) as tar,
        ):
            for entry in _entries(root):
                _add(tar, entry, root)
                files += stat.S_ISREG(entry.stat.st_mode)
    except _TooLarge:
        target.close()
        raise _too_large(root, limit) from None
    except BaseException:
        target.close()
        raise
    target.seek(0)
    return Package(f"sha256:{hashed.sha256.hexdigest()}", hashed.size, target, files)


def list_files(folder: str | os.PathLike[str]) -> list[str]:
    """The paths that `pack` would put into the package, in order."""
    return [entry.path for entry in _entries(Path(folder).expanduser().absolute())]


def _check_folder(root: Path) -> None:
    if not root.is_dir():
        cause = "it is a file, not a folder" if root.exists() else "there is no such folder"
        raise PackageError(f"cannot pack {root}", cause)
    if is_home(root):
        raise PackageError(
            f"will not pack {root}",
            "it is the home of a server, with its token and secrets",
            "put the code into a folder of its own, or name one: --code DIR",
        )
    for precious in (Path("/"), Path.home()):
        if root.resolve() == precious.resolve():
            raise PackageError(
                f"will not pack {root}",
                "the whole of it would be sent with the job",
                "put the code into a folder of its own, or name one: --code DIR",
            )


def _entries(root: Path) -> Iterator[_Entry]:
    ignore = root / IGNORE_FILE
    own = ignore.read_text("utf-8", "replace").splitlines() if ignore.is_file() else []
    yield from _walk(root, "", IgnoreRules([*DEFAULT_PATTERNS, *own]))


def _walk(folder: Path, prefix: str, rules: IgnoreRules) -> Iterator[_Entry]:
    try:
        with os.scandir(folder) as scan:
            found = sorted(scan, key=lambda entry: os.fsencode(entry.name))
    except OSError as problem:
        raise _unreadable(folder, prefix, problem) from None
    for item in found:
        path = prefix + item.name
        is_folder = item.is_dir(follow_symlinks=False)
        if rules.ignores(path, is_folder) or (is_folder and is_home(Path(item.path))):
            continue
        info = item.stat(follow_symlinks=False)
        if not (is_folder or stat.S_ISREG(info.st_mode) or stat.S_ISLNK(info.st_mode)):
            continue  # sockets, pipes and devices are no content
        source = Path(item.path)
        yield _Entry(path, source, info)
        if is_folder:
            yield from _walk(source, path + "/", rules)


def _add(tar: tarfile.TarFile, entry: _Entry, root: Path) -> None:
    info = tarfile.TarInfo(entry.path)
    if stat.S_ISLNK(entry.stat.st_mode):
        info.type, info.mode, info.linkname = tarfile.SYMTYPE, 0o777, _link_target(entry, root)
        tar.addfile(info)
    elif stat.S_ISDIR(entry.stat.st_mode):
        info.type, info.mode = tarfile.DIRTYPE, 0o755
        tar.addfile(info)
    else:
        info.mode = 0o755 if entry.stat.st_mode & stat.S_IXUSR else 0o644
        try:
            content = entry.source.open("rb")
        except OSError as problem:
            raise _unreadable(entry.source, entry.path, problem) from None
        with content:
            info.size = os.fstat(content.fileno()).st_size
            try:
                tar.addfile(info, content)
            except OSError as problem:
                cause = (
                    f"{entry.path} became smaller while it was read"
                    if problem.errno is None
                    else str(problem)
                )
                raise PackageError(
                    f"cannot pack {root}", cause, f"add /{entry.path} to {IGNORE_FILE}"
                ) from None


def _link_target(entry: _Entry, root: Path) -> str:
    """The link as it is, or made relative; only if it stays inside the folder."""
    target = str(entry.source.readlink())
    parent = entry.source.parent
    inside = os.path.normpath(parent / target)
    top = os.path.normpath(root)
    leaves = os.path.commonpath([inside, top]) != top
    if leaves or not (parent / target).resolve().is_relative_to(root.resolve()):
        raise PackageError(
            f"cannot pack {root}",
            f"the link {entry.path} leads out of the folder (to {target})",
            f"copy what it points to, or add /{entry.path} to {IGNORE_FILE}",
        )
    return os.path.relpath(inside, parent) if target.startswith("/") else target


def _unreadable(source: Path, path: str, problem: OSError) -> PackageError:
    return PackageError(
        f"cannot read {source}", problem.strerror or "", f"add /{path.rstrip('/')} to {IGNORE_FILE}"
    )


def _too_large(root: Path, limit: int) -> PackageError:
    files = (entry for entry in _entries(root) if stat.S_ISREG(entry.stat.st_mode))
    biggest = heapq.nlargest(5, files, key=lambda entry: entry.stat.st_size)
    lines = "".join(f"\n  {entry.stat.st_size / 2**20:8.1f} MiB  {entry.path}" for entry in biggest)
    return PackageError(
        f"cannot pack {root}",
        f"it is over {limit / 2**20:.0f} MiB even compressed; its biggest files:{lines}",
        f"add what the job does not need to {root / IGNORE_FILE}, one pattern a line (data/ or *.ckpt)",
    )
