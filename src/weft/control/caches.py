"""Which datasets' caches have changed between two looks: what nodes hold of them, are being brought, or were asked for."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from weft.backends.api import Cached


def touched(before: Sequence[Cached], now: Sequence[Cached], owners: Mapping[str, Iterable[str]]) -> set[str]:
    """The names of these datasets; `owners` has those that a version is of."""
    was, are = ({each.node: each for each in looked} for looked in (before, now))
    found: set[str] = set()
    for node in {*was, *are}:
        nothing = Cached(node, {})
        old, new = was.get(node, nothing), are.get(node, nothing)
        if old != new:
            found |= _touched(old, new, owners)
    return found


def _touched(old: Cached, new: Cached, owners: Mapping[str, Iterable[str]]) -> set[str]:
    versions = _differing(old.versions, new.versions) | _differing(old.warming, new.warming)
    return _differing(old.reads, new.reads) | {name for each in versions for name in owners.get(each, ())}


def _differing(old: Mapping[str, Any], new: Mapping[str, Any]) -> set[str]:
    return {key for key in {*old, *new} if old.get(key) != new.get(key)}
