"""Resources in the form that was asked for: as a table, or whole, as JSON or YAML."""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from typing import Annotated, Any, Literal

from cyclopts import Parameter

from weft.cli import terminal
from weft.cli.table import Column, render

ListForm = Annotated[Literal["json", "yaml", "wide"] | None, Parameter(name=["--output", "-o"])]
"""json and yaml: the full resources as the server gave them; wide: a table with more columns."""
PageForm = Annotated[Literal["json", "yaml"] | None, Parameter(name=["--output", "-o"])]
JobForm = Annotated[Literal["json", "yaml", "kubernetes"] | None, Parameter(name=["--output", "-o"])]
"""kubernetes: the objects that a job would be on a cluster, as kubectl reads them."""


def print_whole(value: Any, form: str) -> None:
    if form == "json":
        import json

        print(json.dumps(value, indent=2, ensure_ascii=not _utf8()))
    else:
        sys.stdout.write(as_yaml(value))


def print_objects(objects: Sequence[Any]) -> None:
    """Each a YAML document of its own."""
    sys.stdout.write("---\n".join(map(as_yaml, objects)))


def as_yaml(value: Any) -> str:
    """YAML in the order of the fields, texts of several lines as blocks."""
    import yaml

    base: Any = getattr(yaml, "CSafeDumper", yaml.SafeDumper)
    dumper: Any = type("Dumper", (base,), {"ignore_aliases": lambda *_: True})
    dumper.add_representer(str, _text)
    text: str = yaml.dump(
        value, Dumper=dumper, sort_keys=False, allow_unicode=True, default_flow_style=False, width=110
    )
    return text


_NUMBER_TO_SOME = re.compile(r"[-+.]?[0-9][0-9_.]*(?:[eE][-+]?[0-9]+)?|0o[0-7]+|[yYnN]")
"""Text to Python's YAML and a number or a truth value to others, Kubernetes' among them: 019e7 could be a uid."""


def _text(dumper: Any, text: str) -> Any:
    style = "|" if "\n" in text else "'" if _NUMBER_TO_SOME.fullmatch(text) else None
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)


def print_table(columns: Sequence[Column], rows: Sequence[Sequence[str]]) -> None:
    print(render(columns, rows, width=terminal.width(), colour=terminal.colours(sys.stdout)))


def _utf8() -> bool:
    return (sys.stdout.encoding or "").lower().replace("-", "") == "utf8"
