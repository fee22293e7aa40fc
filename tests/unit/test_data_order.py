"""Which sample comes when: the same everywhere, each exactly once, whatever happens to the ranks."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import numpy
import pytest
from hypothesis import given
from hypothesis import strategies as st

from weft.runtime.data import order as orders
from weft.runtime.data.order import Shuffled, ShuffledByNumpy, mixed, order, reached, share

SRC = str(Path(__file__).parents[2] / "src")


def whole(count: int, **how: Any) -> list[int]:
    return order(count, **{"seed": 0, "epoch": 0, "shuffle": True, **how}).take(range(count))


def by_definition(count: int, seed: int, epoch: int) -> list[int]:
    """The contract in one line."""
    start = mixed(mixed(seed + orders.STEP) + (epoch + 1) * orders.STEP)
    return sorted(range(count), key=lambda i: (mixed(start + (i + 1) * orders.STEP), i))


def test_the_mixer_is_splitmix64() -> None:
    """The first numbers of the generator with seed 1234567, as published with it."""
    found = [mixed(1234567 + i * orders.STEP) for i in range(1, 4)]
    assert found == [6457827717110365317, 3203168211198807973, 9817491932198370423]


@given(
    st.integers(0, 3000), st.integers(-(2**70), 2**70), st.integers(0, 2**40), st.sampled_from([1, 16, 4096])
)
def test_with_numpy_and_without_it_is_the_same(count: int, seed: int, epoch: int, few: int) -> None:
    expected = by_definition(count, seed, epoch)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(orders, "FEW", few)
        assert Shuffled(count, seed, epoch).take(range(count)) == expected
    assert ShuffledByNumpy(numpy, count, seed, epoch).take(range(count)) == expected


def test_large_ones_are_the_same_too() -> None:
    count = 70_000
    plain = Shuffled(count, 5, 6)
    assert plain.take(range(count)) == ShuffledByNumpy(numpy, count, 5, 6).take(range(count))
    assert plain.take(range(9, count, 1000)) == by_definition(count, 5, 6)[9::1000]


def test_numpy_is_neither_needed_nor_imported_for_little() -> None:
    code = (
        "import sys; from weft.runtime.data.order import order; "
        "a = order(3000, 1, 2, True).take(range(3000)); print('numpy' in sys.modules); "
        "sys.modules['numpy'] = None; print(sum(order(9000, 1, 2, True).take(range(100))))"
    )
    env = {"PYTHONPATH": SRC}
    done = subprocess.run(
        [sys.executable, "-c", code], env=env, capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.split() == ["False", str(sum(whole(9000, seed=1, epoch=2)[:100]))]


def test_an_order_is_of_seed_and_epoch() -> None:
    assert whole(500) == whole(500)
    found = [whole(500), whole(500, seed=1), whole(500, epoch=1), whole(500, shuffle=False)]
    assert len({tuple(one) for one in found}) == 4
    assert all(sorted(one) == list(range(500)) for one in found)
    assert found[3] == list(range(500))


def test_places_are_filled_fairly() -> None:
    """A sample is as likely in the first half as in the second: chi-squared over 2,000 epochs."""
    first = Counter(number for epoch in range(2000) for number in whole(16, epoch=epoch)[:8])
    squared = sum((first[number] - 1000) ** 2 / 500 for number in range(16))
    assert squared < 40


@given(st.integers(0, 300), st.integers(1, 40))
def test_every_sample_goes_to_exactly_one_rank(count: int, world: int) -> None:
    shares = [share(0, count, rank, world) for rank in range(world)]
    assert sorted(place for one in shares for place in one) == list(range(count))
    assert max(map(len, shares)) - min(map(len, shares)) <= 1


@given(st.integers(0, 400), st.lists(st.tuples(st.integers(1, 17), st.integers(0, 30)), max_size=12))
def test_every_sample_comes_exactly_once_however_often_the_gang_is_resized(
    count: int, resizes: list[tuple[int, int]]
) -> None:
    """So many ranks take so many samples each, then another number of ranks goes on."""
    seen: list[int] = []
    position = 0
    for world, taken in [*resizes, (3, count)]:
        for rank in range(world):
            seen += share(position, count, rank, world)[:taken]
        position = reached(position, taken, count, world)
    assert sorted(seen) == list(range(count))
    assert position == count
