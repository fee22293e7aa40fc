"""Workloads made up from published distributions, for whoever has no trace at hand, and for tests.

Every number is drawn in strata (one from each n-th of its distribution, then shuffled), so that even a small
workload has the quantiles of a large one, and the rare long jobs that make the load are always there.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import log
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

from weft.sim.workload import Arrival, gang_of_gpus

Floats = NDArray[np.float64]
_NORMAL = NormalDist()

SMALL_JOBS = {1: 0.967, 2: 0.0255, 4: 0.0035, 8: 0.0037, 16: 0.0003}
"""GPUs a job in the two largest virtual clusters of Philly."""
GANG_JOBS = {1: 0.85, 2: 0.014, 4: 0.068, 8: 0.058, 16: 0.007, 32: 0.003}
"""And in all the others: the better mix to test gangs with."""


LARGE = 1.8
"""The normal score of a job of about 8 GPUs."""


@dataclass(frozen=True)
class Owner:
    """A virtual cluster."""

    name: str
    share: float
    """Of all jobs."""
    sizes: Mapping[int, float] = field(default_factory=lambda: GANG_JOBS)


@dataclass(frozen=True)
class Shape:
    """The distributions of a workload."""

    owners: tuple[Owner, ...]
    gap: float = 114.4
    """Mean seconds from one arrival to the next."""
    burst: float = 15.0
    """The coefficient of variation of the gaps; 1 would be arrivals by pure chance."""
    durations: tuple[tuple[float, float], ...] = (
        (0.01, 17.0),
        (0.1, 61.0),
        (0.5, 1_144.0),
        (0.9, 11_266.0),
        (0.99, 254_884.0),
        (0.999, 1_186_475.0),
    )
    """Quantiles, in seconds; between them the logarithm is a straight line of the normal score."""
    larger_longer: float = 0.75
    """How strongly size and duration go together: the correlation of their normal scores, up to about 8 GPUs,
    beyond which larger jobs do not run longer."""


PHILLY = Shape(
    owners=(
        Owner("vc-a", 0.50, SMALL_JOBS),
        Owner("vc-b", 0.20, SMALL_JOBS),
        Owner("vc-c", 0.12),
        Owner("vc-d", 0.09),
        Owner("vc-e", 0.03),
        Owner("vc-f", 0.03),
        Owner("vc-g", 0.03),
    )
)
"""93 % of the jobs ask for one GPU; those of 8 are 2 %, and half of the GPU time."""
GANGS = Shape(
    owners=(
        Owner("vc-c", 0.41),
        Owner("vc-d", 0.29),
        Owner("vc-e", 0.1),
        Owner("vc-f", 0.1),
        Owner("vc-g", 0.1),
    ),
    gap=381.0,
)
"""Philly without the two virtual clusters that hold 70 % of its jobs."""
SHAPES = {"philly": PHILLY, "gangs": GANGS}


def generate(shape: Shape, jobs: int, seed: int = 0) -> list[Arrival]:
    """So many jobs. The same seed gives the same jobs."""
    if jobs < 1:
        raise ValueError("a workload has at least one job")
    chance = np.random.default_rng(seed)
    times = np.concatenate([[0.0], np.cumsum(_gaps(shape, jobs, chance))[: jobs - 1]])
    owners = chance.choice(len(shape.owners), size=jobs, p=_shares(shape))
    ranks = _strata(jobs, chance)
    sizes = np.zeros(jobs, np.int64)
    for number, owner in enumerate(shape.owners):
        mine = owners == number
        sizes[mine] = _sizes(owner, ranks[mine])
    seconds = _seconds(shape, ranks, chance)
    return [
        Arrival(f"job-{i}", float(times[i]), float(seconds[i]), gang_of_gpus(int(sizes[i])), owner=shape.owners[owners[i]].name)
        for i in range(jobs)
    ]  # fmt: skip


def _shares(shape: Shape) -> Floats:
    shares = np.array([owner.share for owner in shape.owners])
    return np.asarray(shares / shares.sum())


def _strata(count: int, chance: np.random.Generator) -> Floats:
    """Numbers between 0 and 1, one in each n-th part, in any order."""
    return np.asarray((chance.permutation(count) + chance.random(count)) / count)


def _gaps(shape: Shape, count: int, chance: np.random.Generator) -> Floats:
    """Two kinds of gap, exponential each: many within a burst, and few between bursts that last as long in all."""
    square = shape.burst**2
    if square <= 1.0:
        return -shape.gap * np.log1p(-_strata(count, chance))
    within = (1 + ((square - 1) / (square + 1)) ** 0.5) / 2
    between = max(1, round(count * (1 - within)))
    short = -np.log1p(-_strata(count - between, chance)) * shape.gap / (2 * within)
    long = -np.log1p(-_strata(between, chance)) * shape.gap * count / (2 * between)
    return np.asarray(chance.permutation(np.concatenate([short, long])))


def _sizes(owner: Owner, ranks: Floats) -> NDArray[np.int64]:
    sizes = sorted(owner.sizes)
    shares = np.array([owner.sizes[size] for size in sizes])
    edges = np.cumsum(shares / shares.sum())
    places = np.minimum(np.searchsorted(edges, ranks), len(sizes) - 1)
    return np.array(sizes, np.int64)[places]


def _seconds(shape: Shape, ranks: Floats, chance: np.random.Generator) -> Floats:
    """Durations of exactly this distribution, in an order that mostly follows that of the sizes."""
    count, together = len(ranks), shape.larger_longer
    wish = together * np.minimum(_scores(ranks), LARGE) + (1 - together**2) ** 0.5 * chance.standard_normal(
        count
    )
    places = np.empty(count)
    places[np.argsort(wish)] = (np.arange(count) + 0.5) / count
    known = _scores(np.array([quantile for quantile, _ in shape.durations]))
    logs = np.array([log(seconds) for _, seconds in shape.durations])
    score = np.clip(_scores(places), known[0], known[-1])  # nothing is known beyond the outermost quantiles
    return np.asarray(np.exp(np.interp(score, known, logs)))


def _scores(ranks: Floats) -> Floats:
    return np.array([_NORMAL.inv_cdf(min(max(rank, 1e-9), 1 - 1e-9)) for rank in ranks.tolist()])
