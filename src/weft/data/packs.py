"""Many small samples in one part: which go together, and how they are written."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from typing import Literal, NamedTuple

from weft.data import digest
from weft.data.errors import Changed
from weft.data.sources import Object, Source

SMALL = 4 << 20
"""Objects below this are packed."""
LARGEST = 32 << 20
"""Bytes of a pack."""
MOST_IN_PLACE = 4096
"""Objects of a pack that stays at its source: each of them is a request when it is read."""

Pack = Literal["auto", "none"]


class Written(NamedTuple):
    """A part as it was written: its digest, and blake3 of each of its samples."""

    digest: str
    size: int
    marks: bytes


def plan(objects: Sequence[Object], pack: Pack = "auto", most: int | None = None) -> Iterator[list[int]]:
    """The objects of each part, by number: small ones together in their order, `most` at once, large ones alone."""
    together: list[int] = []
    size = 0
    for number, item in enumerate(objects):
        if pack == "none" or item.size >= SMALL:
            yield [number]
            continue
        if together and (size + item.size > LARGEST or len(together) == most):
            yield together
            together, size = [], 0
        together.append(number)
        size += item.size
    if together:
        yield together


def write(source: Source, items: Sequence[Object], file: int, came: Callable[[int, int], None]) -> Written:
    """The items one after the other into an open file, hashed on the way; `came` is told how many are whole, and how many
    bytes came: one alone may take hours."""
    whole, size, marks = digest.new(), 0, []
    for item in items:
        own, got = digest.new(), 0
        for chunk in source.read(item):
            own.update(chunk)
            if len(items) > 1:
                whole.update(chunk)
            _write(file, chunk)
            got += len(chunk)
            came(0, len(chunk))
        if got != item.size:
            raise Changed(
                f"{item.name} gave {got} bytes and was listed with {item.size}; let its writer finish, then try again"
            )
        marks.append(own.digest())
        size += got
        came(1, 0)
    name = marks[0].hex() if len(items) == 1 else whole.hexdigest()
    return Written(name, size, b"".join(marks))


def _write(file: int, chunk: bytes) -> None:
    done = os.write(file, chunk)
    while done < len(chunk):
        done += os.write(file, memoryview(chunk)[done:])
