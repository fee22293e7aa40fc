"""What the scheduler decided."""

from __future__ import annotations

from dataclasses import dataclass, field

from weft.model.status import Binding


@dataclass(frozen=True, slots=True)
class Placement:
    """A gang that starts now, all of it."""

    uid: str
    bindings: tuple[Binding, ...]


@dataclass(frozen=True, slots=True)
class Plan:
    placements: tuple[Placement, ...] = ()
    held_for: str | None = None
    """The job that has waited so long that nothing behind it may start before it."""
    blocked: frozenset[tuple[object, ...]] = field(default=frozenset())
    """Signatures that do not fit now."""
