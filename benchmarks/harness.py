"""What the benchmarks share: a server on a fresh home, a lean client, statistics, and result files.

The machine is shared by the server, its tasks and this client, so the client is kept lean: raw sockets,
requests built beforehand, one thread.
"""

from __future__ import annotations

import argparse
import atexit
import contextlib
import gc
import json
import os
import platform
import selectors
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

BENCHMARKS = Path(__file__).parent
RESULTS = BENCHMARKS / "results"
PYTHON = sys.executable
WEFT = str(Path(PYTHON).parent / "weft")
MEGABYTE = 1 << 20
WAYS = ["PENDING", "QUEUED", "DEPLOYING", "PROCESSING", "STORING", "COMPLETED"]
"""The states of a job that needs no code brought and does not fail, in order."""


# ── folders and processes ────────────────────────────────────────────────────────────────────────


@contextlib.contextmanager
def folder_on_disk() -> Iterator[Path]:
    """A fresh folder on a real disk: commits to memory would flatter the server.

    It is removed only when the script ends, so that no round pays for tidying up after another.
    """
    for parent in (os.environ.get("WEFT_BENCH_DIR"), "/var/tmp", str(BENCHMARKS)):
        if parent and os.access(parent, os.W_OK) and filesystem_of(parent) not in ("tmpfs", "ramfs"):
            break
    else:
        raise SystemExit("no folder on a disk: set WEFT_BENCH_DIR to one")
    path = Path(tempfile.mkdtemp(prefix="weft-bench-", dir=parent))
    atexit.register(shutil.rmtree, path, ignore_errors=True)
    yield path


def filesystem_of(path: str) -> str:
    """The type of the file system that holds a path, from the longest mount point above it."""
    real = os.path.realpath(path)
    mounts = [line.split() for line in Path("/proc/mounts").read_text().splitlines()]
    above = [(m[1], m[2]) for m in mounts if m[1] == "/" or (real + "/").startswith(m[1].rstrip("/") + "/")]
    return max(above, key=lambda mount: len(mount[0]))[1]


def processes_with(text: str) -> list[int]:
    """Every process but this one that carries the text in its arguments or environment."""
    needle, found = text.encode(), []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            with contextlib.suppress(OSError):
                if needle in (entry / "cmdline").read_bytes() or needle in (entry / "environ").read_bytes():
                    found.append(int(entry.name))
    return found


def end_processes_with(text: str) -> None:
    """End what a benchmark left in its own temporary folder, by process id."""
    for pid in processes_with(text):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    until(lambda: not processes_with(text), "its processes to end", 10)


def until(happened: Callable[[], bool], what: str, timeout: float = 60.0, every: float = 0.02) -> None:
    deadline = time.monotonic() + timeout
    while not happened():
        if time.monotonic() > deadline:
            raise SystemExit(f"waited {timeout:g} s for {what}")
        time.sleep(every)


# ── a server ─────────────────────────────────────────────────────────────────────────────────────


class Server:
    """One server on one home, ended with everything it started."""

    def __init__(self, home: Path, *options: str):
        self.home = home
        self.options = options
        self.process: subprocess.Popen[bytes] | None = None
        self.port = 0
        self.token = ""

    def __enter__(self) -> Server:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        try:
            self.stop()
        finally:
            end_processes_with(str(self.home))

    def start(self) -> None:
        """Until it answers."""
        self.home.mkdir(parents=True, exist_ok=True, mode=0o700)
        facts = self.home / "server.json"
        facts.unlink(missing_ok=True)
        with (self.home / "server.log").open("ab") as output:
            self.process = subprocess.Popen(
                [PYTHON, "-m", "weft.server", "--home", str(self.home), *self.options],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                cwd=self.home,
                env={**os.environ, "WEFT_HOME": str(self.home)},  # and so its supervisors can be told apart
            )
        until(lambda: self._ended() or (facts.exists() and self._answers(facts)), "the server", 60, 0.002)

    def _ended(self) -> bool:
        assert self.process is not None
        if self.process.poll() is not None:
            raise SystemExit(f"the server ended: {(self.home / 'server.log').read_text()[-2000:]}")
        return False

    def _answers(self, facts: Path) -> bool:
        try:
            document = json.loads(facts.read_bytes())
            self.port = int(document["address"].rpartition(":")[2])
            self.token = (self.home / "token").read_text().strip()
            with Connection(self) as connection:
                return connection.get("/healthz")["status"] == "ok"
        except (OSError, ValueError, KeyError):
            return False

    def stop(self) -> None:
        """As `weft down`; idle supervisors end with it, tasks go on."""
        if self.process is not None and self.process.poll() is None:
            self.process.terminate()
            self.process.wait(30)

    def kill(self) -> None:
        """As a crash."""
        assert self.process is not None
        self.process.kill()
        self.process.wait(30)

    @property
    def pid(self) -> int:
        assert self.process is not None
        return self.process.pid

    def request(self, method: str, path: str, body: Any = None) -> bytes:
        """The bytes of one request, to be sent as often as wanted."""
        content = b"" if body is None else json.dumps(body).encode()
        head = (
            f"{method} {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer {self.token}\r\n"
            f"Content-Type: application/json\r\nContent-Length: {len(content)}\r\n\r\n"
        )
        return head.encode() + content


class Connection:
    """One kept-alive connection: one request at a time."""

    def __init__(self, server: Server):
        self._server = server
        self.socket = socket.create_connection(("127.0.0.1", server.port), timeout=60)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._received = b""

    def __enter__(self) -> Connection:
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()

    def send(self, request: bytes) -> None:
        self.socket.sendall(request)

    def receive(self) -> tuple[int, bytes] | None:
        """What has arrived, once it is a whole answer: its status and body."""
        data = self.socket.recv(1 << 18)
        if not data:
            raise SystemExit("the server closed a connection")
        self._received += data
        head, found, body = self._received.partition(b"\r\n\r\n")
        if not found or len(body) < _content_length(head):
            return None
        self._received = b""
        return int(head[9:12]), body

    def exchange(self, request: bytes) -> tuple[int, bytes]:
        self.send(request)
        while (answer := self.receive()) is None:
            pass
        return answer

    def get(self, path: str) -> Any:
        status, body = self.exchange(self._server.request("GET", path))
        if status != 200:
            raise SystemExit(f"GET {path}: {status} {body.decode()[:500]}")
        return json.loads(body)

    def post(self, path: str, document: dict[str, Any] | None = None) -> None:
        status, body = self.exchange(self._server.request("POST", path, document))
        if status != 200:
            raise SystemExit(f"POST {path}: {status} {body.decode()[:500]}")

    def submit(self, document: dict[str, Any]) -> None:
        expect_created(self.exchange(self._server.request("POST", "/v1/jobs", document)))

    def ended(self, name: str, timeout: float = 120.0) -> None:
        """Wait, without asking again and again, until the job has ended; the connection is used up."""
        self.socket.settimeout(timeout)
        self.send(self._server.request("GET", f"/v1/jobs/{name}/events?follow=true"))
        seen = b""
        while b"event: end" not in seen:
            if not (data := self.socket.recv(1 << 16)):
                raise SystemExit(f"the event stream of {name} broke off")
            seen += data


def _content_length(head: bytes) -> int:
    for line in head.split(b"\r\n")[1:]:
        name, _, value = line.partition(b":")
        if name.lower() == b"content-length":
            return int(value)
    return 0


def expect_created(answer: tuple[int, bytes]) -> None:
    status, body = answer
    if status != 201:
        raise SystemExit(f"a submission was answered {status}: {body.decode()[:500]}")


def job(name: str, command: Sequence[str], **spec: Any) -> dict[str, Any]:
    metadata = {"name": name}
    spec = {"command": list(command), **spec}
    return {"apiVersion": "weft.dev/v1", "kind": "TrainingJob", "metadata": metadata, "spec": spec}


def submit_all(server: Server, requests: Sequence[bytes], connections: int) -> None:
    """Each request complete and answered 201 before the next on its connection."""
    waiting = iter(requests)
    with contextlib.ExitStack() as opened, selectors.DefaultSelector() as selector:
        for _ in range(connections):
            connection = opened.enter_context(Connection(server))
            if (request := next(waiting, None)) is None:
                break
            connection.send(request)
            selector.register(connection.socket, selectors.EVENT_READ, connection)
        while selector.get_map():
            for key, _events in selector.select():
                if (answer := key.data.receive()) is None:
                    continue
                expect_created(answer)
                if (request := next(waiting, None)) is None:
                    selector.unregister(key.fileobj)
                else:
                    key.data.send(request)


# ── numbers ──────────────────────────────────────────────────────────────────────────────────────


def clean_memory() -> None:
    """No collection in the middle of a measurement."""
    gc.collect()
    gc.freeze()
    gc.disable()


def timed(work: Callable[[], Any]) -> float:
    begin = time.perf_counter()
    work()
    return time.perf_counter() - begin


def spread(samples: Sequence[float], digits: int = 6) -> dict[str, Any]:
    """Every sample with its median and ends."""
    ordered = sorted(samples)
    return {
        "median": round(statistics.median(ordered), digits),
        "least": round(ordered[0], digits),
        "p90": round(ordered[min(len(ordered) - 1, int(0.9 * len(ordered)))], digits),
        "most": round(ordered[-1], digits),
        "samples": [round(sample, digits) for sample in samples],
    }


@dataclass(frozen=True, slots=True)
class Claim:
    """One promise of the project, and what was measured of it."""

    text: str
    measured: float
    target: float
    unit: str = ""
    at_most: bool = True
    digits: int = 2

    @property
    def met(self) -> bool:
        return self.measured <= self.target if self.at_most else self.measured >= self.target

    def dump(self) -> dict[str, Any]:
        return {
            "claim": self.text,
            "measured": round(self.measured, 4),
            "shown": f"{self.measured:.{self.digits}f}{self.unit}",
            "target": self.target,
            "wanted": f"{'≤' if self.at_most else '≥'} {self.target:g}{self.unit}",
            "met": self.met,
        }


def publish(name: str, claims: Sequence[Claim], details: dict[str, Any], quick: bool) -> None:
    """Write the result file, and print what it says."""
    document = {
        "name": name,
        "measured": datetime.now(UTC).isoformat(timespec="seconds"),
        "repeat": f".venv/bin/python benchmarks/{name}.py{' --quick' if quick else ''}",
        "quick": quick,
        "machine": machine(),
        "claims": [claim.dump() for claim in claims],
        **details,
    }
    folder = results_folder(quick)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{name}.json").write_text(json.dumps(document, indent=1, ensure_ascii=False) + "\n")
    print_claims(document["claims"])


def results_folder(quick: bool) -> Path:
    return RESULTS / "quick" if quick else RESULTS


def picture_path(name: str, quick: bool) -> Path:
    """Where a benchmark draws, without the ending: beside the page that shows it."""
    return (results_folder(quick) if quick else BENCHMARKS.parent / "docs" / "images") / name


def docstring_part(docstring: str | None, title: str) -> str:
    """The paragraph of a script's docstring that begins so, in one line."""
    for paragraph in (docstring or "").split("\n\n"):
        if paragraph.startswith(f"{title}: "):
            return " ".join(paragraph.removeprefix(f"{title}: ").split())
    raise SystemExit(f"the docstring has no paragraph {title}:")


def table(caption: str, titles: Sequence[str], rows: Sequence[Sequence[str]]) -> dict[str, Any]:
    """For people: printed now, and part of the page."""
    print(f"\n{caption}")
    print_table(titles, rows)
    return {"caption": caption, "titles": list(titles), "rows": [list(row) for row in rows]}


def print_claims(claims: Sequence[dict[str, Any]]) -> None:
    rows = [(c["claim"], c["shown"], c["wanted"], "met" if c["met"] else "NOT MET") for c in claims]
    print_table(("claim", "measured", "target", ""), rows)


def print_table(titles: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    widths = [max(len(str(row[i])) for row in (titles, *rows)) for i in range(len(titles))]
    for row in (titles, *rows):
        print("  ".join(str(cell).ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())


def machine() -> dict[str, Any]:
    """What matters of the machine, and nothing that names it."""
    return {
        "cores": len(os.sched_getaffinity(0)),
        "memoryGiB": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / (1 << 30), 1),
        "python": platform.python_version(),
        "kernel": ".".join(platform.release().split(".")[:2]),
        "loadBefore": round(os.getloadavg()[0], 2),
    }


def arguments(description: str) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--quick", action="store_true", help="few rounds, to see that it works")
    return parser
