"""A job's results: the files of its RESULT_DIR that its spec includes."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from weft.backends.api import STALLS


@dataclass(frozen=True, slots=True)
class ResultFile:
    path: str
    """Relative to RESULT_DIR."""
    size: int
    modified: float


def is_empty(folder: str) -> bool:
    try:
        with os.scandir(folder) as entries:
            return next(iter(entries), None) is None
    except OSError:
        return True


def listing(folder: str, include: Iterable[str] = ("**",)) -> list[ResultFile]:
    """Regular files only, by path: a link may lead out of the folder and is no result. Stacks of stalls always are."""
    wanted = matcher(include)
    if os.path.islink(folder):  # noqa: PTH114
        return []
    found = []
    for base, folders, files in os.walk(folder):
        folders.sort()
        for name in sorted(files):
            path = os.path.join(base, name)  # noqa: PTH118
            relative = os.path.relpath(path, folder)
            if wanted(relative):
                try:
                    entry = os.lstat(path)
                except FileNotFoundError:
                    continue  # renamed or removed this moment, as checkpoints are
                if (entry.st_mode & 0o170000) == 0o100000:
                    found.append(ResultFile(relative, entry.st_size, entry.st_mtime))
    return found


def matcher(include: Iterable[str]) -> Callable[[str], bool]:
    """Whether a path within RESULT_DIR is a result."""
    patterns = [_pattern(glob) for glob in (*include, f"{STALLS}/**")]
    return lambda path: any(pattern.fullmatch(path) for pattern in patterns)


def _pattern(glob: str) -> re.Pattern[str]:
    """`*` stays within a folder, `**` does not."""
    parts = re.split(r"(\*\*/?|\*|\?)", glob)
    known = {"**": ".*", "**/": "(?:.*/)?", "*": "[^/]*", "?": "[^/]"}
    return re.compile("".join(known.get(part, re.escape(part)) for part in parts), re.DOTALL)
