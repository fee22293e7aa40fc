"""A server on which nothing was done yet: each view says what to type first."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from harness import Server
from pages import Reader


@pytest.fixture(scope="module")
def server(new_server: Callable[..., Server]) -> Server:
    return new_server("--cpu", "4")


@pytest.mark.parametrize(
    ("path", "says"),
    [
        ("/", "weft run train.py"),
        ("/jobs", "weft run train.py"),
        ("/queues", "weft apply -f queue.yaml"),
        ("/queues", "Nothing runs and nothing waits"),
        ("/datasets", "weft data add faces ~/faces"),
        ("/compare", "weft run train.py -- --lr 0.1"),
    ],
)
def test_a_view_with_nothing_to_show_says_what_to_do_first(reader: Reader, path: str, says: str) -> None:
    reader.go(path)
    reader.sees(says)
