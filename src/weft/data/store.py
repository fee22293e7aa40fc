"""What a server keeps of its datasets: parts by digest, versions by name. Files appear whole or not at all.

parts/ab/DIGEST     bytes, read-only, shared by all versions that have them
versions/VERSION/   the table of a version (runtime/data/index.py), read-only
names/NAME          the newest version of a dataset, for readers outside of jobs
journals/KEY        what an ingest has read already (ingest.py)
damaged/DIGEST      an empty file: the part was found not to be what it is named by; a refresh replaces it
tmp/                what is being written; a folder there belongs to whoever holds its lock
"""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from weft.data.errors import Missing, Refused
from weft.runtime.data.index import Index
from weft.runtime.data.parts import name_path, part_path, version_path


class Store:
    def __init__(self, root: Path):
        self.root = root
        for name in ("parts", "versions", "names", "journals", "tmp"):
            (root / name).mkdir(parents=True, exist_ok=True)

    # ── what is there ──

    def part(self, digest: str) -> Path:
        return Path(part_path(str(self.root), digest))

    def has(self, digest: str, size: int) -> bool:
        """Whole, as far as is known."""
        try:
            return self.part(digest).stat().st_size == size and not self._damaged(digest).exists()
        except FileNotFoundError:
            return False

    def _damaged(self, digest: str) -> Path:
        return self.root / "damaged" / digest

    def version(self, version: str) -> Path:
        return Path(version_path(str(self.root), version))

    def versions(self) -> list[str]:
        return sorted(folder.name for folder in (self.root / "versions").iterdir())

    def index(self, version: str) -> Index:
        return Index.open(str(self.version(version)))

    def named(self, name: str) -> str | None:
        try:
            return Path(name_path(str(self.root), name)).read_text().strip()
        except FileNotFoundError:
            return None

    # ── adding ──

    @contextmanager
    def filling(self) -> Iterator[Path]:
        """A folder to write in, removed at the end. Meanwhile nothing is collected."""
        with self._locked(fcntl.LOCK_SH):
            self.sweep()
            folder, mine = self._folder()
            try:
                yield folder
            finally:
                os.close(mine)
                shutil.rmtree(folder, ignore_errors=True)

    def _folder(self) -> tuple[Path, int]:
        """Locked. Until it is, who sweeps up may take it for one that the dead left: then another is made."""
        while True:
            folder = Path(tempfile.mkdtemp(dir=self.root / "tmp"))
            with suppress(FileNotFoundError):
                mine = os.open(folder, os.O_RDONLY)
                fcntl.flock(mine, fcntl.LOCK_EX)
                if folder.exists():
                    return folder, mine
                os.close(mine)

    def keep_part(self, written: Path, digest: str) -> bool:
        """Move a part that was written and synced to its place; False if it was there already. The one that was there may be
        damaged, this one was hashed just now."""
        place = self.part(digest)
        new = not self.has(digest, written.stat().st_size)
        place.parent.mkdir(exist_ok=True)
        written.chmod(0o444)
        written.replace(place)
        self._damaged(digest).unlink(missing_ok=True)
        return new

    def found_damaged(self, digest: str) -> None:
        """So that the next refresh reads it again. Until then what is good of it can be read."""
        with suppress(OSError):  # a store that can only be read
            self._damaged(digest).parent.mkdir(exist_ok=True)
            self._damaged(digest).touch()

    def sync_parts(self, digests: set[str]) -> None:
        """That the parts have their names must be on disk before a version says so."""
        for folder in {self.part(digest).parent for digest in digests}:
            _sync(folder)
        _sync(self.root / "parts")

    def keep_version(self, written: Path, version: str) -> bool:
        """Move a version's folder to its place; False if the same content was there already."""
        for file in written.iterdir():
            file.chmod(0o444)
            _sync(file)
        _sync(written)
        try:
            written.rename(self.version(version))
        except OSError:
            if not self.version(version).is_dir():
                raise
            return False
        _sync(self.root / "versions")
        return True

    def name(self, name: str, version: str) -> None:
        """Let a name mean a version from now on; who reads another goes on with that."""
        place = Path(name_path(str(self.root), name))
        if place.parent != self.root / "names" or name.startswith("."):
            raise Refused(f"{name!r} cannot be the name of a dataset")
        with self.filling() as folder:
            (folder / "name").write_text(version + "\n")
            _sync(folder / "name")
            (folder / "name").replace(place)
        _sync(place.parent)

    # ── taking away ──

    def remove(self, version: str) -> None:
        """Forget a version; `collect` then frees what no other version has."""
        with self.filling() as folder:
            try:
                self.version(version).rename(folder / "version")
            except FileNotFoundError:
                raise Missing(f"the store {self.root} has no version {version}") from None
            _sync(self.root / "versions")

    def forget(self, digests: set[str]) -> None:
        """Remove parts that an ingest added and no version got. If another ingest runs, it may have counted on them:
        then they stay for `collect`."""
        with suppress(Refused), self._locked(fcntl.LOCK_EX | fcntl.LOCK_NB):
            self._unlink([self.part(digest) for digest in digests - self._used()])

    def collect(self) -> int:
        """Remove parts that no version has; the bytes that became free. Refused while something is being added."""
        with self._locked(fcntl.LOCK_EX | fcntl.LOCK_NB):
            used = self._used()
            return self._unlink([f for f in (self.root / "parts").glob("??/*") if f.name not in used])

    def _unlink(self, parts: list[Path]) -> int:
        freed = 0
        for part in parts:
            with suppress(FileNotFoundError):
                freed += part.stat().st_size
                part.unlink()
            self._damaged(part.name).unlink(missing_ok=True)
        for folder in {part.parent for part in parts}:
            with suppress(OSError):  # others are in it
                folder.rmdir()
        return freed

    def _used(self) -> set[str]:
        return {part["digest"] for version in self.versions() for part in self.index(version).parts}

    def sweep(self) -> None:
        """Remove what writers left that were killed."""
        for folder in (self.root / "tmp").iterdir():
            with suppress(OSError):
                file = os.open(folder, os.O_RDONLY)
                try:
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    shutil.rmtree(folder, ignore_errors=True)
                finally:
                    os.close(file)

    @contextmanager
    def _locked(self, how: int) -> Iterator[None]:
        file = os.open(self.root, os.O_RDONLY)
        try:
            fcntl.flock(file, how)
            yield
        except BlockingIOError:
            raise Refused(f"data is being added to {self.root}; collect when that is done") from None
        finally:
            os.close(file)


def _sync(path: Path) -> None:
    file = os.open(path, os.O_RDONLY)
    try:
        os.fsync(file)
    finally:
        os.close(file)
