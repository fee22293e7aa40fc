"""Ports for the tasks of a gang to meet at, below the range that the kernel hands out by itself."""

from __future__ import annotations

import json
import random
import socket
from collections.abc import Sequence
from pathlib import Path

from weft.backends.folders import replace_file
from weft.model.gang import Gang

FIRST, LAST = 20_000, 32_000


class Ports:
    """Hands out ports that are free now and not promised to another job."""

    def __init__(self, seed: int | None = None):
        self._next = random.Random(seed).randint(FIRST, LAST - 1)  # noqa: S311  (no secret: spreads servers apart)
        self._promised: dict[str, list[int]] = {}
        self._taken: set[int] = set()

    def take(self, uid: str, count: int, record: str) -> list[int]:
        """The job's ports: those written down at its start, or new ones. One task needs no record."""
        if uid in self._promised:
            return self._promised[uid]
        kept = self._read(record) if count > 1 else []
        ports = kept if len(kept) == count else [self._free() for _ in range(count)]
        if count > 1 and ports is not kept:
            replace_file(record, json.dumps(ports))
        self._promised[uid] = ports
        self._taken.update(ports)
        return ports

    def release(self, uid: str) -> None:
        self._taken.difference_update(self._promised.pop(uid, ()))

    def _free(self) -> int:
        for _ in range(LAST - FIRST):
            port = self._next
            self._next = FIRST + (port + 1 - FIRST) % (LAST - FIRST)
            if port in self._taken:
                continue
            with socket.socket() as probe:
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                try:
                    probe.bind(("127.0.0.1", port))
                except OSError:
                    continue
            self._taken.add(port)
            return port
        raise OSError(f"no free port between {FIRST} and {LAST}")

    @staticmethod
    def _read(record: str) -> list[int]:
        try:
            return [int(port) for port in json.loads(Path(record).read_text())]
        except (OSError, ValueError, TypeError):
            return []


def places_of(gang: Gang, ports: Sequence[int]) -> dict[str, str]:
    """host:port by task, of all the gang may have."""
    return {task.name: f"127.0.0.1:{port}" for task, port in zip(gang.tasks, ports, strict=True)}
