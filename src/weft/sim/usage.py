"""GPU seconds, summed up as time passes: held, stuck, wasted, and how many were asked for."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class Usage:
    gpus: float
    begun: float
    at: float
    """Everything is summed up to here."""
    held: float = 0.0
    """GPUs in use now."""
    stuck: float = 0.0
    """Those of gangs that are not complete."""
    wanted: float = 0.0
    """GPUs that the waiting jobs ask for."""
    down: float = 0.0
    allocated: float = 0.0
    deadlocked: float = 0.0
    lost: float = 0.0
    """GPU seconds that were done twice or spent on starting again."""
    offered: float = 0.0
    """GPU seconds of nodes that worked."""
    contention: float = 0.0
    """Seconds, each counted as often as the cluster's GPUs were asked for in it, and at least once."""

    def until(self, now: float) -> None:
        """Things stayed as they were until now."""
        passed = now - self.at
        if passed <= 0.0:
            return
        self.at = now
        self.allocated += self.held * passed
        self.deadlocked += self.stuck * passed
        self.offered += (self.gpus - self.down) * passed
        asked = (self.held + self.wanted) / self.gpus if self.gpus else 1.0
        self.contention += max(1.0, asked) * passed

    @property
    def allocated_share(self) -> float:
        return self.allocated / self.offered if self.offered else 0.0

    @property
    def useful_share(self) -> float:
        """Without what was done twice, spent on starting again or held for nothing."""
        useful = self.allocated - self.lost - self.deadlocked
        return max(0.0, useful) / self.offered if self.offered else 0.0
