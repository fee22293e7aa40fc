"""Talking to the agent in a pod, through the API server: what it tells, and files in both directions.

The API server passes requests on to pods, so a control plane on a laptop reaches every pod of a cluster that it can reach
at all, and no pod has to reach it.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import tarfile
import tempfile
import time
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from pydantic_core import from_json, to_json

from weft.backends.kubernetes.client import ApiError, Client, Document, proxied
from weft.backends.kubernetes.received import Received
from weft.runtime.agent.generations import SETTLED

TOKEN = "X-Weft-Token"  # noqa: S105  (the name of a header)
LONGEST_HEADER = 1 << 20
INCOMING = ".incoming"


@dataclass(frozen=True, slots=True)
class Told:
    """What an agent says of its task."""

    state: str = "waiting"
    why: str | None = None
    begun: float | None = None
    ended: float | None = None
    code: int | None = None
    oom: bool = False
    killed: bool = False
    peak: int | None = None
    """The most memory that its container had at once, in bytes."""
    seconds: float | None = None
    """Of processor time."""
    notes: tuple[str, ...] = ()
    heard: float = 0.0
    active: float = 0.0
    url: str | None = None
    cpu: float = 0.0
    memory: int = 0
    desk: bool = False
    """Other tasks ask its agent for their shards."""


class Agent:
    """The agent of one pod."""

    def __init__(self, client: Client, namespace: str, pod: str, port: int, token: str):
        self._client = client
        self._where = (namespace, pod, port)
        self._headers = {TOKEN: token}

    async def follow(self, received: Received) -> AsyncIterator[Told]:
        """Take in what the agent sends until the connection ends; what it says of its task's state comes out."""
        query = {"log": str(received.log_offset), "metrics": str(received.metrics_offset)}
        async with self._client.stream("GET", self._path("/v1/stream"), query, self._headers) as answer:
            async for header, data in _frames(answer.aiter_raw()):
                match header.get("kind"):
                    case "log":
                        received.log(header["offset"], data, header.get("time") or time.time())
                    case "metrics":
                        received.metrics(header["offset"], data)
                    case "books":
                        received.books(header["name"], data)
                    case "state":
                        yield _told(header)

    async def stacks(self) -> tuple[list[str], bool]:
        """What each process of the pod is doing, and whether that includes Python stacks."""
        async with self._client.stream("GET", self._path("/v1/stacks"), None, self._headers) as answer:
            told = from_json(await answer.aread())
        return told["processes"], told["python"]

    async def done(self) -> None:
        """Everything was fetched: the agent may end."""
        await self._send("POST", "/v1/done", b"")

    async def tell_hosts(self, hosts: Mapping[str, list[str]]) -> None:
        await self._send("PUT", "/v1/hosts", to_json(hosts))

    async def push(self, folder: str, source: Path) -> None:
        """Bring a whole folder into the pod."""
        with tempfile.TemporaryFile() as packed:
            await asyncio.to_thread(_pack, source, packed)
            size = packed.tell()
            packed.seek(0)
            await self._send("PUT", "/v1/folder", _chunks(packed), {"folder": folder}, size)

    async def pull(self, folder: str, target: Path, seen: set[str], *, final: bool) -> None:
        """Fetch what is new or other than here, but not what the pod was given. `seen`: what this pod has had so far; what it
        removed of that goes here too.

        A folder of the folder (a checkpoint) comes whole or not at all. `final`: nobody writes to them any more.
        """
        async with self._client.stream(
            "GET",
            self._path("/v1/files"),
            {"folder": folder, **({"final": "1"} if final else {})},
            self._headers,
        ) as answer:
            found: list[Document] = from_json(await answer.aread())["files"]
        os.makedirs(target, exist_ok=True)  # noqa: PTH103
        groups: dict[str, list[Document]] = {}
        for file in found:
            groups.setdefault(PurePosixPath(file["path"]).parts[0], []).append(file)
        complete = True
        for name, files in groups.items():
            settled = final or all(file.get("whole") or _age(file) >= SETTLED for file in files)
            if settled:
                await self._bring(folder, target, name, files)
            complete = complete and settled
        there = {file["path"] for file in found}
        if complete and there:
            await asyncio.to_thread(_remove, target, seen - there)
            seen.intersection_update(there)
        seen |= there

    async def _bring(self, folder: str, target: Path, name: str, files: list[Document]) -> None:
        wanted = [
            file for file in files if not file.get("given") and not _same(_within(target, file["path"]), file)
        ]
        if not wanted:
            return
        incoming = (
            target / f"{INCOMING}-{self._where[1]}"
        )  # other pods of the job bring theirs at the same time
        shutil.rmtree(incoming, ignore_errors=True)
        try:
            for file in wanted:
                place = _within(incoming, file["path"])
                place.parent.mkdir(parents=True, exist_ok=True)
                await self._fetch(folder, file, place)
            if not (target / name).exists():
                (incoming / name).replace(target / name)
                return
            for file in wanted:
                there = _within(target, file["path"])
                there.parent.mkdir(parents=True, exist_ok=True)
                _within(incoming, file["path"]).replace(there)
        finally:
            shutil.rmtree(incoming, ignore_errors=True)

    async def _fetch(self, folder: str, file: Document, place: Path) -> None:
        query = {"folder": folder, "path": file["path"], **({"whole": "1"} if file.get("whole") else {})}
        async with self._client.stream("GET", self._path("/v1/file"), query, self._headers) as answer:
            with place.open("wb") as writer:
                async for data in answer.aiter_bytes(1 << 20):
                    writer.write(data)
        os.utime(place, (file["modified"], file["modified"]))

    async def _send(
        self,
        method: str,
        path: str,
        content: Any,
        query: Mapping[str, str] | None = None,
        size: int | None = None,
    ) -> None:
        headers = self._headers if size is None else {**self._headers, "Content-Length": str(size)}
        async with self._client.stream(method, self._path(path), query, headers, content) as answer:
            await answer.aread()

    def _path(self, path: str) -> str:
        return proxied(*self._where, path)


async def _frames(chunks: AsyncIterator[bytes]) -> AsyncIterator[tuple[Document, bytes]]:
    """A header line, and as many bytes as it says."""
    buffer = bytearray()
    async for chunk in chunks:
        buffer += chunk
        while (end := buffer.find(b"\n")) >= 0:
            header = from_json(bytes(buffer[:end]))
            size = header.get("size", 0)
            if len(buffer) < end + 1 + size:
                break
            yield header, bytes(buffer[end + 1 : end + 1 + size])
            del buffer[: end + 1 + size]
        if len(buffer) > LONGEST_HEADER and b"\n" not in buffer[:LONGEST_HEADER]:
            raise ApiError(0, "what came from the agent is none of its frames")


def _told(header: Document) -> Told:
    known = {name: header[name] for name in Told.__dataclass_fields__ if header.get(name) is not None}
    return Told(**{**known, "notes": tuple(header.get("notes") or ())})


async def _chunks(file: Any) -> AsyncIterator[bytes]:
    while data := await asyncio.to_thread(file.read, 1 << 20):
        yield data


def _pack(source: Path, packed: Any) -> None:
    with tarfile.open(fileobj=packed, mode="w:gz", compresslevel=1) as tar:
        for entry in sorted(source.iterdir()):
            if not entry.name.startswith(INCOMING):
                tar.add(entry, entry.name)


def packed_code(source: Path, most: int) -> bytes | None:
    """A folder as the archive that goes with a pod; None if it is larger than that."""
    with tempfile.SpooledTemporaryFile(most) as file:
        _pack(source, file)
        size = file.tell()
        file.seek(0)
        return file.read() if size <= most else None


def _within(folder: Path, path: str) -> Path:
    """A pod is not trusted with where its files go."""
    parts = PurePosixPath(path).parts
    if not parts or path.startswith("/") or ".." in parts or parts[0].startswith(INCOMING):
        raise ApiError(0, f"a file called {path!r} is refused")
    return folder.joinpath(*parts)


def _age(file: Document) -> float:
    """By the pod's own clock, which agents of earlier releases did not tell."""
    return float(file.get("age", time.time() - file["modified"]))


def _same(path: Path, file: Document) -> bool:
    try:
        there = path.lstat()
    except OSError:
        return False
    return bool(there.st_size == file["size"] and abs(there.st_mtime - file["modified"]) < 0.001)


def _remove(target: Path, paths: set[str]) -> None:
    for path in paths:
        place = _within(target, path)
        place.unlink(missing_ok=True)
        for parent in place.parents:
            if parent == target:
                break
            try:
                parent.rmdir()
            except OSError:
                break
