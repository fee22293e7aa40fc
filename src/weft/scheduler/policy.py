"""What an operator can choose: the order of waiting jobs and the rules of giving way. Data, no code."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from math import inf


class Order(StrEnum):
    """Whose turn it is among jobs of one priority and one queue."""

    FIFO = "fifo"
    """Who came first."""
    SHORTEST = "shortest"
    """Whose predicted time left, times its GPUs, is least."""
    LEAST_ATTAINED = "least-attained"
    """Who has had the least GPU time so far (Tiresias)."""
    EXPECTED = "expected"
    """Whose end is expected to cost the least GPU time from here, by what is known of jobs like it."""


@dataclass(frozen=True, slots=True)
class Policy:
    order: Order = Order.EXPECTED
    fair: bool = True
    """Queues take turns by their share; off: all jobs are in one line."""
    backfill: bool = True
    """Later jobs may start around one that does not fit; off: nothing passes the first that waits."""
    preempt: bool = True
    """Higher priority, and queues below their guarantee, take room from others."""
    time_share: bool = True
    """Jobs of one priority give way to those of a much lower rank, if they can go on from a checkpoint."""
    quantum: float = 600.0
    """A job that was started is left alone for this long by jobs of its own priority."""
    factor: float = 4.0
    """From one level to the next, in what a job has had (or has to go)."""
    gap: int = 1
    """So many levels must lie between two jobs of one priority before one gives way."""
    large: float = 8.0
    """A job of so many GPUs or more is large."""
    ahead: float = 0.5
    """Large jobs that have waited longest in all, up to this part of the cluster, stand further ahead."""
    last: float = 0.008
    """This part of the large jobs, those that have had most, stands behind all others."""
    move: bool = True
    """Small jobs that can go on from a checkpoint are moved together, if that makes a place for a larger task."""
    patience: float = 300.0
    """A job that waits longer for room is promised a start, and nothing may delay it."""
    promises: int = 1
    """How many jobs may have a promised start at a time."""
    bound: float = 24 * 3600.0
    """A job that has waited longer for its first start goes before others of its priority."""
    bound_again: float = 180 * 24 * 3600.0
    """So does one that has run before and has waited longer than this in all; it then runs to its end undisturbed."""
    settled: float = 0.1
    """Such jobs may have this part of the cluster at most (or be a single one): the rest stays with who is soon done."""
    mend: float = 900.0
    """A gang that has lost tasks and finds no room for them is stopped after this, and waits again as a whole."""
    grow: bool = True
    grow_after: float = 60.0
    """An elastic job is left alone for this long after a start or a change of size."""
    grow_by_restart_after: float = 600.0
    """So is one that has to stop and start again in order to grow: it must be worth it."""
    margin: float = 1.25
    """Predicted times left are stretched by this before anything is promised on them."""


DEFAULT = Policy()
NAMED = {
    "default": DEFAULT,
    "expected": Policy(ahead=0.0, last=0.0),
    "fifo": Policy(order=Order.FIFO, fair=False, backfill=False, preempt=False, time_share=False, move=False),
    "fifo-backfill": Policy(order=Order.FIFO, fair=False, time_share=False, move=False, promises=4),
    "shortest": Policy(order=Order.SHORTEST, fair=False, move=False, promises=4),
    "least-attained": Policy(order=Order.LEAST_ATTAINED, fair=False, move=False, bound_again=inf),
    "fair": Policy(order=Order.FIFO, time_share=False, move=False, promises=4),
}
