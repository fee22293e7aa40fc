"""`weft.announce(url)`: a task says where a person can reach what it offers; `weft show` tells them.

The URL may hold a token. It goes into a file that only the job's user can read, and from there to whoever may ask for
the job: never into a log, an event, the store or a list of processes.
"""

from __future__ import annotations

import os
import re

from weft.runtime.regularfile import open_to_read

LONGEST = 2048
_URL = re.compile(r"https?://[!-~]+")


def announce(url: str) -> None:
    """Show this URL as the task's own until it ends; a later call replaces it. Outside of a job it does nothing.

    The file is the one that WEFT_URL_FILE names, so that a program in another language can write it.
    """
    if len(url) > LONGEST or not _URL.fullmatch(url):
        raise ValueError(
            f"weft.announce: a URL begins with http:// or https://, has no spaces and at most {LONGEST} characters"
        )
    path = os.environ.get("WEFT_URL_FILE")
    if not path:
        return
    part = f"{path}.part"
    fd = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    with os.fdopen(fd, "w", encoding="ascii") as file:
        file.write(url)
    os.replace(part, path)


def announced(path: str) -> str | None:
    """What stands in such a file; None if there is none, or no URL in it."""
    try:
        with open_to_read(path) as file:
            text = file.read(LONGEST + 2).decode("ascii").strip()
    except (OSError, UnicodeDecodeError):
        return None
    return text if len(text) <= LONGEST and _URL.fullmatch(text) else None
