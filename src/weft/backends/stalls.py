"""What tasks of a hanging job were doing, kept among its results."""

from __future__ import annotations

import os
import time

from weft.backends.api import STALLS


def page(job: str, note: str, told: dict[str, list[str]]) -> str:
    """By task."""
    head = f"job {job}, {time.strftime('%Y-%m-%d %H:%M:%S %z')}"
    parts = [f"{head}\n({note})" if note else head]
    for task, processes in told.items():
        parts += [f"════ {task} ════", *processes]
    return "\n\n".join(parts) + "\n"


def keep(results: str, name: str, text: str) -> None:
    """In the folder of stalls among the results. Tasks can write there: no link of theirs is followed."""
    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
    outer = os.open(results, flags)
    try:
        try:
            os.mkdir(STALLS, dir_fd=outer)
        except FileExistsError:
            pass
        inner = os.open(STALLS, flags, dir_fd=outer)
    finally:
        os.close(outer)
    try:
        try:
            os.unlink(name, dir_fd=inner)
        except FileNotFoundError:
            pass
        made = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        with os.fdopen(os.open(name, made, 0o644, dir_fd=inner), "w", errors="replace") as file:
            file.write(text)
    finally:
        os.close(inner)
