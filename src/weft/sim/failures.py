"""Nodes that fail: each at any moment with the same chance, and back after a while."""

from __future__ import annotations

import heapq
import random
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from weft.model.node import Node


@dataclass(frozen=True, slots=True, order=True)
class Failure:
    time: float
    node: str
    seconds: float
    """How long the node is gone."""


def failures(nodes: Iterable[Node], mtbf: float, repair: float = 3600.0, seed: int = 0) -> Iterator[Failure]:
    """Without end, in order of time. `mtbf`: mean seconds that one node works between two failures."""
    chance = random.Random(seed)  # noqa: S311 - a simulation, no secret
    coming = [(chance.expovariate(1 / mtbf), node.name) for node in nodes]
    heapq.heapify(coming)
    while coming:
        when, node = heapq.heappop(coming)
        seconds = chance.expovariate(1 / repair)
        yield Failure(when, node, seconds)
        heapq.heappush(coming, (when + seconds + chance.expovariate(1 / mtbf), node))
