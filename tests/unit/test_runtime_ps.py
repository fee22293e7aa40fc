"""`weft.ps`: workers around one or more servers that are all there."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from weft import ps
from weft.runtime.ps.arrays import float32
from weft.runtime.ps.framing import HEAD, MAGIC, Kind, prepare, receive, send
from weft.runtime.ps.job import job_token, proof
from weft.runtime.ps.layout import layout_of
from weft.runtime.ps.server import Server
from weft.runtime.ps.state import State, shard_values

INITIAL = {
    "w": np.arange(6).reshape(2, 3),
    "b": np.float32(1),
    "empty": np.zeros((0, 4)),
    "e": np.zeros((5, 2)),
}
ONES = {"w": np.ones((2, 3)), "b": 1.0}


@contextlib.contextmanager
def running(
    servers: int = 1,
    workers: int = 1,
    optimizer: Any = None,
    staleness: int | None = None,
    path: Path | None = None,
    every: int = 1000,
) -> Iterator[list[Server]]:
    arrays = {name: float32(value) for name, value in INITIAL.items()}
    layout = layout_of({name: array.shape for name, array in arrays.items()}, servers)
    with contextlib.ExitStack() as stack:
        started = []
        for shard in layout.shards:
            state = State(shard, shard_values(shard, arrays), optimizer or ps.SGD(), staleness)
            server = Server(
                state, layout, ("127.0.0.1", 0), workers=lambda: workers, token=job_token(),
                path=str(path / f"ps-{shard.index}.snapshot") if path else None, every=every,
            )  # fmt: skip
            started.append(server)
            stack.callback(stop, server)
        yield started


def stop(server: Server) -> None:
    server.stopping = True
    server.wait()


@pytest.fixture
def connect(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., ps.Client]]:
    with contextlib.ExitStack() as stack:

        def make(servers: list[Server], task: str = "worker-0", **given: Any) -> ps.Client:
            monkeypatch.setenv("WEFT_TASK", task)
            client = ps.Client([server.address for server in servers], **{"patience": 5.0, **given})
            return stack.enter_context(contextlib.closing(client))

        yield make


@pytest.mark.parametrize("servers", [1, 2, 3, 30])
def test_pull_gives_what_was_served(servers: int, connect: Callable[..., ps.Client]) -> None:
    with running(servers) as started:
        arrays, version = connect(started).pull()
        assert version == 0
        assert {name: (a.dtype, a.shape) for name, a in arrays.items()} == {
            name: (np.dtype("f4"), np.shape(value)) for name, value in INITIAL.items()
        }
        assert arrays["w"].tolist() == [[0, 1, 2], [3, 4, 5]]
        assert arrays["b"] == 1


@pytest.mark.parametrize("servers", [1, 2, 3])
def test_push_moves_against_the_gradient(servers: int, connect: Callable[..., ps.Client]) -> None:
    with running(servers, optimizer=ps.SGD(lr=0.5)) as started:
        client = connect(started)
        assert client.push(ONES) == ps.Pushed(1, stale=False, waiting=0)
        assert client.push({"b": np.float64(2)}, lr=0.25).version == 2
        assert client.push({"w": np.arange(6.0).reshape(3, 2).T}, lr=-1).version == 3  # any order in memory
        arrays, version = client.pull()
        assert version == 3
        assert arrays["w"].tolist() == [[-0.5, 2.5, 5.5], [3.5, 6.5, 9.5]]
        assert arrays["b"] == 0.0


@pytest.mark.parametrize("servers", [1, 2, 3])
def test_rows_alone_are_pushed_and_pulled(servers: int, connect: Callable[..., ps.Client]) -> None:
    with running(servers) as started:
        client = connect(started)
        client.push({"e": ps.Rows([4, 0, 4], [[1, 2], [3, 4], [5, 6]])}, lr=1)
        rows, version = client.pull(rows={"e": [0, 4, 1, 0]})
        assert version == 1
        assert rows["e"].tolist() == [[-3, -4], [-6, -8], [0, 0], [-3, -4]]
        assert rows["w"].tolist() == [[0, 1, 2], [3, 4, 5]]
        assert client.pull().arrays["e"].tolist() == [[-3, -4], [0, 0], [0, 0], [0, 0], [-6, -8]]
        assert client.push({"e": ps.Rows([], np.zeros((0, 2)))}).version == 2


@pytest.mark.parametrize("servers", [1, 2])
def test_float16_halves_the_bytes_and_keeps_three_digits(
    servers: int, connect: Callable[..., ps.Client]
) -> None:
    with running(servers) as started:
        client = connect(started, compression="float16")
        client.push({"w": np.full((2, 3), 3e-9), "b": 1e6}, lr=1e-3)
        client.push({"e": ps.Rows([2], [[1e-9, 3e8]])}, lr=1)
        arrays, _ = connect(started).pull()
        assert arrays["b"] == pytest.approx(1 - 1e3, rel=1e-3)
        assert arrays["e"][2, 1] == pytest.approx(-3e8, rel=1e-3)
        assert client.pull().arrays["b"] == pytest.approx(1 - 1e3, rel=1e-3)
        assert client.pull(rows={"e": [2]}).arrays["e"][0, 1] == pytest.approx(-3e8, rel=1e-3)
    with pytest.raises(ps.ParameterServerError, match="not 'int8'"):
        ps.Client("127.0.0.1:1", compression="int8")


def test_adam_over_two_servers_is_adam(connect: Callable[..., ps.Client]) -> None:
    with running(2, optimizer=ps.Adam(lr=0.1)) as started, running(1, optimizer=ps.Adam(lr=0.1)) as alone:
        pushes: list[dict[str, Any]] = [ONES, {"e": ps.Rows([0], [[1, 1]])}, ONES, {"e": np.ones((5, 2))}]
        here, there = connect(started), connect(alone)
        for gradients in pushes:
            here.push(gradients)
            there.push(gradients)
        one, other = here.pull().arrays, there.pull().arrays
        assert all((one[name] == other[name]).all() for name in INITIAL)


def test_pull_fills_the_users_own_arrays(connect: Callable[..., ps.Client]) -> None:
    with running() as started:
        mine = {"w": np.zeros((2, 3)), "b": np.zeros(())}
        connect(started).pull(into=mine)
        assert mine["w"].tolist() == [[0, 1, 2], [3, 4, 5]]
        assert mine["b"] == 1


def test_nobody_is_lost_when_many_push(connect: Callable[..., ps.Client]) -> None:
    with running(2, workers=9) as started:
        clients = [connect(started, f"worker-{i}") for i in range(6)]

        def work(client: ps.Client) -> None:
            for _ in range(30):
                client.push({"b": 1.0, "e": np.ones((5, 2))}, lr=1.0)
                client.pull()

        threads = [threading.Thread(target=work, args=(client,)) for client in clients]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        arrays, version = clients[0].pull()
        assert (version, float(arrays["b"]), float(arrays["e"].max())) == (180, -179, -180)


def test_a_worker_that_is_behind_is_told_to_pull(connect: Callable[..., ps.Client]) -> None:
    with running(2, staleness=1) as started:
        slow, quick = connect(started, "worker-0"), connect(started, "worker-1")
        slow.pull()
        for _ in range(3):
            quick.pull()
            quick.push(ONES, lr=1)
        assert slow.push(ONES, lr=1).stale
        assert (slow.stale, quick.stale) == (2, 0)  # both servers said so
        assert [server.state.stale for server in started] == [1, 1]
        slow.pull()
        assert slow.push(ONES, lr=1) == ps.Pushed(4, stale=False, waiting=0)


def test_workers_join_and_vanish_at_any_step(connect: Callable[..., ps.Client]) -> None:
    with running(workers=2) as started:
        for i in range(20):
            client = connect(started, f"worker-{i}")
            client.push({"b": 1.0}, lr=1)
            client.close()  # no goodbye
        with socket.create_connection(started[0].address.rsplit(":", 1)) as vanishing:
            greet(vanishing)
            vanishing.sendall(HEAD.pack(MAGIC, Kind.PUSH, 1, 500, 500))  # and no more
        assert connect(started).pull().version == 20
        assert not started[0]._over.is_set()


def test_it_is_over_when_all_workers_are_done(connect: Callable[..., ps.Client]) -> None:
    with running(workers=2) as started:
        over = started[0]._over
        with connect(started, "worker-0") as first:
            first.push(ONES)
        with connect(started, "worker-0") as again:  # started again: it is one worker, not two
            again.push(ONES)
        assert not over.is_set()
        failing = connect(started, "worker-1")
        failing.pull()
        failing.__exit__(RuntimeError)
        assert not over.is_set()
        third = connect(started, "worker-2")  # joined meanwhile
        third.pull()
        with connect(started, "worker-1") as second:
            second.push(ONES)
        assert not over.is_set()
        third.done()
        assert over.wait(5)


# ── refused ──


@pytest.mark.parametrize(
    ("gradients", "lr", "message"),
    [
        ({"w": np.ones(6)}, 1.0, r"gradient 'w' has shape \(6,\), the parameter is \(2, 3\)"),
        ({"x": np.ones(1)}, 1.0, "there is no parameter 'x'"),
        ({"b": np.nan}, 1.0, "gradient 'b' has values that are not finite"),
        ({"b": 1.0}, np.inf, "the learning rate is inf"),
        ({"e": ps.Rows([5], [[1, 1]])}, 1.0, "rows 5 to 5 of 'e', which has 5"),
        ({"e": ps.Rows([-1], [[1, 1]])}, 1.0, "rows -1 to -1 of 'e'"),
        ({"e": ps.Rows([1], [[1]])}, 1.0, r"1 rows of 'e' have shape \(1, 1\)"),
        ({"e": ps.Rows([1.5], [[1, 1]])}, 1.0, "a list of integers"),
    ],
)
def test_nonsense_is_refused_at_once(
    connect: Callable[..., ps.Client], gradients: dict[str, Any], lr: float, message: str
) -> None:
    with running() as started:
        client = connect(started)
        with pytest.raises(ps.Refused, match=message):
            client.push(gradients, lr)
        assert client.pull().version == 0
        assert client.push(ONES, lr=1).version == 1


def test_another_job_is_refused(connect: Callable[..., ps.Client], monkeypatch: pytest.MonkeyPatch) -> None:
    with running() as started:
        with pytest.raises(ps.Refused, match="the token is of another job"):
            connect(started, token="guessed").push(ONES)
        monkeypatch.setenv("WEFT_JOB_UID", "another")
        with pytest.raises(ps.Refused, match="the token is of another job"):
            connect(started).pull()
        assert started[0].state.point.version == 0


def test_a_server_that_only_pretends_is_refused() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def pretend() -> None:
            sock, _ = listening.accept()
            with sock:
                send(sock, Kind.CHALLENGE, 0, {"nonce": "1"})
                receive(sock)
                send(sock, Kind.WELCOME, 0, {"proof": "?", "point": [1, 0]})

        threading.Thread(target=pretend, daemon=True).start()
        address = "{}:{}".format(*listening.getsockname())
        with pytest.raises(ps.Refused, match="does not know the job's token"):
            ps.Client(address).pull()


def test_servers_in_the_wrong_order_are_noticed(connect: Callable[..., ps.Client]) -> None:
    with running(2) as started:
        with pytest.raises(ps.Refused, match="is server 1 of 2, not 0 of 2"):
            connect(started[::-1]).pull()
        with pytest.raises(ps.Refused, match="is server 0 of 2, not 0 of 1"):
            connect(started[:1]).pull()


def greet(sock: socket.socket) -> None:
    prepare(sock, 5)
    nonce = receive(sock).header["nonce"]
    hello = {"worker": "w", "session": "s", "nonce": "", "proof": proof(job_token(), "worker", nonce)}
    send(sock, Kind.HELLO, 0, hello)
    assert receive(sock).kind is Kind.WELCOME


@pytest.mark.parametrize(
    ("kind", "header", "payload"),
    [
        (Kind.WELCOME, {}, 0),
        (Kind.DONE, {}, 8),
        (Kind.PULL, {}, 8),
        (Kind.PULL, {"parts": [[0, 1]]}, 2**50),
        (Kind.PUSH, {}, 0),
        (Kind.PUSH, {"parts": None, "half": False, "scale": 1.0, "number": 1, "count": 1, "lr": 1}, 2**60),
        (Kind.PUSH, {"parts": [], "half": False, "scale": 1.0, "number": -1, "count": 1, "lr": 1}, 0),
        (Kind.PUSH, {"parts": [], "half": False, "scale": 1.0, "number": 1, "count": 1, "lr": "x"}, 0),
        (
            Kind.PUSH,
            {"parts": [], "half": False, "scale": 1.0, "number": 1, "count": 1, "lr": 1, "point": 5},
            0,
        ),
        (Kind.PUSH, {"parts": [], "half": True, "scale": 0.0, "number": 1, "count": 1, "lr": 1}, 0),
    ],
)
def test_a_bad_message_closes_its_own_connection_only(
    connect: Callable[..., ps.Client], kind: Kind, header: dict[str, Any], payload: int
) -> None:
    with running() as started:
        client = connect(started)
        client.pull()
        with socket.create_connection(started[0].address.rsplit(":", 1)) as sock:
            greet(sock)
            text = json.dumps(header).encode()
            sock.sendall(HEAD.pack(MAGIC, kind, 1, len(text), payload) + text)
            assert receive(sock).kind is Kind.REFUSED
            assert sock.recv(1) == b""
        assert client.push(ONES).version == 1


def test_importing_it_is_cheap() -> None:
    code = "import sys, weft; assert 'weft.ps' not in sys.modules; weft.ps.Client; sys.exit('numpy' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True, env=os.environ)
