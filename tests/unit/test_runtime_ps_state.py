"""One shard: optimizers against plain numpy, staleness, pushes that count once, readers that are not disturbed."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from weft.runtime.ps.gradients import contents_of, decode, encode, parts_for
from weft.runtime.ps.layout import Layout, layout_of
from weft.runtime.ps.optimizers import BLOCK, SGD, Adam, Momentum, NotFinite, Optimizer
from weft.runtime.ps.state import MOST_SESSIONS, Point, Push, State, shard_values

np = pytest.importorskip("numpy")

SHAPES = {"a": (3, 2), "b": (4,), "c": ()}
LAYOUT = layout_of(SHAPES, 1)


def a_state(optimizer: Optimizer | None = None, layout: Layout = LAYOUT, **given: Any) -> State:
    shard = layout.shards[0]
    return State(shard, np.zeros(shard.size), optimizer or SGD(lr=1.0), **given)


def a_push(gradients: dict[str, Any], number: int, state: State, **given: Any) -> Push:
    """As it comes over the wire."""
    ready = {n: g if isinstance(g, tuple) else np.asarray(g, dtype="f4") for n, g in gradients.items()}
    header, payload = encode(state.shard, parts_for(state.shard, ready), half=False)
    parts, values = decode(
        state.shard, contents_of(state.shard, header), np.frombuffer(bytearray(b"".join(payload)), dtype="u1")
    )
    known = {"session": "s", "base": state.point, "count": 1, "lr": None, **given}
    return Push(number=number, parts=parts, values=values, **known)


def values(state: State) -> dict[str, Any]:
    with state.reading() as (flat, _):
        return {
            piece.parameter.name: flat[piece.start : piece.end].reshape(piece.parameter.shape).copy()
            for piece in state.shard.pieces
        }


class Reference:
    """The textbook, one parameter at a time."""

    def __init__(self, optimizer: Optimizer, shapes: dict[str, tuple[int, ...]]):
        self.optimizer = optimizer
        self.p = {n: np.zeros(s) for n, s in shapes.items()}
        self.m = {n: np.zeros(s) for n, s in shapes.items()}
        self.v = {n: np.zeros(s) for n, s in shapes.items()}
        self.t = dict.fromkeys(shapes, 0)

    def push(self, name: str, gradient: Any, rows: Any = ...) -> None:
        o, at = self.optimizer, rows
        p, m, v = self.p[name], self.m[name], self.v[name]
        self.t[name] += 1
        t = self.t[name]
        if isinstance(o, SGD):
            p[at] -= o.lr * gradient
        elif isinstance(o, Momentum):
            m[at] = o.momentum * m[at] + gradient
            p[at] -= o.lr * m[at]
        else:
            m[at] = o.beta1 * m[at] + (1 - o.beta1) * gradient
            v[at] = o.beta2 * v[at] + (1 - o.beta2) * gradient**2
            p[at] -= o.lr * (m[at] / (1 - o.beta1**t)) / (np.sqrt(v[at] / (1 - o.beta2**t)) + o.epsilon)


PUSHED = st.lists(
    st.fixed_dictionaries(
        {},
        optional={
            "a": st.just("whole") | st.lists(st.integers(0, 2), unique=True).map(sorted),
            "b": st.just("whole"),
            "c": st.just("whole"),
        },
    ),
    max_size=8,
)


@settings(max_examples=60)
@given(PUSHED, st.sampled_from([SGD(0.1), Momentum(0.1, 0.8), Adam(0.1)]), st.booleans())
def test_optimizers_do_what_the_textbook_says(
    pushes: list[dict[str, Any]], optimizer: Optimizer, read: bool
) -> None:
    state, reference, random = a_state(optimizer), Reference(optimizer, SHAPES), np.random.default_rng(1)
    for number, what in enumerate(pushes, 1):
        gradients: dict[str, Any] = {}
        for name, rows in what.items():
            if rows == "whole":
                gradients[name] = random.normal(size=SHAPES[name]).astype("f4")
                reference.push(name, gradients[name])
            else:
                some = random.normal(size=(len(rows), 2)).astype("f4")
                gradients[name] = (np.array(rows, dtype="u4"), some)
                reference.push(name, some, rows)
        push = a_push(gradients, number, state)
        if read:  # so that it is written elsewhere
            with state.reading() as (before, _):
                kept = before.copy()
                state.take(push)
                assert (before == kept).all()
        else:
            state.take(push)
    for name, array in values(state).items():
        np.testing.assert_allclose(array, reference.p[name], rtol=2e-4, atol=2e-5)
    assert state.point == (1, len(pushes))


@pytest.mark.parametrize("optimizer", [SGD(0.1), Momentum(0.1), Adam(0.1)])
def test_stretches_longer_than_a_block(optimizer: Optimizer) -> None:
    shapes = {"a": (BLOCK - 7,), "b": (3, BLOCK // 2)}
    state, reference = a_state(optimizer, layout_of(shapes, 1)), Reference(optimizer, shapes)
    random = np.random.default_rng(2)
    for number in (1, 2):
        gradients = {name: random.normal(size=shape).astype("f4") for name, shape in shapes.items()}
        state.take(a_push(gradients, number, state))
        for name, gradient in gradients.items():
            reference.push(name, gradient)
    for name, array in values(state).items():
        np.testing.assert_allclose(array, reference.p[name], rtol=2e-4, atol=2e-5)


@pytest.mark.parametrize("optimizer", [SGD(0.5), Momentum(0.5), Adam(0.5)])
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("read", [False, True])
def test_what_is_not_finite_changes_nothing(optimizer: Optimizer, bad: float, read: bool) -> None:
    size = 2 * BLOCK + 5
    state = a_state(optimizer, layout_of({"a": (size,)}, 1))
    state.take(a_push({"a": np.ones(size)}, 1, state))
    before, gradient = values(state)["a"], np.ones(size, dtype="f4")
    gradient[-1] = bad
    with state.reading() if read else contextlib.nullcontext(), pytest.raises(NotFinite):
        state.take(a_push({"a": gradient}, 2, state))
    assert (values(state)["a"] == before).all()
    assert state.point.version == 1
    state.take(a_push({"a": np.ones(size)}, 2, state))
    assert state.point.version == 2


def test_a_push_counts_once() -> None:
    state = a_state()
    for number in (1, 1, 2, 1, 2):
        assert state.take(a_push({"c": 1.0}, number, state)).taken
    state.take(a_push({"c": 1.0}, 1, state, session="another"))
    assert values(state)["c"] == -3
    assert state.point.version == 3


def test_the_session_that_pushed_longest_ago_is_forgotten() -> None:
    state = a_state()
    state.take(a_push({}, 5, state, session="first"))
    state.take(a_push({}, 5, state, session="second"))
    state.take(a_push({}, 6, state, session="first"))
    state.sessions |= {str(i): 1 for i in range(MOST_SESSIONS - 2)}
    state.take(a_push({}, 1, state, session="last"))
    assert len(state.sessions) == MOST_SESSIONS
    assert "first" in state.sessions
    assert "second" not in state.sessions


def test_a_push_that_is_too_far_behind_is_stale() -> None:
    state = a_state(staleness=2)
    base = state.point
    assert [state.take(a_push({"c": 1.0}, n, state, base=base)).taken for n in (1, 2, 3, 4)] == [True] * 3 + [
        False
    ]
    assert (state.point.version, state.stale) == (3, 1)
    assert state.take(a_push({"c": 1.0}, 4, state)).taken
    assert values(state)["c"] == -4


def test_after_a_return_an_old_version_counts_from_the_snapshot() -> None:
    state = a_state(staleness=1)
    for number in (1, 2):
        state.take(a_push({"c": 1.0}, number, state))
    kept = state.kept()
    for number in range(3, 10):
        state.take(a_push({"c": 1.0}, number, state))
    seen = state.point
    again = a_state(staleness=1)
    again.restore(kept)
    assert again.point == Point(2, 2)
    assert again.take(a_push({"c": 1.0}, 1, again, session="x", base=seen)).taken
    assert again.take(a_push({"c": 1.0}, 2, again, session="x", base=seen)).taken
    assert not again.take(a_push({"c": 1.0}, 3, again, session="x", base=seen)).taken


def test_many_gradients_in_one_push_count_as_many() -> None:
    plain, adam, once = a_state(SGD(1.0)), a_state(Adam(0.1)), a_state(Adam(0.1))
    plain.take(a_push({"c": 6.0}, 1, plain, count=3))
    adam.take(a_push({"c": 6.0}, 1, adam, count=3))
    once.take(a_push({"c": 2.0}, 1, once))
    assert (plain.point.version, float(values(plain)["c"])) == (3, -6.0)
    assert adam.point.version == 3
    assert values(adam)["c"] == values(once)["c"]  # the mean: a sum would look like one huge gradient


def test_readers_share_buffers_and_free_them() -> None:
    state = a_state()
    with state.reading() as (first, _):
        for number in range(1, 9):
            state.take(a_push({"c": 1.0}, number, state))
        assert first[-1] == 0
    assert len(state._buffers) == 2
    assert values(state)["c"] == -8


def test_a_shard_takes_its_rows() -> None:
    initial = {"a": np.arange(12.0).reshape(6, 2), "b": np.float32(7)}
    layout = layout_of({"a": (6, 2), "b": ()}, 3)
    whole = np.concatenate([shard_values(shard, initial) for shard in layout.shards])
    assert whole.tolist() == [*range(12), 7]
