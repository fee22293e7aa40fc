"""A worker's connection to one server, and what is still owed to that server when it is away.

A push has a number, and the server remembers the last one of every process. A push whose answer did not come is
kept as it was and sent again under its number, so it counts once, whatever became of the first one. Pushes that
were never sent are added up meanwhile and go out as one.
"""

from __future__ import annotations

import secrets
import socket
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from weft.runtime.ps.errors import BadMessage, Refused
from weft.runtime.ps.framing import Kind, Message, prepare, receive, send
from weft.runtime.ps.gathered import Gathered
from weft.runtime.ps.gradients import Part, encode
from weft.runtime.ps.job import proof, same, split_address
from weft.runtime.ps.layout import Shard
from weft.runtime.ps.state import Point

CONNECT_SECONDS = 2.0
HELLO_SECONDS = 5.0
"""A server that hangs costs a worker no more than this each time it looks whether it is back."""


@dataclass(frozen=True, slots=True, eq=False)
class Sent:
    """A push on its way."""

    header: dict[str, Any]
    payload: list[memoryview]
    count: int

    def kept(self) -> Sent:
        """In memory of its own: the user's arrays will change."""
        return Sent(self.header, [memoryview(b"".join(self.payload))], self.count)


class Link:
    def __init__(
        self, number: int, address: Callable[[], str], worker: str, session: str, token: str, seconds: float
    ):
        self.number = number
        self.shard: Shard | None = None
        self.point = Point(0, 0)
        """What the server said last."""
        self.pulled: Point | None = None
        """What the worker's copy is a copy of."""
        self.complete = False
        """Whether that copy has all rows, so that one can go on with it."""
        self.stale = 0
        self.retry_at = 0.0
        self.pause = 0.0
        self.known = False
        self.half = False
        self._address = address
        self._identity = {"worker": worker, "session": session}
        self._token = token
        self._seconds = seconds
        self._socket: socket.socket | None = None
        self._requests = 0
        self._pushes = 0
        self._flying: Sent | None = None
        self._unsettled: Sent | None = None
        self._gathered: Gathered | None = None

    @property
    def address(self) -> str:
        return self._address()

    @property
    def connected(self) -> bool:
        return self._socket is not None

    @property
    def waiting(self) -> int:
        """Pushes that the server may not have."""
        unsettled = self._unsettled.count if self._unsettled else 0
        return unsettled + (self._gathered.count if self._gathered else 0)

    # ── the connection ──

    def connect(self) -> dict[str, Any]:
        """What the server says of itself; OSError if there is none, Refused if it is another job's."""
        sock = socket.create_connection(split_address(self.address), timeout=CONNECT_SECONDS)
        try:
            prepare(sock, min(self._seconds, HELLO_SECONDS))
            nonce = secrets.token_hex(16)
            challenge = receive(sock)
            shown = proof(self._token, "worker", str(challenge.header.get("nonce")))
            send(sock, Kind.HELLO, 0, {**self._identity, "proof": shown, "nonce": nonce})
            welcome = receive(sock).header
            if "error" in welcome:
                raise Refused(f"the parameter server at {self.address} refused: {welcome['error']}")
            if not same(proof(self._token, "server", nonce), welcome.get("proof")):
                raise Refused(f"the parameter server at {self.address} does not know the job's token")
            prepare(sock, self._seconds)
        except Refused as problem:
            sock.close()
            if self.known:  # the port is somebody else's now; ours may come back
                raise ConnectionRefusedError(str(problem)) from None
            raise
        except BadMessage as problem:
            sock.close()
            raise ConnectionAbortedError(f"no parameter server at {self.address}: {problem}") from None
        except BaseException:
            sock.close()
            raise
        self._socket = sock
        self.known = True
        self.point = Point(*welcome["point"])
        return welcome

    def close(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def ask(self, kind: Kind, header: dict[str, Any], payload: list[memoryview] | None = None) -> None:
        if self._socket is None:
            raise ConnectionResetError("not connected")
        self._requests += 1
        try:
            send(self._socket, kind, self._requests, header, payload or [])
        except BaseException:
            self.close()
            raise

    def heard(self, *expected: Kind) -> tuple[Message, socket.socket]:
        """The answer, whose payload is still to be taken."""
        if self._socket is None:
            raise ConnectionResetError("not connected")
        try:
            message = receive(self._socket)
        except BadMessage as problem:
            self.close()
            raise ConnectionAbortedError(str(problem)) from None
        except BaseException:
            self.close()  # an answer may be on its way that the next request must not get
            raise
        if message.kind is Kind.REFUSED:
            if not message.request:  # said of the whole connection, which it closes
                self.close()
            raise Refused(f"the parameter server at {self.address} refused: {message.header.get('error')}")
        if message.kind not in expected or message.request != self._requests:
            self.close()
            raise ConnectionAbortedError(f"{message.kind.name} for another request")
        return message, self._socket

    # ── pushes ──

    def push(self, parts: list[Part], lr: float, half: bool) -> None:
        """Send a push; `settle_push` hears what became of it."""
        self._fly(self._sent(parts, lr, 1, half))

    def settle_push(self) -> None:
        if self._flying is None:
            raise ConnectionResetError("the push did not get out")
        try:
            message, _ = self.heard(Kind.TAKEN, Kind.STALE)
        except Refused:
            self._flying = None
            raise
        self._flying = None
        self.point = Point(*message.header["point"])
        self.stale += message.kind is Kind.STALE

    def keep_push(self) -> None:
        """What was sent is not answered: keep it to send it again."""
        if self._flying is not None:
            self._unsettled, self._flying = self._flying.kept(), None

    def gather(self, parts: list[Part], lr: float) -> None:
        assert self.shard is not None
        self._gathered = self._gathered or Gathered(self.shard)
        self._gathered.add(parts, lr)

    def settle(self) -> None:
        """Pay what is owed, oldest first."""
        for owed in (self._owed_unsettled, self._owed_gathered):
            if (sent := owed()) is None:
                continue
            self._unsettled = sent
            try:
                self._fly(sent)
                self.settle_push()
            except Refused:
                self._unsettled = None
                raise
            except BaseException:
                self._flying = None  # it is kept as unsettled already
                raise
            self._unsettled = None

    def _owed_unsettled(self) -> Sent | None:
        return self._unsettled

    def _owed_gathered(self) -> Sent | None:
        gathered, self._gathered = self._gathered, None
        return self._sent(gathered.parts(), gathered.lr, gathered.count, self.half) if gathered else None

    def _sent(self, parts: list[Part], lr: float, count: int, half: bool) -> Sent:
        assert self.shard is not None
        encoding, payload = encode(self.shard, parts, half)
        self._pushes += 1
        base = self.pulled or self.point
        header = {"number": self._pushes, "point": base, "count": count, "lr": lr, **encoding}
        return Sent(header, payload, count)

    def _fly(self, sent: Sent) -> None:
        self._flying = sent
        self.ask(Kind.PUSH, sent.header, sent.payload)
