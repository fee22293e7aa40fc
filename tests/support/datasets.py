"""A store with versions, a server of it that can be told to fail, and agents: in this process or in their own."""

from __future__ import annotations

import asyncio
import http.client
import json
import os
import re
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Coroutine, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, TypeVar

from blake3 import blake3

from weft.data.agent.ahead import Ahead
from weft.data.agent.control import Control
from weft.data.agent.desk import Desk
from weft.data.agent.frames import Door
from weft.data.agent.node import Node, Settings
from weft.data.agent.origins import Origin, Sources
from weft.data.errors import DataError
from weft.data.patience import Patience
from weft.runtime.data.link import Link

T = TypeVar("T")

SOURCE = Path(__file__).parents[2] / "src"
PATIENCE = 60.0


def digest(data: bytes) -> str:
    return blake3(data).hexdigest()


def bytes_of(seed: int, size: int) -> bytes:
    """Bytes that look like nothing else."""
    return blake3(seed.to_bytes(8, "little")).digest(length=size)


SIZE = 1000
SAMPLES = {f"{number:03}": bytes_of(number, SIZE) for number in range(20)}
META = 20 * (20 + 8 + 32) + 8 + 60 + 6000
"""Bytes of their index, at most."""


@dataclass
class Store:
    folder: Path

    def add(self, samples: Mapping[str, bytes], pack: int = 1, *, stays: bool = False) -> str:
        """A version whose samples lie `pack` to a part, in the order of their names; its name."""
        names = sorted(samples, key=str.encode)
        parts: list[dict[str, Any]] = []
        offsets, lengths, places = [], [], []
        for begin in range(0, len(names), pack):
            data = b""
            for name in names[begin : begin + pack]:
                offsets.append(len(data))
                lengths.append(len(samples[name]))
                places.append(len(parts))
                data += samples[name]
            if stays:
                mark = digest(data)[:8]
                identity = digest(f"{names[begin]}\0{mark}\0{len(data)}".encode())
                place = {"kind": "source", "key": names[begin], "mark": mark}
                parts.append({"digest": identity, "size": len(data), "place": place})
            else:
                parts.append({"digest": self.keep(data), "size": len(data), "place": {"kind": "store"}})
        marks = [blake3(samples[name]).digest() for name in names]
        lines = (f"{n}\0{size}\0{m.hex()}\n" for n, size, m in zip(names, lengths, marks, strict=True))
        version = digest("".join(lines).encode())[:32]
        about = {
            "format": 1, "version": version, "samples": len(names), "bytes": sum(lengths), "parts": parts,
            "largest": max(lengths, default=0),
        }  # fmt: skip
        ends = [0]
        for name in names:
            ends.append(ends[-1] + len(name.encode()))
        n = len(names)
        files = {
            "version.json": json.dumps(about).encode(),
            "samples.idx": struct.pack(f"<{n}Q{n}Q{n}I", *offsets, *lengths, *places),
            "names.idx": struct.pack(f"<{n + 1}Q", *ends),
            "names.txt": "".join(names).encode(),
            "marks.bin": b"".join(marks),
        }
        folder = self.folder / "versions" / version
        folder.mkdir(parents=True, exist_ok=True)
        for name, data in files.items():
            (folder / name).write_bytes(data)
        return version

    def keep(self, data: bytes) -> str:
        path = self.path(digest(data))
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
        return path.name

    def path(self, part: str) -> Path:
        return self.folder / "parts" / part[:2] / part

    def parts(self, version: str) -> list[str]:
        about = json.loads((self.folder / "versions" / version / "version.json").read_bytes())
        return [part["digest"] for part in about["parts"]]


Fault = Callable[[str, bytes], "bytes | int | None"]
"""Given a path and the bytes asked for: other bytes (fewer: the connection breaks), a status, or None."""


@dataclass
class OriginServer:
    """A store over HTTP as an origin's agents see it. `fault` may spoil any answer; `asked` are the parts sent."""

    store: Store
    token: str = ""
    fault: Fault | None = None
    asked: list[str] = field(default_factory=list)
    delay: float = 0.0
    url: str = ""

    def __enter__(self) -> OriginServer:
        outer = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            disable_nagle_algorithm = True

            def log_message(self, *_: Any) -> None: ...

            def do_HEAD(self) -> None:
                self.answer(head=True)

            def do_GET(self) -> None:
                self.answer()

            def answer(self, *, head: bool = False) -> None:
                if outer.token and self.headers.get("Authorization") != f"Bearer {outer.token}":
                    return self.empty(401)
                path = outer.file(self.path)
                if path is None or not path.exists():
                    return self.empty(404)
                data = path.read_bytes()
                found = re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("Range", ""))
                begin, end = (int(found[1]), int(found[2]) + 1) if found else (0, len(data))
                if begin >= len(data) and data:
                    return self.empty(416)
                piece = data[begin:end]
                if head:
                    return self.empty(200)
                if "/parts/" in self.path:
                    outer.asked.append(path.name)
                sent: Any = outer.fault(self.path, piece) if outer.fault else None
                if isinstance(sent, int):
                    return self.empty(sent)
                if outer.delay:
                    time.sleep(outer.delay)
                self.send_response(206 if found else 200)
                self.send_header("Content-Length", str(len(piece)))
                if found:
                    self.send_header("Content-Range", f"bytes {begin}-{begin + len(piece) - 1}/{len(data)}")
                self.end_headers()
                body = piece if sent is None else sent
                self.wfile.write(body)
                self.close_connection = len(body) < len(piece)
                return None

            def empty(self, status: int) -> None:
                self.send_response(status)
                self.send_header("Content-Length", "0")
                self.end_headers()

        class Listening(ThreadingHTTPServer):
            daemon_threads = True

            def handle_error(self, *_: Any) -> None:
                """Who was killed does not say goodbye."""

        self._server = Listening(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02})
        self._thread.start()
        return self

    def file(self, path: str) -> Path | None:
        parts = path.split("/")
        if path.startswith("/v1/data/parts/"):
            return self.store.path(parts[-1])
        if path.startswith("/v1/data/versions/"):
            return self.store.folder / "versions" / parts[-2] / parts[-1]
        return None

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


class Agent:
    """A real agent in a process of its own."""

    def __init__(self, folder: Path, *arguments: str):
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder / "cache"
        self.socket = folder / "readers.sock"
        self.control_path = folder / "control.sock"
        self.arguments = arguments
        self.errors = folder / "agent.log"
        self.start()

    def start(self) -> None:
        command = [
            sys.executable, "-m", "weft.data.agent", "--folder", str(self.folder), "--socket", str(self.socket),
            "--control", str(self.control_path), *self.arguments,
        ]  # fmt: skip
        with self.errors.open("ab") as log:
            self.process = subprocess.Popen(
                command, stdout=subprocess.PIPE, stderr=log, env={**os.environ, "PYTHONPATH": str(SOURCE)}
            )
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line.startswith(b"weft: data agent"), self.errors.read_text()

    def control(self, **request: Any) -> dict[str, Any]:
        return exchange(self.control_path, request)

    def grant(self, job: str, token: str, version: str, **terms: Any) -> None:
        about = {"dataset": "faces", "bytes": 0, **terms}
        answer = self.control(do="grant", job=job, token=token, versions={version: about})
        assert answer == {"ok": True}, answer

    def kill(self) -> None:
        self.process.send_signal(signal.SIGKILL)
        self._ended()

    def stop(self) -> None:
        if self.process.poll() is None:
            self.process.terminate()
        self._ended()

    def _ended(self) -> None:
        self.process.wait(PATIENCE)
        assert self.process.stdout is not None
        self.process.stdout.close()


@contextmanager
def agent(folder: Path, *arguments: str) -> Iterator[Agent]:
    made = Agent(folder, "--reserve", "0", *arguments)
    try:
        yield made
    finally:
        made.stop()


class Carrier:
    """A control plane that follows one agent's wants and brings them from a store, as far as `find` lets it."""

    def __init__(self, agent_port: int, token: str, find: Callable[[dict[str, Any]], bytes]):
        self.port, self.token, self.find = agent_port, token, find
        self.asked: list[dict[str, Any]] = []
        self.reports: list[dict[str, Any]] = []
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._follow)

    def __enter__(self) -> Carrier:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        if self._socket is not None:
            self._socket.shutdown(socket.SHUT_RDWR)
        self._thread.join()

    _socket: socket.socket | None = None

    def call(self, method: str, path: str, body: bytes = b"", token: str | None = None) -> Any:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE)
        connection.request(method, path, body, {"X-Weft-Token": self.token if token is None else token})
        answer = connection.getresponse()
        with closing(connection):
            return answer.status, json.loads(answer.read() or b"null")

    def ask(self, **request: Any) -> dict[str, Any]:
        status, said = self.call("POST", "/v1/ask", json.dumps(request).encode())
        assert status == 200
        answer: dict[str, Any] = said
        return answer

    def _follow(self) -> None:
        while not self._ended.is_set():
            connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE)
            try:
                connection.request("GET", "/v1/wants", headers={"X-Weft-Token": self.token})
                self._socket = connection.sock
                answer = connection.getresponse()
                while line := answer.readline():
                    self._heard(json.loads(line))
            except (OSError, http.client.HTTPException, ValueError):
                time.sleep(0.02)
            finally:
                connection.close()

    def _heard(self, said: dict[str, Any]) -> None:
        if "report" in said:
            self.reports.append(said["report"])
        elif "want" in said:
            want = said["want"]
            self.asked.append(want)
            try:
                body, query = self.find(want), ""
            except DataError as problem:
                body, query = str(problem).encode(), f"?problem={problem.code}"
            self.call("PUT", f"/v1/wants/{want['number']}{query}", body)


def frame(request: Any) -> bytes:
    text = json.dumps(request).encode()
    return struct.pack("<I", len(text)) + text


def exchange(path: Path, request: dict[str, Any]) -> dict[str, Any]:
    with socket.socket(socket.AF_UNIX) as sock:
        sock.settimeout(PATIENCE)
        sock.connect(str(path))
        sock.sendall(frame(request))
        return receive(sock)


def receive(sock: socket.socket) -> dict[str, Any]:
    data = b""
    while len(data) < 4 or len(data) < 4 + struct.unpack_from("<I", data)[0]:
        chunk = sock.recv(65536)
        if not chunk:
            raise EOFError(data)
        data += chunk
    answer: dict[str, Any] = json.loads(data[4:])
    return answer


def until(condition: Callable[[], Any], what: str = "") -> Any:
    """Wait for the thing itself."""
    deadline = time.monotonic() + PATIENCE
    while not (found := condition()):
        assert time.monotonic() < deadline, f"did not happen: {what or condition}"
        time.sleep(0.005)
    return found


def files_below(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


class Here:
    """An agent in this process, on a loop of its own: its clock and its patience can be handed in."""

    def __init__(self, folder: Path, origin: Origin, sources: Sources | None = None, **settings: Any):
        self.folder = folder / "cache"
        self.socket = folder / "readers.sock"
        self.control_path = folder / "control.sock"
        settings.setdefault("patience", Patience(tries=3, sleep=lambda seconds: None))
        self._settings = Settings(self.folder, **settings)
        self._origin, self._sources = origin, sources
        self._links: list[Link] = []
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever)

    def __enter__(self) -> Here:
        self._thread.start()
        self.run(self._open())
        return self

    async def _open(self) -> None:
        self.node = Node(self._settings, self._origin, self._sources)
        self.ahead = Ahead(self.node)
        desk = Desk(self.node, self.ahead)
        self._engine = Control(self.node, self.ahead, desk)
        self._doors = [
            Door(self.socket, 0o666, desk.handle, 10.0),
            Door(self.control_path, 0o600, self._engine.handle),
        ]

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(PATIENCE)

    async def _close(self) -> None:
        await asyncio.gather(
            *(door.close() for door in self._doors), self.ahead.close(), self._engine.close()
        )
        self.node.filling._threads.shutdown()
        self.node._threads.shutdown()
        self.node.close()

    def __exit__(self, *_: object) -> None:
        for link in self._links:
            link.close()
        self.run(self._close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def control(self, **request: Any) -> dict[str, Any]:
        return exchange(self.control_path, request)

    def held(self) -> set[str]:
        return {digest for digest, _ in self.node.files.held()}

    def grant(self, version: str, job: str = "job-1", token: str = "secret", **terms: Any) -> Link:
        """A lease, and a reader that has it."""
        about = {"dataset": "faces", "bytes": 0, **terms}
        answer = self.control(do="grant", job=job, token=token, versions={version: about})
        assert answer == {"ok": True}, answer
        self._links.append(Link(str(self.socket), token, patience=5.0))
        return self._links[-1]


def whole(link: Link, version: str, part: int) -> bytes | None:
    """A part's bytes from its file, if it is kept on the node."""
    fd = link.part(version, part)
    if fd is None:
        return None
    with os.fdopen(fd, "rb") as file:
        return file.read()
