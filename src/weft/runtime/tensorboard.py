"""Scalars from TensorBoard event files, read while they are being written, without TensorFlow.

An event file is a row of records (TFRecord): 8 bytes length, 4 bytes checksum of the length, the data, 4
bytes checksum of the data; all little-endian, the checksums CRC-32C, masked. The data is an `Event` in
protobuf, of which only these fields matter here:

    Event      1 wall_time double, 2 step int64, 5 summary
    Summary    1 value (repeated)
    Value      1 tag, 2 simple_value float, 8 tensor
    Tensor     1 dtype, 2 shape, 4 tensor_content, and a list of values for every family of types
"""

from __future__ import annotations

import os
import struct
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from weft.runtime.collect import Emit, Followed, Note

MAX_RECORD = 1 << 24
"""Longer records are stepped over: graphs and images, never a scalar."""
READ = 1 << 21
"""Bytes of one file in one poll."""
MAX_FOLDERS = 1000
CHECKED = 1 << 20
"""Shorter records are always checked; longer ones, at 100 ns a byte, only if a scalar comes out."""


class Scalar(NamedTuple):
    tag: str
    step: int
    time: float
    value: float


class Damaged(ValueError):
    """A checksum does not fit, or the bytes are no protobuf."""


class EventFile:
    """One event file and how far it has been read.

    `read()` returns the scalars of the records that are whole by now; a record that is still being
    written is left for the next call. `offset` always stands at the beginning of a record, so that
    reading can go on from it in another process.
    """

    def __init__(self, path: str, offset: int = 0):
        self.path = path
        self.offset = offset
        self.damaged = 0
        """Records that were skipped because their checksum or their content is wrong."""
        self.stuck = False
        """The length of the next record is damaged, so nothing behind it can be found."""

    def read(self, budget: int = READ) -> list[Scalar]:
        """The next scalars, from about `budget` bytes; the end is reached when `offset` stays."""
        found: list[Scalar] = []
        stop = self.offset + budget
        with open(self.path, "rb") as file:
            size = os.fstat(file.fileno()).st_size
            while self.offset < stop:
                file.seek(self.offset)
                header = file.read(12)
                if len(header) < 12:
                    break
                length, check = struct.unpack("<QI", header)
                self.stuck = masked_crc32c(header[:8]) != check
                if self.stuck or self.offset + length + 16 > size:
                    break
                if length <= MAX_RECORD:
                    data = file.read(length + 4)
                    if len(data) < length + 4:
                        break
                    try:
                        found += _checked(data[:-4], int.from_bytes(data[-4:], "little"))
                    except Damaged:
                        self.damaged += 1
                self.offset += length + 16
        return found


def _checked(data: bytes, check: int) -> list[Scalar]:
    if len(data) <= CHECKED and masked_crc32c(data) != check:
        raise Damaged
    found = scalars(data)
    if found and len(data) > CHECKED and masked_crc32c(data) != check:
        raise Damaged
    return found


# ── folders ──────────────────────────────────────────────────────────────────────────────────────


class EventFolder:
    """The event files below a folder, also those that appear later.

    A folder is listed again only when its time of change has moved; a change in the last two seconds
    might share its time with another that comes after, so then it is listed once more.
    """

    def __init__(self, root: str):
        self._root = root
        self._listed: dict[str, int] = {}
        self._files: dict[str, None] = {}

    def find(self) -> list[str]:
        look = [self._root, *self._listed]
        while look:
            look += self._list(look.pop())
        return sorted(self._files)

    def _list(self, folder: str) -> list[str]:
        """List a folder if it has changed; the folders in it that are new."""
        try:
            changed = os.stat(folder).st_mtime_ns
            if self._listed.get(folder) == changed:
                return []
            self._listed[folder] = changed if time.time_ns() - changed > 2_000_000_000 else -1
            entries = list(os.scandir(folder))
        except (FileNotFoundError, NotADirectoryError):
            self._listed.pop(folder, None)
            return []
        self._files.update(
            (entry.path, None) for entry in entries if "tfevents" in entry.name and entry.is_file()
        )
        folders = [entry.path for entry in entries if entry.is_dir(follow_symlinks=False)]
        return [path for path in folders if path not in self._listed][: MAX_FOLDERS - len(self._listed)]


class Events:
    """Scalars as metrics. A folder below the one that is watched is a run, and prefixes its names."""

    def __init__(
        self, root: str, follow: Callable[[str], Followed], names: list[str], emit: Emit, note: Note
    ):
        self._folder = EventFolder(root)
        self._root = root
        self._follow = follow
        self._names = names
        self._emit = emit
        self._note = note

    def poll(self, final: bool) -> bool:
        """Read on in all files; whether there is more."""
        more = [self._read(path, self._follow(path), final) for path in self._folder.find()]
        return any(more)

    def _read(self, path: str, file: Followed, final: bool) -> bool:
        if not file.changed() and not (final and os.path.exists(path)):
            return False
        events = EventFile(path, file.offset)
        run = os.path.relpath(os.path.dirname(path), self._root)
        for tag, step, when, value in events.read(READ):
            name = tag if run == "." else f"{run}/{tag}"
            if not self._names or tag in self._names or name in self._names:
                self._emit(step, when or None, {name: value})
        for _ in range(events.damaged):
            self._note("damaged records", path)
        if events.stuck:
            self._note("unreadable from a damaged length on", f"{path}, byte {events.offset}")
        more = events.offset - file.offset >= READ
        file.reached(events.offset, end=not more)
        return more


# ── checksums ────────────────────────────────────────────────────────────────────────────────────


def _table() -> list[int]:
    table = []
    for byte in range(256):
        for _ in range(8):
            byte = byte >> 1 ^ (0x82F63B78 if byte & 1 else 0)  # noqa: PLW2901
        table.append(byte)
    return table


_TABLE = _table()


def masked_crc32c(data: bytes) -> int:
    """CRC-32C (Castagnoli), rotated and shifted as TFRecord wants it."""
    crc, table = 0xFFFFFFFF, _TABLE
    for byte in data:
        crc = crc >> 8 ^ table[(crc ^ byte) & 0xFF]
    crc ^= 0xFFFFFFFF
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


# ── protobuf ─────────────────────────────────────────────────────────────────────────────────────

VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5


def fields(data: bytes) -> Iterator[tuple[int, int, int | bytes]]:
    """(number, wire type, value) of every field of a message; fixed values stay bytes."""
    at = 0
    while at < len(data):
        key, at = _varint(data, at)
        kind = key & 7
        if kind == VARINT:
            value, at = _varint(data, at)
            yield key >> 3, kind, value
            continue
        if kind == BYTES:
            size, at = _varint(data, at)
        elif kind in (FIXED64, FIXED32):
            size = 8 if kind == FIXED64 else 4
        else:
            raise Damaged
        if at + size > len(data):
            raise Damaged
        yield key >> 3, kind, data[at : at + size]
        at += size


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = 0
    for shift in range(0, 70, 7):
        if at >= len(data):
            raise Damaged
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value & 0xFFFFFFFFFFFFFFFF, at
    raise Damaged


def _signed(value: int, bits: int = 64) -> int:
    value &= (1 << bits) - 1
    return value - (1 << bits) if value >> (bits - 1) else value


def _message(value: int | bytes) -> bytes:
    if isinstance(value, bytes):
        return value
    raise Damaged


def _float(value: int | bytes, layout: str) -> float:
    try:
        return float(struct.unpack(layout, _message(value))[0])
    except struct.error:
        raise Damaged from None


def scalars(event: bytes) -> list[Scalar]:
    """The single numbers of an event's summary: simple values, and tensors of one element."""
    time, step = 0.0, 0
    named: list[tuple[str, float]] = []
    for number, _kind, value in fields(event):
        if number == 1:
            time = _float(value, "<d")
        elif number == 2 and isinstance(value, int):
            step = _signed(value)
        elif number == 5:
            parts = (_value(_message(part)) for key, _kind, part in fields(_message(value)) if key == 1)
            named += filter(None, parts)
    return [Scalar(tag, step, time, value) for tag, value in named]


def _value(data: bytes) -> tuple[str, float] | None:
    tag, result = "", None
    for number, _kind, value in fields(data):
        if number == 1:
            tag = _message(value).decode("utf-8", "replace")
        elif number == 2:
            result = _float(value, "<f")
        elif number == 8:
            result = _tensor(_message(value))
    return (tag, result) if tag and result is not None else None


# dtype of TensorFlow: (struct format, field of the values when they are not in tensor_content)
_TYPES = {
    1: ("<f", 5),
    2: ("<d", 6),
    3: ("<i", 7),
    4: ("<B", 7),
    5: ("<h", 7),
    6: ("<b", 7),
    9: ("<q", 10),
    10: ("<?", 11),
    14: ("bfloat16", 13),
    17: ("<H", 7),
    19: ("<e", 13),
    22: ("<I", 16),
    23: ("<Q", 17),
}


def _tensor(data: bytes) -> float | None:
    """The number in a tensor of one element; None for larger tensors and for text."""
    parts: dict[int, list[int | bytes]] = {}
    for number, _kind, value in fields(data):
        parts.setdefault(number, []).append(value)
    dtype = parts.get(1, [0])[-1]
    if not isinstance(dtype, int) or dtype not in _TYPES or not all(map(_one_element, parts.get(2, []))):
        return None
    layout, field = _TYPES[dtype]
    content = parts.get(4, [b""])[-1]
    if content:
        return _from_bytes(content, layout)
    values = [number for value in parts.get(field, []) for number in _unpacked(value, layout, field)]
    if not values:
        return 0.0  # protobuf leaves zeros out
    return values[0] if len(values) == 1 else None


def _unpacked(value: int | bytes, layout: str, field: int) -> Iterator[float | None]:
    """The numbers of one field of values, which is packed (many in one) or not."""
    if field in (5, 6):
        size = struct.calcsize(layout)
        packed = _message(value)
        yield from (_from_bytes(packed[at : at + size], layout) for at in range(0, len(packed), size))
        return
    at = 0
    while at == 0 or (isinstance(value, bytes) and at < len(value)):
        number, at = (value, 1) if isinstance(value, int) else _varint(value, at)
        if field == 13:  # half floats, as their bits
            yield _from_bytes((number & 0xFFFF).to_bytes(2, "little"), layout)
        else:
            yield float(number if field in (16, 17) else _signed(number))


def _one_element(shape: int | bytes) -> bool:
    for number, _kind, dim in fields(_message(shape)):
        if number == 2 and [size for key, _kind, size in fields(_message(dim)) if key == 1] != [1]:
            return False
    return True


def _from_bytes(content: int | bytes, layout: str) -> float | None:
    content = _message(content)
    if layout == "bfloat16":  # the upper half of a float
        layout, content = "<f", b"\0\0" + content
    return _float(content, layout) if struct.calcsize(layout) == len(content) else None
