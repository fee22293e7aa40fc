"""What can be written. A list of changes is one transaction; lists queued together share a commit."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Create:
    """A new resource: every column."""

    row: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Update:
    """The columns of an existing resource that follow its status, as they are when they are written."""

    uid: str
    row: Callable[[], dict[str, Any]]


@dataclass(frozen=True, slots=True)
class Delete:
    """The resource with its events and metrics."""

    uid: str


@dataclass(slots=True)
class Happened:
    """One line of the event log. `seq` is given by the store."""

    time: float
    uid: str
    job: str
    type: str
    cause: str = ""
    actor: str = "weft"
    state: str | None = None
    previous: str | None = None
    seq: int = 0
    code: str | None = None
    """What is wrong, where something is; for programs."""

    def dump(self) -> dict[str, Any]:
        found = {name: getattr(self, name) for name in self.__slots__}
        return {name: value for name, value in found.items() if value is not None}


@dataclass(frozen=True, slots=True)
class Point:
    task: str
    name: str
    step: int | None
    time: float
    value: float


@dataclass(frozen=True, slots=True)
class Measured:
    """Metrics of one task, read up to `offset` of its file: kept together, so none is lost or doubled."""

    uid: str
    task: str
    offset: int
    points: tuple[Point, ...]


Change = Create | Update | Delete | Happened | Measured
"""Columns follow the order of the queue: a later change of the same resource wins."""
