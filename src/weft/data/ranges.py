"""Reading by ranges: what breaks off is gone on with, and large objects come in several ranges at once."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import islice

from weft.data.errors import Corrupt, Unreachable
from weft.data.patience import Patience

THREADS = 4
PIECE = 8 << 20
"""Bytes of a range. No more than THREADS of them are in memory for one object."""

Begin = Callable[[int, int], Iterator[bytes]]
"""Bytes from an offset on, so many."""


def read(name: str, begin: Begin, offset: int, length: int, patience: Patience) -> Iterator[bytes]:
    """All of it in order, or an error: never fewer bytes, never more."""
    if length <= PIECE:
        return resumed(name, begin, offset, length, patience)
    return at_once(lambda at, size: resumed(name, begin, at, size, patience), offset, length)


def resumed(name: str, begin: Begin, offset: int, length: int, patience: Patience) -> Iterator[bytes]:
    """One range. After a failure it goes on where it was; `patience` ends when nothing more comes."""
    start, end, failures = offset, offset + length, 0
    while offset < end:
        before = offset
        try:
            for chunk in begin(offset, end - offset):
                if len(chunk) > end - offset:
                    raise Corrupt(
                        f"{name}: more than the {length} bytes came that were asked for at {start}; "
                        "the server does not keep to the protocol"
                    )
                offset += len(chunk)
                yield chunk
            if offset < end:
                raise Unreachable(f"{name}: {offset - start} of {length} bytes came; try again later")
        except Unreachable:
            failures = 1 if offset > before else failures + 1
            if failures >= patience.tries:
                raise
            patience.wait(failures - 1)


def at_once(begin: Begin, offset: int, length: int) -> Iterator[bytes]:
    """Several ranges on their way, given in order."""
    end = offset + length
    starts = iter(range(offset, end, PIECE))
    stop = threading.Event()

    def piece(at: int) -> bytes:
        chunks = []
        for chunk in begin(at, min(PIECE, end - at)):
            if stop.is_set():
                break
            chunks.append(chunk)
        return b"".join(chunks)

    with ThreadPoolExecutor(THREADS) as pool:
        coming: deque[Future[bytes]] = deque(pool.submit(piece, at) for at in islice(starts, THREADS))
        try:
            while coming:
                data = coming.popleft().result()
                yield data
                coming.extend(pool.submit(piece, at) for at in islice(starts, 1))
        finally:
            stop.set()
            pool.shutdown(wait=False, cancel_futures=True)
