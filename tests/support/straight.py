"""Agents on this machine, asked as if by way of an API server."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import urlencode

from support.pod import Pod
from weft.backends.kubernetes.client import ApiError
from weft.backends.kubernetes.connections import Connections, Unanswered


class Said:
    """A reply that is known."""

    def __init__(self, document: Any):
        self._document = document

    async def read(self) -> bytes:
        return json.dumps(self._document).encode()


@asynccontextmanager
async def asked(
    server: str, method: str, path: str, query: Any, headers: Any, content: Any, size: int | None
) -> AsyncIterator[Any]:
    """Of a server, as a client asks the API server."""
    connections = Connections(server, None, 1, 60)
    target = f"{path}?{urlencode(query)}" if query else path
    try:
        async with connections.stream(method, target, headers or {}, content, size) as reply:
            if reply.status >= 400:
                raise ApiError(reply.status, "refused")
            yield reply
    except Unanswered as problem:
        raise ApiError(0, str(problem)) from problem
    finally:
        connections.close()


class Straight:
    """As a client whose API server passes everything on to the pods, which are on this machine."""

    def __init__(self, pods: dict[str, Pod]):
        self._ports = {name: pod.port for name, pod in pods.items()}

    @asynccontextmanager
    async def stream(
        self,
        method: str,
        path: str,
        query: Any = None,
        headers: Any = None,
        content: Any = b"",
        size: int | None = None,
    ) -> AsyncIterator[Any]:
        before, _, after = path.partition("/proxy")
        name = before.rpartition("/")[2].partition(":")[0]
        where = f"http://127.0.0.1:{self._ports[name]}"
        async with asked(where, method, after, query, headers, content, size) as reply:
            yield reply
