"""HTTP requests to servers that are not ours: kept connections, careful redirects, errors in our words."""

from __future__ import annotations

import http.client
import ssl
import threading
import weakref
from base64 import b64encode
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from ipaddress import ip_address
from urllib.parse import SplitResult, quote, urljoin, urlsplit

from weft.data.errors import Changed, Denied, Missing, Refused, Unreachable

CHUNK = 1 << 20
TIMEOUT = 30.0
REDIRECTS = 5
IDLE = 16
"""Connections that are kept for the next request."""
MOVED = (301, 302, 303, 307, 308)
SAFE = "%/?:@!$&'()*+,;=~-._[]"
"""What a url may have as it is; all else is written as bytes of UTF-8."""
LATER = (408, 425, 429)

Origin = tuple[str, str, int]


class Answer:
    """One answer; `body` gives what came, which may be less than was promised."""

    def __init__(
        self, connection: http.client.HTTPConnection, response: http.client.HTTPResponse, shown: str
    ):
        self._connection, self._response, self._shown = connection, response, shown
        self.status = response.status
        self.headers = response.headers

    def body(self) -> Iterator[bytes]:
        with told(self._shown):
            while chunk := self._response.read(CHUNK):
                yield chunk

    @property
    def over(self) -> bool:
        """Whether all of it was read, so that the connection can be used again."""
        return self._response.isclosed() and self._connection.sock is not None


class Connections:
    """To one server, with the credentials for it. A redirect to another server does not get them."""

    def __init__(self, url: str, credentials: Mapping[str, str]):
        self._origin = origin(urlsplit(url))
        self._secret = _authorization(urlsplit(url), credentials)
        self._idle: dict[Origin, list[http.client.HTTPConnection]] = {}
        self._lock = threading.Lock()
        self._tls: ssl.SSLContext | None = None
        weakref.finalize(self, _close, self._idle)

    @contextmanager
    def get(self, url: str, headers: Mapping[str, str]) -> Iterator[Answer]:
        """The answer after redirects; closed, or kept for another request, at the end."""
        for _ in range(REDIRECTS):
            where = origin(urlsplit(url))
            answer, connection = self._ask(url, where, headers)
            try:
                location = answer.headers.get("Location")
                if answer.status not in MOVED or location is None:
                    yield answer
                    return
                url = _moved(url, location)
            finally:
                self._done(where, connection, answer.over)
        raise Refused(f"{shown(url)}: more than {REDIRECTS} redirects; give the last url itself")

    def _ask(
        self, url: str, where: Origin, headers: Mapping[str, str]
    ) -> tuple[Answer, http.client.HTTPConnection]:
        parts = urlsplit(url)
        target = quote((parts.path or "/") + (f"?{parts.query}" if parts.query else ""), safe=SAFE)
        asked = {"Accept-Encoding": "identity", "User-Agent": "weft", **headers}
        if self._secret and where == self._origin:
            asked["Authorization"] = self._secret
        with told(shown(url)):
            while True:
                connection, used = self._connection(where)
                try:
                    if not used:
                        connection.connect()
                        refuse_nearby(connection.sock.getpeername()[0], shown(url))
                    connection.request("GET", target, headers=asked)
                    return Answer(connection, connection.getresponse(), shown(url)), connection
                except (http.client.RemoteDisconnected, ConnectionError, BrokenPipeError):
                    connection.close()
                    if not used:  # else the server had closed it meanwhile, which means nothing
                        raise
                except BaseException:
                    connection.close()
                    raise

    def _connection(self, where: Origin) -> tuple[http.client.HTTPConnection, bool]:
        with self._lock:
            if idle := self._idle.get(where):
                return idle.pop(), True
            if self._tls is None and where[0] == "https":
                self._tls = ssl.create_default_context()
        scheme, host, port = where
        if scheme == "https":
            return http.client.HTTPSConnection(host, port, timeout=TIMEOUT, context=self._tls), False
        return http.client.HTTPConnection(host, port, timeout=TIMEOUT), False

    def _done(self, where: Origin, connection: http.client.HTTPConnection, again: bool) -> None:
        with self._lock:
            idle = self._idle.setdefault(where, [])
            if again and len(idle) < IDLE:
                idle.append(connection)
                return
        connection.close()


def _close(idle: dict[Origin, list[http.client.HTTPConnection]]) -> None:
    for connections in idle.values():
        for connection in connections:
            connection.close()


def expect(answer: Answer, what: str, *statuses: int) -> None:
    """One of these statuses, or the error that the server means."""
    status = answer.status
    if status in statuses:
        encoding = answer.headers.get("Content-Encoding", "identity")
        if encoding != "identity":
            raise Refused(
                f"{what} comes as {encoding}, though it was asked for as it is; see the server's settings"
            )
        return
    if status in (401, 403, 407):
        raise Denied(f"{what}: the server answers {status}; see the secret that secretRef names")
    if status in (404, 410):
        raise Missing(f"{what} is not there (the server answers {status}); see the url")
    if status in (412, 416):
        raise Changed(f"{what} changed since it was listed; make a new version (weft data refresh)")
    if status in LATER or status >= 500:
        raise Unreachable(f"{what}: the server answers {status}; try again later")
    raise Refused(f"{what}: the server answers {status}, and {statuses[0]} was expected; see the url")


@contextmanager
def told(what: str) -> Iterator[None]:
    """The system's errors as ours."""
    try:
        yield
    except ssl.SSLCertVerificationError as problem:
        raise Refused(
            f"{what}: its certificate is not trusted ({problem.verify_message}); see the url"
        ) from None
    except (OSError, http.client.HTTPException) as problem:
        why = getattr(problem, "strerror", None) or type(problem).__name__
        raise Unreachable(f"{what}: the connection failed ({why}); try again later") from None


def origin(parts: SplitResult) -> Origin:
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise Refused(f"{parts.scheme}://{parts.hostname or ''} is no http or https url; give one")
    try:
        port = parts.port
    except ValueError:
        raise Refused(f"{shown(parts.geturl())}: the port is not a number; correct the url") from None
    return parts.scheme, parts.hostname, port or (443 if parts.scheme == "https" else 80)


def refuse_nearby(address: str, what: str) -> None:
    """Where a cloud tells its machines their own secrets, no data lies: nobody may have the server fetch them."""
    try:
        nearby = ip_address(address.partition("%")[0]).is_link_local
    except ValueError:
        return
    if nearby:
        raise Refused(f"{what} is at {address}, an address for the machine alone; give the url of a server")


def shown(url: str) -> str:
    """A url as people may see it: queries and users can be secrets."""
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"


def _moved(url: str, location: str) -> str:
    target = urljoin(url, location)
    scheme = urlsplit(target).scheme
    if scheme not in ("http", "https") or (url.startswith("https:") and scheme != "https"):
        raise Refused(
            f"{shown(url)} redirects to a {scheme}:// url, which is not followed; give the url meant"
        )
    return target.partition("#")[0]


def _authorization(parts: SplitResult, credentials: Mapping[str, str]) -> str | None:
    if token := credentials.get("token"):
        secret = f"Bearer {token}"
    elif "password" in credentials:
        user = credentials.get("user") or parts.username or ""
        secret = "Basic " + b64encode(f"{user}:{credentials['password']}".encode()).decode()
    else:
        return None
    if not secret.isprintable() or not secret.isascii():
        raise Refused("the secret's token holds characters that no header may have; see how it was stored")
    return secret
