"""Where a reader gets bytes from: the node's agent (`link`), or a store's folder on this machine."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Any, Protocol

from weft.runtime.data.errors import Missing, Refused
from weft.runtime.data.index import FILES, Index


class Parts(Protocol):
    """The requests of a reader, one to one as an agent answers them. Used by several threads, after a
    fork, and pickled to other processes, which open versions themselves."""

    def open(self, version: str) -> Index: ...

    def part(self, version: str, part: int, wait: bool = True) -> int | None:
        """An open file that the caller closes; None if the part is not here and will not be: `read` it."""

    def read(self, version: str, part: int, offset: int, length: int, sample: int | None = None) -> bytes:
        """Perhaps fewer; with the number of the sample that they all are, whoever reads them can prove them."""

    def ahead(self, version: str, parts: Sequence[int]) -> None:
        """These will be wanted next, in this order."""

    def fresh(self, version: str) -> set[int]:
        """Parts that had to come from elsewhere for the one who asked; who has counted them clears it."""

    def tell(self, version: str, counted: dict[str, int]) -> bool:
        """What was read, for whoever keeps count; whether it was heard."""

    def another(self) -> Parts:
        """For another thread, whose requests wait for nobody else's; it closes it."""

    def close(self) -> None: ...


def part_path(store: str, digest: str) -> str:
    return os.path.join(store, "parts", digest[:2], digest)


def version_path(store: str, version: str) -> str:
    return os.path.join(store, "versions", version)


def name_path(store: str, name: str) -> str:
    return os.path.join(store, "names", name)


class AgentParts:
    """Through the node's agent."""

    def __init__(self, link: Any):
        self._link = link

    @classmethod
    def of_this_job(cls) -> AgentParts:
        return cls(import_module("weft.runtime.data.link").Link.of_this_job())

    def __reduce__(self) -> tuple[Callable[[], AgentParts], tuple[()]]:
        return AgentParts.of_this_job, ()

    def open(self, version: str) -> Index:
        _, files = self._link.open(version)
        try:
            return Index(*(files[name] for name in FILES))
        finally:
            for file in files.values():
                os.close(file)

    def part(self, version: str, part: int, wait: bool = True) -> int | None:
        file: int | None = self._link.part(version, part, wait)
        return file

    def read(self, version: str, part: int, offset: int, length: int, sample: int | None = None) -> bytes:
        data: bytes = self._link.read(version, part, offset, length, sample)
        return data

    def ahead(self, version: str, parts: Sequence[int]) -> None:
        self._link.ahead(version, parts)

    def fresh(self, version: str) -> set[int]:
        found: set[int] = self._link.fresh.setdefault(version, set())
        return found

    def tell(self, version: str, counted: dict[str, int]) -> bool:
        told: bool = self._link.tell({"do": "got", "version": version, **counted})
        return told

    def another(self) -> AgentParts:
        return AgentParts(self._link.another())

    def close(self) -> None:
        self._link.close()


class StoreParts:
    """Straight from a store's folder: every part is here, and nothing needs to be fetched ahead."""

    def __init__(self, store: str):
        self._store = store
        self._open: dict[str, Index] = {}

    def __reduce__(self) -> tuple[type[StoreParts], tuple[str]]:
        return StoreParts, (self._store,)

    def open(self, version: str) -> Index:
        index = Index.open(version_path(self._store, version))
        self._open[version] = index
        return index

    def part(self, version: str, part: int, wait: bool = True) -> int | None:
        about = self._open[version].parts[part]
        if (place := about["place"])["kind"] != "store":
            key = place.get("key") or f"{self._open[version].name(place['first'])} and what is packed with it"
            raise Refused(
                f"part {part} of version {version[:12]} was left at its source ({key}), which "
                "only a node's agent reads: run this as a job, or weft data pull"
            )
        try:
            return os.open(part_path(self._store, about["digest"]), os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            raise Missing(
                f"part {part} of version {version[:12]} is not in {self._store}; weft data verify says what is lost"
            ) from None

    def read(self, version: str, part: int, offset: int, length: int, sample: int | None = None) -> bytes:
        file = self.part(version, part)
        assert file is not None
        try:
            return os.pread(file, length, offset)
        finally:
            os.close(file)

    def ahead(self, version: str, parts: Sequence[int]) -> None:
        """Nothing is far away."""

    def fresh(self, version: str) -> set[int]:
        return set()

    def tell(self, version: str, counted: dict[str, int]) -> bool:
        return True

    def another(self) -> StoreParts:
        return self

    def close(self) -> None: ...
