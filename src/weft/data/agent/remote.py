"""Byte ranges over HTTP, for origins and peers: what the server says becomes one of the errors that the cache knows."""

from __future__ import annotations

import http.client
import re
import ssl
from collections import deque
from collections.abc import Callable, Iterator
from urllib.parse import urlsplit

from weft.data.errors import Corrupt, DataError, Denied, Missing, Refused, Unreachable

CHUNK = 1 << 20
RANGE = re.compile(r"bytes (\d+)-(\d+)/(\d+|\*)")
KEPT = 16
"""Idle connections."""


class Remote:
    """One server. May be used by many threads; connections are kept for the next."""

    def __init__(self, base: str, bearer: Callable[[], str], timeout: float = 30.0):
        split = urlsplit(base)
        if split.scheme not in ("http", "https") or not split.hostname:
            raise Refused(f"{base!r} is no address of a server: http://HOST:PORT is")
        self.base = base
        self._split = split
        self._bearer = bearer
        self._timeout = timeout
        self._idle: deque[http.client.HTTPConnection] = deque(maxlen=KEPT)

    def read(self, path: str, offset: int, length: int, size: int) -> Iterator[bytes]:
        """Bytes of a file that should have this size. It ends early if the connection does."""
        last = offset + length - 1
        connection, response = self._ask("GET", path, {"Range": f"bytes={offset}-{last}"})
        done = False
        try:
            if response.status == 206:
                said = response.headers.get("Content-Range", "")
                found = RANGE.fullmatch(said)
                if found is None or (int(found[1]), int(found[2]), found[3]) != (offset, last, str(size)):
                    raise Corrupt(
                        f"{self.base}{path}: asked for bytes {offset}-{last} of {size}, it has {said or 'no range'}; "
                        "`weft data verify` says what the store has lost"
                    )
            elif (
                response.status != 200 or (offset, length) != (0, size) or response.length not in (None, size)
            ):
                raise self._unexpected(response, path, f"bytes {offset}-{last} of {size}")
            yield from _chunks(response, self.base + path)
            done = response.isclosed()
        finally:
            self._give_back(connection, done)

    def whole(self, path: str) -> Iterator[bytes]:
        """A file of whatever size the server says."""
        connection, response = self._ask("GET", path, {})
        done = False
        try:
            if response.status != 200:
                raise self._unexpected(response, path, "the file")
            expected, came = response.length, 0
            for chunk in _chunks(response, self.base + path):
                came += len(chunk)
                yield chunk
            if expected not in (None, came):
                raise Unreachable(f"{self.base}{path} ended after {came} bytes of {expected}")
            done = response.isclosed()
        finally:
            self._give_back(connection, done)

    def has(self, path: str) -> bool:
        connection, response = self._ask("HEAD", path, {})
        response.read()
        self._give_back(connection, True)
        if response.status not in (200, 404):
            raise self._unexpected(response, path, "whether it is there")
        return response.status == 200

    def close(self) -> None:
        while self._idle:
            self._idle.pop().close()

    def _ask(
        self, method: str, path: str, headers: dict[str, str]
    ) -> tuple[http.client.HTTPConnection, http.client.HTTPResponse]:
        headers = {"Authorization": f"Bearer {self._bearer()}", **headers}
        while True:
            try:
                connection, fresh = self._idle.pop(), False
            except IndexError:
                connection, fresh = self._connection(), True
            try:
                connection.request(method, self._split.path.rstrip("/") + path, headers=headers)
                return connection, connection.getresponse()
            except (OSError, http.client.HTTPException) as problem:
                connection.close()
                if fresh:  # one that was kept may have been ended by the server meanwhile
                    raise Unreachable(
                        f"{self.base} does not answer ({problem or type(problem).__name__})"
                    ) from None

    def _connection(self) -> http.client.HTTPConnection:
        host, port = self._split.hostname or "", self._split.port
        if self._split.scheme == "https":
            context = ssl.create_default_context()
            return http.client.HTTPSConnection(host, port, timeout=self._timeout, context=context)
        return http.client.HTTPConnection(host, port, timeout=self._timeout)

    def _give_back(self, connection: http.client.HTTPConnection, whole: bool) -> None:
        if whole and connection.sock is not None:
            self._idle.append(connection)
        else:
            connection.close()

    def _unexpected(self, response: http.client.HTTPResponse, path: str, wanted: str) -> DataError:
        where, status = self.base + path, response.status
        if status in (401, 403):
            return Denied(
                f"{where}: {status}, the token of this node is not accepted; see to the agent's token file"
            )
        if status in (404, 410):
            return Missing(
                f"{where}: {status}, there is no such thing any more; `weft data show` says what there is"
            )
        if status in (408, 425, 429) or status >= 500:
            return Unreachable(f"{where}: {status} {response.reason}")
        return Corrupt(
            f"{where}: asked for {wanted}, it answers {status} with {response.length} bytes; "
            "`weft data verify` says what the store has lost"
        )


def _chunks(response: http.client.HTTPResponse, where: str) -> Iterator[bytes]:
    try:
        while chunk := response.read(CHUNK):
            yield chunk
    except (OSError, http.client.HTTPException) as problem:
        raise Unreachable(f"{where} broke off ({problem or type(problem).__name__})") from None
