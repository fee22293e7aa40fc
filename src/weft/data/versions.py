"""A version of a dataset: written once, named by its content, and proved at any time."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy

from weft.data import digest, table
from weft.data.errors import DataError
from weft.data.sources import Object, Source
from weft.data.store import Store
from weft.data.table import MARKS
from weft.runtime.data.index import FORMAT, Index


@dataclass(frozen=True, slots=True)
class Part:
    """Where so many bytes are, and what they are called."""

    digest: str
    size: int
    key: str | None = None
    """Not in the store but left at the source, under this key,"""
    mark: str = ""
    """as long as it has this mark."""
    objects: tuple[int, int] | None = None
    """Or as many objects at the source, one behind the other: the number of the first sample, and how many they are."""

    @property
    def stored(self) -> bool:
        return self.key is None and self.objects is None

    def dump(self) -> dict[str, Any]:
        place: dict[str, Any] = {"kind": "store"}
        if self.key is not None:
            place = {"kind": "source", "key": self.key, "mark": self.mark}
        elif self.objects is not None:
            place = {"kind": "source", "first": self.objects[0], "count": self.objects[1]}
        return {"digest": self.digest, "size": self.size, "place": place}


@dataclass(slots=True)
class Samples:
    """The table of a version in the making: one row a sample, in the order of the names."""

    names: list[bytes]
    offset: Any
    length: Any
    part: Any
    marks: bytearray

    @classmethod
    def of(cls, names: list[bytes]) -> Samples:
        count = len(names)
        return cls(
            names,
            numpy.zeros(count, "<u8"),
            numpy.zeros(count, "<u8"),
            numpy.zeros(count, "<u4"),
            bytearray(digest.SIZE * count),
        )


def write(folder: Path, samples: Samples, parts: Sequence[Part]) -> str:
    """The files of a version into an empty folder; its name."""
    lengths = samples.length.tolist()
    marks = memoryview(samples.marks)
    version = digest.of_version(
        (name, length, bytes(marks[at : at + digest.SIZE]))
        for name, length, at in zip(samples.names, lengths, range(0, len(marks), digest.SIZE), strict=True)
    )
    begins = numpy.zeros(len(lengths) + 1, "<u8")
    numpy.cumsum([len(name) for name in samples.names], out=begins[1:])
    with (folder / "samples.idx").open("wb") as file:
        for column in (samples.offset, samples.length, samples.part):
            file.write(column.tobytes())
    (folder / "names.idx").write_bytes(begins.tobytes())
    (folder / "names.txt").write_bytes(b"".join(samples.names))
    (folder / MARKS).write_bytes(samples.marks)
    document = {
        "format": FORMAT,
        "version": version,
        "samples": len(lengths),
        "bytes": sum(lengths),
        "largest": max(lengths, default=0),
        "parts": [part.dump() for part in parts],
    }
    (folder / "version.json").write_text(json.dumps(document, separators=(",", ":")))
    return version


# ── proving ──


@dataclass(frozen=True, slots=True)
class Problem:
    """Something that is not as it was stored."""

    what: str
    """`index`, `part`, `sample`, or `object` at the source."""
    name: str
    cause: str

    def __str__(self) -> str:
        return f"{self.what} {self.name}: {self.cause}"


@dataclass(slots=True)
class Report:
    """What was looked at, and all that is wrong."""

    version: str
    parts: int = 0
    samples: int = 0
    bytes: int = 0
    elsewhere: int = 0
    """Objects left at their source, known by their size and mark alone."""
    problems: list[Problem] = field(default_factory=list)

    @property
    def good(self) -> bool:
        return not self.problems

    def __str__(self) -> str:
        read = f"{self.samples} samples in {self.parts} parts, {self.bytes} bytes"
        if self.elsewhere:
            read += f" ({self.elsewhere} objects are at their source, known by their size and mark)"
        if self.good:
            return f"version {self.version[:12]} is good: {read}"
        return (
            f"version {self.version[:12]} is damaged, {len(self.problems)} problems in {read}:\n"
            + "\n".join(f"  {problem}" for problem in self.problems)
        )


def verify(store: Store, version: str, source: Source | None = None, threads: int = 4) -> Report:
    """Read every byte of a version and compare it with what its name promises; of objects that were left at their
    `source`, that they are there as they were: with their size and their mark."""
    report = Report(version)
    try:
        index, marks = table.checked(store.version(version), version)
    except DataError as problem:
        report.problems.append(Problem("index", version[:12], str(problem)))
        return report
    report.samples, report.bytes = len(index), index.bytes
    order = numpy.argsort(numpy.frombuffer(index.part, "<u4"), kind="stable")
    ends = numpy.searchsorted(numpy.frombuffer(index.part, "<u4")[order], numpy.arange(len(index.parts) + 1))

    def proved(part: int) -> list[Problem]:
        about, numbers = index.parts[part], order[ends[part] : ends[part + 1]].tolist()
        if about["place"]["kind"] == "store":
            return list(_of_a_part(store, index, marks, part, numbers))
        if source is None:
            return []
        if "key" in about["place"]:
            item = Object(about["place"]["key"], about["size"], about["place"]["mark"])
            return list(_of_an_object(source, item, index.name(numbers[0])))
        return [
            problem for number in numbers for problem in _of_an_object(source, _object(index, marks, number))
        ]

    with ThreadPoolExecutor(threads) as pool:
        for part, problems in enumerate(pool.map(proved, range(len(index.parts)))):
            report.parts += 1
            place = index.parts[part]["place"]
            report.elsewhere += 0 if place["kind"] == "store" else place.get("count", 1)
            report.problems += problems
    return report


def _of_a_part(store: Store, index: Index, marks: bytes, part: int, numbers: list[int]) -> Iterator[Problem]:
    about = index.parts[part]
    short = f"{part} ({about['digest'][:12]}, {len(numbers)} samples)"
    try:
        file = os.open(store.part(about["digest"]), os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        yield Problem("part", short, "it is missing")
        return
    except OSError as problem:
        yield Problem("part", short, str(problem))
        return
    try:
        size = os.fstat(file).st_size
        if size != about["size"]:
            yield Problem("part", short, f"it has {size} bytes instead of {about['size']}")
        elif (found := digest.of_file(file)) != about["digest"]:
            store.found_damaged(about["digest"])
            yield Problem("part", short, f"its content has the digest {found[:12]}")
        for number in numbers:
            mark = marks[digest.SIZE * number : digest.SIZE * (number + 1)]
            if _mark(file, index.offset[number], index.length[number]) != mark:
                yield Problem(
                    "sample", index.name(number), f"its content in part {part} is not what was stored"
                )
    except OSError as problem:
        yield Problem("part", short, str(problem))
    finally:
        os.close(file)


def _object(index: Index, marks: bytes, number: int) -> Object:
    """One of several that are a part together: a sample's name is its key, and its mark the digest of the object's."""
    mark = marks[digest.SIZE * number : digest.SIZE * (number + 1)]
    return Object(index.name(number), index.length[number], "", mark)


def _of_an_object(source: Source, item: Object, name: str = "") -> Iterator[Problem]:
    try:
        size = sum(map(len, source.read(item)))
    except DataError as problem:
        yield Problem("object", name or item.name, str(problem))
        return
    if size != item.size:
        yield Problem("object", name or item.name, f"its source gives {size} bytes instead of {item.size}")


def _mark(file: int, offset: int, length: int) -> bytes:
    hasher, end = digest.new(), offset + length
    while offset < end and (chunk := os.pread(file, min(digest.CHUNK, end - offset), offset)):
        hasher.update(chunk)
        offset += len(chunk)
    return bytes(hasher.digest())
