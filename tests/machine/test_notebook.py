"""Notebooks with the real Jupyter: a URL with a token, files that stay, and a halt when nobody works."""

from __future__ import annotations

import json
import os
import shutil
import signal
import stat
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from http.cookiejar import CookieJar
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from harness import Server, package, processes_with, until
from test_frameworks import ROOT, python_of

pytestmark = [pytest.mark.machine, pytest.mark.timeout(400)]
New = Callable[..., Server]
EXAMPLE = ROOT / "examples" / "notebook"

RUN_A_CELL = """
import json, sys, uuid, websocket
url, token, kernel, code = sys.argv[1:]
ws = websocket.create_connection(f"{url}api/kernels/{kernel}/channels", header=[f"Authorization: token {token}"], timeout=60)
header = {"msg_id": uuid.uuid4().hex, "msg_type": "execute_request", "username": "", "session": "s", "version": "5.3"}
ws.send(json.dumps({"header": header, "parent_header": {}, "metadata": {}, "channel": "shell", "buffers": [],
    "content": {"code": code, "silent": False, "store_history": True, "user_expressions": {}, "allow_stdin": False}}))
while True:
    said = json.loads(ws.recv())
    if said["parent_header"].get("msg_id") != header["msg_id"]:
        continue
    if said["msg_type"] == "stream":
        print(said["content"]["text"], end="")
    if said["msg_type"] == "error":
        print("\\n".join(said["content"]["traceback"]))
    if said["msg_type"] == "status" and said["content"]["execution_state"] == "idle":
        break  # the reply itself has another way, and may overtake what the cell prints
"""


class Notebook:
    """What a browser has: the URL that `weft show` tells."""

    def __init__(self, server: Server, name: str, tmp_path: Path, **spec: Any):
        self.server = server
        self.name = name
        self.python = python_of("jupyter")
        files = {path.name: path.read_text() for path in EXAMPLE.iterdir()}
        server.submit(
            {
                "metadata": {"name": name},
                "spec": {
                    "type": "notebook",
                    "code": {"package": server.put_package(package(files)[1])},
                    "command": [self.python, "-m", "jupyterlab"],
                    "env": {"HOME": str(tmp_path)},
                    "grace": "10s",
                    **spec,
                },
            }
        )

    def open(self) -> str:
        """Wait for the URL."""
        urls = until(
            lambda: self.server.status(self.name).get("urls"),
            f"a URL: {self.server.story(self.name)}",
            200,
            0.1,
        )
        assert [*urls] == ["worker-0"]
        self.url = urls["worker-0"]
        return self.url

    @property
    def base(self) -> str:
        return self.url.partition("?")[0]

    @property
    def token(self) -> str:
        return parse_qs(urlsplit(self.url).query)["token"][0]

    def call(self, method: str, path: str, body: Any = None, token: str | None = None) -> Any:
        data = None if body is None else json.dumps(body).encode()
        headers = {"Authorization": f"token {self.token if token is None else token}"}
        request = urllib.request.Request(self.base + path, data, headers, method=method)
        with urllib.request.urlopen(request, timeout=90) as answer:
            return json.loads(answer.read() or b"null")

    def kernel(self) -> str:
        return self.call("POST", "api/kernels", {"name": "python3"})["id"]

    def run(self, kernel: str, code: str) -> str:
        """What a cell prints."""
        command = [
            self.python,
            "-c",
            RUN_A_CELL,
            self.base.replace("http", "ws", 1),
            self.token,
            kernel,
            code,
        ]
        done = subprocess.run(command, capture_output=True, text=True, timeout=90, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def save(self, path: str, text: str) -> None:
        self.call("PUT", f"api/contents/{path}", {"type": "file", "format": "text", "content": text})

    def read(self, path: str) -> str:
        return self.call("GET", f"api/contents/{path}")["content"]


def refused(url: str) -> bool:
    """Not shown: 403, or sent to the page that asks for the token."""
    try:
        with urllib.request.urlopen(url, timeout=90) as answer:
            return "/login" in answer.url
    except urllib.error.HTTPError as answer:
        return answer.code == 403


def opened(url: str) -> str:
    """The page that a browser gets: it follows the way and keeps the cookie."""
    browser = urllib.request.build_opener(urllib.request.HTTPCookieProcessor(CookieJar()))
    with browser.open(url, timeout=90) as answer:
        assert answer.status == 200
        assert "/login" not in answer.url
        return answer.read().decode()


def test_a_notebook_from_its_url_to_its_results(new_server: New, tmp_path: Path):
    server = new_server("--cpu", "4")
    notebook = Notebook(server, "lab", tmp_path)
    url = notebook.open()
    assert url.startswith("http://127.0.0.1:")
    assert "jupyter-config-data" in opened(url)
    assert refused(notebook.base + "lab")
    assert refused(notebook.base + "api/kernels?token=guess")

    kernel = notebook.kernel()
    assert notebook.run(kernel, "import os; print(6 * 7, os.environ['WEFT_TASK'])") == "42 worker-0\n"
    cells = json.loads((EXAMPLE / "first.ipynb").read_text())["cells"]
    for cell in cells:
        if cell["cell_type"] == "code":
            assert "Error" not in notebook.run(kernel, "".join(cell["source"]))
    until(lambda: len(server.metrics("lab")) == 50, "what the example's cells log")

    no_secret_anywhere(server, notebook, kernel)
    notebook.save("mine.txt", "kept")
    notebook.call("DELETE", "api/contents/job.yaml")
    token = notebook.token

    # halted and resumed: the same files, the same token
    assert server.ask("lab", "halt").status == 200
    halted = server.wait_for("lab", "HALTED")
    assert "urls" not in halted["status"]
    assert server.ask("lab", "resume").status == 200
    notebook.open()
    assert notebook.token == token
    assert notebook.read("mine.txt") == "kept"
    listed = {item["name"] for item in notebook.call("GET", "api/contents")["content"]}
    assert {"mine.txt", "first.ipynb"} <= listed
    assert "job.yaml" not in listed

    # killed: it comes back, and says where
    (jupyter,) = [
        pid
        for pid, line in server.others().items()
        if "-m jupyterlab" in line and "weft" not in line.split()[2]
    ]
    os.kill(jupyter, signal.SIGKILL)
    until(lambda: server.status("lab")["restarts"] == 1, "a restart")
    server.wait_for("lab", "PROCESSING")
    notebook.open()
    assert notebook.token == token
    assert notebook.read("mine.txt") == "kept"

    # shut down from within: done, and what was written is the result
    notebook.call("POST", "api/shutdown")
    done = server.wait_for("lab", "COMPLETED")
    assert done["status"]["results"]["files"] >= 2
    paths = [item["path"] for item in server.get("/v1/jobs/lab/results").json["items"]]
    assert {"mine.txt", "first.ipynb"} <= {*paths}


def no_secret_anywhere(server: Server, notebook: Notebook, kernel: str) -> None:
    """Only who asks for the job, or may read its user's files, sees the token."""
    token = notebook.token
    assert len(token) > 30
    assert token not in "\n".join(server.text("lab"))
    assert any("Jupyter answers" in line for line in server.text("lab"))
    assert token not in json.dumps(server.history("lab"))
    assert token not in server.get("/v1/jobs").body.decode()
    assert token not in json.dumps(server.job("lab")["spec"])
    assert not [line for line in processes_with(str(server.home)).values() if token in line]
    assert "False" in notebook.run(kernel, f"import os; print({token[:20]!r} in str(os.environ))")
    holding = [
        path
        for path in server.folder("lab").rglob("*")
        if path.is_file() and token in path.read_text(errors="replace")
    ]
    assert {path.name for path in holding} == {"token", "url-1"}
    assert all(stat.S_IMODE(path.stat().st_mode) == 0o600 for path in holding)
    assert not [path for path in server.home.glob("weft.db*") if token.encode() in path.read_bytes()]


def test_a_notebook_that_nobody_uses_is_halted_and_one_at_work_is_not(new_server: New, tmp_path: Path):
    server = new_server("--cpu", "4")
    notebook = Notebook(server, "lab", tmp_path, idleTimeout="12s")
    notebook.open()
    kernel = notebook.kernel()
    began = time.monotonic()
    assert notebook.run(kernel, "import time; time.sleep(14); print('done')") == "done\n"
    assert time.monotonic() - began > 14
    assert server.status("lab")["state"] == "PROCESSING"
    halted = server.wait_for("lab", "HALTED")["status"]
    assert halted["reason"] == "halted: nothing was done in it for 12s (idleTimeout); checkpoints are kept"
    last = server.history("lab")[-1]
    assert (last["actor"], last["cause"]) == ("weft", "halted: nothing was done in it for 12s (idleTimeout)")
    assert server.reserved() == []
    assert server.ask("lab", "resume").status == 200
    server.wait_for("lab", "PROCESSING")
    server.ask("lab", "cancel")
    server.wait_for("lab", "CANCELLED")


@pytest.mark.skipif(shutil.which("bwrap") is None, reason="needs bubblewrap")
def test_in_a_sandbox_a_notebook_is_saved_and_stopped(new_server: New, tmp_path: Path):
    server = new_server("--cpu", "4")
    notebook = Notebook(server, "lab", tmp_path, isolation="sandbox", env={"HOME": "/usr"})
    notebook.open()
    notebook.kernel()
    content = json.loads((EXAMPLE / "first.ipynb").read_text())
    notebook.call("PUT", "api/contents/mine.ipynb", {"type": "notebook", "content": content})
    server.ask("lab", "halt")
    server.wait_for("lab", "HALTED")
    assert [task["exit"]["code"] for task in server.status("lab")["tasks"]] == [128 + signal.SIGTERM]
    assert (server.folder("lab") / "results" / "mine.ipynb").exists()


def test_without_jupyter_the_log_says_what_to_install(new_server: New, tmp_path: Path):
    server = new_server("--cpu", "4")
    python = python_of("mpi")
    spec = {"type": "notebook", "command": [python, "-m", "jupyterlab"]}
    done = server.run({"metadata": {"name": "lab"}, "spec": spec}, "FAILED")
    assert done["status"]["restarts"] == 0
    assert any(f"({python} -m pip install jupyterlab)" in line for line in done["status"]["logTail"])
