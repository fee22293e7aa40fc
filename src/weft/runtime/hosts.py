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
    """The addresses (host:port) of all tasks by role; KeyError outside a job."""
    inline = environ.get("WEFT_HOSTS")
    if inline is None:
        with open(environ["WEFT_HOSTS_FILE"], encoding="utf-8") as file:
            inline = file.read()
    return {
        str(role): [str(address) for address in addresses] for role, addresses in json.loads(inline).items()
    }
