"""Starting a server of this machine as a process of its own, and stopping it.

The server outlives the command or notebook that started it: it gets its own session, and its output goes
to server.log. It is started by name (`python -m weft.server`), never imported.
"""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from weft.client.errors import WeftError
from weft.client.home import running_server, server_document

START_SECONDS = 30.0
STOP_SECONDS = 30.0


def server_command(home: Path, options: Sequence[str] = ()) -> list[str]:
    return [sys.executable, "-m", "weft.server", "--home", str(home), *options]


def server_environment() -> dict[str, str]:
    """Ours, with PYTHONPATH made absolute: the server runs in its home, where no file of a user's folder
    can stand in for a module."""
    environment = dict(os.environ)
    if path := environment.get("PYTHONPATH"):
        environment["PYTHONPATH"] = os.pathsep.join(
            str(Path(p).absolute()) for p in path.split(os.pathsep) if p
        )
    return environment


def ensure_server(home: Path, options: Sequence[str] = ()) -> tuple[dict[str, Any], bool]:
    """The server of this home, started if none runs; and whether it was started now."""
    if document := running_server(home):
        return document, False
    home.mkdir(parents=True, exist_ok=True, mode=0o700)
    with _only_starter(home):
        if document := running_server(home):
            return document, False
        return _start(home, options), True


def stop_server(document: dict[str, Any], home: Path) -> None:
    """SIGTERM, and wait until the process is gone. Running tasks go on without it."""
    pid = int(document["pid"])
    os.kill(pid, signal.SIGTERM)
    deadline = time.monotonic() + STOP_SECONDS
    while process_alive(pid):
        if time.monotonic() > deadline:
            raise WeftError(
                "the server does not stop",
                f"process {pid} still runs {STOP_SECONDS:.0f} s after SIGTERM",
                f"look at {home / 'server.log'}, then: kill -9 {pid}",
            )
        time.sleep(0.02)


def process_alive(pid: int) -> bool:
    """Whether the process exists and is not a zombie that nobody has waited for."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except FileNotFoundError:
        return not Path("/proc/self").exists() and _signalable(pid)
    except OSError:
        return True
    return stat.rpartition(")")[2].split()[0] not in ("Z", "X")


def is_server_process(pid: int) -> bool:
    """Whether that process is a Weft server: process ids are reused, and a signal cannot be taken back."""
    try:
        return b"weft.server" in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False


def _signalable(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


@contextmanager
def _only_starter(home: Path) -> Iterator[None]:
    """Two commands at the same moment start one server: the second waits and finds it running."""
    with os.fdopen(os.open(home / "start.lock", os.O_WRONLY | os.O_CREAT, 0o600), "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _start(home: Path, options: Sequence[str]) -> dict[str, Any]:
    log = home / "server.log"
    with os.fdopen(os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600), "ab") as output:
        begin = output.tell()
        process = subprocess.Popen(
            server_command(home, options),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            cwd=home,
            env=server_environment(),
            start_new_session=True,
        )
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline:
        document = server_document(home)
        if document is not None and document.get("pid") == process.pid and running_server(home):
            process.returncode = 0  # it is on its own now; keeps Popen from warning that it still runs
            return document
        code = process.poll()
        if code is not None:
            raise _did_not_start(log, begin, f"it ended with exit code {code}")
        time.sleep(0.01)
    process.terminate()
    try:
        process.wait(5.0)
    except subprocess.TimeoutExpired:
        process.kill()
    raise _did_not_start(log, begin, f"it was not ready after {START_SECONDS:.0f} s")


def _did_not_start(log: Path, begin: int, cause: str) -> WeftError:
    with log.open("rb") as written:
        written.seek(begin)
        lines = written.read()[-8192:].decode("utf-8", "replace").splitlines()[-15:]
    tail = "".join(f"\n  | {line}" for line in lines)
    return WeftError("the server did not start", cause + tail, f"look at {log}")
