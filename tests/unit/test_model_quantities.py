"""Quantities: what is written comes back, and what is not understood is refused with the right form."""

from __future__ import annotations

import math
from contextlib import suppress
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from weft.model.quantities import (
    CPU_HELP,
    DURATION_HELP,
    MAX_CPU,
    MAX_DURATION,
    MAX_MEMORY,
    MEMORY_HELP,
    format_cpu,
    format_duration,
    format_memory,
    parse_cpu,
    parse_duration,
    parse_memory,
    plain_cpu,
    show_bytes,
)


@given(st.integers(0, MAX_CPU))
def test_cpu_comes_back(milli: int) -> None:
    assert parse_cpu(format_cpu(milli)) == milli
    assert parse_cpu(plain_cpu(milli)) == milli
    assert parse_cpu(f"{milli}m") == milli


@example(10**18 + 1)
@given(st.one_of(st.integers(0, MAX_MEMORY), st.integers(0, 1024).map(lambda n: n * 2**30)))
def test_memory_comes_back(size: int) -> None:
    assert parse_memory(format_memory(size)) == size
    assert parse_memory(size) == size


@given(st.integers(0, MAX_DURATION * 1000))
def test_a_duration_comes_back_to_the_millisecond(milliseconds: int) -> None:
    seconds = milliseconds / 1000
    assert parse_duration(format_duration(seconds)) == seconds


@pytest.mark.parametrize(
    ("text", "milli"),
    [("2", 2000), (2, 2000), (0.5, 500), ("500m", 500), ("1.5", 1500), ("0", 0), (" 1 ", 1000)],
)
def test_cpus_as_people_write_them(text: Any, milli: int) -> None:
    assert parse_cpu(text) == milli


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("1Gi", 2**30),
        ("512Mi", 512 * 2**20),
        ("1.5Gi", 3 * 2**29),
        ("2G", 2 * 10**9),
        ("500M", 500 * 10**6),
        ("1k", 1000),
        (1024, 1024),
        ("0", 0),
    ],
)
def test_memory_as_people_write_it(text: Any, size: int) -> None:
    assert parse_memory(text) == size


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("30s", 30),
        ("5m", 300),
        ("1h30m", 5400),
        ("7d", 604800),
        ("250ms", 0.25),
        (90, 90),
        (0.5, 0.5),
        ("1.5h", 5400),
    ],
)
def test_durations_as_people_write_them(text: Any, seconds: float) -> None:
    assert parse_duration(text) == seconds


@pytest.mark.parametrize(
    "value",
    [
        "",
        "a",
        "-1",
        "1 2",
        "1e3",
        "2 cpus",
        "1,5",
        "½",
        "٣",
        True,
        None,
        [],
        {},
        math.nan,
        math.inf,
        -0.5,
        "0.0001",
        "9" * 30,
    ],
)
def test_what_is_no_cpu_is_refused_with_the_form(value: Any) -> None:
    with pytest.raises(ValueError, match=r".") as refusal:
        parse_cpu(value)
    assert CPU_HELP in str(refusal.value)


@pytest.mark.parametrize(
    "value",
    [
        "",
        "lots",
        "-1Gi",
        "1 Gi",
        "1Gib/s",
        "0.3",
        "1.0000000001Gi",
        True,
        None,
        [],
        math.nan,
        math.inf,
        "2048Pi",
    ],
)
def test_what_is_no_memory_is_refused_with_the_form(value: Any) -> None:
    with pytest.raises(ValueError, match=r".") as refusal:
        parse_memory(value)
    assert MEMORY_HELP in str(refusal.value)


@pytest.mark.parametrize(
    "value",
    [
        "",
        "5",
        "soon",
        "-5s",
        "5 s",
        "1h 30m",
        "s",
        "5w",
        True,
        None,
        [],
        math.nan,
        math.inf,
        -1,
        "4000d",
        1e300,
    ],
)
def test_what_is_no_duration_is_refused_with_the_form(value: Any) -> None:
    with pytest.raises(ValueError, match=r".") as refusal:
        parse_duration(value)
    assert DURATION_HELP in str(refusal.value)


@pytest.mark.parametrize(
    ("text", "guess"),
    [
        ("512MB", "512M"),
        ("512mb", "512M"),
        ("1GB", "1G"),
        ("1gib", "1Gi"),
        ("1gi", "1Gi"),
        ("16K", "16k"),
        ("1.50GB", "1.5G"),
    ],
)
def test_a_wrong_unit_is_an_error_with_a_guess_and_never_a_default(text: str, guess: str) -> None:
    """FfDL read memory it did not understand as 512 MB, without a word."""
    with pytest.raises(ValueError, match=rf"did you mean {guess}\?"):
        parse_memory(text)


@given(st.one_of(st.text(max_size=12), st.integers(), st.floats(), st.booleans(), st.none()))
def test_anything_is_read_within_the_limits_or_refused(value: Any) -> None:
    for parse, most in ((parse_cpu, MAX_CPU), (parse_memory, MAX_MEMORY), (parse_duration, MAX_DURATION)):
        found = None
        with suppress(ValueError):
            found = parse(value)
        assert found is None or 0 <= found <= most


@pytest.mark.parametrize(
    ("size", "shown"),
    [(0, "0 B"), (1023, "1023 B"), (1024, "1 KiB"), (1536 * 2**20, "1.5 GiB"), (2**50, "1 PiB")],
)
def test_bytes_for_people(size: int, shown: str) -> None:
    assert show_bytes(size) == shown


def test_formatting_is_the_shortest_form() -> None:
    assert [format_cpu(m) for m in (1000, 500, 1001, 0)] == ["1", "0.5", "1.001", "0"]
    assert [format_memory(s) for s in (2**30, 3 * 2**29, 1000, 0)] == ["1Gi", "1536Mi", "1000", "0"]
    assert [format_duration(s) for s in (5400.0, 0.0, 0.25, 86400.0, 61.5)] == [
        "1h30m",
        "0s",
        "0.25s",
        "1d",
        "1m1.5s",
    ]
    assert format_duration(float(Decimal("0.001"))) == "0.001s"
