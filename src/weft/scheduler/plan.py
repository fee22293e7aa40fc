"""What the scheduler decided."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from weft.model.gang import Signature
from weft.model.status import Binding


@dataclass(frozen=True, slots=True)
class Placement:
    """A gang that starts now, all of it."""

    uid: str
    bindings: tuple[Binding, ...]


@dataclass(frozen=True, slots=True)
class Change:
    """A running job gets more tasks: lost ones replaced, or an elastic one grown."""

    uid: str
    bindings: tuple[Binding, ...]


@dataclass(frozen=True, slots=True)
class Shrink:
    """An elastic job gives these tasks up and goes on."""

    uid: str
    tasks: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Preemption:
    """Who gives way to whom, and the room that is held for it until it starts."""

    uid: str
    evicted: tuple[str, ...]
    shrunk: tuple[Shrink, ...]
    bindings: tuple[Binding, ...]
    moved: tuple[Placement, ...] = ()
    """Those of the evicted for whom there is another place, and which: it is held for them as well."""


@dataclass(frozen=True, slots=True)
class Promise:
    """A start that nothing behind the job may delay."""

    uid: str
    start: float
    bindings: tuple[Binding, ...]
    made: float


class Wait(StrEnum):
    """Why a group of equal jobs was not placed; `explain` gives the numbers."""

    ROOM = "room"
    LIMIT = "limit"
    BEHIND = "behind"
    """The policy lets nothing pass the first job that waits."""
    HELD = "held"
    """Others are giving way to it."""


@dataclass(frozen=True, slots=True)
class Plan:
    placements: tuple[Placement, ...] = ()
    repairs: tuple[Change, ...] = ()
    given_up: tuple[str, ...] = ()
    """Gangs that lost tasks and found no room for them in time: they stop and wait again as a whole."""
    growths: tuple[Change, ...] = ()
    preemptions: tuple[Preemption, ...] = ()
    holds: tuple[Preemption, ...] = ()
    """Those of earlier cycles whose room is not all free yet."""
    promises: tuple[Promise, ...] = ()
    waiting: tuple[tuple[str, Wait], ...] = ()
    """The first job of each group that was looked at and not placed."""
    full: tuple[tuple[Signature, tuple[object, ...]], ...] = ()
    """Signatures that do not fit beside what was placed and kept (and what that is): until room is given back, or
    something else is kept, nobody need try them again."""

    @property
    def empty(self) -> bool:
        return not (self.placements or self.repairs or self.given_up or self.growths or self.preemptions)
