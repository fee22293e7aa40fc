"""The script that a task's container runs in place of the user's command, and that runs that command."""

from __future__ import annotations

import os


def _read() -> str:
    with open(os.path.join(os.path.dirname(__file__), "start.sh"), encoding="ascii") as file:
        return "".join(line for line in file if not line.lstrip().startswith("#"))


START = _read()
"""For `/bin/sh -c START weft COMMAND...`, without its comments: it is part of every pod."""
