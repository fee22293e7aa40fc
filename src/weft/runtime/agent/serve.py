"""The agent's HTTP: what the control plane asks it through the API server's proxy."""

from __future__ import annotations

import hmac
import json
import os
import socket
import socketserver
import sys
import threading
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, cast
from urllib.parse import parse_qs, urlsplit

from weft.runtime.agent.desk import FOLDER, Desk, word
from weft.runtime.agent.folders import files, note_given, open_below
from weft.runtime.agent.gate import Gate
from weft.runtime.agent.generations import SETTLED, Generations
from weft.runtime.agent.settings import Settings
from weft.runtime.agent.stream import Streams
from weft.runtime.agent.unpack import BadArchive, unpack
from weft.runtime.agent.watch import Watch
from weft.runtime.books import ShardsError
from weft.runtime.leases import Holder

TOKEN, TASKS = "X-Weft-Token", "X-Weft-Shards"
SHARDS = "/v1/shards"
LARGEST_HOSTS = 64 << 20
LARGEST_QUESTION = 1 << 20
DRAINED = 16 << 20
"""Bytes of a refused body that are read all the same, so that its sender reads the refusal."""


class Refused(Exception):
    def __init__(self, status: HTTPStatus, problem: str):
        super().__init__(problem)
        self.status = status


class Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 64

    def __init__(self, settings: Settings, gate: Gate, watch: Watch):
        self.settings = settings
        self.gate = gate
        self.watch = watch
        self.desk = Desk(settings)
        self.generations = Generations(settings.folder("checkpoints"), SETTLED)
        self.streams = Streams(settings, gate, watch, self.desk)
        both = socket.has_dualstack_ipv6()
        if both:
            self.address_family = socket.AF_INET6
        super().__init__(("::" if both else "", settings.port), Handler)

    def server_bind(self) -> None:
        """Without the name of this host: HTTPServer asks DNS for it, which may take seconds to say no."""
        if self.address_family == socket.AF_INET6:
            self.socket.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        socketserver.TCPServer.server_bind(self)
        self.server_name, self.server_port = "", self.settings.port

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A connection that breaks is a reader that will come back."""
        problem = sys.exc_info()[1]
        if not isinstance(problem, OSError):
            print(f"weft: {type(problem).__name__}: {problem}", file=sys.stderr, flush=True)


class Body:
    """The bytes of one request. One that ends too early is no end of file but an error."""

    def __init__(self, handler: Handler, size: int):
        self._file = handler.rfile
        self.left = size

    def read(self, size: int = -1) -> bytes:
        wanted = self.left if size < 0 else min(size, self.left)
        data = self._file.read(wanted)
        self.left -= len(data)
        if len(data) < wanted:
            self.left = 0
            raise EOFError("the connection ended half-way")
        return data


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server_version = "weft"
    sys_version = ""
    disable_nagle_algorithm = True
    timeout = 120.0

    def do_GET(self) -> None:
        routes = {"/v1/stream": self._stream, "/v1/files": self._files, "/v1/file": self._file}
        self._answer({**routes, "/v1/stacks": self._stacks})

    def do_PUT(self) -> None:
        self._answer({"/v1/folder": self._put_folder, "/v1/hosts": self._put_hosts})

    def do_POST(self) -> None:
        self._answer({"/v1/done": self._done, SHARDS: self._shards})

    def _answer(self, routes: dict[str, Any]) -> None:
        self._body = Body(self, 0)
        self._begun = False
        try:
            self._body = Body(self, self._content_length())
            where = urlsplit(self.path)
            self._check_token(TASKS if where.path == SHARDS else TOKEN)
            route = routes.get(where.path)
            if route is None:
                raise Refused(HTTPStatus.NOT_FOUND, f"there is no {self.command} {where.path}")
            query = parse_qs(where.query, keep_blank_values=True, errors="surrogateescape")
            route({name: values[-1] for name, values in query.items()})
        except Refused as refusal:
            self._refuse(refusal.status, str(refusal))
        except OSError as problem:
            if self._begun or isinstance(problem, (ConnectionError, TimeoutError)):
                raise
            self._refuse(HTTPStatus.INTERNAL_SERVER_ERROR, f"{problem.strerror}: {problem.filename}")

    # ── what is asked ──

    def _stream(self, query: dict[str, str]) -> None:
        log, metrics = self._offset(query, "log"), self._offset(query, "metrics")
        self._begin(
            HTTPStatus.OK, {"Content-Type": "application/octet-stream", "Transfer-Encoding": "chunked"}
        )
        self.close_connection = True
        self.connection.settimeout(
            None
        )  # a reader may be slow; one who is lost comes back with another stream
        self.server_.streams.run(log, metrics, self.connection, self._chunk)

    def _chunk(self, data: bytes) -> None:
        self.wfile.write(b"%x\r\n%b\r\n" % (len(data), data))

    def _files(self, query: dict[str, str]) -> None:
        folder = self._folder(query, "results", "checkpoints")
        found = files(folder, self._given(query["folder"]))
        books = f"{FOLDER}/"  # are told by the stream
        found = [file for file in found if not file["path"].startswith(books)]
        if query["folder"] == "checkpoints" and "final" not in query:
            found = self.server_.generations.told(found)
        self._json(HTTPStatus.OK, {"files": found})

    def _file(self, query: dict[str, str]) -> None:
        folder, path = self._folder(query, "results", "checkpoints"), query.get("path", "")
        try:
            file = self.server_.generations.open(path) if "whole" in query else open_below(folder, path)
        except ValueError as problem:
            raise Refused(HTTPStatus.BAD_REQUEST, str(problem)) from None
        except OSError as problem:
            raise Refused(
                HTTPStatus.NOT_FOUND, f"{path}: {problem.strerror or 'is no regular file'}"
            ) from None
        with file:
            left = os.fstat(file.fileno()).st_size
            self._begin(
                HTTPStatus.OK, {"Content-Type": "application/octet-stream", "Content-Length": str(left)}
            )
            if left and self.connection.sendfile(file, count=left) < left:  # cut while it was read
                self.close_connection = True

    def _stacks(self, query: dict[str, str]) -> None:
        from weft.runtime.agent.processes import others
        from weft.runtime.stacks import MOST_PROCESSES, spy_command, tell

        spy = spy_command()
        told = tell(others()[:MOST_PROCESSES], spy, threading.Event())
        self._json(HTTPStatus.OK, {"processes": told, "python": spy is not None})

    def _put_folder(self, query: dict[str, str]) -> None:
        folder = self._folder(query, "code", "checkpoints")
        name, gate = query["folder"], self.server_.gate
        with gate.lock:
            if gate.open and not gate.pushed(name):
                raise Refused(HTTPStatus.CONFLICT, f"the task has begun: its {name} cannot be replaced")
            if not gate.open:
                try:
                    unpack(cast("Any", self._body), folder, self.server_.settings.folder(f"incoming-{name}"))
                except BadArchive as problem:
                    raise Refused(
                        HTTPStatus.BAD_REQUEST, f"the {name} cannot be unpacked: {problem}"
                    ) from None
                note_given(folder, self._given(name))
                gate.note_push(name)
            self._drain()
        self._nothing()

    def _put_hosts(self, query: dict[str, str]) -> None:
        if self._body.left > LARGEST_HOSTS:
            raise Refused(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, f"hosts of over {LARGEST_HOSTS} bytes")
        try:
            data = self._body.read()
            if not isinstance(json.loads(data), dict):
                raise ValueError("it is no object")
        except (ValueError, EOFError, RecursionError) as problem:
            raise Refused(HTTPStatus.BAD_REQUEST, f"the hosts cannot be read: {problem}") from None
        path = self.server_.settings.task("hosts.json")
        part = f"{path}.{threading.get_ident()}"
        with open(part, "wb") as file:
            file.write(data)
        os.replace(part, path)
        self.server_.gate.note_push("hosts")
        self._nothing()

    def _shards(self, query: dict[str, str]) -> None:
        if self._body.left > LARGEST_QUESTION:
            raise Refused(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, f"a question of over {LARGEST_QUESTION} bytes")
        try:
            told = json.loads(self._body.read())
            answer = self.server_.desk.answer(told)
            self._holders.add(Holder(*told["holder"]))
            if told["number"] == 1:
                self.server_.watch.wake()  # there may be books now
        except ShardsError as problem:
            raise Refused(HTTPStatus.CONFLICT, str(problem)) from None
        except (ValueError, KeyError, TypeError, AttributeError, EOFError, RecursionError) as problem:
            raise Refused(
                HTTPStatus.BAD_REQUEST, f"what is asked cannot be understood: {problem!r}"
            ) from None
        self._json(HTTPStatus.OK, answer)

    def _done(self, query: dict[str, str]) -> None:
        self._drain()
        self.close_connection = True
        self._nothing()
        self.server_.watch.end()

    def setup(self) -> None:
        super().setup()
        self._holders: set[Holder] = set()

    def finish(self) -> None:
        self.server_.desk.leave(self._holders)
        super().finish()

    # ── reading a request ──

    @property
    def server_(self) -> Server:
        return cast("Server", self.server)

    def _content_length(self) -> int:
        told = self.headers.get("Content-Length")
        if told is None and (self.command == "PUT" or self.headers.get("Transfer-Encoding")):
            raise Refused(HTTPStatus.LENGTH_REQUIRED, "the request needs a Content-Length")
        try:
            size = int(told or 0)
        except ValueError:
            size = -1
        if size < 0:
            raise Refused(HTTPStatus.BAD_REQUEST, f"Content-Length {told!r} is no size")
        return size

    def _check_token(self, header: str) -> None:
        try:
            with open(self.server_.settings.token, "rb") as file:
                token = file.read().strip()
        except OSError:
            token = b""
        wanted = word(token).encode() if header == TASKS else token
        told = (self.headers.get(header) or "").encode("latin-1", "replace")
        if not token or not hmac.compare_digest(told, wanted):
            raise Refused(HTTPStatus.UNAUTHORIZED, f"the header {header} is missing or wrong")

    def _folder(self, query: dict[str, str], *names: str) -> str:
        name = query.get("folder")
        if name not in names:
            raise Refused(HTTPStatus.BAD_REQUEST, f"folder is {' or '.join(names)}, not {name!r}")
        return self.server_.settings.folder(name)

    def _given(self, name: str) -> str:
        return self.server_.settings.task(f"given-{name}.json")

    def _offset(self, query: dict[str, str], name: str) -> int:
        told = query.get(name, "0")
        if not (told.isascii() and told.isdigit() and len(told) < 19):
            raise Refused(HTTPStatus.BAD_REQUEST, f"{name} is an offset, not {told!r}")
        return int(told)

    def _drain(self) -> None:
        try:
            for _ in range(0, min(self._body.left, DRAINED), 1 << 16):
                self._body.read(1 << 16)
        except EOFError:
            pass
        if self._body.left:
            self.close_connection = True

    # ── answering ──

    def _begin(self, status: HTTPStatus, headers: dict[str, str]) -> None:
        self._begun = True
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()

    def _json(self, status: HTTPStatus, value: dict[str, Any]) -> None:
        data = json.dumps(value).encode()
        self._begin(status, {"Content-Type": "application/json", "Content-Length": str(len(data))})
        self.wfile.write(data)

    def _nothing(self) -> None:
        self._begin(HTTPStatus.NO_CONTENT, {})

    def _refuse(self, status: HTTPStatus, problem: str) -> None:
        self._drain()
        self._json(status, {"problem": problem})

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """For what http.server cannot read at all."""
        self.close_connection = True
        self._json(HTTPStatus(code), {"problem": message or HTTPStatus(code).phrase})

    def log_message(self, format: str, *args: Any) -> None:
        """The agent's output is the task's."""
