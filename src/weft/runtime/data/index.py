"""The table of a version's samples, memory-mapped: where each lies, what it is called.

    version.json   what the version is, and its parts
    samples.idx    offset u64[n], length u64[n], part u32[n]
    names.idx      u64[n+1]: where each name begins in names.txt, UTF-8, sorted bytewise

Little-endian. Opening looks at the sizes of the files only, so it takes as long for ten million samples as for ten.
"""

from __future__ import annotations

import json
import mmap
import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, overload

from weft.runtime.data.errors import Corrupt, Missing, Refused

FORMAT = 1
FILES = ("samples.idx", "names.idx", "names.txt", "version.json")
"""What a reader needs, in the order in which an agent hands it over."""
Row = tuple[int, int, int, int, str]
"""Number, part, offset, length and name of a sample."""


class Index:
    """One version, as it will always be. Samples are numbered in the order of their names."""

    def __init__(self, samples: int, names: int, text: int, about: int):
        """From four open files, which may be closed afterwards."""
        if sys.byteorder != "little":
            raise Refused("a dataset's index cannot be read on a big-endian machine")
        document = _document(about)
        self.version: str = document["version"]
        self.parts: list[dict[str, Any]] = document["parts"]
        """`digest`, `size` and `place` of each."""
        self.bytes: int = document["bytes"]
        self.largest: int = document["largest"]
        count: int = document["samples"]
        table, begins = _mapped(samples), _mapped(names)
        self._text = _mapped(text)
        if len(table) != 20 * count or len(begins) != 8 * (count + 1):
            raise self._wrong(f"samples.idx and names.idx are {len(table)} and {len(begins)} bytes")
        self.offset = memoryview(table)[: 8 * count].cast("Q")
        self.length = memoryview(table)[8 * count : 16 * count].cast("Q")
        self.part = memoryview(table)[16 * count :].cast("I")
        self._begin = memoryview(begins).cast("Q")
        self._columns: list[Any] | None = None
        if self._begin[0] != 0 or self._begin[count] != len(self._text):
            raise self._wrong(f"names.txt is {len(self._text)} bytes and should be {self._begin[count]}")

    def _wrong(self, what: str) -> Corrupt:
        return Corrupt(f"the index of version {self.version[:12]} is damaged: {what}; run weft data verify")

    @classmethod
    def open(cls, folder: str) -> Index:
        files: list[int] = []
        try:
            for name in FILES:
                files.append(os.open(os.path.join(folder, name), os.O_RDONLY | os.O_CLOEXEC))
            return cls(*files)
        except FileNotFoundError as problem:
            raise Missing(f"{folder} holds no version: {problem.filename} is missing") from None
        finally:
            for file in files:
                os.close(file)

    def __len__(self) -> int:
        return len(self.part)

    def name(self, number: int) -> str:
        return self._text[self._begin[number] : self._begin[number + 1]].decode()

    def rows(self, numbers: Sequence[int]) -> Iterable[Row]:
        """Of each of these. With numpy the memory is fetched for all of them at once,
        which is most of what it costs when they lie anywhere."""
        numpy, text = sys.modules.get("numpy"), self._text
        if numpy is None:
            part, offset, length, begin = self.part, self.offset, self.length, self._begin
            return [
                (n, part[n], offset[n], length[n], text[begin[n] : begin[n + 1]].decode()) for n in numbers
            ]
        if self._columns is None:
            views = (self.part, self.offset, self.length, self._begin, self._begin[1:])
            self._columns = [numpy.frombuffer(view, f"<u{view.itemsize}") for view in views]
        which = numpy.array(numbers, numpy.int64)
        parts, offsets, lengths, begins, ends = (column[which].tolist() for column in self._columns)
        names = [text[begin:end].decode() for begin, end in zip(begins, ends, strict=True)]
        return zip(numbers, parts, offsets, lengths, names, strict=True)

    def number(self, name: str) -> int:
        """Which sample has this name; KeyError if none has."""
        wanted = name.encode()
        low, high = 0, len(self)
        while low < high:
            middle = (low + high) // 2
            if self._text[self._begin[middle] : self._begin[middle + 1]] < wanted:
                low = middle + 1
            else:
                high = middle
        if low < len(self) and self._text[self._begin[low] : self._begin[low + 1]] == wanted:
            return low
        raise KeyError(name)

    @property
    def names(self) -> Names:
        return Names(self)


class Names(Sequence[str]):
    """The names of all samples in their order, without a list of them in memory."""

    def __init__(self, index: Index):
        self._index = index

    def __len__(self) -> int:
        return len(self._index)

    @overload
    def __getitem__(self, at: int) -> str: ...
    @overload
    def __getitem__(self, at: slice) -> list[str]: ...
    def __getitem__(self, at: int | slice) -> str | list[str]:
        found = range(len(self._index))[at]
        return self._index.name(found) if isinstance(found, int) else [self._index.name(i) for i in found]

    def __iter__(self) -> Iterator[str]:
        return map(self._index.name, range(len(self._index)))

    def __contains__(self, name: object) -> bool:
        try:
            return isinstance(name, str) and self._index.number(name) >= 0
        except KeyError:
            return False

    def index(self, name: str, start: int = 0, stop: int | None = None) -> int:
        try:
            number = self._index.number(name)
        except KeyError:
            number = -1
        if not start <= number < (len(self) if stop is None else stop):
            raise ValueError(f"no sample is called {name!r}")
        return number


def _document(file: int) -> dict[str, Any]:
    try:
        document: dict[str, Any] = json.loads(bytes(_mapped(file)))
        if document["format"] != FORMAT:
            raise Refused(
                f"the version has format {document['format']}, this Weft reads format {FORMAT}: update Weft here"
            )
        if not all(isinstance(document[key], int) for key in ("samples", "bytes", "largest")):
            raise ValueError("a number is not one")
        if not isinstance(document["version"], str) or not isinstance(document["parts"], list):
            raise ValueError("version or parts are missing")
    except (ValueError, KeyError, TypeError) as problem:
        raise Corrupt(f"version.json is damaged: {problem!r}; run weft data verify") from None
    return document


def _mapped(file: int) -> mmap.mmap | bytes:
    """The bytes of a file; an empty one cannot be mapped."""
    return mmap.mmap(file, 0, access=mmap.ACCESS_READ) if os.fstat(file).st_size else b""
