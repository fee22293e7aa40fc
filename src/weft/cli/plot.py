"""A curve in a terminal: four by two dots a character, in Unicode's braille patterns."""

from __future__ import annotations

import math
from collections.abc import Sequence

Point = tuple[float, float]

_DOTS = ((0x01, 0x02, 0x04, 0x40), (0x08, 0x10, 0x20, 0x80))
"""The bit of each dot of a braille character, by column and row."""


def plot(
    points: Sequence[Point], *, title: str, across: str, up: str, width: int = 80, height: int = 16
) -> str:
    """The points joined by lines, with a title, both axes named and their ends numbered.

    Points that are not finite are left out and counted under the curve.
    """
    finite = sorted((x, y) for x, y in points if math.isfinite(x) and math.isfinite(y))
    left_out = len(points) - len(finite)
    if not finite:
        return f"{title}\n(no points{f' but {left_out} that are not finite' if left_out else ''})"
    low_x, high_x = finite[0][0], finite[-1][0]
    low_y, high_y = min(y for _, y in finite), max(y for _, y in finite)
    height = max(height, 2)
    marks = {
        0: _label(high_y),
        height // 2: _label(high_y - (high_y - low_y) * (height // 2) / (height - 1)),
        height - 1: _label(low_y),
    }
    margin = max(map(len, marks.values()))
    columns = max(width - margin - 2, 8)

    canvas = [[0] * columns for _ in range(height)]
    previous: tuple[int, int] | None = None
    for x, y in finite:
        here = (
            _place(x, low_x, high_x, columns * 2),
            height * 4 - 1 - _place(y, low_y, high_y, height * 4),
        )
        _draw(canvas, previous or here, here)
        previous = here

    lines = [f"{'':{margin}}  {title}", f"{'':{margin}}  {up}"]
    for row, cells in enumerate(canvas):
        drawn = "".join(chr(0x2800 + cell) if cell else " " for cell in cells).rstrip()
        lines.append(f"{marks.get(row, ''):>{margin}} {'┤' if row in marks else '│'}{drawn}")
    lines.append(f"{'':{margin}} └{'─' * columns}")
    first, last = _label(low_x), _label(high_x)
    lines.append(f"{'':{margin}}  {first}{across.center(max(columns - len(first) - len(last), 0))}{last}")
    if left_out:
        lines.append(f"{'':{margin}}  ({left_out} points are not finite and not drawn)")
    return "\n".join(line.rstrip() for line in lines)


def _place(value: float, low: float, high: float, room: int) -> int:
    """Where a value falls in a row of dots; a flat curve runs through the middle."""
    if high == low:
        return room // 2
    span = high / 2 - low / 2  # halved, so that the span of two huge values does not overflow
    if span == 0:  # two neighbours among the smallest numbers there are
        return room // 2
    share = (value / 2 - low / 2) / span
    return round(share * (room - 1)) if math.isfinite(share) else room // 2


def _draw(canvas: list[list[int]], start: tuple[int, int], end: tuple[int, int]) -> None:
    (x0, y0), (x1, y1) = start, end
    steps = max(abs(x1 - x0), abs(y1 - y0), 1)
    for step in range(steps + 1):
        x = x0 + round((x1 - x0) * step / steps)
        y = y0 + round((y1 - y0) * step / steps)
        canvas[y // 4][x // 2] |= _DOTS[x % 2][y % 4]


def _label(value: float) -> str:
    return (
        f"{value:.4g}" if abs(value) < 1e15 and value == int(value) and abs(value) < 1e4 else f"{value:.5g}"
    )
