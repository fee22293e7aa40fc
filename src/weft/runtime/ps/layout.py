"""Which server holds what: all parameters in a line, in the order of their names, cut into equal parts.

A cut falls between two rows of a parameter, so a row of an embedding is never on two servers and no server has
more than one row over its share. Every worker and every server computes the same from names and shapes alone, a shard
is one stretch of the line on either end, and so a transfer needs no gathering.
"""

from __future__ import annotations

import hashlib
import json
import math
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Parameter:
    name: str
    shape: tuple[int, ...]
    start: int
    """Where in the line it begins, in elements."""

    @property
    def size(self) -> int:
        return math.prod(self.shape)

    @property
    def rows(self) -> int:
        return self.shape[0] if self.shape else 1

    @property
    def width(self) -> int:
        """The elements of one row."""
        return math.prod(self.shape[1:])


@dataclass(frozen=True, slots=True)
class Piece:
    """The rows of one parameter that one server holds."""

    parameter: Parameter
    first: int
    stop: int
    start: int
    """Where in the shard it begins, in elements."""

    @property
    def rows(self) -> int:
        return self.stop - self.first

    @property
    def size(self) -> int:
        return self.rows * self.parameter.width

    @property
    def end(self) -> int:
        return self.start + self.size


@dataclass(frozen=True, slots=True)
class Shard:
    index: int
    start: int
    stop: int
    pieces: tuple[Piece, ...]

    @property
    def size(self) -> int:
        return self.stop - self.start


@dataclass(frozen=True, slots=True)
class Layout:
    parameters: tuple[Parameter, ...]
    shards: tuple[Shard, ...]

    @property
    def size(self) -> int:
        return self.shards[-1].stop

    @property
    def digest(self) -> str:
        """Two ends that agree on this agree on the place of every number."""
        text = json.dumps([[p.name, p.shape] for p in self.parameters] + [len(self.shards)])
        return hashlib.sha256(text.encode()).hexdigest()


def layout_of(shapes: Mapping[str, Sequence[int]], servers: int) -> Layout:
    parameters: list[Parameter] = []
    total = 0
    for name in sorted(shapes):
        parameters.append(Parameter(name, tuple(int(n) for n in shapes[name]), total))
        total += parameters[-1].size
    filled = [parameter for parameter in parameters if parameter.size]
    cuts = [_between_rows(filled, total * i / servers) for i in range(servers + 1)]
    shards = tuple(_shard(filled, i, cuts[i], cuts[i + 1]) for i in range(servers))
    return Layout(tuple(parameters), shards)


def _between_rows(filled: Sequence[Parameter], ideal: float) -> int:
    if not filled:
        return 0
    cut = filled[bisect_right(filled, ideal, key=lambda parameter: parameter.start) - 1]
    rows = min(math.floor((ideal - cut.start) / cut.width + 0.5), cut.rows)
    return cut.start + rows * cut.width


def _shard(filled: Sequence[Parameter], index: int, start: int, stop: int) -> Shard:
    pieces = []
    for parameter in filled[max(0, bisect_right(filled, start, key=lambda p: p.start) - 1) :]:
        if parameter.start >= stop:
            break
        first = max(0, (start - parameter.start) // parameter.width)
        last = min(parameter.rows, (stop - parameter.start) // parameter.width)
        if first < last:
            pieces.append(
                Piece(parameter, first, last, parameter.start + first * parameter.width - start),
            )
    return Shard(index, start, stop, tuple(pieces))
