"""What is being done now, and how long it took."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager


def say(text: str) -> None:
    print(text, flush=True)


@contextmanager
def step(what: str) -> Iterator[None]:
    say(f"{what} ...")
    begun = time.monotonic()
    yield
    say(f"{what}: {time.monotonic() - begun:.1f} s")


def until(true: Callable[[], bool], seconds: float, every: float = 0.1) -> bool:
    """Whether it became true in time."""
    end = time.monotonic() + seconds
    while not true():
        if time.monotonic() > end:
            return False
        time.sleep(every)
    return True
