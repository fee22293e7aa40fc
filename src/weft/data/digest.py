"""Content is named by blake3: 64 hex digits, or 32 bytes."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import IO

from blake3 import blake3

CHUNK = 1 << 20
SIZE = 32
VERSION = 32
"""A version's name is so many hex digits of its digest."""

new = blake3


def of(content: bytes | memoryview) -> str:
    return blake3(content).hexdigest()


def of_file(file: IO[bytes] | int) -> str:
    """Of an open file, from its beginning."""
    number = file if isinstance(file, int) else file.fileno()
    hasher, at = blake3(), 0
    while chunk := os.pread(number, CHUNK, at):
        hasher.update(chunk)
        at += len(chunk)
    return hasher.hexdigest()


def of_version(samples: Iterable[tuple[bytes, int, bytes]]) -> str:
    """The name of a version: of its samples' names, lengths and marks in order, and of nothing else."""
    hasher = blake3()
    for name, length, mark in samples:
        hasher.update(b"%b\0%d\0%b\n" % (name, length, mark.hex().encode()))
    return hasher.hexdigest()[:VERSION]


def of_mark(mark: str) -> bytes:
    """What stands for the content of an object that stays at its source: its mark, which changes with it."""
    return blake3(mark.encode()).digest()


def of_source(key: str, mark: str, size: int) -> str:
    """The identity of an object that stays at its source and whose content was not read."""
    return of(f"{key}\0{mark}\0{size}".encode())


def of_sources(objects: Iterable[tuple[str, str, int]]) -> str:
    """Likewise of several that are read as one."""
    hasher = blake3()
    for key, mark, size in objects:
        hasher.update(f"{key}\0{mark}\0{size}\n".encode())
    return hasher.hexdigest()
