"""Samples to make versions of."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from weft.data import digest
from weft.data.errors import Changed
from weft.data.ingest import ingest
from weft.data.sources import Object
from weft.data.store import Store
from weft.runtime.data.index import Index
from weft.runtime.data.parts import StoreParts
from weft.runtime.data.reader import Dataset


class Listed:
    """A source in memory, with what was read of it."""

    def __init__(self, content: dict[str, bytes], stays: bool = False):
        self.content = content
        self.stays = self.proves = stays
        self.reads: list[str] = []

    def objects(self) -> Iterator[Object]:
        for name, data in self.content.items():
            yield Object(name, len(data), digest.of(data))

    def read(self, item: Object, offset: int = 0, length: int | None = None) -> Iterator[bytes]:
        self.reads.append(item.name)
        data = self.content[item.name]
        if not item.is_marked(digest.of(data)):
            raise Changed(f"{item.name} changed since it was listed")
        end = len(data) if length is None else offset + length
        for at in range(offset, end, 1000):
            yield data[at : min(end, at + 1000)]


def some(count: int, seed: int = 0, most: int = 5000) -> dict[str, bytes]:
    chance = random.Random(seed)
    return {f"{i % 7}/{i:04d}.bin": chance.randbytes(chance.randrange(most)) for i in range(count)}


def stored(folder: Path, content: dict[str, bytes]) -> tuple[Store, str]:
    """A store with one version."""
    store = Store(folder / "store")
    return store, ingest(Listed(content), store, "k").version


def opened(store: Store, version: str, **how: object) -> Dataset:
    return Dataset(StoreParts(str(store.root)), version, **how)  # type: ignore[arg-type]


class Far:
    """An agent that has some parts, fetches others when it is asked to wait, and reads the rest from far away."""

    def __init__(self, store: Store, here: set[int] | None = None, never: set[int] | None = None):
        self._near = StoreParts(str(store.root))
        self.here, self.never = here, never or set()
        self.log: list[tuple[Any, ...]] = []

    def open(self, version: str) -> Index:
        return self._near.open(version)

    def part(self, version: str, part: int, wait: bool = True) -> int | None:
        self.log.append(("part", part, wait))
        if part in self.never or (not wait and self.here is not None and part not in self.here):
            return None
        return self._near.part(version, part)

    def read(self, version: str, part: int, offset: int, length: int, sample: int | None = None) -> bytes:
        self.log.append(("read", part))
        return self._near.read(version, part, offset, min(length, 1000))

    def ahead(self, version: str, parts: Sequence[int]) -> None:
        self.log.append(("ahead", list(parts)))

    def fresh(self, version: str) -> set[int]:
        return set()

    def tell(self, version: str, counted: dict[str, int]) -> bool:
        return True

    def another(self) -> Far:
        return self

    def close(self) -> None: ...
