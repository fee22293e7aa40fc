"""One thing at a time for each name: again if it was woken meanwhile, but not more often than five times a second."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from weft.backends.kubernetes.client import ApiError

PAUSE = 0.2
AT_ONCE = 16
"""Names that are looked at together: the engine's own requests must not wait for ours."""
SHORTEST, LONGEST = 0.5, 30.0
log = logging.getLogger("weft.operator")


class Work:
    def __init__(self, what: str, look: Callable[[str], Awaitable[None]]):
        self._what = what
        self._look = look
        self._room = asyncio.Semaphore(AT_ONCE)
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._again: set[str] = set()

    def wake(self, name: str) -> None:
        if name in self._tasks:
            self._again.add(name)
        else:
            self._tasks[name] = asyncio.get_running_loop().create_task(self._run(name))

    async def close(self) -> None:
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _run(self, name: str) -> None:
        retry = SHORTEST
        try:
            while True:
                self._again.discard(name)
                if await self._try(name):
                    retry = SHORTEST
                    await asyncio.sleep(PAUSE)
                    if name not in self._again:
                        return
                else:
                    await asyncio.sleep(retry)
                    retry = min(2 * retry, LONGEST)
        finally:
            del self._tasks[name]

    async def _try(self, name: str) -> bool:
        """False if it is worth trying again. What the API server refused changes only with what it is about."""
        try:
            async with self._room:
                await self._look(name)
        except ApiError as problem:
            log.info("%s %s: %s", self._what, name, problem)
            return not problem.passing
        except Exception:
            log.exception("%s %s", self._what, name)
            return False
        return True
