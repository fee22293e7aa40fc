"""A small parameter server for numpy: asynchronous SGD between the tasks of one job.

The `ps` task calls `serve(initial)`; workers use `Client`: `pull()` gives the parameters and their version,
`push(gradients, lr)` applies `parameter -= lr * gradient` and gives the new version. Nobody waits for
anybody: a worker computes on parameters that others may have moved on from.

A message is a big-endian u32, a JSON header of that many bytes, and the arrays that the header lists, as raw
little-endian float32. Nothing is unpickled. The first message carries a token derived from the job's uid:
it keeps a worker of another job on the same machine from pushing here by mistake (it is no defence
against a person with access to the job).

The server keeps parameters, version and the last push of each worker in one file in CHECKPOINT_DIR, replaced
whole, so a restarted server goes on from there; updates since the last checkpoint are lost, as if they had
been slow. A push that is sent again because the answer was lost is applied once.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import itertools
import json
import math
import os
import random
import secrets
import signal
import socket
import struct
import sys
import threading
import time
from collections.abc import Mapping
from types import FrameType
from typing import TYPE_CHECKING, Any

from weft.runtime.hosts import hosts as hosts_of_the_job

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import ArrayLike, NDArray

    Arrays = dict[str, NDArray[np.float32]]

MAX_HEADER = 1 << 20
MAX_PAYLOAD = 1 << 33
HELLO_SECONDS = 10.0
ANSWER_SECONDS = 120.0


class ParametersError(Exception):
    """The server cannot be reached, or refuses what it was asked for; asking again would not help."""


class Refused(Exception):
    """What the server answers instead of doing what it was asked."""


# ── the job around us ────────────────────────────────────────────────────────────────────────────


def hosts() -> dict[str, list[str]]:
    """The addresses of all tasks by role."""
    try:
        return hosts_of_the_job()
    except KeyError:
        raise ParametersError("WEFT_HOSTS is not set: run this in a job, or give an address") from None


def job_token() -> str:
    uid = os.environ.get("WEFT_JOB_UID", "")
    return hashlib.sha256(f"weft parameters {uid}".encode()).hexdigest()


def _split(address: str) -> tuple[str, int]:
    host, _, port = address.rpartition(":")
    return host.strip("[]"), int(port)


# ── messages ─────────────────────────────────────────────────────────────────────────────────────


def _float32(arrays: Mapping[str, ArrayLike]) -> Arrays:
    import numpy as np

    return {name: np.asarray(value, dtype="<f4", order="C") for name, value in arrays.items()}


def _send(sock: socket.socket, header: dict[str, Any], arrays: Arrays | None = None) -> None:
    shapes = [[name, list(array.shape)] for name, array in (arrays or {}).items()]
    head = json.dumps({**header, "arrays": shapes}).encode()
    if len(head) > MAX_HEADER:
        raise ParametersError(f"{len(shapes)} arrays are too many for one message")
    sock.sendall(struct.pack(">I", len(head)) + head)
    for array in (arrays or {}).values():
        if array.size:
            sock.sendall(array.reshape(-1).data.cast("B"))


def _receive(sock: socket.socket, limit: int, most: int = MAX_HEADER) -> tuple[dict[str, Any], Arrays]:
    """One message with at most `limit` bytes of arrays; `Refused` if it is none."""
    import numpy as np

    size = struct.unpack(">I", _exactly(sock, 4))[0]
    if size > most:
        raise Refused(f"a header of {size} bytes, at most {most}")
    try:
        header = json.loads(_exactly(sock, size))
        shapes = [(str(name), tuple(int(n) for n in shape)) for name, shape in header.pop("arrays")]
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        raise Refused("not a message of weft.runtime.parameters") from None
    total = sum(4 * math.prod(shape) for _, shape in shapes)
    if any(not 0 <= n <= MAX_PAYLOAD for _, shape in shapes for n in shape) or total > limit:
        raise Refused(f"arrays of {total} bytes, at most {limit}")
    arrays: Arrays = {}
    for name, shape in shapes:
        flat = np.empty(math.prod(shape), dtype="<f4")
        if flat.size:
            _fill(sock, flat.data.cast("B"))
        arrays[name] = flat.reshape(shape)
    return header, arrays


def _exactly(sock: socket.socket, size: int) -> bytes:
    data = bytearray(size)
    _fill(sock, memoryview(data))
    return bytes(data)


def _fill(sock: socket.socket, view: memoryview) -> None:
    while view:
        read = sock.recv_into(view)
        if not read:
            raise ConnectionResetError("the connection was closed")
        view = view[read:]


# ── the server ───────────────────────────────────────────────────────────────────────────────────


class State:
    """Parameters and their version. Arrays are never changed in place: a reader needs no copy."""

    def __init__(self, initial: Mapping[str, ArrayLike], path: str | None, every: int):
        self.arrays: Arrays = {name: array.copy() for name, array in _float32(initial).items()}
        self.version = 0
        self.pushes: dict[str, list[Any]] = {}  # worker: [its process, its last push]
        self.done: set[str] = set()
        self.path = path
        self.every = every
        self.bytes = sum(array.nbytes for array in self.arrays.values())
        self._launch = os.environ.get("WEFT_LAUNCH", "")
        self._saved = 0
        self._lock = threading.Lock()
        self._saving = threading.Lock()
        if path and os.path.exists(path):
            self._load(path)

    def snapshot(self) -> tuple[Arrays, int]:
        with self._lock:
            return self.arrays, self.version

    def apply(self, worker: str, process: str, number: int, lr: float, gradients: Arrays) -> int:
        """Take one step; the version after it. A push that was applied before changes nothing."""
        import numpy as np

        if not math.isfinite(lr):
            raise Refused(f"the learning rate is {lr}")
        for name, gradient in gradients.items():
            if name not in self.arrays or self.arrays[name].shape != gradient.shape:
                known = self.arrays[name].shape if name in self.arrays else "unknown"
                raise Refused(f"gradient {name!r} has shape {gradient.shape}, the parameter is {known}")
            if not np.isfinite(gradient).all():
                raise Refused(f"gradient {name!r} has values that are not finite (version {self.version})")
        with self._lock:
            if self.pushes.get(worker) == [process, number]:
                return self.version
            moved = {name: self.arrays[name] - np.float32(lr) * gradients[name] for name in gradients}
            self.arrays = {**self.arrays, **moved}
            self.version += 1
            self.pushes[worker] = [process, number]
            version = self.version
        if version - self._saved >= self.every and not self._saving.locked():
            self.save()
        return version

    def mark(self, worker: str, done: bool) -> None:
        with self._lock:
            (self.done.add if done else self.done.discard)(worker)

    def save(self) -> None:
        """Write a checkpoint: the old one stays until the new one is on the disk. A full disk only warns."""
        import numpy as np

        if self.path is None:
            return
        with self._saving:
            with self._lock:
                arrays, version = self.arrays, self.version
                done, pushes = sorted(self.done), dict(self.pushes)
            meta = {"version": version, "pushes": pushes, "done": done, "launch": self._launch}
            packed: dict[str, Any] = {f"p.{name}": array for name, array in arrays.items()}
            packed["weft"] = np.frombuffer(json.dumps(meta).encode(), dtype=np.uint8)
            self._saved = version
            try:
                os.makedirs(os.path.dirname(self.path) or ".", exist_ok=True)
                with open(f"{self.path}.new", "wb") as file:
                    np.savez(file, **packed)
                    file.flush()
                    os.fsync(file.fileno())
                os.replace(f"{self.path}.new", self.path)
            except OSError as problem:
                print(f"weft: no checkpoint of version {version}: {problem}", file=sys.stderr, flush=True)

    def _load(self, path: str) -> None:
        import numpy as np

        try:
            with open(path, "rb") as raw, np.load(raw, allow_pickle=False) as file:
                meta = json.loads(file["weft"].tobytes())
                arrays = _float32({name[2:]: file[name] for name in file.files if name.startswith("p.")})
        except Exception as problem:
            raise ParametersError(f"{path} cannot be read ({problem}); remove it to begin anew") from None
        if {n: a.shape for n, a in arrays.items()} != {n: a.shape for n, a in self.arrays.items()}:
            raise ParametersError(f"{path} is of another model; remove it to begin anew")
        self.arrays, self.version, self.pushes = arrays, meta["version"], meta["pushes"]
        self._saved = self.version
        if meta["launch"] == self._launch:  # a server that is started again in a running job
            self.done = set(meta["done"])


class Server:
    """Answers workers, each connection in a thread of its own, until all are done or it is `stopping`."""

    def __init__(self, state: State, address: tuple[str, int], workers: int, token: str):
        self.state = state
        self._workers = workers
        self._token = token
        self._over = threading.Event()
        self.stopping = False  # for a signal handler, which must not touch an Event
        family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
        self._socket = socket.create_server(address, family=family, backlog=1024)
        self.address = "{}:{}".format(*self._socket.getsockname()[:2])
        threading.Thread(target=self._accept, daemon=True, name="weft-parameters").start()
        self._check_done()

    def wait(self) -> None:
        """Until it is over; then the last checkpoint is written."""
        while not (self.stopping or self._over.wait(timeout=0.2)):
            pass
        self._over.set()
        self._socket.shutdown(socket.SHUT_RDWR)  # wakes `accept`
        self._socket.close()
        self.state.save()

    def _accept(self) -> None:
        while not self._over.is_set():
            try:
                sock, _ = self._socket.accept()
                threading.Thread(target=self._converse, args=(sock,), daemon=True).start()
            except (OSError, RuntimeError):  # no file or thread left for one more; the client tries again
                self._over.wait(0.1)

    def _converse(self, sock: socket.socket) -> None:
        with sock:
            try:
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
                sock.settimeout(HELLO_SECONDS)
                hello, _ = _receive(sock, 0, most=4096)
                if not hmac.compare_digest(str(hello.get("token")).encode(), self._token.encode()):
                    raise Refused("the token is of another job")
                worker, process = str(hello["worker"]), str(hello["process"])
                self.state.mark(worker, done=False)  # it may have been done, and started again
                _send(sock, {"ok": True})
                sock.settimeout(None)
                while True:
                    header, arrays = _receive(sock, self.state.bytes)
                    self._answer(sock, worker, process, header, arrays)
            except Refused as problem:
                _refuse(sock, str(problem))
            except (OSError, KeyError, ValueError, TypeError):
                pass  # the worker went away, and will come again if it needs to

    def _answer(
        self, sock: socket.socket, worker: str, process: str, header: dict[str, Any], arrays: Arrays
    ) -> None:
        ask = header.get("ask")
        if ask == "pull":
            current, version = self.state.snapshot()
            _send(sock, {"version": version}, current)
        elif ask == "push":
            version = self.state.apply(worker, process, int(header["number"]), float(header["lr"]), arrays)
            _send(sock, {"version": version})
        elif ask == "done":
            self.state.mark(worker, done=True)
            self.state.save()
            _send(sock, {"version": self.state.version})
            self._check_done()
        else:
            raise Refused(f"unknown request {ask!r}")

    def _check_done(self) -> None:
        if len(self.state.done) >= self._workers:
            self._over.set()


def _refuse(sock: socket.socket, why: str) -> None:
    with contextlib.suppress(OSError):
        _send(sock, {"error": why})
        sock.shutdown(socket.SHUT_WR)
        sock.settimeout(HELLO_SECONDS)
        while sock.recv(1 << 16):  # an unread rest would reset the connection and take the answer with it
            pass


def serve(
    initial: Mapping[str, ArrayLike],
    *,
    address: str | None = None,
    workers: int | None = None,
    checkpoint: str | None = None,
    every: int = 500,
) -> tuple[Arrays, int]:
    """Run the server in this task until all workers are done or SIGTERM comes; what `pull()` would give.

    What is left out comes from the job: the task's own address, the number of tasks in other roles, and a
    file in CHECKPOINT_DIR, written every `every` updates. A checkpoint found there takes the place of
    `initial`, which must have the same shapes.
    """
    role, index = os.environ.get("WEFT_ROLE", "ps"), int(os.environ.get("WEFT_INDEX", "0"))
    if address is None:
        address = hosts()[role][index]
    if workers is None:
        workers = sum(len(tasks) for other, tasks in hosts().items() if other != role)
    if checkpoint is None and os.environ.get("CHECKPOINT_DIR"):
        checkpoint = os.path.join(os.environ["CHECKPOINT_DIR"], f"{role}-{index}.npz")
    host, port = _split(address)
    bind = host if host in ("127.0.0.1", "localhost", "::1") else ""
    server = Server(State(initial, checkpoint, every), (bind, port), workers, job_token())

    def stop(_signal: int, _frame: FrameType | None) -> None:
        server.stopping = True

    in_main = threading.current_thread() is threading.main_thread()
    before = signal.signal(signal.SIGTERM, stop) if in_main else None
    try:
        server.wait()
    finally:
        if in_main:
            signal.signal(signal.SIGTERM, before)
    return server.state.snapshot()


# ── the client ───────────────────────────────────────────────────────────────────────────────────


class Client:
    """A worker's end: connects when it is first used, and again whenever the connection is lost.

    Calls wait up to `patience` seconds for a server that is not there (yet, or again). As a context
    manager it tells the server at the end that this worker is done, unless an exception ended it.
    """

    def __init__(self, address: str | None = None, *, patience: float = 300.0):
        self.address = address or hosts()["ps"][0]
        self.patience = patience
        self._hello = {
            "token": job_token(),
            "worker": os.environ.get("WEFT_TASK", "worker-0"),
            "process": secrets.token_hex(8),
        }
        self._socket: socket.socket | None = None
        self._numbers = itertools.count(1)
        self._lock = threading.Lock()

    def pull(self) -> tuple[Arrays, int]:
        """The parameters and their version."""
        header, arrays = self._ask({"ask": "pull"})
        return arrays, int(header["version"])

    def push(self, gradients: Mapping[str, ArrayLike], lr: float) -> int:
        """Move the parameters against the gradients; the version after that."""
        ask = {"ask": "push", "number": next(self._numbers), "lr": float(lr)}
        return int(self._ask(ask, _float32(gradients))[0]["version"])

    def done(self) -> None:
        """This worker needs the server no longer. A server that has gone has heard it from the others."""
        with contextlib.suppress(ParametersError):
            self._ask({"ask": "done"}, patience=min(self.patience, 5.0))
        self.close()

    def close(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def __enter__(self) -> Client:
        return self

    def __exit__(self, failure: type[BaseException] | None, *_: object) -> None:
        if failure is None:
            self.done()
        self.close()

    def _ask(
        self, header: dict[str, Any], arrays: Arrays | None = None, patience: float | None = None
    ) -> tuple[dict[str, Any], Arrays]:
        patience = self.patience if patience is None else patience
        began, pause = time.monotonic(), 0.05
        with self._lock:
            while True:
                try:
                    if self._socket is None:
                        self._socket = self._connect()
                    _send(self._socket, header, arrays)
                    return self._heard(self._socket)
                except (OSError, Refused) as problem:
                    self.close()
                    waited = time.monotonic() - began
                    if waited + pause > patience:
                        text = f"no parameter server at {self.address} for {waited:.0f} s: {problem}"
                        raise ParametersError(text) from None
                except BaseException:
                    self.close()  # an answer may be on its way that the next request must not get
                    raise
                time.sleep(pause * random.uniform(0.5, 1.0))  # noqa: S311
                pause = min(pause * 2, 1.0)

    def _connect(self) -> socket.socket:
        sock = socket.create_connection(_split(self.address), timeout=HELLO_SECONDS)
        try:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            sock.settimeout(ANSWER_SECONDS)
            _send(sock, self._hello)
            self._heard(sock)
        except BaseException:
            sock.close()
            raise
        return sock

    def _heard(self, sock: socket.socket) -> tuple[dict[str, Any], Arrays]:
        header, arrays = _receive(sock, MAX_PAYLOAD)
        if "error" in header:
            raise ParametersError(f"the parameter server at {self.address} refused: {header['error']}")
        return header, arrays
