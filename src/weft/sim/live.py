"""A job in the middle of its life, as the simulation keeps it."""

from __future__ import annotations

from dataclasses import dataclass

from weft.sim.outcome import Record


@dataclass(slots=True)
class Live:
    """A job that has not ended."""

    record: Record
    contention: float
    """The sum of `Usage.contention` when it came."""
    done: float = 0.0
    """Seconds of its work that are kept."""
    since: float = 0.0
    """When it began to wait, or when its work was last counted."""
    rate: float = 0.0
    ready: float = 0.0
    """When it begins to make progress: a start from a checkpoint takes its time."""
    gpus: float = 0.0
    """That it holds."""
    stuck: bool = False
    """It holds GPUs, and is not complete."""
    run: int = 0
    """Counts its runs and sizes, so that what was foreseen before is forgotten."""
