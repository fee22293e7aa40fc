"""The version folders of a node: where they lie in a store on this machine, else brought here once and checked."""

from __future__ import annotations

import fcntl
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path

from weft.data.agent.origins import Origin
from weft.data.cache.admission import Room
from weft.data.cache.books import VERSION, Books, Claim
from weft.data.cache.fetch import FULL
from weft.data.cache.files import READ_ONLY, sync_folder
from weft.data.cache.trees import out_of_sight, remove_tree
from weft.data.cache.versions import FILES, Version, checked
from weft.data.errors import DataError, NoRoom
from weft.data.patience import PATIENT, Patience


class Catalog:
    def __init__(self, folder: Path, books: Books, origin: Origin, patience: Patience = PATIENT):
        self._folder = folder / "versions"
        self._folder.mkdir(mode=0o711, parents=True, exist_ok=True)
        self._books = books
        self._origin = origin
        self._patience = patience
        self._lock = threading.Lock()
        self._versions: dict[str, Version] = {}

    def known(self) -> list[Version]:
        """Also those that another agent of this cache has brought."""
        for path in self._folder.iterdir():
            if not path.name.startswith(".") and path.name not in self._versions:
                with suppress(DataError):
                    self._versions.setdefault(path.name, Version(path, path.name))
        return list(self._versions.values())

    def get(self, name: str) -> Version | None:
        """If it is here already."""
        return self._versions.get(name)

    def path(self, name: str) -> Path:
        return self._folder / checked(name)

    def growing(self, name: str) -> Path:
        return self._folder / f".{checked(name)}"

    def bring(self, name: str, dataset: str, room: Callable[[Claim], object]) -> Version:
        """The version; fetched if need be. `room` may free some before it is claimed."""
        path = self.path(name)
        with self._lock:
            if name in self._versions:
                return self._versions[name]
        there = self._origin.folder(name)
        if there is None:
            with self._alone(name):
                if not path.exists():
                    self._fetch(name, dataset, room)
        version = Version(there or path, name)
        with self._lock:
            return self._versions.setdefault(name, version)

    def _fetch(self, name: str, dataset: str, room: Callable[[Claim], object]) -> None:
        growing = self.growing(name)
        remove_tree(growing)
        try:
            growing.mkdir(mode=0o755)
            size = sum(self._patience.ask(partial(self._write, name, file, growing)) for file in FILES)
            Version(growing, name).check()
            claim = Claim(VERSION, name, "", Room(size, len(FILES) + 1))  # the node's: a quota is for samples
            room(claim)
            if not self._books.reserve(claim, time.time()):
                free = self._books.free(claim)
                raise NoRoom(
                    f"the index of dataset {dataset} has {size} bytes, the cache {free.bytes} and {free.inodes} inodes "
                    "left; give the node a larger quota"
                )
            sync_folder(growing)
            growing.rename(self.path(name))
            sync_folder(self._folder)
            self._books.arrived(VERSION, name)
        except OSError as problem:
            if problem.errno in FULL:
                raise NoRoom(
                    f"the index of dataset {dataset} cannot be written: {problem.strerror}"
                ) from None
            raise
        finally:
            remove_tree(growing)

    def _write(self, name: str, file: str, folder: Path) -> int:
        with (folder / file).open("wb") as out:
            for chunk in self._origin.version_file(name, file):
                out.write(chunk)
            out.flush()
            os.fchmod(out.fileno(), READ_ONLY)
            os.fsync(out.fileno())
            return out.tell()

    def leave(self, name: str) -> Path:
        """Forgotten and out of sight; what is then to be removed."""
        with self._lock:
            self._versions.pop(name, None)
        return out_of_sight(self.path(name))

    def sweep(self) -> int:
        swept = 0
        for path in self._folder.glob(".*"):
            if path.is_dir():
                with suppress(BlockingIOError), self._alone(path.name[1:33], fcntl.LOCK_NB):
                    remove_tree(path)
                    swept += 1
        return swept

    @contextmanager
    def _alone(self, name: str, waiting: int = 0) -> Iterator[None]:
        fd = os.open(self._folder / f".{name}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | waiting)
            yield
        finally:
            os.close(fd)
