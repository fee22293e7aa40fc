"""The data agent of one node, as it is reached through the API server: asked, followed, and brought what it wants.

It wants files of versions and parts of the server's store; it gets those of what was granted there, and nothing else.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic_core import from_json, to_json

from weft.backends.kubernetes.agents import TOKEN
from weft.backends.kubernetes.client import ApiError, Client, Document, proxied
from weft.data.cache.files import DIGEST
from weft.data.cache.versions import FILES, Version
from weft.data.errors import DataError, Missing
from weft.model.failures import Code, Permanent, Temporary

PORT, PEER_PORT = 8472, 8473
LONGEST_LINE = 16 << 20
CHUNK = 1 << 20
DENIED = 401


@dataclass(slots=True, eq=False)
class NodeAgent:
    """A pod of the DaemonSet."""

    node: str
    namespace: str
    pod: str
    uid: str
    address: str
    """Where other nodes reach it."""
    report: Mapping[str, Any] = field(default_factory=dict)
    """What it last said of itself."""
    problem: str | None = None
    there: asyncio.Event = field(default_factory=asyncio.Event)
    """It is followed, and knows what was granted."""
    work: asyncio.Task[None] | None = None
    turn: asyncio.Lock = field(default_factory=asyncio.Lock)
    """What is lent, and what no longer is, is told one after the other."""
    warming: set[str] = field(default_factory=set)
    """Versions that it was told to bring before anybody reads them."""
    counted: set[str] = field(default_factory=set)
    """Jobs whose last counts were taken: what a report still has of them is the same."""


def agent_of(pod: Document, node: str) -> NodeAgent | None:
    """If it runs."""
    about, status = pod["metadata"], pod.get("status", {})
    if "deletionTimestamp" in about or status.get("phase") != "Running" or not status.get("podIP"):
        return None
    return NodeAgent(node, about["namespace"], about["name"], about["uid"], status["podIP"])


class Store:
    """The server's store, as nodes may see it."""

    def __init__(self, folder: Path):
        self._folder = folder
        self._versions: dict[str, Version] = {}

    def version(self, name: str) -> Version:
        known = self._versions.get(name)
        if known is None:
            known = self._versions[name] = Version(self._folder / "versions" / name, name)
        return known

    def forget(self, but: set[str]) -> None:
        self._versions = {name: known for name, known in self._versions.items() if name in but}

    def wanted(self, want: Mapping[str, Any], granted: set[str]) -> tuple[Path, int, int]:
        """The file, and which bytes of it; Missing if there is none that was granted."""
        if "version" in want:
            name, file = want["version"], want.get("file")
            if name not in granted or file not in FILES:
                raise Missing(f"no job on this node reads version {str(name)[:12]}")
            path = self._folder / "versions" / name / file
            return path, 0, _size(path)
        digest, offset, length = want["part"], want["offset"], want["length"]
        if not DIGEST.fullmatch(digest):
            raise Missing(f"{digest[:80]!r} is no digest of a part")
        path = self._folder / "parts" / digest[:2] / digest
        size = _size(path)
        if length and not any(self.version(name).find(digest) for name in granted):
            raise Missing(f"no job on this node reads part {digest[:12]}")
        if not 0 <= offset <= offset + length <= size:
            raise Missing(f"part {digest[:12]} has {size} bytes; there are no {length} at {offset}")
        return path, offset, length


class Line:
    """To one agent."""

    def __init__(self, client: Client, agent: NodeAgent, token: str):
        self._client = client
        self._agent = agent
        self._headers = {TOKEN: token}

    async def ask(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Permanent if it says no, Temporary if it may say yes later."""
        try:
            async with self._stream("POST", "/v1/ask", content=to_json(request)) as reply:
                said: dict[str, Any] = from_json(await reply.read())
        except ApiError as problem:
            raise Temporary(self.explained(problem)) from None
        if said["ok"]:
            return said
        if said["code"] == "unreachable":
            raise Temporary(f"node {self._agent.node}: {said['message']}")
        raise Permanent(Code.DATA, f"node {self._agent.node}: {said['message']}")

    async def follow(self) -> AsyncIterator[dict[str, Any]]:
        """What it wants and reports, until the connection ends."""
        async with self._stream("GET", "/v1/wants") as reply:
            buffer = bytearray()
            async for data in reply.chunks():
                buffer += data
                *lines, rest = buffer.split(b"\n")
                buffer = rest
                for line in lines:
                    yield from_json(bytes(line))
                if len(buffer) > LONGEST_LINE:
                    raise ApiError(0, "what came from the data agent is none of its lines")

    async def carry(self, want: Mapping[str, Any], find: Callable[[], tuple[Path, int, int]]) -> None:
        path = f"/v1/wants/{want['number']}"
        try:
            file, offset, length = find()
            reading = os.open(file, os.O_RDONLY | os.O_CLOEXEC)
        except (DataError, OSError) as problem:
            code = problem.code if isinstance(problem, DataError) else Missing.code
            async with self._stream(
                "PUT", path, {"problem": code}, str(problem).encode(), len(str(problem).encode())
            ):
                return
        try:
            async with self._stream("PUT", path, None, _bytes(reading, offset, length), length):
                pass
        finally:
            os.close(reading)

    def explained(self, problem: ApiError) -> str:
        agent = self._agent
        if problem.status == DENIED:
            return (
                f"the data agent of node {agent.node} belongs to another control plane, or to this one before it lost its "
                f"home: kubectl -n {agent.namespace} delete secret weft-data, then delete the agents' pods"
            )
        return f"the data agent of node {agent.node} does not answer: {problem}"

    def _stream(
        self,
        method: str,
        path: str,
        query: Mapping[str, str] | None = None,
        content: bytes | AsyncIterator[bytes] = b"",
        size: int | None = None,
    ) -> Any:
        where = proxied(self._agent.namespace, self._agent.pod, PORT, path)
        return self._client.stream(method, where, query, self._headers, content, size)


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        raise Missing(f"{path.parent.parent.name} {path.name[:12]} is not in the store") from None


async def _bytes(file: int, offset: int, length: int) -> AsyncIterator[bytes]:
    while length:
        data = await asyncio.to_thread(os.pread, file, min(CHUNK, length), offset)
        if not data:
            return
        offset, length = offset + len(data), length - len(data)
        yield data
