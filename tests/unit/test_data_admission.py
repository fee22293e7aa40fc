"""Who is let into a full cache: no replacement has the best hit ratio that any policy can have, in any order."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from weft.data.cache.admission import (
    AtRandom,
    Belady,
    FirstIn,
    Held,
    LeastRecent,
    NoReplacement,
    Order,
    Room,
    admit,
    hit_ratios,
)

rooms = st.builds(Room, st.integers(0, 20), st.integers(0, 4))


def keys(count: int) -> list[str]:
    return [f"{number:04}" for number in range(count)]


def sequential(items: Sequence[str], epochs: int) -> list[list[str]]:
    return [list(items)] * epochs


def shuffled(items: Sequence[str], epochs: int, seed: int = 0) -> list[list[str]]:
    chance = Random(seed)
    return [chance.sample(items, len(items)) for _ in range(epochs)]


def back_and_forth(items: Sequence[str], epochs: int) -> list[list[str]]:
    """Worst for whoever keeps what came last, and best: an epoch begins where the last one ended, or ended long ago."""
    return [list(items)[:: 1 if epoch % 2 else -1] for epoch in range(epochs)]


orders = st.one_of(
    st.sampled_from([sequential, back_and_forth]),
    st.integers(0, 2**32).map(lambda seed: lambda items, epochs: shuffled(items, epochs, seed)),
    st.lists(st.permutations(keys(12)), min_size=4, max_size=4).map(
        lambda drawn: lambda items, epochs: drawn
    ),
)


# ── admit ──


@given(rooms, rooms, st.lists(rooms, max_size=8))
def test_what_goes_is_enough_and_nothing_goes_in_vain(need: Room, free: Room, held: list[Room]) -> None:
    order = [Held(str(number), room) for number, room in enumerate(held)]
    gone = admit(need, free, order)
    if gone is None:
        assert not sum(held, start=free).holds(need)
        return
    assert list(gone) == order[: len(gone)]
    assert sum((item.room for item in gone), start=free).holds(need)
    assert not gone or not sum((item.room for item in gone[:-1]), start=free).holds(need)


def test_bytes_and_inodes_are_both_needed() -> None:
    assert admit(Room(5, 1), Room(5, 0)) is None
    assert admit(Room(5, 1), Room(4, 9)) is None
    assert admit(Room(5, 1), Room(5, 1)) == ()


# ── hit ratios ──


@given(st.integers(0, 14), orders)
def test_without_replacement_the_hit_ratio_is_the_part_that_fits(
    capacity: int, order: Callable[[Sequence[str], int], list[list[str]]]
) -> None:
    items = keys(12)
    ratios = hit_ratios(capacity, NoReplacement(), order(items, 4), dict.fromkeys(items, 1))
    assert ratios == [0, *[min(1, capacity / 12)] * 3]


@given(st.integers(1, 200_000), st.integers(0, 2**32))
def test_and_so_it_is_when_parts_have_all_sizes_up_to_what_no_longer_fits(capacity: int, seed: int) -> None:
    """Within half a percent: 2,000 parts of very different sizes leave little room unused."""
    chance = Random(seed)
    sizes = {key: chance.choice((1, 16, 128)) for key in keys(2000)}
    whole = sum(sizes.values())
    ratios = hit_ratios(capacity, NoReplacement(), shuffled(list(sizes), 3, seed), sizes)
    assert ratios[1] == ratios[2] == pytest.approx(min(1, capacity / whole), abs=0.005)


@given(st.integers(1, 11))
def test_lru_never_hits_in_the_same_order_however_large_it_is(capacity: int) -> None:
    items = keys(12)
    assert hit_ratios(capacity, LeastRecent(), sequential(items, 4), dict.fromkeys(items, 1)) == [0] * 4


@given(st.integers(0, 14), orders)
def test_belady_ties_no_replacement_and_nobody_passes_it(
    capacity: int, order: Callable[[Sequence[str], int], list[list[str]]]
) -> None:
    """Over all epochs: what is not there when an epoch begins has to be fetched in it."""
    items, sizes = keys(12), dict.fromkeys(keys(12), 1)
    epochs = order(items, 4)
    future = [key for epoch in epochs for key in epoch]
    bound = sum(hit_ratios(capacity, NoReplacement(), epochs, sizes))
    assert sum(hit_ratios(capacity, Belady(future), epochs, sizes)) == pytest.approx(bound)
    for other in (LeastRecent(), FirstIn(), AtRandom(Random(1))):
        assert sum(hit_ratios(capacity, other, epochs, sizes)) <= bound + 1e-9


@pytest.mark.parametrize(
    ("order", "expected"),
    [(LeastRecent(), 0.65 + 0.35 * math.log(0.35)), (FirstIn(), 0.40), (AtRandom(Random(1)), 0.46)],
    ids=["lru", "fifo", "random"],
)
def test_the_others_in_a_fresh_shuffle_at_65_percent(order: Order, expected: float) -> None:
    items = keys(2000)
    ratios = hit_ratios(1300, order, shuffled(items, 6), dict.fromkeys(items, 1))
    assert sum(ratios[2:]) / 4 == pytest.approx(expected, abs=0.02)


@pytest.mark.parametrize(("cache", "percent"), [(10, 6.25), (50, 31.25), (100, 62.5), (160, 100), (200, 100)])
def test_the_published_table_for_160_gb(cache: int, percent: float) -> None:
    """Scaled down: 1,600 parts of 0.1."""
    items = keys(1600)
    ratios = hit_ratios(cache * 10, NoReplacement(), shuffled(items, 3), dict.fromkeys(items, 1))
    assert [100 * ratio for ratio in ratios[1:]] == [percent, percent]
