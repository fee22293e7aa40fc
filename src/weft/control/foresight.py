"""When waiting jobs should start: the scheduler's forecast, worked out beside the event loop.

The books are copied on the loop, where nothing else touches them meanwhile; the copy is run forward in a
thread. An answer is good for a while, and whoever asks while one is being worked out waits for that one.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from weft.scheduler.forecast import Estimate, copied, forecast
from weft.scheduler.state import State as Books

GOOD_FOR = 2.0
log = logging.getLogger("weft.control")
Estimates = dict[str, Estimate]


class Foresight:
    def __init__(self, books: Books, clock: Callable[[], float]):
        self._books = books
        self._clock = clock
        self._made: asyncio.Future[Estimates] | None = None
        self._at = 0.0

    async def estimates(self, uid: str | None = None) -> Estimates:
        """By uid, for all that wait; new enough to know this job."""
        if not len(self._books.pending):
            return {}
        if self._made is None or (self._made.done() and self._outdated(self._made.result(), uid)):
            self._at = self._clock()
            ahead = asyncio.to_thread(_ahead, copied(self._books), self._at)
            self._made = asyncio.ensure_future(ahead)
        return await asyncio.shield(self._made)

    def _outdated(self, known: Estimates, uid: str | None) -> bool:
        return self._clock() - self._at > GOOD_FOR or (uid is not None and uid not in known)


def _ahead(books: Books, now: float) -> Estimates:
    try:
        return forecast(books, now)
    except Exception:
        log.exception("cannot foresee when jobs start")  # they start all the same
        return {}
