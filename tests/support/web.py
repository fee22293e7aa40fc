"""A web server with ranges and conditions, which can be told to misbehave."""

from __future__ import annotations

import hashlib
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, BinaryIO
from urllib.parse import unquote

LONG_AGO = 1_700_000_000
TICK = 0.02


class Web(ThreadingHTTPServer):
    """What it serves, how, and what it was asked."""

    daemon_threads = True
    request_queue_size = 64

    def __init__(self, host: str = "127.0.0.1") -> None:
        super().__init__((host, 0), _Handler)
        self.files: dict[str, bytes] = {}
        self.ranges = True
        self.tags = True
        self.dates = True
        self.changed = LONG_AGO
        self.cut: Callable[[str], int | None] = lambda path: None
        """Bytes of a body after which the connection is closed."""
        self.resets = False
        """Whether it is then reset, as by a machine that has lost power."""
        self.promised: Callable[[int], int | None] = lambda size: size
        """The Content-Length of a whole body; None: it says none."""
        self.status: Callable[[str], int] = lambda path: 200
        self.challenge = False
        """Whether a 401 says how to show who one is."""
        self.secret: str | None = None
        """The Authorization that is asked for."""
        self.moved: dict[str, str] = {}
        self.asked: list[tuple[str, dict[str, str]]] = []
        self.rate: float | None = None
        """Bytes of a body that are sent a second, until `hurry`."""
        self.most = 0
        """And so many in all: the rest waits for it."""
        self._sent = 0
        self._hurry = threading.Event()

    def hurry(self) -> None:
        """From now on as fast as it can."""
        self._hurry.set()

    def send(self, body: bytes, to: BinaryIO) -> None:
        step = len(body) if self.rate is None else max(1, int(self.rate * TICK))
        for at in range(0, len(body), step or 1):
            if self.rate is not None:
                while not self._hurry.wait(TICK) and self._sent >= self.most:
                    pass
                self._sent += step
            to.write(body[at : at + step])

    @property
    def url(self) -> str:
        return f"http://{self.server_address[0]!s}:{self.server_address[1]}"

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Clients go away; that is no news."""

    def sums(self) -> bytes:
        return "".join(f"{hashlib.sha256(d).hexdigest()}  {n[1:]}\n" for n, d in self.files.items()).encode()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Web

    def do_GET(self) -> None:
        web, path = self.server, unquote(self.path.partition("?")[0])
        web.asked.append((self.path, {key.lower(): value for key, value in self.headers.items()}))
        status, cut = web.status(path), web.cut(path)
        if web.secret is not None and self.headers.get("Authorization") != web.secret:
            status = 401
        if path in web.moved:
            self._head(302, {"Location": web.moved[path], "Content-Length": "0"})
            return
        if status != 200 or path not in web.files:
            asks = {"WWW-Authenticate": 'Basic realm="x"'} if web.challenge else {}
            self._head(status if status != 200 else 404, {"Content-Length": "0", **asks})
            return
        data = web.files[path]
        tag = f'"{hashlib.sha256(data).hexdigest()[:16]}"'
        about = {}
        if web.tags:
            about["ETag"] = tag
        if web.dates:
            about["Last-Modified"] = formatdate(web.changed, usegmt=True)
        if self.headers.get("If-Match", tag) != tag and web.tags:
            self._head(412, {"Content-Length": "0"})
            return
        asked = self.headers.get("Range")
        if asked and web.ranges:
            first, last = asked.removeprefix("bytes=").split("-")
            begin, end = int(first), min(int(last) + 1, len(data))
            if begin >= len(data):
                self._head(416, {"Content-Range": f"bytes */{len(data)}", "Content-Length": "0"})
                return
            body = data[begin:end]
            place = f"bytes {begin}-{end - 1}/{len(data)}"
            self._head(206, {**about, "Content-Range": place, "Content-Length": str(len(body))})
        else:
            body = data
            promised = web.promised(len(data))
            length = {"Content-Length": str(promised)} if promised is not None else {"Connection": "close"}
            self._head(200, {**about, **length})
            self.close_connection = self.close_connection or promised != len(data)
        if cut is not None and cut < len(body):
            self.wfile.write(body[:cut])
            self.close_connection = True
            if web.resets:
                self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            return
        web.send(body, self.wfile)

    def _head(self, status: int, headers: dict[str, str]) -> None:
        self.send_response(status)
        for key, value in headers.items():
            self.send_header(key, value)
        self.end_headers()

    def log_message(self, format: str, *args: Any) -> None:
        """Nobody reads it."""


@contextmanager
def web(host: str = "127.0.0.1") -> Iterator[Web]:
    server = Web(host)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
