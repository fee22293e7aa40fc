"""A history that knows how long every job will run: what no scheduler has, and all can be compared with."""

from __future__ import annotations

from collections.abc import Iterable

from weft.scheduler.history import History, Likeness
from weft.scheduler.kin import Kin, Kindred
from weft.sim.workload import Arrival

_MARK = "~"
"""Ends the names that the oracle gives, since the number at the end of a name is not part of what jobs are alike by."""


class Oracle(History):
    def __init__(self, arrivals: Iterable[Arrival]):
        super().__init__()
        self._seconds = {self.name_of(arrival): arrival.seconds for arrival in arrivals}

    @staticmethod
    def name_of(arrival: Arrival) -> str:
        """The name that the job must be submitted under."""
        return arrival.name + _MARK

    def record(self, like: Likeness, seconds: float) -> None:
        """It has nothing to learn."""

    def remaining(self, like: Likeness, attained: float, quantile: float = 0.5) -> float:
        return max(self._seconds[str(like[0][1])] - attained, 1.0)


class Told(Kin):
    """And kin who know it, for orders by what an end costs."""

    def __init__(self, oracle: Oracle):
        super().__init__()
        self._oracle = oracle

    def ran(self, job: Kindred, seconds: float) -> None:
        """It has nothing to learn."""

    def ended(self, job: Kindred, seconds: float) -> None:
        """It has nothing to learn."""

    def cost(self, job: Kindred, attained: float) -> float:
        return self._oracle.remaining(job.like, attained)
