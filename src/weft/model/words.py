"""Words for people that several rooms need."""

from __future__ import annotations

from collections.abc import Sequence


def few(names: Sequence[str]) -> str:
    """The first of them, and how many more there are."""
    return ", ".join(names) if len(names) <= 3 else f"{', '.join(names[:3])} and {len(names) - 3} more"
