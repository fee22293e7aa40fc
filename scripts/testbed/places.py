"""Where the testbed keeps things: what is made once in the cache, what one testbed has in the state folder."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]


def cache() -> Path:
    """Binaries and images: slow to make, the same for every testbed."""
    base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(base) / "weft" / "testbed"


def state() -> Path:
    """Processes, keys, data and logs of the one testbed that this user has."""
    base = os.environ.get("XDG_STATE_HOME") or str(Path.home() / ".local" / "state")
    return Path(base) / "weft" / "testbed"


@contextmanager
def locked(path: Path, doing: str) -> Iterator[None]:
    """One at a time; who comes second waits, and is told for whom."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a+") as held:
        try:
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            held.seek(0)
            print(f"waiting for {held.read().strip() or 'another process'} ({path})", flush=True)
            fcntl.flock(held, fcntl.LOCK_EX)
        held.truncate(0)
        held.write(f"process {os.getpid()}, which is {doing}")
        held.flush()
        yield
        held.truncate(0)
