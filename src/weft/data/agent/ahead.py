"""Fetching what will be wanted: in its order, a few at a time, at most so far ahead, and nothing goes for it."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

from weft.data.agent.node import Node
from weft.data.cache.leases import Terms
from weft.data.cache.versions import Part, Version
from weft.data.errors import DataError

AT_ONCE = 4
FARTHEST = 64
"""Parts that one reader may have fetched for it before it asks."""


@dataclass
class Progress:
    done: int = 0
    of: int = 0
    finished: bool = False


class Ahead:
    def __init__(self, node: Node):
        self._node = node
        self._slots = asyncio.Semaphore(AT_ONCE)
        self._plans: dict[tuple[str, str], asyncio.Task[None]] = {}
        self.warming: dict[str, Progress] = {}

    def follow(self, reader: str, job: str, version: Version, terms: Terms, parts: Sequence[Part]) -> None:
        """The plan of a reader, in place of the one it had."""
        self._plan((reader, version.name), job, version, terms, parts[:FARTHEST], evict=False)

    def begin(self, job: str, version: Version, terms: Terms, part: Part) -> None:
        """One part that somebody wants, but does not wait for."""
        self._plan((part.digest, version.name), job, version, terms, [part], evict=True)

    def warm(self, version: Version, terms: Terms) -> None:
        """All of a version, as far as there is room; what nobody needs may go for it."""
        if ("", version.name) in self._plans:
            return
        progress = self.warming[version.name] = Progress(0, sum(part.size for part in version.parts))
        self._plan(("", version.name), "", version, terms, version.parts, evict=True, progress=progress)

    async def stop(self, version: str) -> None:
        """No more of a version; fetches that have begun go on."""
        await _ended([task for (_, of), task in self._plans.items() if of == version])

    def _plan(
        self, key: tuple[str, str], job: str, version: Version, terms: Terms, parts: Sequence[Part], *, evict: bool,
        progress: Progress | None = None,
    ) -> None:  # fmt: skip
        if old := self._plans.get(key):
            old.cancel()  # fetches that have begun go on
        task = asyncio.create_task(self._fetch(job, version, terms, parts, evict, progress))
        self._plans[key] = task
        task.add_done_callback(lambda done: self._plans.get(key) is done and self._plans.pop(key))

    async def _fetch(
        self,
        job: str,
        version: Version,
        terms: Terms,
        parts: Sequence[Part],
        evict: bool,
        progress: Progress | None,
    ) -> None:
        remaining = iter(parts)
        full = False

        async def work() -> None:
            nonlocal full
            for part in remaining:
                async with self._slots:
                    if full:
                        return
                    with suppress(DataError):  # who asks for the part itself will hear of it
                        if await self._node.fill(version.name, part, terms, job, evict=evict):
                            if progress is not None:
                                progress.done += part.size
                        elif self._node.peers.owns(part.digest, terms.share):
                            full = True

        try:
            async with asyncio.TaskGroup() as group:
                for _ in range(AT_ONCE):
                    group.create_task(work())
        finally:
            if progress is not None:
                progress.finished = True

    async def close(self) -> None:
        await _ended(list(self._plans.values()))


async def _ended(tasks: list[asyncio.Task[None]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
