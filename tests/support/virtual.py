"""An event loop whose clock jumps to the next timer when there is nothing else to do.

Work in threads (the store's writer, `to_thread`) takes real time and no virtual time: while any of it is
under way the clock stands still. So an hour's backoff costs microseconds, and nothing is a race with it.
"""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

T = TypeVar("T")
START = 1_000_000.0
PATIENCE = 20.0


class _Selector(selectors.SelectSelector):
    loop: VirtualLoop

    def select(self, timeout: float | None = None) -> Any:
        if timeout is not None and timeout <= 0:
            return super().select(0)
        if self.loop.ending:
            return super().select(timeout)
        if self.loop.busy():
            ready = super().select(PATIENCE)
            if not ready:
                raise RuntimeError(f"a thread has not come back for {PATIENCE:g} real seconds")
            return ready
        ready = super().select(0)
        if ready:
            return ready
        if timeout is None:
            raise RuntimeError("everybody waits and nothing will ever happen")
        self.loop.now += timeout
        return []


class VirtualLoop(asyncio.SelectorEventLoop):
    def __init__(self) -> None:
        self.now = START
        self.ending = False
        self._outside: set[asyncio.Future[Any]] = set()
        selector = _Selector()
        selector.loop = self
        super().__init__(selector)
        self._clock_resolution = 1e-6

    def time(self) -> float:
        return self.now

    def run_in_executor(self, executor: Any, function: Callable[..., Any], *arguments: Any) -> Any:
        future = super().run_in_executor(executor, function, *arguments)
        self.await_outside(future)
        return future

    def await_outside(self, future: asyncio.Future[Any]) -> None:
        """Let the clock stand still until this is done."""
        self._outside.add(future)

    def busy(self) -> bool:
        self._outside = {future for future in self._outside if not future.done()}
        return bool(self._outside)


def run(story: Callable[[], Awaitable[T]]) -> T:
    """Run a coroutine on a fresh virtual loop; what it leaves running is cancelled."""
    loop = VirtualLoop()
    try:
        return loop.run_until_complete(_whole(story))
    finally:
        _end(loop)


async def _whole(story: Callable[[], Awaitable[T]]) -> T:
    return await story()


def _end(loop: VirtualLoop) -> None:
    loop.ending = True
    tasks = asyncio.all_tasks(loop)
    for task in tasks:
        task.cancel()
    if tasks:
        loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))
    loop.run_until_complete(loop.shutdown_default_executor())
    loop.close()
