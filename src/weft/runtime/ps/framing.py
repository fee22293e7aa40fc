"""Messages on a connection: a fixed head, a small JSON header, and raw bytes from and into the arrays themselves.

Nothing is unpickled and nothing is copied: `sendmsg` takes the arrays' own memory, `recv_into` fills the
receiver's. Every length is checked before anything is allocated for it.
"""

from __future__ import annotations

import json
import socket
import struct
from collections.abc import Iterable
from enum import IntEnum
from typing import Any, NamedTuple, NoReturn

from weft.runtime.ps.errors import BadMessage

MAGIC = b"wps1"
HEAD = struct.Struct(">4sB3xQIQ")
MAX_HEADER = 1 << 23
MAX_STRANGER = 1 << 12
"""The longest header of somebody who has not shown the token yet."""
AT_ONCE = 1024
"""How many buffers the kernel takes in one call (IOV_MAX)."""


class Kind(IntEnum):
    CHALLENGE = 1
    HELLO = 2
    WELCOME = 3
    PULL = 4
    PARAMETERS = 5
    PUSH = 6
    TAKEN = 7
    STALE = 8
    DONE = 9
    HEARD = 10
    REFUSED = 11


class Message(NamedTuple):
    """What came, but for its payload, which the receiver takes to where it belongs."""

    kind: Kind
    request: int
    header: dict[str, Any]
    payload: int


def prepare(sock: socket.socket, seconds: float) -> None:
    """A connection that notices when the other end has vanished, be it silent or in the middle of a message.

    The kernel keeps the time, not Python, whose timeouts would turn each transfer into hundreds of small ones.
    """
    sock.settimeout(None)
    timeval = struct.pack("ll", int(seconds), int(seconds % 1 * 1e6))
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, timeval)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, timeval)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    for option, value in (("TCP_KEEPIDLE", 20), ("TCP_KEEPINTVL", 10), ("TCP_KEEPCNT", 4)):
        if hasattr(socket, option):
            sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), value)


def send(
    sock: socket.socket, kind: Kind, request: int, header: dict[str, Any], payload: Iterable[memoryview] = ()
) -> None:
    views = [view for view in payload if view.nbytes]
    text = json.dumps(header, separators=(",", ":"), allow_nan=False).encode()
    head = HEAD.pack(MAGIC, kind, request, len(text), sum(view.nbytes for view in views))
    waiting = [memoryview(head + text), *views]
    waiting.reverse()  # the next is the last: taken off without moving the others
    while waiting:
        try:
            sent = sock.sendmsg(waiting[: -AT_ONCE - 1 : -1])
        except BlockingIOError:
            raise TimeoutError("the other end takes nothing") from None
        while waiting and sent >= waiting[-1].nbytes:
            sent -= waiting.pop().nbytes
        if sent:
            waiting[-1] = waiting[-1][sent:]


def receive(sock: socket.socket, most: int = MAX_HEADER) -> Message:
    """The next message's head and header; its payload is still to be taken."""
    head = bytearray(HEAD.size)
    fill(sock, memoryview(head))
    magic, number, request, length, payload = HEAD.unpack(head)
    if magic != MAGIC:
        raise BadMessage("not a message of weft.ps")
    if length > most:
        raise BadMessage(f"a header of {length} bytes, at most {most}")
    text = bytearray(length)
    fill(sock, memoryview(text))
    try:
        kind = Kind(number)
        header = json.loads(text, parse_constant=_not_a_number)
    except (ValueError, RecursionError):
        raise BadMessage("not a message of weft.ps") from None
    if not isinstance(header, dict):
        raise BadMessage("not a message of weft.ps")
    return Message(kind, request, header, payload)


def fill(sock: socket.socket, view: memoryview) -> None:
    """Receive exactly so many bytes."""
    while view:
        try:
            read = sock.recv_into(view, 0, socket.MSG_WAITALL)
        except BlockingIOError:
            raise TimeoutError("the other end says nothing") from None
        if not read:
            raise ConnectionResetError("the connection was closed")
        view = view[read:]


def _not_a_number(text: str) -> NoReturn:
    raise ValueError(text)
