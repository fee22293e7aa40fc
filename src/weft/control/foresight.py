"""When waiting jobs should start: the scheduler's forecast, worked out beside the event loop.

A picture of the books is taken on the loop, where nothing else touches them meanwhile, and run forward in a
thread. An answer is good for a while, and whoever asks while one is being worked out waits for that one, but
not long: with thousands of jobs it takes seconds, and why a job waits must be said at once.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import replace

from weft.scheduler.forecast import USUAL, Estimate, Picture, forecast
from weft.scheduler.line import line
from weft.scheduler.pending import Waiting
from weft.scheduler.policy import Policy
from weft.scheduler.promise import end_of, length_of
from weft.scheduler.running import Running
from weft.scheduler.state import State as Books

GOOD_FOR = 2.0
REST = 10.0
"""For so many times as long as the last forecast took, it stays good: most of the time nothing is worked out."""
PATIENCE = 1.0
AHEAD = 300
"""Only the first of the line are looked at: those behind them start later than can be foreseen."""
log = logging.getLogger("weft.control")
Estimates = dict[str, Estimate]
UNKNOWN = Estimate(None, None, None)


class Foresight:
    def __init__(self, books: Books, clock: Callable[[], float]):
        self._books = books
        self._clock = clock
        self._made: asyncio.Future[None] | None = None
        self._known: Estimates = {}
        self._good_until = 0.0

    async def estimates(self, uid: str | None = None) -> Estimates:
        """By uid, for all that wait and can be foreseen; new enough to know this job, if that is quickly done."""
        if not len(self._books.pending):
            return {}
        if self._made is None and (self._clock() > self._good_until or (uid and uid not in self._known)):
            self._made = asyncio.ensure_future(self._look_ahead())
        if self._made is not None:
            await asyncio.wait({self._made}, timeout=PATIENCE)
        return self._known

    def likely_end(self, job: Running) -> float:
        return end_of(job, self._books.history, self._usual, self._clock(), USUAL)

    def likely_length(self, job: Waiting) -> float:
        return length_of(job, self._books.history, self._usual, USUAL)

    @property
    def _usual(self) -> Policy:
        return replace(self._books.policy, margin=1.0)

    async def _look_ahead(self) -> None:
        begun = self._clock()
        try:
            self._known = await asyncio.to_thread(_ahead, Picture.of(self._books), begun)
        except Exception:
            log.exception("cannot foresee when jobs start")  # they start all the same
            self._known = {}
        finally:
            self._good_until = begun + GOOD_FOR + REST * (self._clock() - begun)
            self._made = None


def _ahead(seen: Picture, now: float) -> Estimates:
    jobs = line(seen.books(), now) if len(seen.waiting) > AHEAD else list(seen.waiting)
    first, behind = jobs[:AHEAD], jobs[AHEAD:]
    return forecast(replace(seen, waiting=tuple(first)), now) | {job.uid: UNKNOWN for job in behind}
