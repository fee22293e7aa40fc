"""A version folder as a node sees it: which parts there are, and which sample lies where."""

from __future__ import annotations

import json
import mmap
import os
import re
from collections.abc import Callable, Iterator, Set
from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path
from typing import Any, NamedTuple

from weft.data import sources
from weft.data.cache.files import DIGEST
from weft.data.errors import Corrupt, Missing, Refused
from weft.data.sources import Object

VERSION = re.compile(r"[0-9a-f]{32}")
FILES = ("samples.idx", "names.idx", "names.txt", "version.json", "marks.bin")
HANDED = FILES[:4]
"""Those that a reader needs, in the order in which it gets them."""


class Piece(NamedTuple):
    """One of several objects of a source that are a part together."""

    offset: int
    item: Object


@dataclass(frozen=True, slots=True)
class Part:
    digest: str
    size: int
    key: str | None = None
    """Of the object in the dataset's source, where its content stayed there."""
    mark: str = ""
    pieces: Callable[[int, int], Iterator[Piece]] | None = field(default=None, compare=False)
    """Or the objects there that have bytes of a range, by its offset and length, in their order."""

    @property
    def stays(self) -> bool:
        """In its source: the digest is then of names and marks, not of content."""
        return self.key is not None or self.pieces is not None

    @property
    def called(self) -> str:
        """By what people know it."""
        first = next(self.pieces(0, self.size), None) if self.pieces is not None else None
        if first is not None:
            return f"{first.item.name} and what is packed with it"
        return self.key or f"part {self.digest[:12]}"


class Sample(NamedTuple):
    name: str
    part: int
    offset: int
    length: int
    mark: bytes


class Version:
    """Small until its samples are asked for; those are mapped, not read."""

    def __init__(self, folder: Path, name: str):
        self.name = checked(name)
        self.folder = folder
        try:
            about = json.loads((folder / "version.json").read_bytes())
            if about["format"] != 1 or about["version"] != name:
                raise ValueError(f"it says format {about['format']}, version {about['version']}")
            self.samples = int(about["samples"])
            self.bytes = int(about["bytes"])
            self.parts = tuple(self._part(number, part) for number, part in enumerate(about["parts"]))
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as problem:
            raise Corrupt(
                f"version {name[:12]}: version.json cannot be read ({problem}); forget it on this node"
            ) from None
        self._views: tuple[memoryview, ...] | None = None

    def _part(self, number: int, about: Any) -> Part:
        place, name, size = about["place"], str(about["digest"]), int(about["size"])
        if not DIGEST.fullmatch(name) or size < 0:
            raise ValueError(f"part {name[:80]!r} of {size} bytes")
        if place["kind"] != "source":
            return Part(name, size)
        if "key" in place:
            return Part(name, size, str(place["key"]), str(place["mark"]))
        return Part(name, size, pieces=partial(self._pieces, number, int(place["first"])))

    def _pieces(self, part: int, first: int, offset: int, length: int) -> Iterator[Piece]:
        """Found in the table, where they lie in the order of their offsets: no list of a part's objects is made or kept."""
        offsets, _, parts, *_ = self._maps()
        for number in range(self._reaching(part, first, offset), self.samples):
            if parts[number] > part or (parts[number] == part and offsets[number] >= offset + length):
                return
            if parts[number] == part:
                sample = self.sample(number)
                yield Piece(sample.offset, Object(sample.name, sample.length, "", sample.mark))

    def _reaching(self, part: int, first: int, offset: int) -> int:
        """The first sample of a part with bytes behind an offset. What lies between its samples are large ones, which are
        parts of their own with lower numbers; behind its last one all numbers are higher."""
        offsets, lengths, parts, *_ = self._maps()
        low, high = first, self.samples
        while low < high:
            middle = at = (low + high) // 2
            while at < high and parts[at] < part:
                at += 1
            if at < high and parts[at] == part and offsets[at] + lengths[at] <= offset:
                low = at + 1
            else:
                high = middle
        return low

    def part(self, number: Any) -> Part:
        if type(number) is not int or not 0 <= number < len(self.parts):
            raise Refused(
                f"version {self.name[:12]} has parts 0 to {len(self.parts) - 1}, no part {number!r}"
            )
        return self.parts[number]

    @cached_property
    def _by_digest(self) -> dict[str, Part]:
        return {part.digest: part for part in self.parts}

    @property
    def digests(self) -> Set[str]:
        return self._by_digest.keys()

    def find(self, digest: str) -> Part | None:
        return self._by_digest.get(digest)

    def by_digest(self, digest: str) -> Part:
        part = self.find(digest)
        if part is None:
            raise Missing(f"version {self.name[:12]} has no part {digest[:12]}")
        return part

    def sample(self, number: int) -> Sample:
        if type(number) is not int or not 0 <= number < self.samples:
            raise Refused(f"version {self.name[:12]} has {self.samples} samples, no sample {number!r}")
        offsets, lengths, parts, ends, names, marks = self._maps()
        try:
            name = str(names[ends[number] : ends[number + 1]], "utf-8")
        except ValueError:
            raise Corrupt(f"version {self.name[:12]}: sample {number} has a name that is no text") from None
        mark = bytes(marks[32 * number : 32 * number + 32])
        return Sample(name, parts[number], offsets[number], lengths[number], mark)

    def all_samples(self) -> Iterator[Sample]:
        return map(self.sample, range(self.samples))

    def part_of(self, sample: int) -> int:
        return int(self._maps()[2][sample])

    def content(self, digest: str) -> tuple[int, int]:
        """How many samples a part has, and their bytes."""
        return self._contents[digest]

    @cached_property
    def _contents(self) -> dict[str, tuple[int, int]]:
        samples, sizes = [0] * len(self.parts), [0] * len(self.parts)
        _, lengths, parts, *_ = self._maps()
        for part, length in zip(parts.tolist(), lengths.tolist(), strict=True):
            samples[part] += 1
            sizes[part] += length
        return dict(zip((part.digest for part in self.parts), zip(samples, sizes, strict=True), strict=True))

    def _maps(self) -> tuple[memoryview, ...]:
        if self._views is None:
            n = self.samples
            table = _mapped(self.folder / "samples.idx", 20 * n)
            ends = _mapped(self.folder / "names.idx", 8 * (n + 1)).cast("Q")
            self._views = (
                table[: 8 * n].cast("Q"), table[8 * n : 16 * n].cast("Q"), table[16 * n :].cast("I"), ends,
                _mapped(self.folder / "names.txt", ends[n]), _mapped(self.folder / "marks.bin", 32 * n),
            )  # fmt: skip
        return self._views

    def check(self) -> None:
        """That it is the version of this name, and that every sample lies inside its part."""
        from weft.data.table import checked as check_table  # numpy: only where a version comes from elsewhere

        check_table(self.folder, self.name)


def checked(name: Any) -> str:
    """The name of a version, which becomes the name of a folder."""
    if not isinstance(name, str) or not VERSION.fullmatch(name):
        raise Refused(f"{str(name)[:80]!r} is no version: 32 hexadecimal digits are")
    return name


def check_name(name: str) -> None:
    """That a sample's name stays below the folder it is put into, whoever wrote the index."""
    try:
        sources.check_name(name)
    except Refused:
        raise Corrupt(
            f"sample {name[:80]!r} has no name of a file below a folder; ingest the dataset again"
        ) from None


def _mapped(path: Path, size: int) -> memoryview:
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        found = os.fstat(fd).st_size
        if found != size:
            raise Corrupt(f"{path.name} of version {path.parent.name[:12]} has {found} bytes of {size}")
        return memoryview(mmap.mmap(fd, size, prot=mmap.PROT_READ)) if size else memoryview(b"")
    finally:
        os.close(fd)
