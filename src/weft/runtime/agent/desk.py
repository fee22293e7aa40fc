"""The desk at which the tasks of a job are given their shards: in the agent of the first one, for all of them."""

from __future__ import annotations

import hashlib
import hmac
import json
import os
import threading
import time

from weft.runtime.books import NAME, FileBooks, ShardsError, newest_copy, runs, this_process
from weft.runtime.leases import Holder, Plan

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import Any

    from weft.runtime.agent.settings import Settings

LEFT = 35.0
"""Who has closed its connection and was not heard of for so long is gone; it says something every 30 seconds."""
JUMP = 1 << 20
"""Leases of books that were brought back, and are a little old, must not be taken for those that were given since."""
REMEMBERED = 4096
FOLDER = ".weft/shards"


def word(token: bytes) -> str:
    """What tasks show; it is good for nothing else."""
    return hmac.new(token, b"shards", hashlib.sha256).hexdigest()


def direct(settings: Settings) -> None:
    """Tell the task where the desk is."""
    try:
        with open(settings.token, "rb") as file:
            token = file.read().strip()
    except OSError:
        return
    host, _, port = settings.desk.rpartition(":")
    path = settings.task("shards.json")
    with open(f"{path}.part", "w") as told:
        json.dump({"host": host, "port": int(port), "token": word(token)}, told)
    os.replace(f"{path}.part", path)


class Desk:
    def __init__(self, settings: Settings, clock: Callable[[], float] = time.monotonic):
        direct(settings)
        self._clock = clock
        self._folder = settings.folder("checkpoints")
        self._task = settings.name
        self._lock = threading.Lock()
        self._books: dict[str, Served] = {}
        self._left: dict[Holder, float] = {}
        self.serves_others = False
        """Somebody else than the pod's own task has asked."""

    def answer(self, told: dict[str, Any]) -> dict[str, Any]:
        """ShardsError if it cannot be done, KeyError, TypeError or ValueError if it cannot be understood."""
        holder = Holder(*told["holder"])
        if not NAME.fullmatch(told["name"]):
            raise ValueError(f"{told['name']!r} is no name of shards")
        with self._lock:
            self._left.pop(holder, None)
            books = self._books.get(told["name"])
            if books is None:
                books = self._books[told["name"]] = Served(
                    self._folder, told["name"], self._left, self._clock
                )
            self.serves_others = self.serves_others or holder.task != self._task
            return books.answer(holder, told)

    def leave(self, holders: Iterable[Holder]) -> None:
        """Their connection is closed."""
        with self._lock:
            self._left.update(dict.fromkeys(holders, self._clock()))
            while len(self._left) > REMEMBERED:
                del self._left[next(iter(self._left))]

    def turns(self) -> dict[str, int]:
        """How often each of the books was changed."""
        return {name: books.turn for name, books in list(self._books.items())}

    def copy(self, name: str) -> bytes:
        return newest_copy(os.path.join(self._folder, FOLDER, name))


class Served(FileBooks):
    """Books that are asked for by others; the process that asks is `me`."""

    def __init__(self, folder: str, name: str, left: dict[Holder, float], clock: Callable[[], float]):
        super().__init__(folder, name, clock)
        self.turn = 0
        self._here = this_process().machine
        self._left = left
        self._asking: Holder
        self._answered: dict[Holder, tuple[int, dict[str, Any]]] = {}
        with self.change() as books:
            books.last_lease += JUMP

    def me(self) -> Holder:
        return self._asking

    def known_gone(self, holder: Holder) -> bool | None:
        if holder.machine and holder.machine == self._here:
            return not runs(holder.pid, holder.birth)
        left = self._left.get(holder)
        return True if left is not None and self._clock() - left > LEFT else None

    def answer(self, holder: Holder, told: dict[str, Any]) -> dict[str, Any]:
        """Asked for once more, it is what it was: the first answer may not have arrived."""
        number, before = told["number"], self._answered.pop(holder, None)
        if before is not None and before[0] == number:
            self._answered[holder] = before
            return before[1]
        self._asking = holder
        with self.change() as books:
            books.keep_only(holder, told["held"])
        answer = self._do(told)
        self._answered[holder] = (number, answer)
        if len(self._answered) > REMEMBERED:
            del self._answered[next(iter(self._answered))]
        self.turn += 1
        return answer

    def _do(self, told: dict[str, Any]) -> dict[str, Any]:
        match told["what"]:
            case "begin":
                plan = None if told["plan"] is None else Plan(*told["plan"])
                epoch, found = self.begin(told["epoch"], plan, Plan(*told["otherwise"]))
                return {"epoch": epoch, "plan": found}
            case "step":
                done, back = told["done"], told["back"]
                answer = self.step(told["epoch"], done=done, back=back, want=told["want"])
                return answer._asdict()
            case "beat":
                self.beat()
                return {}
        raise ShardsError(f"{told['what']!r} is nothing that can be done")
