"""Where the tasks of a gang meet: every role's addresses, handed to a task by its engine."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping

INLINE = 64
"""The widest gang whose addresses are in each task's environment; a wider one's are in a file that all share.

In the environment they would cost the square of the gang: 3,000 tasks were a launch message of 230 MB, and the
kernel takes no variable of over 128 KiB.
"""


def hosts(environ: Mapping[str, str] = os.environ) -> dict[str, list[str]]:
    """The addresses (host:port) of all tasks by role; KeyError outside a job.

    Of an elastic job, those that take part now: its file is written anew whenever tasks leave or join.
    """
    file = environ.get("WEFT_HOSTS_FILE")
    told = environ["WEFT_HOSTS"] if file is None else _read(file)
    return {
        str(role): [str(address) for address in addresses] for role, addresses in json.loads(told).items()
    }


def _read(path: str) -> str:
    with open(path, encoding="utf-8") as file:
        return file.read()
