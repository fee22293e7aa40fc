"""Columns of text, aligned, coloured and cut to the terminal.

Our own forty lines instead of a library: `weft ls` must answer within 300 ms, of which a table library
would take a third to import, and 10,000 rows take 30 ms here.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from weft.cli.terminal import paint

GAP = "  "
SHORTEST = 8


@dataclass(frozen=True, slots=True)
class Column:
    title: str
    right: bool = False
    styles: Mapping[str, str] | None = None
    """Value → style, for columns of states."""
    flexible: bool = False
    """May be cut when the terminal is too narrow."""


def render(
    columns: Sequence[Column],
    rows: Sequence[Sequence[str]],
    *,
    width: int | None = None,
    colour: bool = False,
) -> str:
    """The table as lines. Cells are cut with `…` so that no line is longer than `width`."""
    cells = [[_one_line(cell) for cell in row] for row in rows]
    widths = [
        max((columns_of(row[i]) for row in cells), default=0) if cells else 0 for i in range(len(columns))
    ]
    widths = [max(w, len(column.title)) for w, column in zip(widths, columns, strict=True)]
    if width is not None:
        widths = _fitted(columns, widths, width)
    lines = [_line(columns, [column.title for column in columns], widths, "bold" if colour else None)]
    lines += [_line(columns, row, widths, None, colour=colour) for row in cells]
    if width is not None:
        lines = [line if colour or len(line) <= width else line[:width] for line in lines]
    return "\n".join(lines)


def columns_of(text: str) -> int:
    """The columns that text takes on a terminal: two for wide characters, none for combining ones."""
    if text.isascii():
        return len(text)
    return sum(
        0 if unicodedata.combining(c) else 2 if unicodedata.east_asian_width(c) in "WF" else 1 for c in text
    )


def cut(text: str, width: int) -> str:
    """The text in at most `width` columns, ending in `…` where something is left out."""
    if columns_of(text) <= width:
        return text
    if text.isascii():
        return text[: max(width - 1, 0)] + "…"
    kept, taken = "", 0
    for character in text:
        taken += columns_of(character)
        if taken > width - 1:
            break
        kept += character
    return kept + "…"


def _one_line(cell: str) -> str:
    """No cell breaks the table or drives the terminal, whatever a job is called or says."""
    return cell if cell.isprintable() else "".join(c if c.isprintable() else " " for c in cell)


def _fitted(columns: Sequence[Column], widths: list[int], width: int) -> list[int]:
    """Take what is too much from the flexible columns, the widest first."""
    widths = list(widths)
    over = sum(widths) + len(GAP) * (len(widths) - 1) - width
    flexible = [i for i, column in enumerate(columns) if column.flexible]
    while over > 0 and flexible:
        widest = max(flexible, key=lambda i: widths[i])
        others = [widths[i] for i in flexible if i != widest]
        floor = max(SHORTEST, len(columns[widest].title), max(others, default=0) - 1)
        taken = min(over, widths[widest] - floor)
        if taken <= 0:
            break
        widths[widest] -= taken
        over -= taken
    return widths


def _line(
    columns: Sequence[Column],
    row: Sequence[str],
    widths: Sequence[int],
    style: str | None,
    *,
    colour: bool = False,
) -> str:
    parts = []
    last = len(columns) - 1
    for i, (column, cell, room) in enumerate(zip(columns, row, widths, strict=True)):
        text = cell if len(cell) <= room and cell.isascii() else cut(cell, room)
        fill = " " * (room - columns_of(text))
        chosen = style or (column.styles or {}).get(cell)
        painted = paint(text, chosen, style is not None or colour) if chosen else text
        parts.append(fill + painted if column.right else painted if i == last else painted + fill)
    return GAP.join(parts).rstrip()
