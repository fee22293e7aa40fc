"""The books of a job whose tasks share no folder: the agent of its first task keeps them, and is asked over HTTP.

That agent may be away for a while, with its pod: then a task waits for its next shard until another is there.
"""

from __future__ import annotations

import http.client
import json
import os
import sys
import threading
import time
from collections.abc import Sequence
from typing import Any

from weft.runtime.books import Answer, Beating, ShardsError
from weft.runtime.leases import Lease, Plan
from weft.runtime.preempt import asked, uninterrupted

PATH = "/v1/shards"
TOKEN = "X-Weft-Shards"  # noqa: S105  (the name of a header)
PATIENCE = 10.0
"""Seconds for one answer; then it is asked for again, and said that nobody answers."""
LAST_WORDS = 2.0
"""A task that was told to stop asks no longer than this."""
PAUSE, LONGEST_PAUSE = 0.05, 1.0


class NoAnswer(Exception):
    """The task has to stop, and nobody answers."""


class DeskBooks:
    """`file` says where the agent is, and the word that it wants to hear."""

    def __init__(self, file: str, name: str):
        self._file = file
        self._name = name
        self._process = Beating(self.beat)
        self._token = ""
        self._begin_anew()

    def _begin_anew(self) -> None:
        """Also after a fork: what is held is the parent's, and so are the connection and the lock."""
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._number = 0
        self._held: set[int] = set()
        self._connection: http.client.HTTPConnection | None = None

    def begin(self, epoch: int | None, plan: Plan | None, otherwise: Plan) -> tuple[int, Plan]:
        try:
            answer = self._ask("begin", epoch=epoch, plan=plan, otherwise=otherwise)
        except NoAnswer as problem:
            raise ShardsError(str(problem)) from None
        return answer["epoch"], Plan(*answer["plan"])

    def step(
        self, epoch: int, *, done: Sequence[int] = (), back: Sequence[int] = (), want: bool = False
    ) -> Answer:
        try:
            answer = self._ask("step", epoch=epoch, done=list(done), back=list(back), want=want)
        except NoAnswer as problem:
            print(f"weft: {problem}: a shard may be handed out again", file=sys.stderr, flush=True)
            return Answer(list(done), None, False)
        lease = Lease(*answer["lease"]) if answer["lease"] else None
        return Answer(answer["counted"], lease, answer["over"])

    def beat(self) -> None:
        try:
            self._ask("beat")
        except NoAnswer:
            pass

    # ── asking ──

    def _ask(self, what: str, **about: Any) -> dict[str, Any]:
        if self._pid != os.getpid():
            self._begin_anew()
        with uninterrupted(), self._lock:
            self._number += 1
            holder, held = self._process.me(), sorted(self._held)
            told = {"name": self._name, "holder": holder, "number": self._number, "held": held}
            answer = self._insist(json.dumps({**told, "what": what, **about}).encode())
            self._held -= {*about.get("done", ()), *about.get("back", ())}
            if answer.get("lease"):
                self._held.add(answer["lease"][0])
            return answer

    def _insist(self, body: bytes) -> dict[str, Any]:
        began, pause, said, told_to_stop = time.monotonic(), PAUSE, False, 0.0
        while True:
            try:
                return self._exchange(body)
            except (OSError, http.client.HTTPException, ValueError) as problem:
                self._close()
                why = f"shards {self._name!r}: the first task's agent does not answer ({problem})"
            now = time.monotonic()
            if asked():
                told_to_stop = told_to_stop or now
                if now - told_to_stop > LAST_WORDS:
                    raise NoAnswer(why)
            if now - began > PATIENCE and not said:
                said = True
                print(f"weft: {why}; it is asked again and again", file=sys.stderr, flush=True)
            time.sleep(pause)
            pause = min(2 * pause, LONGEST_PAUSE)

    def _exchange(self, body: bytes) -> dict[str, Any]:
        connection = self._connection or self._connect()
        connection.request("POST", PATH, body, {TOKEN: self._token, "Content-Type": "application/json"})
        response = connection.getresponse()
        answer: dict[str, Any] = json.loads(response.read())
        if response.status == 409:
            raise ShardsError(answer["problem"])
        if response.status != 200:
            raise OSError(answer.get("problem") or f"status {response.status}")
        return answer

    def _connect(self) -> http.client.HTTPConnection:
        with open(self._file, "rb") as file:
            told = json.load(file)
        self._token = told["token"]
        self._connection = http.client.HTTPConnection(told["host"], told["port"], timeout=PATIENCE)
        return self._connection

    def _close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None
