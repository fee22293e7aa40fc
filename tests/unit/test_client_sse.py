"""Server-sent events, however the network cuts them."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from weft.client.sse import Event, Parser

STREAM = (
    ": weft\n\n"
    'id: 7\nevent: lines\ndata: {"items": ["ä"]}\n\n'
    "data: one\r\ndata: two\r\n\r\n"
    "retry: 10\n\n"
    ": keep-alive\n\n"
    "event: end\n\n"
).encode()
EVENTS = [
    None,
    Event("lines", '{"items": ["ä"]}', "7"),
    Event("message", "one\ntwo", "7"),
    None,
    Event("end", "", "7"),
]


def test_a_whole_stream() -> None:
    assert Parser().feed(STREAM) == EVENTS


@given(st.lists(st.integers(0, len(STREAM)), max_size=20))
def test_any_cut_gives_the_same_events(cuts: list[int]) -> None:
    places = sorted({0, len(STREAM), *cuts})
    parser = Parser()
    found = [event for a, b in pairwise(places) for event in parser.feed(STREAM[a:b])]
    assert found == EVENTS


@given(st.binary(max_size=200))
def test_nothing_breaks_the_parser(content: bytes) -> None:
    Parser().feed(content + b"\n\n")


def test_data_is_json() -> None:
    assert Event("x", '{"a": 1}').json() == {"a": 1}
    assert Event("end", "").json() == {}
