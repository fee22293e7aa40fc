"""Opening files in folders that a task can write to: never through a link, never a pipe that would block."""

from __future__ import annotations

import errno
import os
import stat

TYPE_CHECKING = (
    False  # importing typing costs more than the rest, and every task in a pod waits for this module
)
if TYPE_CHECKING:
    from typing import BinaryIO


def open_to_read(path: str) -> BinaryIO:
    """A regular file at exactly this path; OSError for anything else."""
    return os.fdopen(_open(path, os.O_RDONLY), "rb")


def open_to_append(path: str) -> int:
    """A regular file at exactly this path, made if it is not there."""
    return _open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)


def _open(path: str, flags: int) -> int:
    fd = os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, 0o600)
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise OSError(errno.EINVAL, "is not a regular file", path)
    return fd
