"""A server's state in one file, replaced whole: the old snapshot stays until the new one is on the disk."""

from __future__ import annotations

import contextlib
import json
import os
import struct
import zlib
from typing import IO, TYPE_CHECKING, Any

from weft.runtime.ps.arrays import bytes_of
from weft.runtime.ps.errors import ParameterServerError
from weft.runtime.ps.state import Kept, Point

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

MAGIC = b"weft parameters 1\n"
LENGTH = struct.Struct(">I")


def write(path: str, kept: Kept, facts: dict[str, Any]) -> None:
    arrays = [bytes_of(array) for array in (kept.values, *kept.slots)]
    meta = {
        **facts,
        "life": kept.point.life,
        "version": kept.point.version,
        "sessions": kept.sessions,
        "steps": kept.steps,
        "done": kept.done,
        "slots": len(kept.slots),
        "sums": [zlib.crc32(array) for array in arrays],
    }
    head = json.dumps(meta).encode()
    folder = os.path.dirname(path) or "."
    os.makedirs(folder, exist_ok=True)
    with open(f"{path}.new", "wb", buffering=0) as file:
        _write_all(file, MAGIC + LENGTH.pack(len(head)) + LENGTH.pack(zlib.crc32(head)) + head)
        for array in arrays:
            _write_all(file, array)
        os.fsync(file.fileno())
    os.replace(f"{path}.new", path)
    with contextlib.suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def _write_all(file: IO[bytes], data: bytes | memoryview) -> None:
    view = memoryview(data)
    while view:
        view = view[file.write(view) :]


def read(path: str, size: int, facts: dict[str, Any]) -> tuple[Kept, dict[str, Any]] | None:
    """What was kept, with all that was written of it; None if nothing was.

    The facts that are given must be those that were written: it may be of another model.
    """
    try:
        with open(path, "rb", buffering=0) as file:
            meta = _meta(file)
            for name, fact in facts.items():
                if meta.get(name) != fact:
                    raise ParameterServerError(
                        f"{path} is of another model or another number of servers ({name} is {meta.get(name)}, "
                        f"not {fact}); remove it to begin anew"
                    )
            arrays = [_array(file, size, checksum) for checksum in meta["sums"]]
            point = Point(int(meta["life"]), int(meta["version"]))
            sessions = {str(session): int(number) for session, number in meta["sessions"].items()}
            steps, done = [int(step) for step in meta["steps"]], [str(worker) for worker in meta["done"]]
            return Kept(arrays[0], arrays[1 : 1 + meta["slots"]], steps, point, sessions, done), meta
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError, IndexError, AttributeError) as problem:
        raise ParameterServerError(f"{path} cannot be read ({problem}); remove it to begin anew") from None


def _meta(file: IO[bytes]) -> dict[str, Any]:
    start = file.read(len(MAGIC) + 2 * LENGTH.size)
    if len(start) < len(MAGIC) + 2 * LENGTH.size or not start.startswith(MAGIC):
        raise ValueError("not a snapshot of weft.ps")
    length, checksum = struct.unpack(">II", start[len(MAGIC) :])
    head = file.read(length)
    if zlib.crc32(head) != checksum:
        raise ValueError("its head is damaged")
    meta: dict[str, Any] = json.loads(head)
    return meta


def _array(file: IO[bytes], size: int, checksum: int) -> NDArray[np.float32]:
    import numpy as np

    array = np.empty(size, dtype="<f4")
    view = bytes_of(array)
    rest = view
    while rest:
        read = file.readinto(rest)  # type: ignore[attr-defined]
        if not read:
            raise ValueError("it is cut short")
        rest = rest[read:]
    if zlib.crc32(view) != checksum:
        raise ValueError("its numbers are damaged")
    return array
