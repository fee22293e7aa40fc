"""A file that cannot be read as what it should be: which, where in it, and why."""

from __future__ import annotations

from pathlib import Path


class BadFile(ValueError):
    def __init__(
        self, file: str | Path, cause: str, line: int | None = None, column: str | int | None = None
    ):
        self.file = str(file)
        self.line = line
        self.column = column
        self.cause = cause
        where = self.file
        where += f", line {line}" if line is not None else ""
        where += f", column {column}" if column is not None else ""
        super().__init__(f"{where}: {cause}")
