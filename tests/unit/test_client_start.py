"""Starting a server: once, detached, and with a clear word when it does not start."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from weft.client import start
from weft.client.errors import WeftError
from weft.client.home import running_server

SERVER = """
import json, os, sys
from http.server import BaseHTTPRequestHandler, HTTPServer
class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200); self.end_headers(); self.wfile.write(b'{"status": "ok"}')
    def log_message(self, *_): pass
server = HTTPServer(("127.0.0.1", 0), Handler)
address = f"http://127.0.0.1:{server.server_address[1]}"
with open("new.json", "w") as file:
    json.dump({"pid": os.getpid(), "address": address, "session": os.getsid(0), "argv": sys.argv[1:]}, file)
os.replace("new.json", "server.json")
server.serve_forever()
"""


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What `python -m weft.server` is replaced by."""
    code = [SERVER]

    def command(home: Path, options: Sequence[str] = ()) -> list[str]:
        return [sys.executable, "-c", code[0], "--home", str(home), *options]

    monkeypatch.setattr(start, "server_command", command)
    return code


def test_a_server_is_started_once_and_stopped(script: list[str], tmp_path: Path) -> None:
    home = tmp_path / "home"
    found: list[tuple[int, bool]] = []

    def ensure() -> None:
        document, started = start.ensure_server(home, ["--nodes", "2"])
        found.append((document["pid"], started))

    threads = [threading.Thread(target=ensure) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    try:
        assert len({pid for pid, _ in found}) == 1
        assert sorted(started for _, started in found) == [False, False, False, True]
        document = running_server(home)
        assert document is not None
        assert document["session"] == document["pid"] != os.getsid(0)
        assert document["argv"] == ["--home", str(home), "--nodes", "2"]
        start.stop_server(document, home)
        assert running_server(home) is None
    finally:
        if start.process_alive(found[0][0]):
            os.kill(found[0][0], signal.SIGKILL)


def test_a_server_that_ends_is_quoted(script: list[str], tmp_path: Path) -> None:
    (tmp_path / "server.log").write_text("of an earlier one\n")
    script[0] = "import sys; sys.exit('weft: the disk is full')"
    with pytest.raises(
        WeftError, match=r"(?s)did not start: it ended with exit code 1.*\| weft: the disk is full"
    ) as e:
        start.ensure_server(tmp_path)
    assert "earlier" not in str(e.value)
    assert str(tmp_path / "server.log") in (e.value.next or "")


def test_a_server_that_is_never_ready_is_stopped(
    script: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[subprocess.Popen[bytes]] = []
    begin = subprocess.Popen

    def noted(*args: Any, **options: Any) -> subprocess.Popen[bytes]:
        started.append(begin(*args, **options))
        return started[-1]

    monkeypatch.setattr(start.subprocess, "Popen", noted)
    monkeypatch.setattr(start, "START_SECONDS", 0.3)
    script[0] = "import time; time.sleep(600)"
    with pytest.raises(WeftError, match="was not ready after"):
        start.ensure_server(tmp_path)
    [server] = started
    assert server.wait(timeout=90) < 0, "by a signal"


def test_a_reused_process_id_is_no_server() -> None:
    assert start.process_alive(os.getpid())
    assert not start.is_server_process(os.getpid())
    assert not start.process_alive(2**22 + 1)


def test_relative_import_paths_are_made_absolute(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", f"src{os.pathsep}/x")
    assert start.server_environment()["PYTHONPATH"] == f"{tmp_path}/src{os.pathsep}/x"
