"""The engine's door over HTTP, for a control plane that is not on this machine: it comes through the cluster's API server.

POST /v1/ask            what `control` answers
GET  /v1/wants          lines of JSON: what this node wants from the store, and what it holds whenever that has changed
PUT  /v1/wants/NUMBER   the bytes of a want; with ?problem=CODE the reason why there are none
"""

from __future__ import annotations

import asyncio
import hmac
import json
import socket
import socketserver
import sys
import threading
from collections.abc import Callable
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, cast
from urllib.parse import parse_qs, urlsplit

from weft.data.agent.brought import Brought
from weft.data.agent.frames import Answer
from weft.data.errors import BY_CODE, DataError, Missing, Unreachable

TOKEN = "X-Weft-Token"  # noqa: S105  (the name of a header)
BEAT = 1.0
"""Seconds between two looks at what the node holds."""
SILENCE = 15.0
"""A connection says something at least so often, or it would be taken for dead."""
CHUNK = 1 << 18
LARGEST = 64 << 20
ANSWERED_WITHIN = 60.0
Ask = Callable[[dict[str, Any]], Any]
"""A coroutine that answers a request of the engine."""


class EngineDoor(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 64

    def __init__(self, address: str, token: Path, ask: Ask, wants: Brought, report: Callable[[], Any]):
        self.token = token
        self.ask = ask
        self.wants = wants
        self.report = report
        self.loop = asyncio.get_running_loop()
        host, _, port = address.rpartition(":")
        if not host and socket.has_dualstack_ipv6():
            self.address_family, host = socket.AF_INET6, "::"
        super().__init__((host.strip("[]"), int(port)), Handler)
        threading.Thread(target=self.serve_forever, daemon=True, name="engine").start()

    def server_bind(self) -> None:
        """Without the name of this host: HTTPServer asks DNS for it."""
        if self.address_family == socket.AF_INET6:
            self.socket.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        socketserver.TCPServer.server_bind(self)
        self.server_name, self.server_port = "", self.socket.getsockname()[1]

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A connection that breaks is an engine that will come back."""
        problem = sys.exc_info()[1]
        if not isinstance(problem, OSError):
            print(f"weft: {type(problem).__name__}: {problem}", file=sys.stderr, flush=True)

    def answer(self, request: dict[str, Any]) -> dict[str, Any]:
        try:
            asked = asyncio.run_coroutine_threadsafe(self.ask(request), self.loop)
            answer: Answer = asked.result(ANSWERED_WITHIN)
        except DataError as problem:
            return {"ok": False, "code": type(problem).__name__.lower(), "message": str(problem)}
        except (OSError, TimeoutError) as problem:
            return {"ok": False, "code": "unreachable", "message": f"the agent could not do it: {problem}"}
        return {"ok": True, **answer.header}


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server_version = "weft"
    sys_version = ""
    disable_nagle_algorithm = True
    timeout = 120.0

    def do_GET(self) -> None:
        if self._may() and self._path() == "/v1/wants":
            self._follow()

    def do_POST(self) -> None:
        if self._may() and self._path() == "/v1/ask":
            try:
                request = json.loads(self.rfile.read(min(self._length(), LARGEST)))
            except ValueError:
                request = None
            if not isinstance(request, dict):
                self._say(HTTPStatus.BAD_REQUEST, {"problem": "a request is an object of JSON"})
            else:
                self._say(HTTPStatus.OK, self._door.answer(request))

    def do_PUT(self) -> None:
        if self._may():
            head, _, number = self._path().rpartition("/")
            if head == "/v1/wants" and number.isdigit():
                self._bring(int(number))

    def _follow(self) -> None:
        self.send_response(HTTPStatus.OK)
        self.send_header("Content-Type", "application/jsonl")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        self.close_connection = True
        last, quiet = None, 0.0
        for want in self._door.wants.follow(BEAT):
            if want is not None:
                self._line({"want": want})
                continue
            quiet += BEAT
            report = self._door.report()
            if report != last:
                self._line({"report": report})
                last, quiet = report, 0.0
            elif quiet >= SILENCE:
                self._line({})
                quiet = 0.0
        self.wfile.write(b"0\r\n\r\n")

    def _line(self, said: dict[str, Any]) -> None:
        data = json.dumps(said).encode() + b"\n"
        self.wfile.write(b"%x\r\n%b\r\n" % (len(data), data))

    def _bring(self, number: int) -> None:
        wants, left = self._door.wants, self._length()
        want = wants.begin(number)
        if want is None:
            self.close_connection = True
            return self._say(HTTPStatus.CONFLICT, {"problem": f"nobody waits for {number}"})
        why = parse_qs(urlsplit(self.path).query).get("problem", [""])[0]
        if why:
            said = self.rfile.read(min(left, CHUNK)).decode(errors="replace")
            wants.end(want, BY_CODE.get(why, Missing)(said))
            return self._say(HTTPStatus.OK, {})
        problem: DataError | None = Unreachable(f"what was brought broke off with {left} bytes to come")
        try:
            while left:
                piece = self.rfile.read(min(left, CHUNK))
                if not piece or not wants.bring(want, piece):
                    self.close_connection = True
                    return None
                left -= len(piece)
            problem = None
        finally:
            wants.end(want, problem)
        return self._say(HTTPStatus.OK, {})

    # ── requests and answers ──

    @property
    def _door(self) -> EngineDoor:
        return cast("EngineDoor", self.server)

    def _path(self) -> str:
        return urlsplit(self.path).path

    def _length(self) -> int:
        told = self.headers.get("Content-Length", "0")
        return int(told) if told.isdigit() else 0

    def _may(self) -> bool:
        """Read at every request: a token is changed without a restart."""
        try:
            token = self._door.token.read_bytes().strip()
        except OSError:
            token = b""
        told = (self.headers.get(TOKEN) or "").encode("latin-1", "replace")
        if token and hmac.compare_digest(told, token):
            return True
        self.close_connection = True
        self._say(HTTPStatus.UNAUTHORIZED, {"problem": f"the header {TOKEN} is missing or wrong"})
        return False

    def _say(self, status: HTTPStatus, value: dict[str, Any]) -> None:
        data = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format: str, *args: Any) -> None:
        """Nobody wants to read of every look."""
