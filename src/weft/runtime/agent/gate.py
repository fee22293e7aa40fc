"""The gate: a task's container waits for a file, which is made when everything that the task needs is there."""

from __future__ import annotations

import os
import threading
import time

from weft.runtime.agent.settings import FOLDERS
from weft.runtime.regularfile import open_to_append

TYPE_CHECKING = False
if TYPE_CHECKING:
    from weft.runtime.agent.settings import Settings

PACKAGE = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
OFFERED = ("__init__.py", "version.py", "checkpoint.py", "ps.py", "data/__init__.py", "client", "runtime")
"""The parts of this package that `weft.__all__` is made of."""
OURS = {"__pycache__", "agent"}
OFTEN, SELDOM = 0.1, 0.5
PATIENCE = 10.0
"""So long names are asked for often, in seconds."""


class Gate:
    """What has to happen before the task may begin. A gate that was once open stays open."""

    def __init__(self, settings: Settings):
        self._settings = settings
        self._awaited = list(settings.awaited)
        self._pushes: list[str] = []
        self._arrived = threading.Event()
        self.lock = threading.Lock()
        """It does not open while somebody replaces a folder."""
        self.problem: str | None = None
        """Why it will never open."""
        self.open = False

    def prepare(self) -> None:
        """All that waits for nobody, in the main thread and with few imports: every task's start waits for it."""
        settings = self._settings
        self.open = os.path.exists(settings.task("go"))
        if self.open:
            return
        for folder in FOLDERS:
            os.makedirs(settings.folder(folder), exist_ok=True)
        os.close(open_to_append(settings.task("output")))
        for name in OFFERED:
            _copy(os.path.join(PACKAGE, name), settings.folder(f"lib/weft/{name}"))
        self._pushes = [name for name in settings.pushes if not self.pushed(name)]
        if not self.pushed("code"):
            self._unpack()
        if not self._awaited and not self._pushes:
            self._let_in()

    def _unpack(self) -> None:
        try:
            archive = open(self._settings.archive, "rb")  # noqa: SIM115 (kubelet's files are links)
        except FileNotFoundError:
            return
        from weft.runtime.agent.unpack import BadArchive, unpack

        with archive:
            try:
                unpack(archive, self._settings.folder("code"), self._settings.folder("incoming-code"))
            except BadArchive as problem:
                self.problem = f"the code cannot be unpacked: {problem}"

    def _let_in(self) -> None:
        with self.lock:
            if self.problem is None:
                os.close(open_to_append(self._settings.task("go")))
                self.open = True

    # ── waiting ──

    def wait(self) -> None:
        """For names that are not known yet, and for folders that somebody has to send. In a thread of its own."""
        began = time.monotonic()
        while not self.open:
            self._arrived.clear()
            self._awaited = [host for host in self._awaited if not _known(host)]
            self._pushes = [name for name in self._pushes if not self.pushed(name)]
            if not self._awaited and not self._pushes:
                self._let_in()
            if not self.open:
                self._arrived.wait(OFTEN if time.monotonic() - began < PATIENCE else SELDOM)

    def why(self) -> str | None:
        """What it waits for, for people."""
        if self.problem is not None:
            return self.problem
        if self._pushes:
            return f"waiting to be sent: {', '.join(self._pushes)}"
        if self._awaited:
            more = f" and {len(self._awaited) - 1} more" if len(self._awaited) > 1 else ""
            return f"waiting for the address of {self._awaited[0]}{more}"
        return None

    # ── folders that are sent ──

    def pushed(self, name: str) -> bool:
        return os.path.exists(self._settings.task(f"pushed-{name}"))

    def note_push(self, name: str) -> None:
        os.close(open_to_append(self._settings.task(f"pushed-{name}")))
        if name == "code":
            self.problem = None
        self._arrived.set()


def _copy(source: str, target: str) -> None:
    """For interpreters in which Weft is not installed. They make their own bytecode."""
    if os.path.isdir(source):
        os.makedirs(target, exist_ok=True)
        for name in os.listdir(source):
            if name not in OURS:
                _copy(f"{source}/{name}", f"{target}/{name}")
        return
    with open(source, "rb") as file:
        data = file.read()
    with open(target, "wb") as file:
        file.write(data)


def _known(host: str) -> bool:
    import socket

    try:
        return bool(socket.getaddrinfo(host, None))
    except (OSError, UnicodeError):
        return False
