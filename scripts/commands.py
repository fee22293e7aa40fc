"""Write docs/commands.md from the commands themselves: `python scripts/commands.py`."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from cyclopts import App

from weft.cli.app import build

TARGET = Path(__file__).resolve().parent.parent / "docs" / "commands.md"
HEAD = """\
# Commands

Made from the commands by `python scripts/commands.py`; `weft COMMAND --help` says the same.

Results go to standard output; states, hints (`next: …`) and errors go to standard error. A command exits with 0 when it
did what was asked, 1 when not and 2 when it could not be understood. The beginning of a job's name is enough for commands
that only look, where one job begins so; commands that change a job want the whole name.
"""


def reference() -> str:
    return "\n".join([HEAD, *_sections(build([]), ())])


def _sections(app: App, way: tuple[str, ...]) -> Iterator[str]:
    for name in app:
        if name.startswith("-"):
            continue
        place = (*way, name)
        typed = build(place)  # only the command that is typed brings its whole help
        for part in place:
            typed = typed[part]
        if typed.default_command is not None:
            yield _section(typed, place)
        yield from _sections(typed, place)


def _section(command: App, place: tuple[str, ...]) -> str:
    text = inspect.cleandoc(command.default_command.__doc__ or "").partition("\nParameters\n---")[0]
    words, _, examples = text.partition("For example:\n")
    arguments = [a for a in command.assemble_argument_collection(parse_docstring=True) if a.show]
    positional = [_positional(a) for a in arguments if not a.names[0].startswith("-")]
    options = [a for a in arguments if a.names[0].startswith("-")]
    usage = " ".join(["weft", *place, *(["[OPTIONS]"] if options else []), *positional])
    rows = [f"| `{_names(a)}` | {_cell(a.parameter.help)} |" for a in arguments]
    table = ["| | |", "|---|---|", *rows, ""] if rows else []
    shown = ["```", inspect.cleandoc(examples), "```", ""] if examples else []
    return "\n".join([f"## {usage}", "", words.strip(), "", *shown, *table])


def _positional(argument: Any) -> str:
    name = argument.names[0]
    several = "..." if argument.field_info.kind is inspect.Parameter.VAR_POSITIONAL else ""
    return f"{name}{several}" if argument.required or several else f"[{name}]"


def _names(argument: Any) -> str:
    """`--follow, -f` or `--tail TAIL`; not the forms that only undo another."""
    names = [name for name in argument.names if not re.match(r"--(no|empty)-", name)]
    valued = names[0].startswith("--") and argument.hint is not bool
    return ", ".join(names) + (f" {names[0].removeprefix('--').upper()}" if valued else "")


def _cell(text: str | None) -> str:
    return " ".join((text or "").split()).replace("|", "\\|")


def main() -> None:
    TARGET.write_text(reference())
    print(f"wrote {TARGET.name}")


if __name__ == "__main__":
    main()
