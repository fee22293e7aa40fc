"""Jupyter as a task: `python -m weft.runtime.notebook HOST:PORT COMMAND...`, where COMMAND starts any Jupyter server.

The server works in RESULT_DIR, so that what a person writes outlives restart, halt and resume and is the job's result;
the files of the job's code are copied there once. Its token is the job's own: random, the same at every start, and
handed over in a file, so that neither `ps` nor a kernel's `os.environ` shows it. Once the server answers, its URL is
announced; from then on what kernels, terminals and files tell of a person at work counts as activity. An open browser
does not: it asks the server something every few seconds, whether anyone looks at it or not.
"""

from __future__ import annotations

import json
import os
import secrets
import select
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from glob import glob
from http.client import HTTPConnection, HTTPException
from typing import Any
from urllib.parse import quote, urlsplit

from weft.runtime.active import active
from weft.runtime.announce import announce
from weft.runtime.heartbeat import heartbeat
from weft.runtime.hidden import hidden

STARTING = 0.1
LOOK = 5.0
PATIENCE = 10.0
STOPPED = 128 + signal.SIGTERM


@dataclass(frozen=True)
class Jupyter:
    """A server as it describes itself in a file that only its user can read."""

    url: str
    token: str
    root: str

    @property
    def shown(self) -> str:
        return f"{self.url}?token={quote(self.token)}" if self.token else self.url

    def get(self, what: str) -> Any:
        """What it answers; OSError, ValueError or HTTPException if it does not."""
        place = urlsplit(self.url)
        connection = HTTPConnection(place.hostname or "", place.port, timeout=PATIENCE)
        try:
            headers = {"Authorization": f"token {self.token}"} if self.token else {}
            connection.request("GET", f"{place.path}api/{what}?no_track_activity=1", headers=headers)
            response = connection.getresponse()
            text = response.read()
        finally:
            connection.close()
        if response.status != 200:
            raise ValueError(f"{what}: {response.status}")
        return json.loads(text)


def found(runtime: str) -> Jupyter | None:
    """The server that has this runtime folder, if it listens already."""
    for path in glob(f"{runtime}/jpserver-*.json"):
        try:
            with open(path, encoding="utf-8") as file:
                about = json.load(file)
            return Jupyter(about["url"], about["token"], about["root_dir"])
        except (OSError, ValueError, KeyError):  # it is being written
            continue
    return None


# ── what there is before it starts ──


def token_file(folder: str) -> str:
    """The file with the job's token, made at its first start."""
    path = os.path.join(folder, "token")
    if not os.path.exists(path):
        part = f"{path}.part"
        with os.fdopen(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
            file.write(secrets.token_urlsafe(32))
        os.replace(part, path)
    return path


def bring(code: str, work: str, mark: str) -> None:
    """Copy the job's files to where the person works, once: what they change or delete stays so."""
    if os.path.exists(mark) or os.path.realpath(code) == os.path.realpath(work):
        return
    shutil.copytree(
        code,
        work,
        symlinks=True,
        dirs_exist_ok=True,
        copy_function=_copied,
        ignore=shutil.ignore_patterns("__pycache__", ".ipynb_checkpoints"),
    )
    with open(mark, "w"):
        pass


def _copied(source: str, target: str) -> None:
    """Whole or not at all, so that a start that is killed can be repeated."""
    if not os.path.lexists(target):
        shutil.copy2(source, f"{target}.weft-part")
        os.replace(f"{target}.weft-part", target)


def settings(kept: str) -> dict[str, str]:
    """Where Jupyter writes its secrets and settings: at home, or with the job where home is read-only (a sandbox)."""
    home = os.path.expanduser("~")
    if os.access(home, os.W_OK):
        return {}
    return {
        "JUPYTER_DATA_DIR": f"{kept}/data",
        "JUPYTER_CONFIG_DIR": f"{kept}/config",
        "IPYTHONDIR": f"{kept}/ipython",
        "JUPYTER_PATH": f"{home}/.local/share/jupyter",  # its kernels are still found
    }


def arguments(address: str, work: str) -> list[str]:
    host, _, port = address.rpartition(":")
    own = [
        f"--ServerApp.ip={host}",
        f"--ServerApp.port={port}",
        f"--ServerApp.root_dir={work}",
        "--no-browser",
    ]
    return [*own, "--ServerApp.allow_root=True"] if os.geteuid() == 0 else own


# ── while it runs ──


def last_active(jupyter: Jupyter, now: float) -> float:
    """When a person, or something that they started, was last at work; 0: never."""
    times = [
        time for time in (*_kernels(jupyter, now), *_terminals(jupyter), *_files(jupyter)) if time <= now
    ]
    return max(times, default=0.0)


def _kernels(jupyter: Jupyter, now: float) -> Iterator[float]:
    for kernel in jupyter.get("kernels"):
        yield now if kernel.get("execution_state") == "busy" else _moment(kernel["last_activity"])


def _terminals(jupyter: Jupyter) -> Iterator[float]:
    try:
        terminals = jupyter.get("terminals")
    except ValueError:  # this server has none
        return
    for terminal in terminals:
        yield _moment(terminal["last_activity"])


def _files(jupyter: Jupyter) -> Iterator[float]:
    """Who only writes is at work, too: what lies in the folder, and the notebooks that are open anywhere below it."""
    paths = [entry.path for entry in os.scandir(jupyter.root)]
    paths += [os.path.join(jupyter.root, session.get("path") or "") for session in jupyter.get("sessions")]
    for path in paths:
        try:
            yield os.stat(path).st_mtime
        except OSError:
            continue


def _moment(text: str) -> float:
    return datetime.fromisoformat(text.replace("Z", "+00:00")).timestamp()


class Watch:
    """Announces the server once it answers, and tells of activity for as long as it does."""

    def __init__(self, runtime: str, idle_timeout: float):
        self._runtime = runtime
        self._look = min(LOOK, idle_timeout / 20) if idle_timeout else LOOK
        self._last = 0.0
        self.jupyter: Jupyter | None = None

    def look(self) -> float:
        """Look once; seconds until the next time. A server that is starting is at work."""
        now = time.time()
        try:
            if self.jupyter is not None:
                self._last = max(self._last, last_active(self.jupyter, now))
                heartbeat()
            else:
                self._last = now
                self._meet()
        except (OSError, ValueError, KeyError, TypeError, HTTPException):
            pass  # what does not answer now may do so next time; a stallTimeout notices that it never does
        active(self._last)
        return STARTING if self.jupyter is None else self._look

    def _meet(self) -> None:
        jupyter = found(self._runtime)
        if jupyter is not None:
            jupyter.get("status")
            announce(jupyter.shown)
            self.jupyter = jupyter
            print("weft: Jupyter answers; weft show tells its URL", flush=True)


class Order:
    """The order to stop, passed on to the server: in a container nobody else tells it."""

    def __init__(self) -> None:
        self.asked = False
        self._process: subprocess.Popen[bytes] | None = None

    def told(self, number: int, frame: object) -> None:
        self.asked = True
        if self._process is not None:
            self._process.terminate()

    def given_to(self, process: subprocess.Popen[bytes]) -> None:
        self._process = process
        if self.asked:  # before there was anyone to tell
            process.terminate()


def main(argv: list[str]) -> int:
    address, *command = argv
    work, code = os.environ["RESULT_DIR"], os.getcwd()
    kept = hidden(os.environ["CHECKPOINT_DIR"], "notebook")
    bring(code, work, os.path.join(kept, "brought"))
    runtime = os.path.join(os.environ.get("TMPDIR") or kept, "jupyter")
    shutil.rmtree(runtime, ignore_errors=True)
    own = {"JUPYTER_TOKEN_FILE": token_file(kept), "JUPYTER_RUNTIME_DIR": runtime}
    env = {**settings(kept), **os.environ, **own}
    order = Order()
    signal.signal(signal.SIGTERM, order.told)
    try:
        process = subprocess.Popen([*command, *arguments(address, work)], env=env, cwd=work)
    except OSError as problem:
        print(f"weft: cannot start {command[0]}: {problem.strerror}", file=sys.stderr)
        return 127
    order.given_to(process)
    watch = Watch(runtime, float(os.environ.get("WEFT_IDLE_TIMEOUT") or 0))
    ended = select.poll()
    ended.register(os.pidfd_open(process.pid), select.POLLIN)
    while not ended.poll(watch.look() * 1000):
        pass
    ending = process.wait()
    if order.asked:
        return STOPPED
    if ending > 0 and watch.jupyter is None:
        print(
            f"weft: {' '.join(command)} ended before it answered; is Jupyter installed for it? "
            f"({sys.executable} -m pip install jupyterlab)",
            file=sys.stderr,
        )
    return ending if ending >= 0 else 128 - ending


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
