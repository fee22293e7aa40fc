"""Rows of a CSV file whose cells know where they stand, so that a bad one can be named."""

from __future__ import annotations

import csv
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from weft.sim.badfile import BadFile


@dataclass(frozen=True, slots=True)
class Row:
    file: str
    line: int
    cells: dict[str, str]

    def text(self, column: str) -> str:
        return self.cells[column].strip()

    def whole(self, column: str, least: int = 0) -> int:
        """A whole number, at least so much."""
        try:
            number = int(self.text(column))
        except ValueError:
            raise self.bad(column, "not a whole number") from None
        return number if number >= least else self._below(column, least)

    def number(self, column: str, least: float = 0.0) -> float:
        try:
            number = float(self.text(column))
        except ValueError:
            raise self.bad(column, "not a number") from None
        if not number < float("inf"):
            raise self.bad(column, "not a finite number")
        return number if number >= least else self._below(column, least)

    def moment(self, column: str) -> float:
        """Seconds since 1970: a number, or a date and time (without a zone: UTC, whatever the machine's is)."""
        text = self.text(column)
        try:
            return float(text)
        except ValueError:
            pass
        try:
            moment = datetime.fromisoformat(text)
        except ValueError:
            raise self.bad(
                column, "neither a number of seconds nor a date like 2017-10-09 07:01:55"
            ) from None
        zone = moment.tzinfo is not None
        return moment.timestamp() if zone else (moment - datetime(1970, 1, 1)).total_seconds()

    def bad(self, column: str, cause: str) -> BadFile:
        return BadFile(self.file, f"{cause} (got {self.cells[column]!r})", self.line, column)

    def _below(self, column: str, least: float) -> int:
        raise self.bad(column, f"must be at least {least:g}")


def header_of(path: Path) -> tuple[str, ...]:
    """The names of the columns; which reader a file needs is told by these."""
    with _opened(path) as file:
        try:
            return tuple(name.strip() for name in next(csv.reader(file), ()))
        except (UnicodeDecodeError, csv.Error):
            raise BadFile(path, "not a CSV file of UTF-8 text", 1) from None


def rows_of(path: Path, columns: Sequence[str]) -> Iterator[Row]:
    """Every row; the file must have at least these columns, and every row as many cells as there are names."""
    names = header_of(path)
    if missing := [column for column in columns if column not in names]:
        raise BadFile(path, f"has no column {', '.join(missing)} (it has {', '.join(names) or 'nothing'})", 1)
    with _opened(path) as file:
        reader = csv.reader(file)
        next(reader)
        try:
            for cells in reader:
                if not cells:
                    continue
                if len(cells) != len(names):
                    raise BadFile(
                        path, f"{len(cells)} cells where there are {len(names)} columns", reader.line_num
                    )
                yield Row(str(path), reader.line_num, dict(zip(names, cells, strict=True)))
        except (UnicodeDecodeError, csv.Error) as problem:
            raise BadFile(path, f"not CSV: {problem}", reader.line_num) from None


def _opened(path: Path):  # type: ignore[no-untyped-def]
    try:
        return path.open(encoding="utf-8-sig", newline="")
    except OSError as problem:
        raise BadFile(path, (problem.strerror or str(problem)).lower()) from None
