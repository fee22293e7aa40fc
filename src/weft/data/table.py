"""Whether the table of a version makes sense, and is the one that the version is named by."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import numpy

from weft.data import digest
from weft.data.errors import Corrupt, DataError
from weft.data.sources import check_name
from weft.runtime.data.index import Index

MARKS = "marks.bin"


def checked(folder: Path, version: str) -> tuple[Index, bytes]:
    """The index of a version's folder, and its marks; Corrupt if they are not this version's."""
    try:
        index, marks = Index.open(str(folder)), (folder / MARKS).read_bytes()
    except OSError as problem:
        raise Corrupt(f"version {version[:12]} cannot be read: {problem}") from None
    for cause in _wrong(index, marks, version):
        raise Corrupt(f"version {version[:12]}: {cause}; ingest its dataset again")
    return index, marks


def _wrong(index: Index, marks: bytes, version: str) -> Iterator[str]:
    if len(marks) != digest.SIZE * len(index):
        yield f"{MARKS} has {len(marks)} bytes for {len(index)} samples"
        return
    offset, length = numpy.frombuffer(index.offset, "<u8"), numpy.frombuffer(index.length, "<u8")
    part = numpy.frombuffer(index.part, "<u4")
    try:
        sizes = numpy.array([about["size"] for about in index.parts], "<u8")
        for about in index.parts:
            assert about["place"]["kind"] in ("store", "source")
            assert (
                about["place"]["kind"] == "store"
                or {"key", "mark"} <= about["place"].keys()
                or (0 <= about["place"]["first"] < len(index) and about["place"]["count"] > 0)
            )
            assert len(bytes.fromhex(about["digest"])) == digest.SIZE
        names = [name.encode() for name in index.names]
        for name in index.names:
            check_name(name)
    except (KeyError, TypeError, ValueError, AssertionError, OverflowError, DataError) as problem:
        yield f"its parts or names make no sense ({problem!r})"
        return
    if any(a >= b for a, b in pairwise(names)):
        yield "its names are not sorted, or a name comes twice"
    if len(part) and int(part.max()) >= len(sizes):
        yield f"a sample lies in part {int(part.max())} of {len(sizes)}"
        return
    if len(part) and bool(((offset > sizes[part]) | (length > sizes[part] - offset)).any()):
        yield "a sample reaches beyond the end of its part"
        return
    if (index.bytes, index.largest) != (int(length.sum()), int(length.max(initial=0))):
        yield f"it says {index.bytes} bytes, its samples have {int(length.sum())}"
    content = digest.of_version(
        (name, int(size), marks[at : at + digest.SIZE])
        for name, size, at in zip(names, length.tolist(), range(0, len(marks), digest.SIZE), strict=True)
    )
    if not version == content == index.version:
        yield f"names, lengths and marks are those of version {content[:12]}"
