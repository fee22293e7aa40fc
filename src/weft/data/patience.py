"""How often a temporary failure is tried again, and after how long."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from weft.data.errors import Unreachable

T = TypeVar("T")


@dataclass(frozen=True)
class Patience:
    """At most double the last wait, by chance, so that many who failed together do not come back together."""

    tries: int = 6
    first: float = 0.2
    longest: float = 10.0
    sleep: Callable[[float], None] = time.sleep
    chance: Callable[[], float] = random.random

    def wait(self, failures: int) -> None:
        self.sleep(min(self.longest, self.first * 2**failures) * (0.5 + self.chance() / 2))

    def ask(self, question: Callable[[], T]) -> T:
        """The answer, asked again while it is out of reach."""
        for failures in range(self.tries - 1):
            try:
                return question()
            except Unreachable:
                self.wait(failures)
        return question()


PATIENT = Patience()
ONCE = Patience(tries=1)
"""For callers that have a patience of their own."""
