"""A reader's end of the agent's socket. One request at a time; an agent that was started again is found again.

A part is asked for once and then read from the file that came, without the agent. Where the part is not kept on this
node there is no file, and `read` brings the bytes through the agent. Files that came stay good whatever happens to it.
"""

from __future__ import annotations

import json
import os
import random
import socket
import struct
import threading
import time

from weft.runtime.data.errors import BY_CODE, DataError, Unreachable
from weft.runtime.data.index import FILES

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any

PROTOCOL = 1
LENGTH = struct.Struct("<I")
LARGEST_READ = 64 << 20
CHUNK = 1 << 16
INT = struct.calcsize("i")
HEARD_WITHIN, DEAF = 1.0, 30.0
"""Seconds in which an agent that is only to be told something must answer, and in which it then is not tried again."""
FILES_SPACE = socket.CMSG_SPACE(8 * INT)


class Link:
    """May be used by several threads, and after a fork: the child makes a connection of its own."""

    def __init__(self, path: str, token: str, patience: float = 60.0):
        self._path = path
        self._token = token
        self._patience = patience
        self._lock = threading.Lock()
        self._socket: socket.socket | None = None
        self._pid = os.getpid()
        self.job = ""
        self.fresh: dict[str, set[int]] = {}
        """By version, parts that came to this node for who asked here."""
        self._hears = False
        self._deaf_until = 0.0

    @classmethod
    def of_this_job(cls) -> Link | None:
        """As the environment says; None where there is no agent."""
        path = os.environ.get("WEFT_DATA_SOCKET")
        if not path:
            return None
        file = os.environ.get("WEFT_DATA_TOKEN_FILE")
        if file:
            with open(file) as opened:
                return cls(path, opened.read().strip())
        return cls(path, os.environ.get("WEFT_DATA_TOKEN", ""))

    def open(self, version: str) -> tuple[str, dict[str, int]]:
        """The version's folder, and its files by name, open to be read; the caller closes them."""
        header, _, files = self._ask({"do": "open", "version": version})
        return header["folder"], dict(zip(FILES, files, strict=True))

    def part(self, version: str, part: int, wait: bool = True) -> int | None:
        """An open file with the part, which the caller closes; None: it is not kept on this node, `read` it."""
        header, _, files = self._ask({"do": "part", "version": version, "part": part, "wait": wait})
        if header.get("came"):
            self.fresh.setdefault(version, set()).add(part)
        return files[0] if header["have"] else None

    def read(self, version: str, part: int, offset: int, length: int, sample: int | None = None) -> bytes:
        """Bytes of a part; with the number of the sample that they are, the agent proves them."""
        if length <= LARGEST_READ:
            return self._read(version, part, offset, length, {} if sample is None else {"sample": sample})
        ends = range(offset, offset + length, LARGEST_READ)
        return b"".join(
            self._read(version, part, at, min(LARGEST_READ, offset + length - at), {}) for at in ends
        )

    def _read(self, version: str, part: int, offset: int, length: int, more: dict[str, int]) -> bytes:
        request = {"do": "read", "version": version, "part": part, "offset": offset, "length": length, **more}
        return self._ask(request)[1]

    def ahead(self, version: str, parts: Iterable[int]) -> None:
        """These will be wanted, in this order."""
        self._ask({"do": "ahead", "version": version, "parts": list(parts)})

    def tree(self, version: str) -> str:
        """A folder with all samples as files; the first to ask waits until it is made."""
        folder: str = self._ask({"do": "tree", "version": version})[0]["folder"]
        return folder

    def has_tree(self, version: str) -> bool:
        """Whether that folder is made already."""
        return self._ask({"do": "tree", "version": version, "make": False})[0]["folder"] is not None

    def counts(self) -> dict[str, float]:
        header = self._ask({"do": "counts"})[0]
        return {name: value for name, value in header.items() if name != "ok"}

    def tell(self, request: dict[str, Any]) -> bool:
        """Say something that nobody answers, if it can be said at once; whether it was. Who reads from open files must not wait
        for an agent that does not answer."""
        self._mine()
        if not self._lock.acquire(blocking=False):
            return False
        try:
            if self._socket is None:
                if time.monotonic() < self._deaf_until:
                    return False
                self._connect(HEARD_WITHIN)
            if not self._hears:
                return True  # an older one, which counts by itself
            assert self._socket is not None
            frame = _frame({**request, "quiet": True})
            if self._socket.send(frame, socket.MSG_DONTWAIT) < len(frame):
                raise EOFError("it took a part of it")
        except BlockingIOError:
            return False
        except (OSError, EOFError, DataError):
            self._drop()
            self._deaf_until = time.monotonic() + DEAF
            return False
        finally:
            self._lock.release()
        return True

    def another(self) -> Link:
        """A connection of its own."""
        return Link(self._path, self._token, self._patience)

    def close(self) -> None:
        with self._lock:
            self._drop()

    # ── asking ──

    def _ask(self, request: dict[str, Any]) -> tuple[dict[str, Any], bytes, list[int]]:
        """Every request may be sent again, so one whose answer was lost is."""
        self._mine()
        with self._lock:
            until = time.monotonic() + self._patience
            delay = 0.01
            while True:
                try:
                    if self._socket is None:
                        self._connect()
                    return self._exchange(request)
                except (OSError, EOFError) as problem:
                    self._drop()
                    if time.monotonic() + delay > until:
                        raise Unreachable(
                            f"the data agent of this node did not answer at {self._path} for {self._patience:g} s "
                            f"({problem}); `weft nodes` says how the node is",
                        ) from None
                except DataError:
                    raise  # an answer, too
                except BaseException:
                    self._drop()  # half an answer may be left in it
                    raise
                time.sleep(delay * (0.5 + random.random() / 2))  # noqa: S311
                delay = min(2 * delay, 1.0)

    def _mine(self) -> None:
        if self._pid != os.getpid():
            self._lock, self._socket, self._pid = threading.Lock(), None, os.getpid()

    def _connect(self, within: float | None = None) -> None:
        made = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
        made.settimeout(within)
        try:
            made.connect(self._path)
            self._socket = made
            header, _, _ = self._exchange({"do": "hello", "protocol": PROTOCOL, "token": self._token})
            self.job, self._hears = header["job"], header.get("hears", False)
            made.settimeout(None)
        except BaseException:
            self._socket = None
            made.close()
            raise

    def _exchange(self, request: dict[str, Any]) -> tuple[dict[str, Any], bytes, list[int]]:
        assert self._socket is not None
        self._socket.sendall(_frame(request))
        files: list[int] = []
        try:
            pending = self._receive(b"", LENGTH.size, files)
            end = LENGTH.size + LENGTH.unpack_from(pending)[0]
            pending = self._receive(pending, end, files)
            header = json.loads(pending[LENGTH.size : end])
            body = self._receive(pending[end:], header.get("body", 0), files)
        except BaseException:
            for fd in files:
                os.close(fd)
            raise
        if not header["ok"]:
            raise BY_CODE[header["code"]](header["message"])
        return header, body, files

    def _receive(self, begun: bytes, size: int, files: list[int]) -> bytes:
        assert self._socket is not None
        if len(begun) >= size:
            return begun
        data = bytearray(begun)
        while len(data) < size:
            wanted = max(CHUNK, min(size - len(data), 1 << 20))
            got, beside, _, _ = self._socket.recvmsg(wanted, FILES_SPACE, socket.MSG_CMSG_CLOEXEC)
            for level, kind, numbers in beside:  # socket.recv_fds drops its flags
                if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
                    files += struct.unpack(f"{len(numbers) // INT}i", numbers[: len(numbers) // INT * INT])
            if not got:
                raise EOFError("it ended the connection")
            data += got
        return bytes(data)

    def _drop(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None


def _frame(request: dict[str, Any]) -> bytes:
    text = json.dumps(request, separators=(",", ":")).encode()
    return LENGTH.pack(len(text)) + text
