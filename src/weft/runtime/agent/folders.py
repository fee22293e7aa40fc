"""Files that a task leaves behind, for the control plane: never through a link, never from outside of a folder."""

from __future__ import annotations

import json
import os
import stat
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, BinaryIO


def files(folder: str, given: str | None = None) -> list[dict[str, Any]]:
    """Every regular file below a folder, hidden ones too. `given`: a file of `note_given`; what it has is told as such."""
    known = _noted(given)
    found: list[dict[str, Any]] = []
    now = time.time()
    for parent, _, names, fd in os.fwalk(folder):
        for name in names:
            try:
                about = os.stat(name, dir_fd=fd, follow_symlinks=False)
            except OSError:  # gone meanwhile
                continue
            if stat.S_ISREG(about.st_mode):
                path = os.path.relpath(os.path.join(parent, name), folder)
                file = {
                    "path": path,
                    "size": about.st_size,
                    "modified": about.st_mtime,
                    "age": now - about.st_mtime,
                }
                same = known.get(path) == [about.st_size, about.st_mtime]
                found.append({**file, "given": True} if same else file)
    return sorted(found, key=lambda file: str(file["path"]))


def note_given(folder: str, path: str) -> None:
    """Remember what is there now. All tasks of a job are given the same: who changes nothing of it has nothing to hand
    over, and must not bring back what another task has replaced or removed since."""
    known = {file["path"]: [file["size"], file["modified"]] for file in files(folder)}
    with open(f"{path}.part", "w") as file:
        json.dump(known, file)
    os.replace(f"{path}.part", path)


def _noted(path: str | None) -> dict[str, list[float]]:
    if path is None:
        return {}
    try:
        with open(path, "rb") as file:
            known: dict[str, list[float]] = json.load(file)
            return known
    except (OSError, ValueError):
        return {}


def open_below(folder: str, path: str) -> BinaryIO:
    """A regular file below a folder; ValueError for a path that leads elsewhere, OSError if there is no such file.

    Each folder on the way is opened by itself: a task could put a link there at any moment.
    """
    parts = path.split("/")
    if any(part in {"", ".", ".."} or "\0" in part for part in parts):
        raise ValueError(f"{path!r} is no path below a folder")
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    fd = os.open(folder, flags | os.O_DIRECTORY)
    try:
        for part in parts[:-1]:
            inner = os.open(part, flags | os.O_DIRECTORY, dir_fd=fd)
            os.close(fd)
            fd = inner
        file = os.open(parts[-1], flags, dir_fd=fd)
    finally:
        os.close(fd)
    if not stat.S_ISREG(os.fstat(file).st_mode):
        os.close(file)
        raise FileNotFoundError(path)
    return os.fdopen(file, "rb")
