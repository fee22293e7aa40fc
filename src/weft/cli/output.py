"""Resources in the form that was asked for: as a table, or whole, as JSON or YAML."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Annotated, Any, Literal

from cyclopts import Parameter

from weft.cli import terminal
from weft.cli.table import Column, render

ListForm = Annotated[Literal["json", "yaml", "wide"] | None, Parameter(name=["--output", "-o"])]
"""json and yaml: the full resources as the server gave them; wide: a table with more columns."""
PageForm = Annotated[Literal["json", "yaml"] | None, Parameter(name=["--output", "-o"])]


def print_whole(value: Any, form: str) -> None:
    if form == "json":
        import json

        print(json.dumps(value, indent=2, ensure_ascii=not _utf8()))
    else:
        sys.stdout.write(as_yaml(value))


def as_yaml(value: Any) -> str:
    """YAML in the order of the fields, texts of several lines as blocks."""
    import yaml

    base: Any = getattr(yaml, "CSafeDumper", yaml.SafeDumper)
    text: str = yaml.dump(
        value, Dumper=base, sort_keys=False, allow_unicode=True, default_flow_style=False, width=110
    )
    return text


def print_table(columns: Sequence[Column], rows: Sequence[Sequence[str]]) -> None:
    print(render(columns, rows, width=terminal.width(), colour=terminal.colours(sys.stdout)))


def _utf8() -> bool:
    return (sys.stdout.encoding or "").lower().replace("-", "") == "utf8"
