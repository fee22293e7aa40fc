"""Files of a web server: one by its URL, or those that a list names.

A URL that ends with `/` means the files in `SHA256SUMS` below it, written by `sha256sum`: what a page of links means is
not guessed. Any other URL is one file, called by the last step of its path.
"""

from __future__ import annotations

import hashlib
import re
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from email.utils import parsedate_to_datetime
from urllib.parse import quote, unquote, urlsplit

from weft.data import ranges
from weft.data.connections import Answer, Connections, expect, origin, shown
from weft.data.errors import Changed, Corrupt, Refused
from weft.data.patience import PATIENT, Patience
from weft.data.sources import Object, check_name

LIST = "SHA256SUMS"
LONGEST_LIST = 256 << 20
LINE = re.compile(r"([0-9a-f]{64}) [ *](?:\./)?(.+)")
RANGE = re.compile(r"bytes (?:(\d+)-(\d+)|\*)/(\d+)")
PROBES = 8
FRESH = 60
"""Seconds. A time of change so late says nothing: the file may change again within the same second."""


class HttpSource:
    """Each read says which file it means (`If-Match`), and checks that the answer is of that one."""

    def __init__(self, url: str, credentials: Mapping[str, str] | None = None, patience: Patience = PATIENT):
        origin(urlsplit(url))
        self._url = url.partition("#")[0]
        self._many = urlsplit(url).path in ("", "/") or urlsplit(url).path.endswith("/")
        self._connections = Connections(url, credentials or {})
        self._patience = patience
        self._whole: set[str] = set()
        """Files of which the server gives no ranges."""
        self.stays = False
        """Known when all were asked for: whether every file has ranges and a mark to be trusted."""
        self.proves = False  # a mark is not all that a file is checked by

    def objects(self) -> Iterator[Object]:
        sums = self._patience.ask(self._sums) if self._many else {self._name(): ""}
        stays = True
        with ThreadPoolExecutor(PROBES) as pool:
            try:
                asked = pool.map(lambda name: self._patience.ask(lambda: self._probe(name)), sums)
                for name, (size, mark, by_range) in zip(sums, asked, strict=True):
                    if not by_range:
                        self._whole.add(name)
                    stays = stays and by_range and not mark.startswith("~")
                    yield Object(name, size, mark + (sums[name] and f" sha256={sums[name]}"))
            finally:
                pool.shutdown(cancel_futures=True)
        self.stays = stays

    def read(self, item: Object, offset: int = 0, length: int | None = None) -> Iterator[bytes]:
        mark, _, checksum = item.mark.partition(" sha256=")
        left = item.size - offset if length is None else min(length, item.size - offset)
        what = shown(self._at(item.name))

        def begin(offset: int, length: int) -> Iterator[bytes]:
            return self._range(item, mark, offset, length)

        how = ranges.resumed if item.name in self._whole else ranges.read
        chunks = how(what, begin, offset, left, self._patience)
        return _checked(chunks, checksum, what) if checksum and left == item.size else chunks

    def _range(self, item: Object, mark: str, offset: int, length: int) -> Iterator[bytes]:
        url = self._at(item.name)
        what = shown(url)
        headers = {"Range": f"bytes={offset}-{offset + length - 1}", **_condition(mark)}
        with self._connections.get(url, headers) as answer:
            expect(answer, what, 206, 200)
            if answer.status == 206:
                first, size = _place(answer, what)
                if first != offset:
                    raise Refused(
                        f"{what}: the server gives bytes from {first} on and was asked for {offset}"
                    )
            else:
                size = _length(answer, what)
            if size != item.size or (not mark.startswith("~") and _mark(answer) != mark):
                raise Changed(f"{what} changed since it was listed; make a new version (weft data refresh)")
            skip = offset if answer.status == 200 else 0
            for chunk in answer.body():
                if skip >= len(chunk):
                    skip -= len(chunk)
                    continue
                wanted = chunk[skip : skip + length]
                skip, length = 0, length - len(wanted)
                yield wanted
                if not length:
                    return

    def _probe(self, name: str) -> tuple[int, str, bool]:
        """Size and mark, and whether the server gives ranges: by asking for one, as what it says of itself may be
        wrong."""
        url = self._at(name)
        with self._connections.get(url, {"Range": "bytes=0-0"}) as answer:
            what = shown(url)
            if answer.status == 416:
                found = RANGE.fullmatch(answer.headers.get("Content-Range", ""))
                if found and found[3] == "0":
                    return 0, "empty", True
            expect(answer, what, 206, 200)
            if answer.status == 206:
                size = _place(answer, what)[1]
                for _ in answer.body():
                    pass
                return size, _mark(answer), True
            size = _length(answer, what)
            return (size, _mark(answer), False) if size else (0, "empty", True)

    def _sums(self) -> dict[str, str]:
        url = self._at(LIST)
        what = shown(url)
        with self._connections.get(url, {}) as answer:
            if answer.status == 404:
                raise Refused(
                    f"{shown(self._url)} ends with / and has no {LIST}, which would say what is below it; "
                    "write one there (sha256sum), or give the url of one file"
                )
            expect(answer, what, 200)
            content = bytearray()
            for chunk in answer.body():
                content += chunk
                if len(content) > LONGEST_LIST:
                    raise Refused(f"{what} is longer than {LONGEST_LIST} bytes; divide the dataset")
            if len(content) != _length(answer, what, len(content)):
                raise Changed(f"{what}: {len(content)} bytes came, which is not all; try again")
        sums: dict[str, str] = {}
        for number, line in enumerate(content.decode(errors="surrogateescape").splitlines(), 1):
            found = LINE.fullmatch(line)
            if found is None:
                raise Refused(f"{what}: line {number} is not as sha256sum writes it: a checksum and a name")
            check_name(found[2])
            if found[2] != LIST:
                sums[found[2]] = found[1]
        return sums

    def _name(self) -> str:
        return unquote(urlsplit(self._url).path.rpartition("/")[2])

    def _at(self, name: str) -> str:
        if not self._many:
            return self._url
        parts = urlsplit(self._url)
        return parts._replace(path=(parts.path or "/") + quote(name, errors="surrogateescape")).geturl()


def _mark(answer: Answer) -> str:
    """What tells one content from another; with ~ if it may not, and must not be trusted later."""
    tag = answer.headers.get("ETag", "")
    if tag and not tag.startswith("W/"):
        return tag
    changed = answer.headers.get("Last-Modified", "")
    with suppress(ValueError, TypeError):
        if parsedate_to_datetime(changed).timestamp() < time.time() - FRESH:
            return changed
    return f"~{time.time_ns():x}"


def _condition(mark: str) -> dict[str, str]:
    if mark.startswith("~"):
        return {}
    return {"If-Match": mark} if mark.startswith('"') else {"If-Unmodified-Since": mark}


def _place(answer: Answer, what: str) -> tuple[int, int]:
    """Where a range begins, and the size of the whole."""
    found = RANGE.fullmatch(answer.headers.get("Content-Range", ""))
    if found is None or found[1] is None:
        raise Refused(f"{what}: the server gives a range and does not say which; copy the file elsewhere")
    return int(found[1]), int(found[3])


def _length(answer: Answer, what: str, otherwise: int | None = None) -> int:
    text = answer.headers.get("Content-Length", "")
    if text.isdecimal():
        return int(text)
    if otherwise is not None:
        return otherwise
    raise Refused(f"{what}: the server does not say how long it is; copy the file elsewhere")


def _checked(chunks: Iterator[bytes], checksum: str, what: str) -> Iterator[bytes]:
    """The last chunk is given only when all of them are proven."""
    hashed, held = hashlib.sha256(), b""
    for chunk in chunks:
        hashed.update(chunk)
        if held:
            yield held
        held = chunk
    if hashed.hexdigest() != checksum:
        raise Corrupt(f"{what} has another checksum than {LIST} says; tell whoever keeps the files")
    if held:
        yield held
