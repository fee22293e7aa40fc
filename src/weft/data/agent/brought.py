"""The store of a control plane that brings what is wanted: no node has to reach it, so it may run anywhere.

What the cache lacks is a want. The control plane follows the wants of a node and brings each of them; one that nobody
begins to bring is Unreachable after a while, and whoever asked asks again.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any

from weft.data.cache.versions import Part, checked
from weft.data.errors import DataError, Missing, Unreachable

PATIENCE = 30.0
HELD = 4 << 20
"""Bytes of a want that wait for whoever asked; more stay with the sender."""

GONE = "gone"
"""In place of a version's file: brought, and empty, if there is no such version any more."""


@dataclass(slots=True, eq=False)
class Want:
    number: int
    asked: dict[str, Any]
    pieces: deque[bytes] = field(default_factory=deque)
    held: int = 0
    begun: bool = False
    over: bool = False
    """All of it is here, or it failed."""
    problem: DataError | None = None


class Brought:
    """An origin. Readers wait in threads; `follow` and `bring` are for whoever carries."""

    def __init__(self, patience: float = PATIENCE):
        self._patience = patience
        self._changed = threading.Condition()
        self._numbers = count(1)
        self._wants: dict[int, Want] = {}
        self._unsent: deque[Want] = deque()
        self._follower = 0

    # ── for the cache ──

    def open(self, part: Part) -> int | None:
        return None

    def folder(self, version: str) -> Path | None:
        return None

    def read(self, part: Part, offset: int, length: int) -> Iterator[bytes]:
        return self._bring({"part": part.digest, "offset": offset, "length": length})

    def version_file(self, version: str, name: str) -> Iterator[bytes]:
        return self._bring({"version": checked(version), "file": name})

    def has(self, digest: str) -> bool:
        try:
            for _ in self._bring({"part": digest, "offset": 0, "length": 0}):
                pass
        except Missing:
            return False
        return True

    def gone(self, version: str) -> bool:
        """One that does not know the question says that it is missing, which is no answer."""
        try:
            for _ in self._bring({"version": checked(version), "file": GONE}):
                pass
        except Missing:
            return False
        return True

    def close(self) -> None:
        """Nobody waits any longer."""
        with self._changed:
            self._follower += 1
            for want in self._wants.values():
                want.over, want.problem = True, Unreachable("the agent is ending")
            self._changed.notify_all()

    def _bring(self, asked: dict[str, Any]) -> Iterator[bytes]:
        with self._changed:
            want = Want(next(self._numbers), asked)
            self._wants[want.number] = want
            self._unsent.append(want)
            self._changed.notify_all()
        try:
            while (piece := self._next(want)) is not None:
                yield piece
        finally:
            with self._changed:
                self._wants.pop(want.number, None)
                want.over = True
                self._changed.notify_all()

    def _next(self, want: Want) -> bytes | None:
        with self._changed:
            came = self._changed.wait_for(lambda: want.pieces or want.over, self._patience)
            if want.pieces:
                piece = want.pieces.popleft()
                want.held -= len(piece)
                self._changed.notify_all()
                return piece
            if want.problem is not None:
                raise want.problem
            if not came:
                raise Unreachable(f"the control plane did not bring {_said(want)} for {self._patience:g} s")
            return None

    # ── for whoever carries ──

    def follow(self, beat: float) -> Iterator[dict[str, Any] | None]:
        """What is wanted and not begun, then each want as it comes; None when there was none for a beat. Only the newest
        follower is told: the one before has lost its connection."""
        with self._changed:
            self._follower += 1
            mine = self._follower
            self._unsent = deque(want for want in self._wants.values() if not want.begun)
            self._changed.notify_all()
        until = time.monotonic() + beat
        while True:
            with self._changed:
                self._changed.wait_for(
                    lambda: self._unsent or self._follower != mine, max(0.0, until - time.monotonic())
                )
                if self._follower != mine:
                    return
                want = self._unsent.popleft() if self._unsent else None
            if want is None:
                until = time.monotonic() + beat
                yield None
            elif not want.over:
                yield {"number": want.number, **want.asked}

    def begin(self, number: int) -> Want | None:
        """The want, for the one who brings it; None if nobody wants it any more, or another is at it."""
        with self._changed:
            want = self._wants.get(number)
            if want is None or want.begun:
                return None
            want.begun = True
            return want

    def bring(self, want: Want, piece: bytes) -> bool:
        """Whether more is wanted. Waits while there is enough that nobody took."""
        with self._changed:
            self._changed.wait_for(lambda: want.held < HELD or want.over, self._patience)
            if want.over or want.held >= HELD:
                return False
            want.pieces.append(piece)
            want.held += len(piece)
            self._changed.notify_all()
            return True

    def end(self, want: Want, problem: DataError | None = None) -> None:
        with self._changed:
            want.over, want.problem = True, problem
            self._changed.notify_all()


def _said(want: Want) -> str:
    part = want.asked.get("part")
    return f"part {part[:12]}" if part else f"version {want.asked['version'][:12]}"
