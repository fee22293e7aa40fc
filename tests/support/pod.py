"""A pod without Kubernetes: the real agent and the real start script as processes around a temporary folder."""

from __future__ import annotations

import gzip
import io
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tarfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from http.client import HTTPConnection, HTTPResponse
from pathlib import Path
from typing import Any

from weft.runtime.agent.script import START

TOKEN = "right"
PATIENCE = 30.0
SHELLS = [shell for shell in (["dash"], ["busybox", "sh"], ["bash"]) if shutil.which(shell[0])] or [["sh"]]


def until(fact: Callable[[], Any], what: str = "") -> Any:
    """Wait for a fact, and give what is true of it."""
    deadline = time.monotonic() + PATIENCE
    while not (found := fact()):
        assert time.monotonic() < deadline, f"never came true: {what or fact}"
        time.sleep(0.003)
    return found


class Pod:
    """Folders as in a pod, and the processes of its two containers."""

    def __init__(self, folder: Path):
        self.root = folder / "weft"
        self.code = folder / "weft-code"
        self.token = folder / "weft-token"
        self.task = self.root / "task"
        self.printed = folder / "agent.out"
        for made in (self.code, self.token):
            made.mkdir()
        (self.token / "token").write_text(f"{TOKEN}\n")
        self.port = _free_port()
        self._started: list[subprocess.Popen[bytes]] = []

    # ── the agent ──

    def agent(self, wait: bool = True, stdout: Any = None, **settings: Any) -> subprocess.Popen[bytes]:
        told = {"port": self.port, "code": str(self.code), "token": str(self.token), **settings}
        environ = {**os.environ, "WEFT_ROOT": str(self.root), "WEFT_AGENT": json.dumps(told)}
        with self.printed.open("ab") as printed:
            process = subprocess.Popen(
                [sys.executable, "-m", "weft.runtime.agent"], env=environ, stdout=stdout or printed
            )
        self._started.append(process)
        if wait:
            until(lambda: self._listens(process), "the agent listens")
        return process

    def _listens(self, process: subprocess.Popen[bytes]) -> bool:
        assert process.poll() is None, "the agent has ended"
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", self.port)) == 0

    def ask(
        self, method: str, path: str, body: bytes | None = None, token: str | None = TOKEN, **headers: str
    ) -> tuple[int, bytes]:
        connection = HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE)
        try:
            given = {} if token is None else {"X-Weft-Token": token}
            connection.request(method, path, body, {**given, **headers})
            answer = connection.getresponse()
            return answer.status, answer.read()
        finally:
            connection.close()

    @contextmanager
    def stream(self, log: int = 0, metrics: int = 0) -> Iterator[Stream]:
        connection = HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE)
        try:
            connection.request(
                "GET", f"/v1/stream?log={log}&metrics={metrics}", headers={"X-Weft-Token": TOKEN}
            )
            answer = connection.getresponse()
            assert answer.status == 200
            yield Stream(answer)
        finally:
            connection.close()

    # ── the task's container ──

    def start(
        self, *argv: str, shell: list[str] | None = None, environ: Mapping[str, str] = {}, leads: bool = True
    ) -> subprocess.Popen[bytes]:
        """As kubelet would: a process that leads its session and has no terminal."""
        process = subprocess.Popen(
            [*(shell or SHELLS[0]), "-c", START, "weft", *argv],
            env={**os.environ, "WEFT_ROOT": str(self.root), "WEFT_GRACE": "20", **environ},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=leads,
        )
        self._started.append(process)
        return process

    def open_gate(self) -> None:
        self.task.mkdir(parents=True, exist_ok=True)
        (self.task / "go").touch()

    def output(self) -> bytes:
        path = self.task / "output"
        return path.read_bytes() if path.exists() else b""

    def exit(self) -> str:
        path = self.task / "exit"
        return path.read_text() if path.exists() else ""

    def close(self) -> None:
        for process in self._started:
            if process.poll() is None:
                process.kill()
            process.wait()
            if process.args[-1] != "weft.runtime.agent":  # type: ignore[index]
                _kill_session(process.pid)


class Stream:
    """Frames as a control plane reads them."""

    def __init__(self, answer: HTTPResponse):
        self._answer = answer
        self.log = bytearray()
        self.metrics = bytearray()
        self.books: dict[str, bytes] = {}
        self.states: list[dict[str, Any]] = []
        self.frames: list[dict[str, Any]] = []

    def next(self) -> dict[str, Any] | None:
        """The next frame; None at the end of the stream."""
        line = self._answer.readline()
        if not line:
            return None
        header: dict[str, Any] = json.loads(line)
        data = (
            self._answer.read(header["size"]) if header["size"] else b""
        )  # none would wait for the next frame
        assert len(data) == header["size"]
        self.frames.append(header)
        if header["kind"] == "log":
            self.log += data
        elif header["kind"] == "metrics":
            self.metrics += data
        elif header["kind"] == "books":
            self.books[header["name"]] = data
        else:
            self.states.append(header)
        return header

    def until(self, fact: Callable[[Stream], Any]) -> Stream:
        deadline = time.monotonic() + PATIENCE
        while not fact(self):
            assert time.monotonic() < deadline
            assert self.next() is not None, "the stream has ended"
        return self

    def to_the_end(self) -> dict[str, Any]:
        """The state in which the task exited."""
        self.until(lambda stream: stream.states and stream.states[-1]["state"] == "exited")
        return self.states[-1]


def archive(files: Mapping[str, bytes | tarfile.TarInfo]) -> bytes:
    """A .tar.gz of these files; a TarInfo goes in as it is."""
    plain = io.BytesIO()
    with tarfile.open(fileobj=plain, mode="w") as tar:
        for name, content in files.items():
            if isinstance(content, tarfile.TarInfo):
                tar.addfile(content)
                continue
            info = tarfile.TarInfo(name)
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    return gzip.compress(plain.getvalue(), 1)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _kill_session(leader: int) -> None:
    for entry in Path("/proc").iterdir():
        try:
            session = int((entry / "stat").read_bytes().rpartition(b")")[2].split()[3])
            if session == leader:
                os.kill(int(entry.name), signal.SIGKILL)
        except (OSError, ValueError, IndexError):
            continue
