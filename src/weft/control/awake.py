"""A machine that sleeps: what nobody did meanwhile says nothing about anybody."""

from __future__ import annotations

CHECK = 1.0
ASLEEP = 30.0
"""When so much time passes between two looks, the machine slept or its clock was set."""


class Awake:
    """Told the time every CHECK seconds, it knows since when that went on without a gap; 0: ever since."""

    def __init__(self, now: float):
        self._looked = now
        self.since = 0.0

    def look(self, now: float) -> None:
        if not -CHECK < now - self._looked < ASLEEP:
            self.since = now
        self._looked = now
