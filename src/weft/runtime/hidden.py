"""What Weft itself keeps in a job's CHECKPOINT_DIR, under `.weft`, and the locks on it.

The engine takes the newest time among the entries of CHECKPOINT_DIR for the time of the last save. What is kept here
lies one level deeper, and `.weft` itself is given no time, so that nobody mistakes it for a checkpoint.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager

from weft.runtime.preempt import uninterrupted


def hidden(folder: str, name: str) -> str:
    """The folder `.weft/NAME` in a job's checkpoints, made if need be."""
    parent = os.path.join(folder, ".weft")
    path = os.path.join(parent, name)
    if not os.path.isdir(path):
        os.makedirs(path, exist_ok=True)
        os.utime(parent, (0, 0))
    return path


@contextmanager
def locked(path: str) -> Iterator[int]:
    """The file, made if need be, for one thread of one process at a time; the kernel frees the lock of who dies."""
    with uninterrupted():
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX)
            try:
                yield fd
            finally:
                fcntl.flock(fd, fcntl.LOCK_UN)  # a child forked meanwhile has the file open, too
        finally:
            os.close(fd)


def sync_folder(path: str) -> None:
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
