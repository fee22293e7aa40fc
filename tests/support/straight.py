"""Agents on this machine, asked as if by way of an API server."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx2

from support.pod import Pod
from weft.backends.kubernetes.client import ApiError


class Straight:
    """As a client whose API server passes everything on to the pods, which are on this machine."""

    def __init__(self, pods: dict[str, Pod]):
        self._ports = {name: pod.port for name, pod in pods.items()}

    @asynccontextmanager
    async def stream(
        self, method: str, path: str, query: Any = None, headers: Any = None, content: Any = None
    ) -> AsyncIterator[httpx2.Response]:
        before, _, after = path.partition("/proxy")
        name = before.rpartition("/")[2].partition(":")[0]
        address = f"http://127.0.0.1:{self._ports[name]}{after}"
        async with (
            httpx2.AsyncClient(trust_env=False, timeout=60) as client,
            client.stream(method, address, params=query, headers=headers, content=content) as answer,
        ):
            if answer.status_code >= 400:
                raise ApiError(answer.status_code, "refused")
            yield answer
