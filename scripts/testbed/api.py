"""A client of the API server: JSON over one kept connection per thread, and watches."""

from __future__ import annotations

import base64
import http.client
import json
import ssl
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

Document = dict[str, Any]
MERGE = "application/merge-patch+json"
STALE = (http.client.RemoteDisconnected, ConnectionResetError, BrokenPipeError)


class ApiError(Exception):
    def __init__(self, status: int, message: str) -> None:
        super().__init__(f"{status}: {message}")
        self.status = status


def kubeconfig(server: str, authority: bytes, token: str) -> str:
    """As JSON, which is YAML too, so that both kubectl and the standard library read it."""
    cluster = {"server": server, "certificate-authority-data": base64.b64encode(authority).decode()}
    document = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "testbed", "cluster": cluster}],
        "users": [{"name": "testbed", "user": {"token": token}}],
        "contexts": [{"name": "testbed", "context": {"cluster": "testbed", "user": "testbed"}}],
        "current-context": "testbed",
    }
    return json.dumps(document, indent=2)


class Api:
    def __init__(self, kubeconfig_text: str) -> None:
        said = json.loads(kubeconfig_text)
        cluster = said["clusters"][0]["cluster"]
        self._address = urlsplit(cluster["server"])
        authority = base64.b64decode(cluster["certificate-authority-data"]).decode()
        self._tls = ssl.create_default_context(cadata=authority)
        self._headers = {"Authorization": f"Bearer {said['users'][0]['user']['token']}"}
        self._local = threading.local()

    @classmethod
    def of(cls, path: Path) -> Api:
        return cls(path.read_text())

    def close(self) -> None:
        """What this thread has kept open."""
        if (connection := getattr(self._local, "connection", None)) is not None:
            connection.close()
            self._local.connection = None

    def get(self, path: str) -> Document:
        return self._request("GET", path)

    def post(self, path: str, body: Document) -> Document:
        return self._request("POST", path, body)

    def put(self, path: str, body: Document) -> Document:
        return self._request("PUT", path, body)

    def patch(self, path: str, body: Document) -> Document:
        return self._request("PATCH", path, body, MERGE)

    def delete(self, path: str, body: Document | None = None) -> Document:
        return self._request("DELETE", path, body)

    def healthy(self, path: str = "/readyz") -> bool:
        try:
            self._request("GET", path)
        except (OSError, http.client.HTTPException, ApiError):
            return False
        return True

    def watch(self, path: str, version: str, seconds: int = 300) -> Iterator[Document]:
        """Events since a version, until the server ends the watch."""
        connection = self._connect(timeout=seconds + 30)
        mark = "&" if "?" in path else "?"
        asked = (
            f"{path}{mark}watch=1&resourceVersion={version}&timeoutSeconds={seconds}&allowWatchBookmarks=true"
        )
        try:
            connection.request("GET", asked, headers=self._headers)
            answer = connection.getresponse()
            if answer.status != 200:
                raise ApiError(answer.status, answer.read().decode(errors="replace")[:300])
            while line := answer.readline():
                yield json.loads(line)
        finally:
            connection.close()

    def _connect(self, timeout: float = 30) -> http.client.HTTPSConnection:
        host, port = self._address.hostname or "127.0.0.1", self._address.port
        return http.client.HTTPSConnection(host, port, context=self._tls, timeout=timeout)

    def _request(
        self, method: str, path: str, body: Document | None = None, kind: str = "application/json"
    ) -> Document:
        headers = {**self._headers, "Content-Type": kind}
        content = None if body is None else json.dumps(body)
        for fresh in (False, True):
            connection = None if fresh else getattr(self._local, "connection", None)
            if connection is None:
                connection = self._local.connection = self._connect()
            try:
                connection.request(method, path, content, headers)
                answer = connection.getresponse()
                said = answer.read()
                break
            except BaseException as problem:
                connection.close()
                self._local.connection = None
                # A kept connection may have been closed meanwhile: then, and only then, once more.
                if fresh or not isinstance(problem, STALE):
                    raise
        if answer.status >= 400:
            raise ApiError(answer.status, _message(said))
        return json.loads(said) if said[:1] == b"{" else {}


def _message(said: bytes) -> str:
    try:
        return str(json.loads(said)["message"])
    except (ValueError, KeyError, TypeError):
        return said.decode(errors="replace")[:300]
