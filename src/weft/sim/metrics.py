"""The numbers that schedulers of this field are compared by."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from weft.sim.outcome import Outcome, Record

LONG = 15 * 60.0
"""A job that is queued longer has been noticed by its owner."""
SIZES = (
    ("1 GPU or less", 0.0, 1.0),
    ("2-7 GPUs", 1.0, 7.999),
    ("8 GPUs", 7.999, 8.0),
    ("more", 8.0, float("inf")),
)
"""Classes of jobs: above the first number of GPUs, up to the second."""


@dataclass(frozen=True, slots=True)
class Spread:
    """One quantity over many jobs."""

    mean: float = 0.0
    p50: float = 0.0
    p99: float = 0.0
    most: float = 0.0


@dataclass(frozen=True, slots=True)
class Queueing:
    """What jobs of one size waited."""

    jobs: int
    first: Spread
    """Seconds from submitted to first started."""
    total: Spread
    """With the waits after giving way."""


@dataclass(frozen=True, slots=True)
class Metrics:
    jobs: int
    unfinished: int
    completion: Spread
    """Seconds from submitted to finished."""
    queueing: dict[str, Queueing]
    """By size class."""
    wide: Queueing
    """Of all jobs of 8 GPUs and more."""
    queued_long: float
    """The share of jobs that were queued over 15 minutes before they first started."""
    makespan: float
    allocated: float
    """The share of GPU time that jobs held, while jobs arrived."""
    useful: float
    """The same without work done twice, starting again and incomplete gangs."""
    allocated_all: float
    """The share of GPU time that jobs held, up to the last end."""
    stranded: float
    """Fragmentation: the mean share of GPUs that were free and of no use to any waiting job."""
    deadlocked: float
    """GPU seconds held by gangs that were not complete."""
    preemptions: float
    """A job."""
    restarts: float
    """A job, after giving way, being moved or losing a node."""
    fairness: Spread
    """Finish-time fairness: completion over what it would be with an equal share of a contended cluster; 1 is fair."""
    decision: Spread
    """Seconds that a decision took."""
    decisions: int


def quantile(ordered: Sequence[float], share: float) -> float:
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else 0.0


def spread(values: Iterable[float]) -> Spread:
    ordered = sorted(values)
    if not ordered:
        return Spread()
    return Spread(sum(ordered) / len(ordered), quantile(ordered, 0.5), quantile(ordered, 0.99), ordered[-1])


def measure(outcome: Outcome) -> Metrics:
    records = outcome.records
    started = [record for record in records if record.started is not None]
    finished = [record for record in records if record.finished is not None]
    count = max(len(records), 1)
    begin = min((record.arrival.time for record in records), default=0.0)
    end = max((record.finished or 0.0 for record in finished), default=begin)
    waits = [sample.stranded / max(outcome.gpus, 1) for sample in outcome.samples if sample.waiting]
    return Metrics(
        jobs=len(records),
        unfinished=len(records) - len(finished),
        completion=spread(record.completion or 0.0 for record in finished),
        queueing={
            name: _queueing(r for r in started if low < r.arrival.gang.gpus <= high or (not low and r.arrival.gang.gpus == 0))
            for name, low, high in SIZES
        },
        wide=_queueing(record for record in started if record.arrival.gang.gpus >= 8),
        queued_long=sum(queued_long(record) for record in records) / count,
        makespan=end - begin,
        allocated=outcome.arriving.allocated_share,
        useful=outcome.arriving.useful_share,
        allocated_all=outcome.usage.allocated_share,
        stranded=sum(waits) / max(len(outcome.samples), 1),
        deadlocked=outcome.usage.deadlocked,
        preemptions=sum(record.preemptions for record in records) / count,
        restarts=sum(record.preemptions + record.moves + record.failures for record in records) / count,
        fairness=spread(map(fairness, finished)),
        decision=spread(outcome.decisions),
        decisions=len(outcome.decisions),
    )  # fmt: skip


def queued_long(record: Record) -> bool:
    """Jobs that never started have waited longest of all."""
    return record.first_wait is None or record.first_wait > LONG


def fairness(record: Record) -> float:
    """As Themis has it: the time shared over the time alone on an equal share of the cluster."""
    return (record.completion or 0.0) / (record.arrival.seconds * max(record.contention, 1.0))


def _queueing(records: Iterable[Record]) -> Queueing:
    found = list(records)
    return Queueing(
        len(found),
        spread(record.first_wait or 0.0 for record in found),
        spread(record.waited for record in found),
    )
