"""HTTP to one server over persistent connections, with the standard library.

http.client, because it imports in about 40 ms where the HTTP libraries take 100 and more (a command must
answer in a blink), and a call on a kept-alive connection costs 0.2 ms. Connections in use belong to one
caller; idle ones wait in a small pool, so threads may share a `Transport`.
"""

from __future__ import annotations

import json
import os
import select
import socket
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from http.client import HTTPConnection, HTTPException, HTTPResponse, HTTPSConnection
from typing import IO, Any
from urllib.parse import quote, urlencode, urlsplit

from weft.client.errors import ApiError, NoServer, Unreachable, WeftError
from weft.client.home import Endpoint
from weft.version import __version__

IDEMPOTENT = frozenset({"GET", "HEAD", "PUT", "DELETE"})
MAX_IDLE = 4

Query = Mapping[str, object]
Body = bytes | IO[bytes] | None


@dataclass(frozen=True, slots=True)
class _Request:
    method: str
    target: str
    headers: dict[str, str]
    body: Body
    timeout: float

    @property
    def repeatable(self) -> bool:
        return self.method in IDEMPOTENT or "Idempotency-Key" in self.headers

    def rewind(self) -> None:
        if self.body is not None and not isinstance(self.body, bytes):
            self.body.seek(0)


class Answer:
    """An answer being read. Only its own reads can say that the server went away: an error of the code
    that uses it (a full disk, a closed pipe) stays what it is."""

    def __init__(self, response: HTTPResponse, connection: HTTPConnection, endpoint: Endpoint):
        self.status = response.status
        self.reason = response.reason
        self.headers = response.headers
        self._response = response
        self._socket = connection.sock
        self._endpoint = endpoint

    def read(self, size: int | None = None) -> bytes:
        try:
            return self._response.read(size)
        except (OSError, HTTPException) as problem:
            raise _broken(self._endpoint, problem) from problem

    def read_some(self, size: int = 65536) -> bytes:
        """What has arrived, at least a byte; nothing at the end."""
        try:
            return self._response.read1(size)
        except (OSError, HTTPException) as problem:
            raise _broken(self._endpoint, problem) from problem

    def give_up_after(self, seconds: float) -> None:
        """How long the next reads may wait for a sign of life."""
        if self._socket is not None:
            self._socket.settimeout(max(seconds, 0.001))


class Transport:
    """Requests to whichever server `find` names; it is asked again for every new connection, because a
    restarted server may answer on another port."""

    def __init__(self, find: Callable[[], Endpoint], timeout: float = 60.0):
        self._find = find
        self._timeout = timeout
        self._idle: list[tuple[HTTPConnection, Endpoint]] = []
        self._process = os.getpid()

    def request(
        self,
        method: str,
        path: str,
        *,
        query: Query | None = None,
        json_body: Any = None,
        body: Body = None,
        headers: Mapping[str, str] | None = None,
    ) -> Any:
        """The decoded JSON answer (None when there is no body), or the server's problem as `ApiError`."""
        sent = dict(headers or {})
        if json_body is not None:
            body = json.dumps(json_body).encode()
            sent["Content-Type"] = "application/json"
        with self.exchange(method, path, query=query, body=body, headers=sent) as response:
            return _decoded(response)

    @contextmanager
    def exchange(
        self,
        method: str,
        path: str,
        *,
        query: Query | None = None,
        body: Body = None,
        headers: Mapping[str, str] | None = None,
        timeout: float | None = None,
    ) -> Iterator[Answer]:
        """The open answer, for streams. The connection is reused only if the answer was read to its end."""
        sent = {"User-Agent": f"weft/{__version__}", "Accept": "application/json", **(headers or {})}
        request = _Request(method, path + _encoded(query), sent, body, timeout or self._timeout)
        connection, endpoint, response = self._send(request)
        answer = Answer(response, connection, endpoint)
        try:
            if answer.status >= 400:
                raise _refusal(answer, path)
            yield answer
        finally:
            if response.isclosed() and not response.will_close and len(self._idle) < MAX_IDLE:
                self._idle.append((connection, endpoint))
            else:
                response.close()
                connection.close()

    def close(self) -> None:
        while self._idle:
            self._idle.pop()[0].close()

    def __del__(self) -> None:
        self.close()

    def _send(self, request: _Request) -> tuple[HTTPConnection, Endpoint, HTTPResponse]:
        """Send on an idle connection if there is one. A kept-alive connection may have been closed by the
        server at that very moment: then try once more on a new one, if doing it twice does no harm."""
        idle = self._take_idle()
        if idle is not None:
            connection, endpoint = idle
            try:
                return connection, endpoint, _exchange(connection, endpoint, request)
            except (ConnectionError, HTTPException, TimeoutError) as problem:
                connection.close()
                if not request.repeatable or isinstance(problem, TimeoutError):
                    raise _broken(endpoint, problem) from problem
                request.rewind()
        endpoint = self._find()
        connection = _connection(endpoint, request.timeout)
        try:
            connection.connect()
        except OSError as problem:
            connection.close()
            raise _no_server(endpoint, problem) from problem
        try:
            return (
                connection,
                endpoint,
                _exchange(connection, endpoint, request),
            )
        except (OSError, HTTPException) as problem:
            connection.close()
            raise _broken(endpoint, problem) from problem

    def _take_idle(self) -> tuple[HTTPConnection, Endpoint] | None:
        if self._process != os.getpid():  # after a fork the sockets are the parent's
            self._idle, self._process = [], os.getpid()
        while True:
            try:
                connection, endpoint = self._idle.pop()
            except IndexError:
                return None
            if connection.sock is not None and not _readable(connection.sock):
                return connection, endpoint
            connection.close()  # an idle connection with something to read has been closed by the server


def segment(name: str) -> str:
    """A name as one segment of a path, whatever a person typed."""
    return quote(name, safe="")


def _readable(sock: socket.socket) -> bool:
    poll = select.poll()
    poll.register(sock, select.POLLIN)
    return bool(poll.poll(0))


def _connection(endpoint: Endpoint, timeout: float) -> HTTPConnection:
    parts = urlsplit(endpoint.address if "//" in endpoint.address else f"http://{endpoint.address}")
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise WeftError("no server address", f"{endpoint.address!r} is not like http://127.0.0.1:7777")
    make = HTTPSConnection if parts.scheme == "https" else HTTPConnection
    return make(parts.hostname, parts.port, timeout=timeout)


def _exchange(connection: HTTPConnection, endpoint: Endpoint, request: _Request) -> HTTPResponse:
    if connection.sock is not None:
        connection.sock.settimeout(request.timeout)
    headers = request.headers
    if endpoint.token:
        headers = {**headers, "Authorization": f"Bearer {endpoint.token}"}
    try:
        connection.request(request.method, request.target, body=request.body, headers=headers)
    except (BrokenPipeError, ConnectionResetError):
        if request.body is None:
            raise
        # A server that refuses a large body answers and closes before it has read it all: see what it said.
    return connection.getresponse()


def _encoded(query: Query | None) -> str:
    given = {name: value for name, value in (query or {}).items() if value is not None}
    return (
        f"?{urlencode({n: str(v).lower() if isinstance(v, bool) else v for n, v in given.items()})}"
        if given
        else ""
    )


def _decoded(response: Answer) -> Any:
    content = response.read()
    if not content or response.status == 204:
        return None
    try:
        return json.loads(content)
    except ValueError:
        raise Unreachable(
            "not a Weft server", f"its answer is not JSON: {content[:80]!r}", "weft status"
        ) from None


def _refusal(response: Answer, path: str) -> ApiError:
    content = response.read()
    try:
        document = json.loads(content) if content else {}
    except ValueError:
        document = {"detail": content[:500].decode("utf-8", "replace").strip()}
    document = document if isinstance(document, dict) else {"detail": str(document)}
    if not document.get("title"):
        document["title"] = f"the server answered {response.status} {response.reason}".rstrip()
    if response.status == 401 and not document.get("next"):
        document["next"] = "check WEFT_HOME (or WEFT_TOKEN): the server knows another token"
    return ApiError(response.status, document, path)


def _no_server(endpoint: Endpoint, problem: OSError) -> NoServer:
    cause = (
        "connection refused" if isinstance(problem, ConnectionRefusedError) else str(problem) or "no answer"
    )
    return NoServer(f"no server runs at {endpoint.address}", cause, "weft up")


def _broken(endpoint: Endpoint, problem: Exception) -> Unreachable:
    cause = (
        "it did not answer in time"
        if isinstance(problem, TimeoutError)
        else str(problem) or type(problem).__name__
    )
    return Unreachable(f"the server at {endpoint.address} went away", cause, "weft status")
