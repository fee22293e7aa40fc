"""What came out of a simulation: what became of every job, and how the cluster was used."""

from __future__ import annotations

from dataclasses import dataclass, field

from weft.sim.usage import Usage
from weft.sim.workload import Arrival


@dataclass(slots=True)
class Record:
    """What became of a job."""

    arrival: Arrival
    started: float | None = None
    """When it first ran."""
    finished: float | None = None
    waited: float = 0.0
    """In all, with the waits after it gave way."""
    preemptions: int = 0
    moves: int = 0
    """How often it was stopped only to go on elsewhere at once."""
    resizes: int = 0
    failures: int = 0
    """How often it lost tasks with a node."""
    nodes: int = 0
    """That it first ran on."""
    lost: float = 0.0
    """GPU seconds that were done twice or spent on starting again."""
    contention: float = 1.0
    """How many times the cluster's GPUs were asked for while the job was there, on average; at least 1."""

    @property
    def completion(self) -> float | None:
        """Seconds from submitted to finished."""
        return None if self.finished is None else self.finished - self.arrival.time

    @property
    def first_wait(self) -> float | None:
        return None if self.started is None else self.started - self.arrival.time


@dataclass(slots=True)
class Sample:
    """The cluster at one moment."""

    time: float
    gpus_used: float
    gpus_wanted: float
    """Of the jobs that wait."""
    waiting: int
    running: int
    stranded: float
    """Free GPUs that no waiting job can use, while some wait."""
    deadlocked: float = 0.0
    """GPUs of gangs that are not complete."""
    down: int = 0
    """GPUs of nodes that have failed."""


@dataclass(slots=True)
class Outcome:
    records: list[Record]
    samples: list[Sample]
    gpus: int
    usage: Usage
    """Up to the end."""
    arriving: Usage
    """Up to the last arrival: after that a cluster empties, whatever its scheduler does."""
    cycles: int = 0
    decisions: list[float] = field(default_factory=list)
    """Seconds that each cycle took."""
    endless: int = 0
    """How often jobs gave way to each other again and again in one moment, until the simulation went on without."""
    wall: float = 0.0
