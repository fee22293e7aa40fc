"""Talking to the agent in a pod, through the API server: what it tells, and files in both directions.

The API server passes requests on to pods, so a control plane on a laptop reaches every pod of a cluster that it can reach
at all, and no pod has to reach it.
"""

from __future__ import annotations

import asyncio
import errno
import json
import os
import shutil
import stat
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
NO_PLACE = {errno.EEXIST, errno.EISDIR, errno.ENOTDIR, errno.ENOTEMPTY, errno.ENAMETOOLONG, errno.EILSEQ}
"""What a file is refused with that can never lie where it should, however often that is tried."""


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
        async with self._client.stream("GET", self._path("/v1/stream"), query, self._headers) as reply:
            async for header, data in _frames(reply.chunks()):
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
        async with self._client.stream("GET", self._path("/v1/stacks"), None, self._headers) as reply:
            told = from_json(await reply.read())
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

    async def pull(self, folder: str, target: Path, seen: set[str], *, final: bool) -> dict[str, str]:
        """Fetch what is new or other than here, but not what the pod was given. `seen`: what this pod has had so far; what it
        removed of that goes here too.

        A checkpoint that is a folder comes whole or not at all. `final`: nobody writes to them any more. What comes back
        are the files that cannot be had, and why; the others do not suffer for them.
        """
        found = await self._listing(folder, final)
        os.makedirs(target, exist_ok=True)  # noqa: PTH103
        groups: dict[str, list[Document]] = {}
        for file in found:
            groups.setdefault(file["path"].partition("/")[0], []).append(file)
        complete, left_out = True, dict[str, str]()
        for name, files in groups.items():
            settled = final or all(file.get("whole") or _age(file) >= SETTLED for file in files)
            if settled:
                left_out |= await self._bring(folder, target, name, files)
            complete = complete and settled
        there = {file["path"] for file in found} - left_out.keys()
        if complete and there and not left_out:  # what takes the place of others is here
            await asyncio.to_thread(_remove, target, seen - there)
            seen.intersection_update(there)
        seen |= there
        return left_out

    async def _listing(self, folder: str, final: bool) -> list[Document]:
        query = {"folder": folder, **({"final": "1"} if final else {})}
        async with self._client.stream("GET", self._path("/v1/files"), query, self._headers) as reply:
            found: list[Document] = json.loads(await reply.read())["files"]  # names may be no UTF-8
        return found

    async def _bring(self, folder: str, target: Path, name: str, files: list[Document]) -> dict[str, str]:
        own = [file for file in files if not file.get("given")]
        left_out = {file["path"]: why for file in own if (why := _refused(target, file["path"]))}
        wanted = [
            file for file in own if file["path"] not in left_out and not _same(target / file["path"], file)
        ]
        if not wanted:
            return left_out
        incoming = (
            target / f"{INCOMING}-{self._where[1]}"
        )  # other pods of the job bring theirs at the same time
        shutil.rmtree(incoming, ignore_errors=True)
        try:
            for file in wanted:
                if left_out and folder == "checkpoints":
                    break
                if (why := await self._fetched(folder, file, incoming / file["path"])) is not None:
                    left_out[file["path"]] = why
            wanted = [file for file in wanted if file["path"] not in left_out]
            if left_out and folder == "checkpoints":
                return left_out
            if wanted and not (target / name).exists():
                (incoming / name).replace(target / name)
                return left_out
            for file in wanted:
                there = target / file["path"]
                there.parent.mkdir(parents=True, exist_ok=True)
                (incoming / file["path"]).replace(there)
        finally:
            shutil.rmtree(incoming, ignore_errors=True)
        return left_out

    async def _fetched(self, folder: str, file: Document, place: Path) -> str | None:
        """Why not, if it cannot be."""
        try:
            place.parent.mkdir(parents=True, exist_ok=True)
            await self._fetch(folder, file, place)
        except ApiError as problem:
            if problem.gone or not problem.missing:
                raise
            return f"its agent cannot read it: {problem}"
        except OSError as problem:
            if problem.errno not in NO_PLACE:
                raise
            return problem.strerror or "there is no place for it"
        return None

    async def _fetch(self, folder: str, file: Document, place: Path) -> None:
        query = {"folder": folder, "path": file["path"], **({"whole": "1"} if file.get("whole") else {})}
        async with self._client.stream("GET", self._path("/v1/file"), query, self._headers) as reply:
            with place.open("wb") as writer:
                async for data in reply.chunks():
                    writer.write(data)
        os.utime(place, (file["modified"], file["modified"]))

    async def _send(
        self,
        method: str,
        path: str,
        content: bytes | AsyncIterator[bytes],
        query: Mapping[str, str] | None = None,
        size: int | None = None,
    ) -> None:
        async with self._client.stream(
            method, self._path(path), query, self._headers, content, size
        ) as reply:
            await reply.read()

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
                _add(tar, entry, entry.name)


def _add(tar: tarfile.TarFile, place: Path, name: str) -> None:
    """What is removed meanwhile is left out, and what is replaced goes in as it was when it was opened."""
    try:
        if stat.S_ISREG(place.lstat().st_mode):
            with place.open("rb") as file:
                tar.addfile(tar.gettarinfo(arcname=name, fileobj=file), file)
            return
        tar.add(place, name, recursive=False)
        entries = [] if place.is_symlink() or not place.is_dir() else sorted(place.iterdir())
    except (FileNotFoundError, NotADirectoryError):
        return
    for entry in entries:
        _add(tar, entry, f"{name}/{entry.name}")


def packed_code(source: Path, most: int) -> bytes | None:
    """A folder as the archive that goes with a pod; None if it is larger than that."""
    with tempfile.SpooledTemporaryFile(most) as file:
        _pack(source, file)
        size = file.tell()
        file.seek(0)
        return file.read() if size <= most else None


def _refused(target: Path, path: str) -> str | None:
    """Why a file is not taken, if so: a pod is not trusted with where its files go."""
    if _misnamed(path):
        return "it is refused for its name"
    if path.encode(errors="replace").decode() != path:
        return "its name is not UTF-8"
    above = list(PurePosixPath(path).parents)[:-1]
    if os.path.isdir(target / path) or any(os.path.isfile(target / each) for each in above):  # noqa: PTH112, PTH113
        return "another task has left a folder where this is a file, or the other way round"
    return None


def _misnamed(path: str) -> bool:
    parts = PurePosixPath(path).parts
    return not parts or path.startswith("/") or ".." in parts or "\0" in path or parts[0].startswith(INCOMING)


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
        if _misnamed(path):
            continue
        place = target / path
        try:
            place.unlink(missing_ok=True)
        except (IsADirectoryError, NotADirectoryError):
            continue
        for parent in place.parents:
            if parent == target:
                break
            try:
                parent.rmdir()
            except OSError:
                break
