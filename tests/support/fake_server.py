"""A stand-in for a Weft server: answers what a test tells it to, and remembers what it was asked."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qsl, urlsplit


@dataclass
class Asked:
    method: str
    path: str
    query: dict[str, str]
    headers: dict[str, str]
    body: bytes
    connection: tuple[str, int]

    def json(self) -> Any:
        return json.loads(self.body)


@dataclass
class Reply:
    body: Any = None
    status: int = 200
    hang_up: bool = False
    """Close the connection without an answer."""
    close: bool = False
    """Close the connection after the answer, without saying so before."""
    chunks: Iterable[bytes] | None = None


@dataclass
class FakeServer:
    address: str = ""
    asked: list[Asked] = field(default_factory=list)
    answers: dict[tuple[str, str], Callable[[Asked], Reply]] = field(default_factory=dict)

    def on(self, method: str, path: str, *replies: Reply | Callable[[Asked], Reply]) -> None:
        """Give these replies in turn; the last one for ever."""
        left = list(replies)

        def answer(asked: Asked) -> Reply:
            reply = left.pop(0) if len(left) > 1 else left[0]
            return reply(asked) if callable(reply) else reply

        self.answers[method, path] = answer

    def lines(self) -> list[str]:
        return [f"{asked.method} {asked.path}" for asked in self.asked]


@contextmanager
def fake_server() -> Iterator[FakeServer]:
    fake = FakeServer()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def _answer(self) -> None:
            parts = urlsplit(self.path)
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            asked = Asked(
                self.command,
                parts.path,
                dict(parse_qsl(parts.query)),
                dict(self.headers),
                body,
                self.client_address,
            )
            fake.asked.append(asked)
            answer = fake.answers.get((self.command, parts.path))
            reply = answer(asked) if answer else Reply({"title": "No such job", "detail": parts.path}, 404)
            if reply.hang_up:
                self.close_connection = True
                return
            self.send_response(reply.status)
            if reply.chunks is not None:
                self.send_header("Transfer-Encoding", "chunked")
                self.end_headers()
                for chunk in reply.chunks:
                    self.wfile.write(f"{len(chunk):x}\r\n".encode() + chunk + b"\r\n")
                self.wfile.write(b"0\r\n\r\n")
                return
            content = reply.body if isinstance(reply.body, bytes) else json.dumps(reply.body).encode()
            content = b"" if reply.status == 204 or self.command == "HEAD" else content
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)
            if reply.close:
                self.close_connection = True

        do_GET = do_POST = do_PUT = do_DELETE = do_HEAD = _answer

        def log_message(self, *_: object) -> None:
            pass

    class Server(ThreadingHTTPServer):
        daemon_threads = True

        def handle_error(self, *_: object) -> None:
            """A client that hung up is what some tests are about."""

    server = Server(("127.0.0.1", 0), Handler)
    fake.address = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    try:
        yield fake
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
