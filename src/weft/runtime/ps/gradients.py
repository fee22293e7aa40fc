"""What one push carries to one server: of which pieces, whole or only some rows, and in which bytes.

The payload is the row numbers of all parts that are not whole, then the values of all parts, in the order of the
pieces. A push of everything, the common one, lists no parts at all.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from weft.runtime.ps.arrays import bytes_of, halved, widened
from weft.runtime.ps.errors import BadMessage
from weft.runtime.ps.layout import Shard

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Floats = NDArray[np.float32]
    Indices = NDArray[np.uint32]


@dataclass(frozen=True, slots=True, eq=False)
class Part:
    """Of the piece of this number, these rows (counted from its first) or all."""

    piece: int
    rows: Indices | None
    values: Floats


# ── the worker's end ─────────────────────────────────────────────────────────────────────────────


def parts_for(shard: Shard, gradients: Mapping[str, Floats | tuple[Indices, Floats]]) -> list[Part]:
    """What of the gradients belongs to one server, still in the user's memory.

    A parameter that has no row here is named all the same, so that all servers count its steps alike.
    """
    import numpy as np

    parts = []
    for number, piece in enumerate(shard.pieces):
        gradient = gradients.get(piece.parameter.name)
        if isinstance(gradient, tuple):
            indices, values = gradient
            low, high = np.searchsorted(indices, (piece.first, piece.stop))
            local = (indices[low:high] - np.uint32(piece.first)).astype("<u4")
            parts.append(Part(number, local, values[low:high]))
        elif gradient is not None:
            rows = gradient[piece.first : piece.stop] if gradient.ndim else gradient
            parts.append(Part(number, None, rows))
    return parts


def encode(shard: Shard, parts: list[Part], half: bool) -> tuple[dict[str, Any], list[memoryview]]:
    """The fields of the header that say what the payload is, and the payload."""
    whole = len(parts) == len(shard.pieces) and all(part.rows is None for part in parts)
    listed = None if whole else [[p.piece, None if p.rows is None else len(p.rows)] for p in parts]
    values: list[NDArray[Any]] = [part.values for part in parts]
    scale = 1.0
    if half:
        values, scale = halved([part.values for part in parts])
    rows = [part.rows for part in parts if part.rows is not None]
    header = {"parts": listed, "half": half, "scale": scale}
    return header, [bytes_of(array) for array in (*rows, *values)]


# ── the server's end ─────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class Contents:
    """What a payload must be, from its header alone."""

    parts: tuple[tuple[int, int | None], ...]
    """(piece, how many rows or all)"""
    half: bool
    scale: float
    listed: int
    """Bytes of row numbers at its beginning."""
    elements: int

    @property
    def size(self) -> int:
        return self.listed + self.elements * (2 if self.half else 4)


def contents_of(shard: Shard, header: dict[str, Any]) -> Contents:
    listed = header.get("parts")
    half, scale = header.get("half"), header.get("scale")
    if not isinstance(half, bool) or not isinstance(scale, float) or not 0 < scale < math.inf:
        raise BadMessage("a push without its encoding")
    parts = tuple((i, None) for i in range(len(shard.pieces))) if listed is None else _listed(shard, listed)
    widths = [shard.pieces[i].parameter.width for i, _ in parts]
    rows = [shard.pieces[i].rows if some is None else some for i, some in parts]
    indices = sum(some for _, some in parts if some is not None)
    elements = sum(width * count for width, count in zip(widths, rows, strict=True))
    return Contents(parts, half, scale, 4 * indices, elements)


def _listed(shard: Shard, listed: Any) -> tuple[tuple[int, int | None], ...]:
    if not isinstance(listed, list) or len(listed) > len(shard.pieces):
        raise BadMessage("a push of parts that do not exist")
    for part in listed:
        match part:
            case [int(number), None] if 0 <= number < len(shard.pieces):
                continue
            case [int(number), int(rows)] if 0 <= number < len(shard.pieces):
                if 0 <= rows <= shard.pieces[number].rows:
                    continue
        raise BadMessage(f"a push of a part that does not exist: {part}")
    if any(one[0] >= other[0] for one, other in pairwise(listed)):
        raise BadMessage("a push of parts in disorder")
    return tuple((part[0], part[1]) for part in listed)


def decode(shard: Shard, contents: Contents, payload: NDArray[np.uint8]) -> tuple[list[Part], Floats]:
    """The parts, and all their values in one stretch (in the payload's memory, if that is float32)."""
    import numpy as np

    raw = payload[contents.listed : contents.size]
    if contents.half:
        values = np.empty(contents.elements, dtype="<f4")
        widened(raw.view("<f2"), contents.scale, values)
    else:
        values = raw.view("<f4")
    parts, taken = [], 0
    for number, rows in chosen_rows(shard, contents, payload[: contents.listed]):
        piece = shard.pieces[number]
        size = (piece.rows if rows is None else len(rows)) * piece.parameter.width
        parts.append(Part(number, rows, values[taken : taken + size]))
        taken += size
    return parts, values


def chosen_rows(
    shard: Shard, contents: Contents, listed: NDArray[np.uint8]
) -> list[tuple[int, Indices | None]]:
    """Which rows of which piece, every number checked."""
    indices, chosen, taken = listed.view("<u4"), list[tuple[int, "Indices | None"]](), 0
    for number, count in contents.parts:
        rows = None if count is None else indices[taken : taken + count]
        taken += count or 0
        ascending = rows is None or not (rows[1:] <= rows[:-1]).any()
        if not ascending or (rows is not None and count and int(rows[-1]) >= shard.pieces[number].rows):
            raise BadMessage("rows that do not exist, or in disorder")
        chosen.append((number, rows))
    return chosen
