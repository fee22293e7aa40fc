"""Filling the cache: room for a part, then the part. Any number of readers wait for one fetch.

In this process they share a future, between processes the part's lock. What finds no room is not an error: its bytes
are read from where they are.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Container
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import NamedTuple

from weft.data.cache.admission import NOTHING, Room
from weft.data.cache.books import PART, Books, Claim
from weft.data.cache.collect import Collector
from weft.data.cache.fetch import FULL, Read, fetch, space_left
from weft.data.cache.files import Files
from weft.data.cache.versions import Part
from weft.data.errors import NoRoom
from weft.data.patience import PATIENT, Patience

AT_ONCE = 8
VAIN = 10.0
"""Seconds after a collection that freed too little in which none is tried again."""


class Begun(NamedTuple):
    task: asyncio.Future[bool]
    evict: bool


class Filling:
    def __init__(
        self, files: Files, books: Books, collector: Collector, reserve: int = 0, patience: Patience = PATIENT,
        now: Callable[[], float] = time.time,
    ):  # fmt: skip
        self._files = files
        self._books = books
        self._collector = collector
        self._reserve = reserve
        """Bytes of the disk that stay free for others."""
        self._patience = patience
        self._now = now
        self._vain: dict[str | None, float] = {}
        self._under_way: dict[str, Begun] = {}
        self._threads = ThreadPoolExecutor(AT_ONCE, thread_name_prefix="fill")

    async def fill(
        self, part: Part, claim: Claim, read: Read, *, evict: bool = True, stay: Container[str] = (),
        count: Callable[[int], None] | None = None,
    ) -> bool:  # fmt: skip
        """Whether the part is here now. Without `evict` nothing goes for it, not even what nobody needs."""
        # one that is done may not have been taken out yet: to wait for it would be to wait for ever
        while (begun := self._under_way.get(part.digest)) and not begun.task.done():
            came = await asyncio.shield(begun.task)
            if came or begun.evict or not evict:
                return came  # else nothing was let go for it, and now something may be
        loop = asyncio.get_running_loop()
        task = loop.run_in_executor(self._threads, self.fill_here, part, claim, read, evict, stay, count)
        self._under_way[part.digest] = Begun(task, evict)
        task.add_done_callback(lambda done: self._done(part.digest, done))
        return await asyncio.shield(task)

    def _done(self, digest: str, task: asyncio.Future[bool]) -> None:
        if (begun := self._under_way.get(digest)) is not None and begun.task is task:
            del self._under_way[digest]
        if not task.cancelled():
            task.exception()  # who asked has heard of it, or is gone

    def fill_here(
        self, part: Part, claim: Claim, read: Read, evict: bool = True, stay: Container[str] = (),
        count: Callable[[int], None] | None = None,
    ) -> bool:  # fmt: skip
        """In this thread."""
        if self._files.has(part.digest):
            return True
        try:
            if not self.make_room(claim, evict) or not self._disk_has(part, evict):
                return False
            return self._fill_locked(part, claim, read, evict, stay, count)
        except NoRoom:
            return False
        except OSError as problem:
            if problem.errno in FULL:
                return False
            raise

    def _fill_locked(
        self, part: Part, claim: Claim, read: Read, evict: bool, stay: Container[str],
        count: Callable[[int], None] | None,
    ) -> bool:  # fmt: skip
        with self._files.filling(part.digest) as temporary:
            if self._files.has(part.digest):
                return True
            if not self._books.reserve(claim, self._now(), self._files.remove if evict else None, stay):
                return False
            try:
                fetch(part, read, temporary, self._patience, count)
                self._files.keep(part.digest, temporary)
            except BaseException:
                with suppress(NoRoom):  # a row without a file costs room until the next collection
                    self._books.drop(PART, part.digest)
                raise
            self._books.arrived(PART, part.digest)
            return True

    def make_room(self, claim: Claim, evict: bool = True) -> bool:
        """Whether it can fit, perhaps after what nobody needs is gone. In a dataset without replacement its own parts
        are not asked to leave, but those of its versions that nobody reads any more are."""
        free = self._books.free(claim)
        if free.holds(claim.need):
            return True
        if not evict:
            return False
        over = _missing(claim.need, self._books.limit - self._books.total())
        if over != NOTHING:
            self._collect(over, None)
        if claim.quota is not None:
            own = self._books.totals().get(claim.dataset, NOTHING).bytes
            over = Room(max(0, own + claim.need.bytes - claim.quota), 0)
            if over != NOTHING:
                self._collect(over, claim.dataset)
        return claim.policy == "lru" or self._books.free(claim).holds(claim.need)

    def _disk_has(self, part: Part, evict: bool) -> bool:
        if space_left(self._files.tmp, part, self._reserve):
            return True
        if not evict:
            return False
        self._collect(Room(part.size, 1), None)
        return space_left(self._files.tmp, part, self._reserve)

    def _collect(self, over: Room, dataset: str | None) -> None:
        """Not at every miss: a full cache stays full for most of a job's life."""
        if self._now() - self._vain.get(dataset, float("-inf")) < VAIN:
            return
        if not self._collector.collect(over, dataset=dataset).freed.holds(over):
            self._vain[dataset] = self._now()

    def hope(self) -> None:
        """A lease has ended: a collection may find something again."""
        self._vain.clear()

    def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)


def _missing(need: Room, free: Room) -> Room:
    return Room(max(0, need.bytes - free.bytes), max(0, need.inodes - free.inodes))
