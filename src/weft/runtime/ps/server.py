"""One parameter server: a thread for every worker's connection, one shard, a snapshot now and then."""

from __future__ import annotations

import contextlib
import math
import os
import secrets
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Mapping
from types import FrameType
from typing import TYPE_CHECKING, Any

from weft.runtime.ps import snapshot
from weft.runtime.ps.arrays import bytes_of, float32, halved
from weft.runtime.ps.errors import BadMessage, ParameterServerError
from weft.runtime.ps.framing import MAX_STRANGER, Kind, Message, fill, prepare, receive, send
from weft.runtime.ps.gradients import Part, chosen_rows, contents_of, decode
from weft.runtime.ps.job import hosts, job_token, proof, same, split_address
from weft.runtime.ps.layout import Layout, layout_of
from weft.runtime.ps.optimizers import SGD, NotFinite, Optimizer, finite
from weft.runtime.ps.state import Closed, Point, Push, State, shard_values

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

HELLO_SECONDS = 10.0
STALLED_SECONDS = 60.0
"""How long a worker may stop in the middle of a message. Between messages it may take all the time it wants."""


class Server:
    """Answers until all workers are done or it is `stopping`."""

    def __init__(
        self,
        state: State,
        layout: Layout,
        address: tuple[str, int],
        *,
        workers: Callable[[], int],
        token: str,
        path: str | None = None,
        every: int = 500,
    ):
        self.state = state
        self.stopping = False  # for a signal handler, which must not touch an Event
        self._layout = layout
        self._workers = workers
        self._token = token
        self._path = path
        self._every = every
        self._facts = {"digest": layout.digest, "server": state.shard.index}
        self._restore()
        self._saved = state.point.version
        self._save_wanted = threading.Event()
        self._over = threading.Event()
        self._open: set[socket.socket] = set()
        self._here: dict[int, str] = {}  # the worker on each connection
        family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
        self._socket = socket.create_server(address, family=family, backlog=1024)
        self.address = "{}:{}".format(*self._socket.getsockname()[:2])
        threading.Thread(target=self._accept, daemon=True, name="weft-ps").start()
        if path is not None:
            threading.Thread(target=self._save_when_wanted, daemon=True, name="weft-ps-snapshots").start()
        self.check_done()

    def wait(self) -> None:
        """Until it is over. Then the last snapshot is written; a push that came too late for it is not answered."""
        while not (self.stopping or self._over.wait(timeout=0.2)):
            pass
        self._over.set()
        self._save_wanted.set()
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)  # wakes `accept`
        self._socket.close()
        self._save(last=True)
        for sock in list(self._open):  # nobody shall go on with a server that will not take a push any more
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)

    # ── snapshots ──

    def _restore(self) -> None:
        if self._path is None:
            return
        found = snapshot.read(self._path, self.state.shard.size, self._facts)
        if found is None:
            return
        kept, meta = found
        self.state.restore(kept)
        if meta.get("launch") != os.environ.get("WEFT_LAUNCH", ""):  # the whole job was started again
            self.state.done.clear()

    def _save_when_wanted(self) -> None:
        while not self._over.is_set():
            self._save_wanted.wait()
            self._save_wanted.clear()
            began = time.monotonic()
            if not self._over.is_set():
                self._save()
            self._over.wait(time.monotonic() - began)  # a slow disk gets half of the time at most

    def _save(self, last: bool = False) -> None:
        kept = self.state.kept(close=last)
        self._saved = kept.point.version
        if self._path is None:
            return
        try:
            launch = os.environ.get("WEFT_LAUNCH", "")
            snapshot.write(self._path, kept, {**self._facts, "launch": launch})
        except OSError as problem:
            said = f"weft: no snapshot of version {kept.point.version}: {problem}"
            print(said, file=sys.stderr, flush=True)

    # ── connections ──

    def _accept(self) -> None:
        while not self._over.is_set():
            try:
                sock, _ = self._socket.accept()
                threading.Thread(target=self._converse, args=(sock,), daemon=True).start()
            except (OSError, RuntimeError):  # no file or thread left for one more; the client tries again
                self._over.wait(0.1)

    def _converse(self, sock: socket.socket) -> None:
        with sock:
            self._open.add(sock)
            try:
                Conversation(self, sock).run()
            except BadMessage as problem:
                _refuse(sock, str(problem))
            except (OSError, Closed):
                pass  # the worker went away, and will come again if it needs to
            finally:
                self._open.discard(sock)

    def join(self, connection: int, worker: str) -> None:
        self._here[connection] = worker
        self.state.mark(worker, done=False)  # it may have been done, and started again

    def leave(self, connection: int) -> None:
        if self._here.pop(connection, None) is not None:
            self.check_done()

    def finish(self, connection: int, worker: str) -> None:
        self._here.pop(connection, None)
        self.state.mark(worker, done=True)
        self._save_wanted.set()

    def pushed(self) -> None:
        if self._path is not None and self.state.point.version - self._saved >= self._every:
            self._save_wanted.set()

    def check_done(self) -> None:
        """Over when as many are done as there are (in an elastic job: now), and nobody is here who is not."""
        if len(self.state.done) >= self._workers() and not set(self._here.values()) - self.state.done:
            self._over.set()

    def check(self, hello: dict[str, Any], nonce: str) -> None:
        if not same(proof(self._token, "worker", nonce), hello.get("proof")):
            raise BadMessage("the token is of another job")

    def welcome(self, hello: dict[str, Any]) -> dict[str, Any]:
        """All that a worker needs to compute the layout, and that this is the server it looks for."""
        state, layout = self.state, self._layout
        return {
            "proof": proof(self._token, "server", str(hello.get("nonce"))),
            "parameters": [[p.name, list(p.shape)] for p in layout.parameters],
            "server": state.shard.index,
            "servers": len(layout.shards),
            "lr": state.optimizer.lr,
            "additive": state.optimizer.additive,
            "point": state.point,
        }


class Conversation:
    """One worker on one connection."""

    def __init__(self, server: Server, sock: socket.socket):
        self._server = server
        self._state = server.state
        self._sock = sock
        self._worker = ""
        self._session = ""
        self._memory: NDArray[np.uint8] | None = None

    def run(self) -> None:
        prepare(self._sock, HELLO_SECONDS)
        self._greet()
        prepare(self._sock, STALLED_SECONDS)
        self._server.join(id(self), self._worker)
        try:
            while True:
                self._await()
                self._answer(receive(self._sock))
        finally:
            self._server.leave(id(self))

    def _await(self) -> None:
        """Until a message begins, however long that takes."""
        while True:
            try:
                if not self._sock.recv(1, socket.MSG_PEEK):
                    raise ConnectionResetError("the worker has gone")
                return
            except BlockingIOError:
                continue

    def _greet(self) -> None:
        nonce = secrets.token_hex(16)
        send(self._sock, Kind.CHALLENGE, 0, {"nonce": nonce})
        hello = receive(self._sock, most=MAX_STRANGER)
        if hello.kind is not Kind.HELLO or hello.payload:
            raise BadMessage(f"{hello.kind.name} instead of HELLO")
        self._server.check(hello.header, nonce)
        self._worker, self._session = str(hello.header.get("worker")), str(hello.header.get("session"))
        send(self._sock, Kind.WELCOME, hello.request, self._server.welcome(hello.header))

    def _answer(self, message: Message) -> None:
        match message.kind:
            case Kind.PULL:
                self._pull(message)
            case Kind.PUSH:
                self._push(message)
            case Kind.DONE if not message.payload:
                self._server.finish(id(self), self._worker)
                send(self._sock, Kind.HEARD, message.request, {})
                self._server.check_done()
            case _:
                raise BadMessage(f"unexpected {message.kind.name}")

    # ── pull ──

    def _pull(self, message: Message) -> None:
        half = message.header.get("half") is True
        chosen = self._chosen(message)
        with self._state.reading() as (values, point):
            arrays = [values] if chosen is None else chosen(values)
            scale = 1.0
            views = [bytes_of(array) for array in arrays]
            if half:
                halves, scale = halved(arrays)
                views = [bytes_of(array) for array in halves]
            send(self._sock, Kind.PARAMETERS, message.request, {"point": point, "scale": scale}, views)

    def _chosen(self, message: Message) -> Callable[[Any], list[Any]] | None:
        """How to take the rows that were asked for; None if all were."""
        if message.header.get("parts") is None:
            if message.payload:
                raise BadMessage("a payload that nothing is said of")
            return None
        shard = self._state.shard
        # A pull lists rows as a push does, and carries no values.
        contents = contents_of(shard, {"parts": message.header["parts"], "half": False, "scale": 1.0})
        if message.payload != contents.listed:
            raise BadMessage(f"{message.payload} bytes of row numbers instead of {contents.listed}")
        listed = chosen_rows(shard, contents, self._take(contents.listed).copy())

        def take(values: Any) -> list[Any]:
            taken = []
            for number, rows in listed:
                piece = shard.pieces[number]
                table = values[piece.start : piece.end].reshape(piece.rows, -1)
                taken.append(table if rows is None else table[rows])
            return taken

        return take

    # ── push ──

    def _push(self, message: Message) -> None:
        header = message.header
        contents = contents_of(self._state.shard, header)
        if message.payload != contents.size:
            raise BadMessage(f"a push of {message.payload} bytes instead of {contents.size}")
        number, count, lr = header.get("number"), header.get("count"), header.get("lr")
        if not (isinstance(number, int) and isinstance(count, int) and number > 0 and 0 < count < 1 << 31):
            raise BadMessage("a push without its number")
        if lr is not None and not (isinstance(lr, int | float) and math.isfinite(lr)):
            raise BadMessage("a push with no learning rate")
        parts, values = decode(self._state.shard, contents, self._take(contents.size))
        push = Push(self._session, number, _point(header.get("point")), count, lr, parts, values)
        try:
            verdict = self._state.take(push)
        except NotFinite:
            send(self._sock, Kind.REFUSED, message.request, {"error": self._not_finite(parts)})
            return
        kind = Kind.TAKEN if verdict.taken else Kind.STALE
        send(self._sock, kind, message.request, {"point": verdict.at})
        self._server.pushed()

    def _take(self, size: int) -> NDArray[np.uint8]:
        """So many bytes, into memory that the connection keeps. The size was checked against the shard."""
        import numpy as np

        if self._memory is None or self._memory.size < size:
            self._memory = np.empty(size, dtype=np.uint8)
        fill(self._sock, bytes_of(self._memory[:size]))
        return self._memory[:size]

    def _not_finite(self, parts: list[Part]) -> str:
        pieces = self._state.shard.pieces
        bad = [pieces[part.piece].parameter.name for part in parts if not finite(part.values)]
        version = self._state.point.version
        return f"gradient {', '.join(map(repr, bad))} has values that are not finite (version {version})"


def _point(told: object) -> Point:
    match told:
        case [int(life), int(version)]:
            return Point(life, version)
    raise BadMessage("a push without a version")


def _refuse(sock: socket.socket, why: str) -> None:
    with contextlib.suppress(OSError):
        send(sock, Kind.REFUSED, 0, {"error": why})
        sock.shutdown(socket.SHUT_WR)
        prepare(sock, HELLO_SECONDS)
        for _ in range(1 << 12):  # an unread rest would reset the connection and take the answer with it
            if not sock.recv(1 << 16):
                break


# ── in a job ─────────────────────────────────────────────────────────────────────────────────────


def serve(
    initial: Mapping[str, Any],
    *,
    optimizer: Optimizer | None = None,
    staleness: int | None = None,
    address: str | None = None,
    server: tuple[int, int] | None = None,
    workers: int | None = None,
    snapshot_path: str | None = None,
    every: int = 500,
    token: str | None = None,
) -> int:
    """Run this task's server until all workers are done or SIGTERM comes; the version that it reached.

    Every server is handed all parameters and keeps its part. What is left out comes from the job: the task's own
    address, which of how many servers it is (`server`), the number of tasks in other roles, and a file in
    CHECKPOINT_DIR, written every `every` updates and at the end. A snapshot found there takes the place of `initial`,
    which must have the same shapes. A push that was computed on parameters more than `staleness` updates old is not
    applied.
    """
    role, index = os.environ.get("WEFT_ROLE", "ps"), int(os.environ.get("WEFT_INDEX", "0"))
    if address is None:
        address = hosts()[role][index]
    if server is None:
        server = (index, len(hosts()[role])) if "WEFT_ROLE" in os.environ else (0, 1)
    if snapshot_path is None and os.environ.get("CHECKPOINT_DIR"):
        snapshot_path = os.path.join(os.environ["CHECKPOINT_DIR"], f"{role}-{server[0]}.snapshot")
    if workers is None:
        hosts()  # an error now, if there are none to count
    if not 0 <= server[0] < server[1]:
        raise ParameterServerError(f"server {server[0]} of {server[1]}: they count from 0")

    def others() -> int:
        if workers is not None:
            return workers
        return sum(len(tasks) for other, tasks in hosts().items() if other != role)

    arrays = {name: float32(value) for name, value in initial.items()}
    layout = layout_of({name: array.shape for name, array in arrays.items()}, server[1])
    shard = layout.shards[server[0]]
    state = State(shard, shard_values(shard, arrays), optimizer or SGD(), staleness)
    host, port = split_address(address)
    bind = host if host in ("127.0.0.1", "localhost", "::1") else ""
    return _run(
        Server(
            state,
            layout,
            (bind, port),
            workers=others,
            token=token or job_token(),
            path=snapshot_path,
            every=every,
        )
    )


def _run(server: Server) -> int:
    def stop(_signal: int, _frame: FrameType | None) -> None:
        server.stopping = True

    in_main = threading.current_thread() is threading.main_thread()
    before = signal.signal(signal.SIGTERM, stop) if in_main else None
    try:
        server.wait()
    finally:
        if in_main:
            signal.signal(signal.SIGTERM, before)
    return server.state.point.version
