"""The worker's end: all servers as one, there or not."""

from __future__ import annotations

import contextlib
import math
import os
import random
import secrets
import socket
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from weft.runtime.ps.arrays import bytes_of, gradient_of, indices_of, put, widened
from weft.runtime.ps.errors import BadMessage, ParameterServerError, Refused, Unreachable
from weft.runtime.ps.framing import Kind, fill
from weft.runtime.ps.gradients import Part, contents_of, parts_for
from weft.runtime.ps.job import hosts, job_token
from weft.runtime.ps.layout import Layout, layout_of
from weft.runtime.ps.link import Link
from weft.runtime.ps.state import Point

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Floats = NDArray[np.float32]

ANSWER_SECONDS = 30.0
LONGEST_PAUSE = 2.0
GOODBYE_SECONDS = 5.0


class Pulled(NamedTuple):
    arrays: dict[str, Floats]
    version: int


class Pushed(NamedTuple):
    version: int
    stale: bool
    """A server did not take it, as it was computed on parameters that are too old: pull."""
    waiting: int
    """Pushes that wait here for a server that is away."""


class Client:
    """Pulls parameters from the job's servers and pushes gradients to them; may be used by several threads.

    It connects when it is first used, and again whenever a connection is lost. While a server is away the worker goes
    on with its own copy: up to `local` pushes are added up here and are pushed when the server is back; beyond that,
    and before the first pull, a call waits for the server, `patience` seconds at most. As a context manager it tells
    the servers at the end that this worker is done, unless an exception ended it.
    """

    def __init__(
        self,
        addresses: str | Sequence[str] | None = None,
        *,
        compression: str | None = None,
        local: int = 100,
        patience: float = 300.0,
        token: str | None = None,
        answer_seconds: float = ANSWER_SECONDS,
    ):
        if compression not in (None, "float16"):
            raise ParameterServerError(f"compression is None or 'float16', not {compression!r}")
        given = [addresses] if isinstance(addresses, str) else addresses
        count = len(hosts()["ps"] if given is None else given)
        self.patience = patience
        self.local = local
        self._half = compression is not None
        worker = os.environ.get("WEFT_TASK") or f"{socket.gethostname()}-{os.getpid()}"
        session = secrets.token_hex(8)
        token = token or job_token()
        self._links = [
            Link(i, _finder(given, i), worker, session, token, answer_seconds) for i in range(count)
        ]
        self._layout: Layout | None = None
        self._additive = True
        self._lr = 0.0
        self._line: Floats | None = None
        self._views: dict[str, Floats] = {}
        self._spare: NDArray[np.uint8] | None = None
        self._lock = threading.Lock()

    @property
    def stale(self) -> int:
        """How often a server refused a push as too old, so far."""
        return sum(link.stale for link in self._links)

    @property
    def waiting(self) -> int:
        """Pushes that a server may not have yet."""
        return max(link.waiting for link in self._links)

    # ── what a worker does ──

    def pull(self, into: Mapping[str, Any] | None = None, *, rows: Mapping[str, Any] | None = None) -> Pulled:
        """The parameters and their version.

        The arrays are the client's own copy, good until the next pull or push: copy what you keep. `into` names arrays
        or torch tensors to be filled as well. Of a parameter in `rows`, only those rows are fetched and given.
        """
        with self._lock:
            layout, rows = self._meet(), rows or {}
            unknown = (set(into or ()) | set(rows)) - {p.name for p in layout.parameters}
            if unknown:
                raise Refused(f"there is no parameter {', '.join(map(repr, sorted(unknown)))}")
            wanted = {p.name: indices_of(p, rows[p.name]) for p in layout.parameters if p.name in rows}
            self._pull(wanted)
            arrays = dict(self._views)
            arrays.update((name, arrays[name][some]) for name, some in wanted.items())
            for name, target in (into or {}).items():
                put(target, arrays[name])
            return Pulled(arrays, self._version())

    def push(self, gradients: Mapping[str, Any], lr: float | None = None) -> Pushed:
        """Move the parameters against the gradients, by the server's optimizer and its rate if none is given.

        A gradient is an array or a torch tensor in the shape of its parameter, `Rows`, or a sparse tensor; parameters
        that are left out stay as they are.
        """
        with self._lock:
            layout = self._meet()
            rate = self._lr if lr is None else float(lr)
            if not math.isfinite(rate):
                raise Refused(f"the learning rate is {rate}")
            known = {parameter.name: parameter for parameter in layout.parameters}
            if unknown := gradients.keys() - known:
                raise Refused(f"there is no parameter {', '.join(map(repr, sorted(unknown)))}")
            ready = {name: gradient_of(known[name], value) for name, value in gradients.items()}
            before = self.stale
            self._push({link: parts_for(layout.shards[link.number], ready) for link in self._links}, rate)
            return Pushed(self._version(), self.stale > before, self.waiting)

    def done(self) -> None:
        """This worker needs the servers no longer. One that has gone has heard it from the others."""
        with self._lock:
            for link in self._links:
                patience = self.patience if link.waiting else min(self.patience, GOODBYE_SECONDS)
                with contextlib.suppress(OSError, ParameterServerError):
                    self._up(link, must=True, patience=patience)
                    link.ask(Kind.DONE, {})
                    link.heard(Kind.HEARD)
        self.close()

    def close(self) -> None:
        for link in self._links:
            link.close()

    def __enter__(self) -> Client:
        return self

    def __exit__(self, failure: type[BaseException] | None, *_: object) -> None:
        if failure is None:
            self.done()
        self.close()

    # ── servers that come and go ──

    def _meet(self) -> Layout:
        """Know the parameters, which needs one server."""
        if self._layout is None:
            self._up(self._links[0], must=True)
        assert self._layout is not None
        return self._layout

    def _up(self, link: Link, must: bool, patience: float | None = None) -> bool:
        """Whether the server is there and is owed nothing; if it `must`, wait for it."""
        if link.connected:
            return True
        patience = self.patience if patience is None else patience
        began = time.monotonic()
        while True:
            now = time.monotonic()
            if not must and now < link.retry_at:
                return False
            try:
                self._welcomed(link, link.connect())
                link.settle()
                link.pause = 0.0
                return True
            except OSError as problem:
                link.close()
                link.pause = min(max(2 * link.pause, 0.05), LONGEST_PAUSE)
                link.retry_at = time.monotonic() + link.pause * random.uniform(0.5, 1.0)  # noqa: S311
                if not must:
                    return False
                waited = time.monotonic() - began
                if waited + link.pause > patience:
                    text = f"no parameter server at {link.address} for {waited:.0f} s: {problem}"
                    raise Unreachable(text) from None
            time.sleep(max(0.0, link.retry_at - time.monotonic()))

    def _welcomed(self, link: Link, welcome: dict[str, Any]) -> None:
        try:
            self._agree(link, welcome)
        except BaseException:
            link.close()
            raise

    def _agree(self, link: Link, welcome: dict[str, Any]) -> None:
        """Both ends have the same parameters in the same places."""
        import numpy as np

        place = (welcome["server"], welcome["servers"])
        if place != (link.number, len(self._links)):
            raise Refused(
                f"{link.address} is server {place[0]} of {place[1]}, not {link.number} of {len(self._links)}"
            )
        layout = layout_of({str(name): shape for name, shape in welcome["parameters"]}, len(self._links))
        if self._layout is None:
            self._layout = layout
            self._line = line = np.zeros(layout.size, dtype="<f4")
            self._views = {
                p.name: line[p.start : p.start + p.size].reshape(p.shape) for p in layout.parameters
            }
            for each in self._links:
                each.shard = layout.shards[each.number]
                each.half = self._half
        elif layout != self._layout:
            raise Refused(f"the parameter server at {link.address} has other parameters than the others")
        self._lr, self._additive = float(welcome["lr"]), bool(welcome["additive"])

    def _version(self) -> int:
        """The pushes that are in all of the parameters."""
        return min(link.point.version + link.waiting for link in self._links)

    # ── push ──

    def _push(self, parts: Mapping[Link, list[Part]], lr: float) -> None:
        refused: list[Refused] = []
        sent: list[Link] = []
        try:
            for link in self._links:
                try:
                    there = self._up(link, must=link.waiting >= self.local)
                except Refused as problem:  # of what was owed
                    refused.append(problem)
                    there = link.connected
                if there:
                    sent.append(link)
                    with contextlib.suppress(OSError):
                        link.push(parts[link], lr, self._half)
                else:
                    link.gather(parts[link], lr)
                    self._step_here(link, parts[link], lr)
            while sent:  # the servers work at the same time
                try:
                    sent[0].settle_push()
                except OSError:
                    sent[0].keep_push()
                    self._step_here(sent[0], parts[sent[0]], lr)
                except Refused as problem:
                    refused.append(problem)
                sent.pop(0)
        finally:
            for link in sent:  # only after an exception: it may have arrived, or not
                link.close()
                link.keep_push()
        if not self.local:
            for link in self._links:
                self._up(link, must=True)
        if refused:
            raise refused[0]

    def _step_here(self, link: Link, parts: Iterable[Part], lr: float) -> None:
        """Go on without the server, on the worker's copy. Adam's steps have a size of their own: it only adds up."""
        if self._line is None or link.shard is None or link.pulled is None or not self._additive:
            return
        import numpy as np

        for part in parts:
            piece = link.shard.pieces[part.piece]
            start = link.shard.start + piece.start
            table = self._line[start : start + piece.size].reshape(piece.rows, piece.parameter.width)
            values = np.float32(lr) * part.values.reshape(-1, piece.parameter.width)
            if part.rows is None:
                table -= values
            else:
                table[part.rows] -= values

    # ── pull ──

    def _pull(self, wanted: Mapping[str, NDArray[np.int64]]) -> None:
        """Refresh the worker's copy from every server that is there."""
        todo = list(self._links)
        while todo:
            asked: dict[Link, list[Part] | None] = {}
            answered: set[Link] = set()
            try:
                for link in todo:
                    with contextlib.suppress(OSError):
                        if self._up(link, must=not link.complete):
                            asked[link] = self._ask_pull(link, wanted)
                for link, rows in asked.items():
                    with contextlib.suppress(OSError):
                        self._take_pull(link, rows)
                        answered.add(link)
            finally:
                for link in asked.keys() - answered:  # an answer may be on its way that nobody waits for
                    link.close()
            todo = [link for link in todo if link not in answered and not link.complete]

    def _ask_pull(self, link: Link, wanted: Mapping[str, NDArray[np.int64]]) -> list[Part] | None:
        """Which rows were asked for; None for all parameters whole."""
        import numpy as np

        assert link.shard is not None
        if not wanted:
            link.ask(Kind.PULL, {"half": self._half})
            return None
        parts, nothing = [], np.zeros(0, dtype="<f4")
        for number, piece in enumerate(link.shard.pieces):
            rows = None
            if (indices := wanted.get(piece.parameter.name)) is not None:
                unique = np.unique(indices[(indices >= piece.first) & (indices < piece.stop)])
                rows = (unique - piece.first).astype("<u4")
            parts.append(Part(number, rows, nothing))
        listed = [[part.piece, None if part.rows is None else len(part.rows)] for part in parts]
        payload = [bytes_of(part.rows) for part in parts if part.rows is not None]
        link.ask(Kind.PULL, {"half": self._half, "parts": listed}, payload)
        return parts

    def _take_pull(self, link: Link, parts: list[Part] | None) -> None:
        import numpy as np

        assert link.shard is not None
        assert self._line is not None
        shard = link.shard
        message, sock = link.heard(Kind.PARAMETERS)
        try:
            elements = shard.size
            if parts is not None:
                listed = [[p.piece, None if p.rows is None else len(p.rows)] for p in parts]
                elements = contents_of(shard, {"parts": listed, "half": False, "scale": 1.0}).elements
            if message.payload != elements * (2 if self._half else 4):
                raise BadMessage(f"parameters of {message.payload} bytes instead of {4 * elements}")
            mine = self._line[shard.start : shard.stop]
            target = mine if parts is None else np.empty(elements, dtype="<f4")
            if self._half:
                memory = self._room(message.payload)
                fill(sock, bytes_of(memory))
                widened(memory.view("<f2"), float(message.header["scale"]), target)
            else:
                fill(sock, bytes_of(target))
            point = Point(*message.header["point"])
        except BaseException as problem:
            link.close()
            if isinstance(problem, BadMessage | KeyError | TypeError | ValueError):
                raise ConnectionAbortedError(str(problem)) from None
            raise
        taken = 0
        for part in parts or ():
            piece = shard.pieces[part.piece]
            table = mine[piece.start : piece.end].reshape(piece.rows, piece.parameter.width)
            count = piece.rows if part.rows is None else len(part.rows)
            values = target[taken : taken + count * piece.parameter.width].reshape(
                count, piece.parameter.width
            )
            table[slice(None) if part.rows is None else part.rows] = values
            taken += values.size
        link.point = link.pulled = point
        link.complete = link.complete or parts is None

    def _room(self, size: int) -> NDArray[np.uint8]:
        import numpy as np

        if self._spare is None or self._spare.size < size:
            self._spare = np.empty(size, dtype=np.uint8)
        return self._spare[:size]


def _finder(given: Sequence[str] | None, index: int) -> Callable[[], str]:
    """Where a server is: asked anew each time, as a server that is started again may be elsewhere."""
    return (lambda: hosts()["ps"][index]) if given is None else (lambda: given[index])
