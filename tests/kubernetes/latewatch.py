"""Between a server and the API server: what watches tell of pods can be held back, as an API server with much to do holds it."""

from __future__ import annotations

import base64
import json
import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

PIECE = 1 << 16


class LateWatches:
    """Speaks plain HTTP on loopback, and lets one request pass on each connection."""

    def __init__(self, kubeconfig: str) -> None:
        said: dict[str, Any] = json.loads(Path(kubeconfig).read_text())
        cluster = said["clusters"][0]["cluster"]
        self._target = urlsplit(cluster["server"])
        authority = base64.b64decode(cluster["certificate-authority-data"]).decode()
        self._tls = ssl.create_default_context(cadata=authority)
        self._door = socket.create_server(("127.0.0.1", 0))
        cluster["server"] = f"http://127.0.0.1:{self._door.getsockname()[1]}"
        del cluster["certificate-authority-data"]
        self.kubeconfig = json.dumps(said)
        self._free = threading.Event()
        self._free.set()
        threading.Thread(target=self._listen, daemon=True).start()

    @contextmanager
    def held(self) -> Iterator[None]:
        self._free.clear()
        try:
            yield
        finally:
            self._free.set()

    def close(self) -> None:
        self._free.set()
        self._door.close()

    def _listen(self) -> None:
        while True:
            try:
                caller, _ = self._door.accept()
            except OSError:
                return
            threading.Thread(target=self._pass_on, args=(caller,), daemon=True).start()

    def _pass_on(self, caller: socket.socket) -> None:
        with suppress(OSError), caller:
            asked = b""
            while b"\r\n\r\n" not in asked:
                if not (data := caller.recv(PIECE)):
                    return
                asked += data
            first, rest = asked.split(b"\r\n", 1)
            there = socket.create_connection((self._target.hostname or "", self._target.port or 443))
            with self._tls.wrap_socket(there, server_hostname=self._target.hostname) as server:
                server.sendall(first + b"\r\nConnection: close\r\n" + rest)
                threading.Thread(target=self._pump, args=(caller, server), daemon=True).start()
                self._pump(server, caller, late=b"/pods?" in first and b"watch=true" in first)

    def _pump(self, source: socket.socket, target: socket.socket, late: bool = False) -> None:
        with suppress(OSError):  # one of the two has had enough
            while data := source.recv(PIECE):
                if late:
                    self._free.wait()
                target.sendall(data)
            target.shutdown(socket.SHUT_RDWR)
