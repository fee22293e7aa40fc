"""The books of a cache: quotas in bytes and inodes, who goes for whom, and leases that outlive a process."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from weft.data.cache.admission import NOTHING, Room
from weft.data.cache.books import PART, Books, Claim, Entry
from weft.data.cache.collect import free
from weft.data.cache.leases import Leases, hashed
from weft.data.errors import NoRoom, Refused


def claim(key: str, size: int = 10, dataset: str = "faces", **more: Any) -> Claim:
    return Claim(PART, key, dataset, Room(size, 1), **more)


@pytest.fixture
def books(fast_folder: Path) -> Books:
    return Books(fast_folder / "books.sqlite", Room(100, 6))


def hold(books: Books, wanted: Claim, now: float = 1.0, **more: Any) -> bool:
    came = books.reserve(wanted, now, **more)
    if came:
        books.arrived(wanted.kind, wanted.key)
    return came


# ── quotas ──


def test_the_node_is_full_in_bytes(books: Books) -> None:
    assert hold(books, claim("a", 60))
    assert not hold(books, claim("b", 41))
    assert hold(books, claim("c", 40))
    assert books.total() == Room(100, 2)


def test_the_node_is_full_in_inodes(books: Books) -> None:
    assert [hold(books, claim(f"{n}", 1)) for n in range(7)] == [True] * 6 + [False]


def test_a_dataset_has_a_quota_of_its_own(books: Books) -> None:
    assert hold(books, claim("a", 30, quota=30))
    assert not hold(books, claim("b", 1, quota=30))
    assert hold(books, claim("c", 30, dataset="digits", quota=30))


def test_room_is_taken_when_a_file_begins_and_free_when_it_is_dropped(books: Books) -> None:
    assert books.reserve(claim("a", 100), 1.0)
    assert books.unfinished() == [(PART, "a")]
    assert books.entries() == []
    assert not books.reserve(claim("b", 1), 1.0)
    books.drop(PART, "a")
    assert books.total() == NOTHING
    assert books.reserve(claim("b", 1), 1.0)


def test_what_a_dead_filler_reserved_is_reserved_anew_not_twice(books: Books) -> None:
    assert books.reserve(claim("a", 80), 1.0)
    assert books.reserve(claim("a", 80), 2.0)
    assert books.total() == Room(80, 1)


@given(st.lists(st.tuples(st.sampled_from("abcdef"), st.integers(0, 60), st.booleans()), max_size=30))
def test_totals_are_the_sum_of_what_is_held_and_never_over_the_quota(
    steps: list[tuple[str, int, bool]],
) -> None:
    books = Books(Path(":memory:"), Room(100, 4))
    for key, size, comes in steps:
        if comes:
            hold(books, claim(key, size, dataset=key.upper(), quota=50))
        else:
            books.drop(PART, key)
        held = books.entries()
        assert books.total() == sum((entry.room for entry in held), start=NOTHING)
        assert Room(100, 4).holds(books.total())
        assert all(room.bytes <= 50 for room in books.totals().values())


# ── replacement ──


def lru(books: Books, key: str, size: int, now: float, stay: tuple[str, ...] = ()) -> list[str]:
    """Who went for it; None of them if it did not come in."""
    gone: list[str] = []
    came = hold(books, claim(key, size, policy="lru"), now, leave=gone.append, stay=stay)
    return gone if came else ["refused"]


def test_lru_lets_go_what_was_used_longest_ago(books: Books) -> None:
    assert [lru(books, key, 30, now) for now, key in enumerate("abc")] == [[], [], []]
    books.touch(PART, "a", 9.0)
    assert lru(books, "d", 30, 10.0) == ["b"]
    assert lru(books, "e", 50, 11.0) == ["c", "a"]


def test_lru_lets_nothing_of_others_go_nor_what_stays(books: Books) -> None:
    hold(books, claim("other", 50, dataset="digits"))
    lru(books, "a", 25, 1.0)
    lru(books, "b", 25, 2.0)
    assert lru(books, "c", 25, 3.0, stay=("a",)) == ["b"]
    assert lru(books, "d", 60, 4.0) == ["refused"]
    assert {entry.key for entry in books.entries()} == {"other", "a", "c"}


def test_without_replacement_nothing_goes(books: Books) -> None:
    hold(books, claim("a", 100))
    assert not books.reserve(claim("b", 1), 2.0, leave=pytest.fail)


def test_nor_for_what_is_fetched_ahead(books: Books) -> None:
    hold(books, claim("a", 100, policy="lru"))
    assert not books.reserve(claim("b", 1, policy="lru"), 2.0)


# ── lasting ──


def test_two_processes_share_one_quota(fast_folder: Path) -> None:
    """Two connections are what two processes have."""
    one, two = (Books(fast_folder / "books.sqlite", Room(100, 9)) for _ in range(2))
    assert hold(one, claim("a", 60))
    assert not hold(two, claim("b", 60))
    assert two.total() == Room(60, 1)


def test_when_it_was_used_is_written_with_the_next_flush(fast_folder: Path) -> None:
    books = Books(fast_folder / "books.sqlite")
    hold(books, claim("a"), 1.0)
    books.touch(PART, "a", 7.0)
    books.close()
    assert [entry.used for entry in Books(fast_folder / "books.sqlite").entries()] == [7.0]


def test_lost_books_begin_with_what_is_there(fast_folder: Path) -> None:
    books = Books(fast_folder / "books.sqlite", Room(100, 9))
    books.adopt([("a", 40), ("b", 30)], 5.0)
    assert books.totals() == {"": Room(70, 2)}
    books.adopt([("a", 40), ("c", 10)], 6.0)
    assert books.totals() == {"": Room(80, 3)}


def test_a_disk_that_takes_no_more_is_no_room(fast_folder: Path) -> None:
    books = Books(fast_folder / "books.sqlite")
    books.ask("pragma max_page_count = 12")

    def fill() -> None:
        for number in range(10_000):
            books.reserve(claim(f"{number:064}"), 1.0)

    with pytest.raises(NoRoom, match="database or disk is full"):
        fill()
    assert books.total().inodes == len(books.unfinished()) > 0


# ── leases ──

TERMS = {"dataset": "faces", "bytes": 5}


def test_a_grant_is_found_by_its_token_also_by_the_next_process(fast_folder: Path) -> None:
    first = Leases(Books(fast_folder / "books.sqlite"))
    first.grant("job-1", "secret", {"a" * 32: {**TERMS, "share": ["x", "y"], "quota": 7, "policy": "lru"}})
    second = Leases(Books(fast_folder / "books.sqlite"))
    for leases in (first, second):
        grant = leases.holder("secret")
        assert grant is not None
        assert grant.job == "job-1"
        assert grant.versions["a" * 32].share == ("x", "y")
        assert (grant.versions["a" * 32].quota, grant.versions["a" * 32].policy) == (7, "lru")
        assert leases.holder("secre") is None
        assert leases.holder(hashed("secret")) is None
    assert second.revoke("job-1")
    assert second.holder("secret") is None
    first.refresh()
    assert first.holder("secret") is None
    assert not first.revoke("job-1")


def test_no_token_is_on_the_disk(fast_folder: Path) -> None:
    books = Books(fast_folder / "books.sqlite")
    Leases(books).grant("job-1", "a-very-secret-token", {"a" * 32: TERMS})
    books.close()
    assert all(b"a-very-secret-token" not in path.read_bytes() for path in fast_folder.iterdir())


def test_a_lease_is_on_the_versions_of_all_grants(books: Books) -> None:
    leases = Leases(books)
    leases.grant("one", "1", {"a" * 32: TERMS, "b" * 32: {**TERMS, "policy": "lru"}})
    leases.grant("two", "2", {"b" * 32: TERMS})
    assert leases.versions() == {"a" * 32, "b" * 32}
    assert leases.readers("b" * 32) == ["one", "two"]
    leases.revoke("two")
    assert leases.versions("nr") == {"a" * 32}


@pytest.mark.parametrize(
    ("versions", "problem"),
    [
        (None, "names its versions"),
        ({"a": {"bytes": 1}}, "terms of version a cannot be read"),
        ({"a": {**TERMS, "policy": "mru"}}, "no policy 'mru'; there are nr, lru"),
        ({"a": {**TERMS, "colour": 1}}, "colour"),
    ],
)
def test_a_grant_that_makes_no_sense_is_refused(books: Books, versions: Any, problem: str) -> None:
    with pytest.raises(Refused, match=problem):
        Leases(books).grant("job", "token", versions)
    assert Leases(books).holder("token") is None


# ── collecting ──

entries = st.lists(
    st.builds(
        Entry, st.just(PART), st.uuids().map(str), st.just("faces"), st.builds(Room, st.integers(0, 9), st.just(1)),
        st.floats(0, 100),
    ),
    max_size=12,
).map(lambda found: sorted(found, key=lambda entry: entry.used))  # fmt: skip


@given(entries, st.data(), st.builds(Room, st.integers(0, 40), st.integers(0, 6)), st.floats(0, 100))
def test_the_oldest_go_first_but_none_that_stays(
    found: list[Entry], data: Any, over: Room, before: float
) -> None:
    stay = {(PART, entry.key) for entry in found if data.draw(st.booleans())}
    gone: list[Entry] = []
    collected = free(found, stay, over, before, lambda entry: gone.append(entry) or True)
    left = [entry for entry in found if entry not in gone and (PART, entry.key) not in stay]
    assert not any((PART, entry.key) in stay for entry in gone)
    assert collected.freed == sum((entry.room for entry in gone), start=NOTHING)
    assert all(entry.used >= before for entry in left)
    assert collected.freed.holds(over) or not left
    needed = [entry for entry in gone if entry.used >= before]
    assert all(entry.used <= other.used for entry in needed for other in left)
    if needed:
        assert not (collected.freed - needed[-1].room).holds(over)


def test_what_cannot_be_fetched_again_is_passed_over() -> None:
    found = [Entry(PART, key, "faces", Room(10), 1.0) for key in "abc"]
    collected = free(found, (), Room(15, 0), 0.0, lambda entry: entry.key != "a")
    assert (collected.freed, collected.kept) == (Room(20, 2), 1)
