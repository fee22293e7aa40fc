"""What the command line draws: tables, curves, times, and text that cannot harm a terminal."""

from __future__ import annotations

import math
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from weft.cli import moments
from weft.cli.plot import plot
from weft.cli.table import Column, columns_of, cut, render
from weft.cli.terminal import safe

COLUMNS = (Column("NAME"), Column("N", right=True), Column("REASON", flexible=True))


def test_a_table_is_aligned() -> None:
    assert render(COLUMNS, [["a", "1", "x"], ["longer", "22", ""]]).split("\n") == [
        "NAME     N  REASON",
        "a        1  x",
        "longer  22",
    ]


def test_no_rows_leave_the_titles() -> None:
    assert render(COLUMNS, []) == "NAME  N  REASON"


def test_a_narrow_terminal_cuts_the_flexible_column() -> None:
    text = render(COLUMNS, [["job", "1", "because of a very long reason"]], width=30)
    assert text.split("\n")[1] == "job   1  because of a very lo…"


def test_wide_characters_count_twice() -> None:
    lines = render((Column("A"), Column("B")), [["日本", "x"], ["ab", "y"]]).split("\n")
    assert lines[1:] == ["日本  x", "ab    y"]
    assert cut("日本語", 4) == "日…"


def test_a_cell_cannot_break_the_table() -> None:
    assert render((Column("A"),), [["x\n\x1b[2Jy"]]).split("\n")[1] == "x  [2Jy"


def test_colours_do_not_move_columns() -> None:
    columns = (Column("S", styles={"FAILED": "red"}), Column("B"))
    plain = render(columns, [["FAILED", "x"]])
    painted = render(columns, [["FAILED", "x"]], colour=True)
    assert "\x1b[31mFAILED\x1b[0m  x" in painted
    assert safe(painted.split("\n")[1]).replace("\x1b[31m", "").replace("\x1b[0m", "") == plain.split("\n")[1]


CELL = st.text(st.characters(codec="utf-8"), max_size=40)


@given(st.lists(st.tuples(CELL, CELL, CELL), max_size=6), st.integers(40, 120))
def test_no_flexible_line_is_wider_than_the_terminal(rows: list[tuple[str, str, str]], width: int) -> None:
    columns = tuple(Column(title, flexible=True) for title in "ABC")
    assert all(columns_of(line) <= width for line in render(columns, rows, width=width).split("\n"))


def test_ten_times_the_rows_cost_ten_times_the_work() -> None:
    """CPU time and a ratio: seconds of a busy machine say nothing."""
    columns = [
        Column("A"),
        Column("B", styles={"PROCESSING": "blue"}),
        Column("C"),
        Column("D", right=True),
        COLUMNS[2],
    ]

    def cost(count: int) -> float:
        rows = [
            [f"job-{n}", "PROCESSING", "command", str(n), "a reason that is long enough"]
            for n in range(count)
        ]
        begin = time.process_time()
        render(columns, rows, width=60, colour=True)
        return time.process_time() - begin

    assert min(cost(10_000) for _ in range(3)) < 30 * min(cost(1_000) for _ in range(3))


# ── curves ──


def test_a_curve_has_a_title_axes_and_their_ends() -> None:
    text = plot(
        [(n, 100 - n) for n in range(101)], title="loss", across="step", up="loss", width=60, height=8
    )
    lines = text.split("\n")
    assert lines[0].strip() == "loss"
    assert lines[2].lstrip().startswith("100 ┤")
    assert lines[-3].lstrip().startswith("0 ┤")
    assert lines[-1].split() == ["0", "step", "100"]
    assert max(map(len, lines)) <= 60
    assert any(0x2800 < ord(c) <= 0x28FF for c in lines[2])


def test_one_point_and_a_flat_line_are_drawn() -> None:
    for points in ([(1.0, 2.0)], [(0.0, 5.0), (9.0, 5.0)]):
        assert any(0x2800 < ord(c) <= 0x28FF for c in plot(points, title="t", across="x", up="y"))


def test_points_that_are_not_finite_are_counted() -> None:
    text = plot([(0, 1), (1, math.nan), (2, math.inf), (3, 2)], title="t", across="x", up="y")
    assert "(2 points are not finite and not drawn)" in text
    assert "no points but 1" in plot([(0, math.nan)], title="t", across="x", up="y")


@given(
    st.lists(st.tuples(st.floats(allow_nan=True), st.floats(allow_nan=True)), max_size=30),
    st.integers(20, 150),
    st.integers(2, 30),
)
def test_no_curve_breaks_the_plot(points: list[tuple[float, float]], width: int, height: int) -> None:
    plot(points, title="t", across="x", up="y", width=width, height=height)


# ── text of strangers ──


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain", "plain"),
        ("tab\there", "tab\there"),
        ("\x1b[31mred\x1b[0m", "\x1b[31mred\x1b[0m\x1b[0m"),
        ("\x1b[31mleft on", "\x1b[31mleft on\x1b[0m"),
        ("\x1b]0;title\x07after", "after"),
        ("\x1b]52;c;ZXZpbA==\x1b\\after", "after"),
        ("\x1b]0;never ends", ""),
        ("\x1b[2J\x1b[Hgone", "gone"),
        ("\x1b[?1049hx", "x"),
        ("\x1bPq#0\x1b\\x", "x"),
        ("\x9b2Jx", "2Jx"),
        ("bell\x07back\x08", "bellback"),
        ("10%\r50%\r100%", "100%"),
        ("done\r", "done"),
        ("ä→日", "ä→日"),
    ],
)
def test_only_colours_reach_the_terminal(text: str, shown: str) -> None:
    assert safe(text) == shown


@given(st.text())
def test_nothing_but_colours_and_tabs_is_left(text: str) -> None:
    left = safe(text)
    for match in ("\x1b[0m",):
        left = left.replace(match, "")
    import re

    left = re.sub(r"\x1b\[[0-9;:]*m", "", left)
    assert not re.search(r"[\x00-\x08\x0a-\x1f\x7f-\x9f]", left)


# ── times and sizes ──


@pytest.mark.parametrize(
    ("seconds", "said"),
    [
        (None, "-"),
        (0, "0ms"),
        (0.85, "850ms"),
        (0.9996, "1.0s"),
        (4.23, "4.2s"),
        (9.97, "10s"),
        (59.6, "1m"),
        (190, "3m10s"),
        (18120, "5h2m"),
        (86400 * 12 + 3600 * 3, "12d3h"),
        (-5, "0ms"),
    ],
)
def test_spans(seconds: float | None, said: str) -> None:
    assert moments.span(seconds) == said


def test_sizes_and_numbers() -> None:
    assert [moments.size(n) for n in (None, 0, 1023, 1024, 1536 * 2**20)] == [
        "-",
        "0 B",
        "1023 B",
        "1 KiB",
        "1.5 GiB",
    ]
    assert [moments.number(n) for n in (None, 0.1234567, 1e-9, 5)] == ["-", "0.123457", "1e-09", "5"]
