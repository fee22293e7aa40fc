"""Requests to the server's own router, without a network."""

from __future__ import annotations

import json
from typing import Any, cast

from support.machine import Machine
from weft.server.app import Router
from weft.server.jobs import JobOperations
from weft.server.jobtypes import JobTypeOperations
from weft.server.sizes import SizeOperations


async def call(m: Machine, method: str, path: str, body: Any = None) -> tuple[int, Any]:
    """The status and the answer of the server's own router."""
    jobs = JobOperations(m.control, cast(Any, None), cast(Any, None), "ann")
    sizes, types = SizeOperations(m.control, "ann"), JobTypeOperations(m.control, "ann")
    sent: list[dict[str, Any]] = []

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": json.dumps(body).encode()}

    async def send(message: Any) -> None:
        sent.append(message)

    place, _, query = path.partition("?")
    head = {
        "type": "http",
        "method": method,
        "path": place,
        "query_string": query.encode(),
        "headers": [],
    }
    scope = {**head, "server": ("localhost", 80), "scheme": "http", "root_path": ""}
    await Router([*jobs.table(), *sizes.table(), *types.table()])(scope, receive, send)
    text = b"".join(message.get("body", b"") for message in sent)
    return sent[0]["status"], json.loads(text) if text else None
