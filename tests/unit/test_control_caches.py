"""Whose caches have changed between two looks."""

from __future__ import annotations

from weft.backends.api import Cached, Reads
from weft.control.caches import touched

OWNERS = {"v1": ["faces"], "v2": ["faces", "copy"], "v3": ["texts"]}


def test_nothing_has_changed_where_nodes_hold_what_they_held() -> None:
    now = [Cached("a", {"v1": 10}, {"faces": Reads(1, 2, 3)}, {"v2": 5}), Cached("b", {})]
    assert touched(now, list(now), OWNERS) == set()


def test_who_was_read_is_named() -> None:
    before = [Cached("a", {"v1": 10}, {"faces": Reads(1, 2, 3), "texts": Reads(1)})]
    now = [Cached("a", {"v1": 10}, {"faces": Reads(2, 2, 3), "texts": Reads(1)})]
    assert touched(before, now, OWNERS) == {"faces"}


def test_everyone_of_whom_a_version_is_that_came_grew_or_went() -> None:
    assert touched([], [Cached("a", {"v2": 1})], OWNERS) == {"faces", "copy"}
    assert touched([Cached("a", {"v2": 1})], [Cached("a", {"v2": 2})], OWNERS) == {"faces", "copy"}
    assert touched([Cached("a", {"v3": 1})], [Cached("a", {})], OWNERS) == {"texts"}
    assert touched([Cached("a", {"v3": 1})], [], OWNERS) == {"texts"}


def test_what_is_being_brought_counts_until_it_is_there() -> None:
    before = [Cached("a", {"v3": 7}, {}, {"v3": 9})]
    assert touched(before, [Cached("a", {"v3": 7}, {}, {})], OWNERS) == {"texts"}


def test_a_version_of_nobody_is_nobodys_news() -> None:
    assert touched([], [Cached("a", {"gone": 1})], OWNERS) == set()
