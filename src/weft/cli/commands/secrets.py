"""`weft secrets`: values that jobs use by reference. They are never printed."""

from __future__ import annotations

import getpass
import sys

from weft.cli import terminal
from weft.cli.output import ListForm, print_table, print_whole
from weft.cli.table import Column
from weft.client.api import Client
from weft.client.jobspec import BadOption

COLUMNS = (Column("NAME"), Column("KEYS", flexible=True))


def list_secrets(*, output: ListForm = None) -> int:
    """List the stored secrets and their keys; values are never shown.

    Parameters
    ----------
    output
        json or yaml.
    """
    items = Client().secrets()
    if output in ("json", "yaml"):
        print_whole({"items": items}, str(output))
        return 0
    rows = [[i["name"], ", ".join(i.get("keys") or ())] for i in items]
    print_table(COLUMNS, rows)
    terminal.next_step("weft secrets set NAME KEY", "weft run --secret NAME:KEY=ENV ...")
    return 0


def set_secret(name: str, /, *pairs: str) -> int:
    """Store a secret. A KEY without =VALUE is asked for, or read from standard input, so that the value
    stays out of the shell's history and the list of processes.

    For example:
      weft secrets set hub TOKEN
      weft secrets set hub TOKEN < token.txt
      weft secrets set hub USER=me TOKEN=xyz

    Parameters
    ----------
    name
        The secret's name.
    pairs
        KEY=VALUE, or KEY.
    """
    if not pairs:
        raise BadOption("give at least one KEY or KEY=VALUE")
    asked = [pair for pair in pairs if "=" not in pair]
    if len(asked) > 1 and not sys.stdin.isatty():
        raise BadOption(f"standard input holds one value, but {len(asked)} keys are to be read from it")
    data = dict(pair.split("=", 1) for pair in pairs if "=" in pair)
    data |= {key: _read_value(name, key) for key in asked}
    Client().set_secret(name, data)
    print(f"secret {name} stored ({', '.join(data)})")
    terminal.next_step(f"weft run --secret {name}:{next(iter(data))}=ENV ...")
    return 0


def remove_secrets(*names: str) -> int:
    """Remove secrets.

    Parameters
    ----------
    names
        Names of secrets.
    """
    if not names:
        raise BadOption("name at least one secret (weft secrets ls)")
    client = Client()
    for name in names:
        client.delete_secret(name)
        print(f"secret {name} removed")
    terminal.next_step("weft secrets ls")
    return 0


def _read_value(name: str, key: str) -> str:
    if sys.stdin.isatty():
        return getpass.getpass(f"value of {name}:{key} (not shown): ")
    return sys.stdin.read().removesuffix("\n")
