"""The sources that this node was told how to read, for objects that stay there. Kept in memory alone: with secrets."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from weft.data.cache.fetch import Read
from weft.data.cache.versions import Part
from weft.data.errors import Refused
from weft.data.patience import ONCE, Patience
from weft.data.pieces import in_pieces
from weft.data.sources import Object, Source, make


class KnownSources:
    """By dataset. Asked for one that it does not know, it refuses: whoever grants says how the source is read."""

    def __init__(self, patience: Patience = ONCE) -> None:
        self._patience = patience  # else the cache has it
        self._told: dict[str, tuple[Mapping[str, Any], Mapping[str, str]]] = {}
        self._made: dict[str, Source] = {}

    def learn(self, dataset: str, source: Mapping[str, Any], credentials: Mapping[str, str]) -> None:
        if self._told.get(dataset) != (source, credentials):
            self._told[dataset] = (source, credentials)
            self._made.pop(dataset, None)

    def __call__(self, dataset: str) -> Read:
        if dataset not in self._told:
            raise Refused(f"dataset {dataset} lies in its source, which this node was not told how to read")
        made = self._made.get(dataset)
        if made is None:
            made = self._made[dataset] = make(*self._told[dataset], self._patience)

        def read(part: Part, offset: int, length: int) -> Iterator[bytes]:
            if part.pieces is not None:
                return in_pieces(made, part.pieces(offset, length), offset, length)
            return made.read(Object(part.key or "", part.size, part.mark), offset, length)

        return read
