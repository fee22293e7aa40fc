"""Where a node gets what it does not hold: a store on this machine, a server, or a dataset's own source."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Protocol

from weft.data.agent.remote import Remote
from weft.data.cache.fetch import Read
from weft.data.cache.files import DIGEST
from weft.data.cache.versions import Part, checked
from weft.data.errors import Corrupt, Missing, Refused, Unreachable

CHUNK = 1 << 20
Sources = Callable[[str], Read]
"""How to read the objects of a dataset's source, by the dataset's name."""


class Origin(Protocol):
    def open(self, part: Part) -> int | None:
        """The part's file where it lies, if that is on this machine: no copy is needed then."""
        ...

    def folder(self, version: str) -> Path | None:
        """Likewise the version's folder."""
        ...

    def read(self, part: Part, offset: int, length: int) -> Iterator[bytes]: ...
    def version_file(self, version: str, name: str) -> Iterator[bytes]: ...
    def has(self, digest: str) -> bool: ...
    def gone(self, version: str) -> bool:
        """Whether it is known that this version was deleted; that a part is lost says nothing about it."""
        ...

    def close(self) -> None: ...


class StoreFolder:
    """A store's folder on this machine: parts are handed out as they lie there."""

    def __init__(self, folder: Path):
        self._folder = folder

    def path(self, digest: str) -> Path:
        if not DIGEST.fullmatch(digest):
            raise Refused(f"{digest[:80]!r} is no digest of a part")
        return self._folder / "parts" / digest[:2] / digest

    def open(self, part: Part) -> int | None:
        try:
            fd = os.open(self.path(part.digest), os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            if part.stays:
                return None
            raise Missing(
                f"part {part.digest[:12]} is not in the store; `weft data verify` says what else is gone"
            ) from None
        except OSError as problem:
            raise Unreachable(
                f"part {part.digest[:12]} cannot be opened in the store: {problem.strerror}"
            ) from None
        found = os.fstat(fd).st_size
        if found != part.size:
            os.close(fd)
            raise Corrupt(
                f"part {part.digest[:12]} has {found} bytes of {part.size} in the store; ingest its dataset again"
            )
        return fd

    def folder(self, version: str) -> Path | None:
        path = self._folder / "versions" / checked(version)
        if not path.is_dir():
            raise Missing(f"version {version[:12]} is not in the store; `weft data ls` says what is")
        return path

    def read(self, part: Part, offset: int, length: int) -> Iterator[bytes]:
        fd = self.open(part)
        if fd is None:
            raise Missing(f"part {part.digest[:12]} is not in the store")
        try:
            while length and (chunk := os.pread(fd, min(length, CHUNK), offset)):
                offset, length = offset + len(chunk), length - len(chunk)
                yield chunk
        finally:
            os.close(fd)

    def version_file(self, version: str, name: str) -> Iterator[bytes]:
        folder = self.folder(version)
        assert folder is not None
        yield (folder / name).read_bytes()

    def has(self, digest: str) -> bool:
        return self.path(digest).exists()

    def gone(self, version: str) -> bool:
        versions = self._folder / "versions"
        return versions.is_dir() and not (versions / checked(version)).exists()

    def close(self) -> None: ...


class FarFolder(StoreFolder):
    """A store's folder that is treated as another machine's: whatever a node needs of it is copied."""

    def open(self, part: Part) -> int | None:
        return None

    def folder(self, version: str) -> Path | None:
        return None

    def read(self, part: Part, offset: int, length: int) -> Iterator[bytes]:
        return StoreFolder(self._folder).read(part, offset, length)

    def version_file(self, version: str, name: str) -> Iterator[bytes]:
        return StoreFolder(self._folder).version_file(version, name)


class Server:
    """A Weft server's store, over HTTP."""

    def __init__(self, base: str, bearer: Callable[[], str] = lambda: "", timeout: float = 30.0):
        self._remote = Remote(base, bearer, timeout)

    def open(self, part: Part) -> int | None:
        return None

    def folder(self, version: str) -> Path | None:
        return None

    def read(self, part: Part, offset: int, length: int) -> Iterator[bytes]:
        return self._remote.read(f"/v1/data/parts/{part.digest}", offset, length, part.size)

    def version_file(self, version: str, name: str) -> Iterator[bytes]:
        return self._remote.whole(f"/v1/data/versions/{checked(version)}/{name}")

    def has(self, digest: str) -> bool:
        return self._remote.has(f"/v1/data/parts/{digest}")

    def gone(self, version: str) -> bool:
        return not self._remote.has(f"/v1/data/versions/{checked(version)}/version.json")

    def close(self) -> None:
        self._remote.close()


def reader(origin: Origin, dataset: str, sources: Sources | None) -> Read:
    """Reads any part of a dataset: from its source what stays there, from the origin the rest."""

    def read(part: Part, offset: int, length: int) -> Iterator[bytes]:
        if not part.stays:
            return origin.read(part, offset, length)
        if sources is None:
            raise Refused(
                f"{part.called} of dataset {dataset} lies in its source, which this node has no way to read"
            )
        return sources(dataset)(part, offset, length)

    return read
