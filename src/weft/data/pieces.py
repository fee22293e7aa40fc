"""Many small objects of a source, read as if they were one: several are on their way at once, and come in their order."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import islice
from typing import TYPE_CHECKING

from weft.data.sources import Source

if TYPE_CHECKING:
    from weft.data.cache.versions import Piece

AT_ONCE = 32
"""A store of objects answers one after a hundredth of a second or more, and thousands in the same time."""


def in_pieces(source: Source, pieces: Iterable[Piece], offset: int, length: int) -> Iterator[bytes]:
    """So many bytes from an offset on, of the objects that have them."""
    end, left = offset + length, iter(pieces)
    first = list(islice(left, AT_ONCE))

    def one(piece: Piece) -> bytes:
        first = max(offset - piece.offset, 0)
        last = min(end - piece.offset, piece.item.size)
        return b"".join(source.read(piece.item, first, last - first))

    if len(first) <= 1:
        yield from map(one, first)
        return
    with ThreadPoolExecutor(AT_ONCE, thread_name_prefix="pieces") as pool:
        coming: deque[Future[bytes]] = deque(pool.submit(one, piece) for piece in first)
        try:
            while coming:
                yield coming.popleft().result()
                coming.extend(pool.submit(one, piece) for piece in islice(left, 1))
        finally:
            pool.shutdown(wait=False, cancel_futures=True)
