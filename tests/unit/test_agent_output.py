"""How the output is read: at what pace, with what times, and what is left out. On a clock of its own."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace

import pytest

from weft.runtime.agent import output
from weft.runtime.agent.output import BEHIND, MARKS, Follower, Output


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    now = SimpleNamespace(now=1000.0)
    now.time = now.monotonic = lambda: now.now
    monkeypatch.setattr(output, "time", now)
    return now


@pytest.fixture
def path(fast_folder: Path) -> Path:
    return fast_folder / "output"


@pytest.fixture
def file(path: Path, clock: SimpleNamespace) -> Iterator[Output]:
    with closing(Output(str(path))) as made:
        yield made


def add(path: Path, data: bytes) -> None:
    with path.open("ab") as appended:
        appended.write(data)


def test_no_more_is_sent_than_the_rate_allows_after_a_first_burst(
    path: Path, file: Output, clock: SimpleNamespace
) -> None:
    follower = Follower(file, 0, kept=1000, rate=100.0)
    add(path, 1000 * b"x")
    assert len(follower.take(5000)[2]) == 1000
    add(path, 500 * b"y")
    assert follower.take(5000) == (1000, 1000.0, b"")
    clock.now += 2
    assert follower.take(5000) == (1000, 1000.0, 200 * b"y")
    assert follower.take(5000)[2] == b""
    assert follower.take(5000, hurry=True) == (1200, 1000.0, 300 * b"y")
    clock.now += 10_000
    add(path, 900 * b"z")
    assert len(follower.take(5000)[2]) == 900
    add(path, 900 * b"z")
    assert len(follower.take(5000)[2]) == 100


def test_the_oldest_is_left_out_to_the_begin_of_a_line(
    path: Path, file: Output, clock: SimpleNamespace
) -> None:
    follower = Follower(file, 0, kept=800)
    add(path, 100 * b"123456789\n")
    assert follower.take(5000) == (300, 1000.0, 70 * b"123456789\n")
    assert follower.left_out == 300


def test_times_are_those_of_the_printing_and_not_of_the_reading(
    path: Path, file: Output, clock: SimpleNamespace
) -> None:
    for _ in range(3):
        add(path, b"together ")
        file.look()
        clock.now += 0.1
    clock.now += 60
    add(path, b"later")
    file.look()
    clock.now += 600
    follower = Follower(file, 0, kept=1000)
    assert follower.take(5000) == (0, 1000.0, b"together together together ")
    assert follower.take(5000) == (27, pytest.approx(1060.3), b"later")
    assert follower.take(5000)[2] == b""


def test_times_of_a_long_life_are_remembered_coarsely(
    path: Path, file: Output, clock: SimpleNamespace
) -> None:
    for n in range(3 * MARKS):
        add(path, b"x")
        clock.now = 1000.0 + n
        file.look()
    for offset in range(0, 3 * MARKS, 1000):
        assert file.seen(offset)[0] == pytest.approx(1000.0 + offset, abs=8)


def test_a_reader_who_has_more_than_there_is_gets_nothing(
    path: Path, file: Output, clock: SimpleNamespace
) -> None:
    add(path, b"abc")
    assert Follower(file, 1000, kept=1000).take(10)[2] == b""


def test_what_was_freed_is_never_read_as_zeros(path: Path, file: Output, clock: SimpleNamespace) -> None:
    size = BEHIND + (3 << 20)
    add(path, size * b"x")
    follower = Follower(file, 0, kept=size)
    file.free(size)
    assert file.floor == 3 << 20
    assert file.read(0, 10) == b""
    assert follower.take(10) == (3 << 20, 1000.0, 10 * b"x")
    with closing(Output(str(path))) as again:
        assert again.floor == 3 << 20
    assert path.stat().st_blocks * 512 == BEHIND
