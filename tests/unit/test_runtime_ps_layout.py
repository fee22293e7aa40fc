"""Sharding: every number of every parameter on one server, and no server with more than its share."""

from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st

from weft.runtime.ps.layout import layout_of

SHAPES = st.dictionaries(
    st.text(max_size=6), st.lists(st.integers(0, 12), max_size=3).map(tuple), min_size=1, max_size=8
)


@given(SHAPES, st.integers(1, 9))
def test_every_row_of_every_parameter_is_on_one_server(
    shapes: dict[str, tuple[int, ...]], servers: int
) -> None:
    layout = layout_of(shapes, servers)
    found = [
        (piece.parameter.name, row)
        for shard in layout.shards
        for piece in shard.pieces
        for row in range(piece.first, piece.stop)
    ]
    there = [(p.name, row) for p in layout.parameters if p.size for row in range(p.rows)]
    assert found == there  # in the order of the line, too


@given(SHAPES, st.integers(1, 9))
def test_shards_are_one_line_without_gaps(shapes: dict[str, tuple[int, ...]], servers: int) -> None:
    layout = layout_of(shapes, servers)
    assert layout.size == sum(math.prod(shape) for shape in shapes.values())
    at = 0
    for shard in layout.shards:
        assert shard.start == at
        for piece in shard.pieces:
            assert shard.start + piece.start == at
            assert at == piece.parameter.start + piece.first * piece.parameter.width
            at += piece.size
        assert shard.stop == at
    assert at == layout.size


@given(SHAPES, st.integers(1, 9))
def test_no_server_is_more_than_a_row_from_its_share(
    shapes: dict[str, tuple[int, ...]], servers: int
) -> None:
    layout = layout_of(shapes, servers)
    row = max((p.width for p in layout.parameters if p.size), default=0)
    assert all(abs(shard.size - layout.size / servers) <= row for shard in layout.shards)


def test_everybody_computes_the_same_whatever_the_order() -> None:
    one = layout_of({"a": (4, 3), "b": (), "c": (5,)}, 2)
    other = layout_of({"c": [5], "b": [], "a": [4, 3]}, 2)
    assert one == other
    assert one.digest == other.digest
    assert one.digest != layout_of({"a": (4, 3), "b": (), "c": (5,)}, 3).digest
    assert one.digest != layout_of({"a": (3, 4), "b": (), "c": (5,)}, 2).digest
