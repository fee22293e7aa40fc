"""The parameter server: pushes count once, survive restarts, and reach the right job only."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import struct
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from weft.runtime import parameters
from weft.runtime.parameters import Client, ParametersError, Server, State, job_token

np = pytest.importorskip("numpy")

INITIAL = {"w": np.arange(6).reshape(2, 3), "b": np.float32(1), "empty": np.zeros((0, 4))}
ONES = {"w": np.ones((2, 3)), "b": 1.0}


@contextlib.contextmanager
def running(workers: int = 1, path: Path | None = None, every: int = 1000) -> Iterator[Server]:
    server = Server(
        State(INITIAL, str(path) if path else None, every), ("127.0.0.1", 0), workers, job_token()
    )
    waiting = threading.Thread(target=server.wait)
    waiting.start()
    try:
        yield server
    finally:
        server.stopping = True
        waiting.join()


@pytest.fixture
def server() -> Iterator[Server]:
    with running() as started:
        yield started


@pytest.fixture
def connect(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Client]]:
    with contextlib.ExitStack() as stack:

        def make(server: Server, task: str = "worker-0", **given: Any) -> Client:
            monkeypatch.setenv("WEFT_TASK", task)
            return stack.enter_context(contextlib.closing(Client(server.address, patience=2.0, **given)))

        yield make


def test_pull_gives_what_was_served(server: Server, connect: Callable[..., Client]) -> None:
    arrays, version = connect(server).pull()
    assert version == 0
    assert {name: (a.dtype, a.shape) for name, a in arrays.items()} == {
        "w": (np.dtype("f4"), (2, 3)), "b": (np.dtype("f4"), ()), "empty": (np.dtype("f4"), (0, 4)),
    }  # fmt: skip
    assert arrays["w"].tolist() == [[0, 1, 2], [3, 4, 5]]
    arrays["w"] += 1  # a worker's own copy


def test_push_moves_against_the_gradient(server: Server, connect: Callable[..., Client]) -> None:
    client = connect(server)
    assert client.push(ONES, lr=0.5) == 1
    assert client.push({"b": np.float64(2)}, lr=0.25) == 2
    arrays, version = client.pull()
    assert version == 2
    assert arrays["w"].tolist() == [[-0.5, 0.5, 1.5], [2.5, 3.5, 4.5]]
    assert float(arrays["b"]) == 0.0


def test_gradients_may_lie_anyhow_in_memory(server: Server, connect: Callable[..., Client]) -> None:
    client = connect(server)
    client.push({"w": np.arange(6.0).reshape(3, 2).T}, lr=-1)
    assert client.pull()[0]["w"].tolist() == [[0, 3, 6], [4, 7, 10]]


def test_nobody_is_lost_when_many_push(connect: Callable[..., Client]) -> None:
    with running(workers=9) as server:
        clients = [connect(server, f"worker-{i}") for i in range(8)]
        threads = [
            threading.Thread(target=lambda c=client: [c.push({"b": 1.0}, lr=1.0) for _ in range(50)])
            for client in clients
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        arrays, version = clients[0].pull()
        assert (version, float(arrays["b"])) == (400, 1 - 400)


@pytest.mark.parametrize(
    ("gradients", "lr", "message"),
    [
        ({"w": np.ones(6)}, 1.0, r"gradient 'w' has shape \(6,\), the parameter is \(2, 3\)"),
        ({"x": np.ones(1)}, 1.0, "the parameter is unknown"),
        ({"b": np.nan}, 1.0, "gradient 'b' has values that are not finite"),
        ({"b": 1.0}, np.inf, "the learning rate is inf"),
        ({"w": np.ones(10_000_000)}, 1.0, "arrays of 40000000 bytes, at most 28"),
    ],
)
def test_nonsense_is_refused_at_once(
    server: Server, connect: Callable[..., Client], gradients: dict[str, Any], lr: float, message: str
) -> None:
    client = connect(server)
    with pytest.raises(ParametersError, match=message):
        client.push(gradients, lr)
    assert client.pull()[1] == 0


def test_another_job_is_refused(
    server: Server, connect: Callable[..., Client], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WEFT_JOB_UID", "another")
    with pytest.raises(ParametersError, match="the token is of another job"):
        connect(server).push(ONES, 1.0)
    assert server.state.version == 0


class Lossy:
    """A socket that breaks after the request was sent, before the answer comes."""

    def __init__(self, sock: socket.socket):
        self.sock = sock

    def sendall(self, data: bytes) -> None:
        self.sock.sendall(data)

    def recv_into(self, view: memoryview) -> int:
        self.sock.recv_into(view)  # the server has done its work
        raise ConnectionResetError("lost")

    def close(self) -> None:
        self.sock.close()


def test_a_push_whose_answer_is_lost_counts_once(server: Server, connect: Callable[..., Client]) -> None:
    client = connect(server)
    client.push(ONES, 1.0)
    assert client._socket is not None
    client._socket = Lossy(client._socket)  # type: ignore[assignment]
    assert client.push(ONES, 1.0) == 2
    assert client.push(ONES, 1.0) == 3


@given(st.binary(max_size=60) | st.binary(max_size=60).map(lambda tail: struct.pack(">I", len(tail)) + tail))
def test_strangers_do_no_harm(data: bytes) -> None:
    here, there = socket.socketpair()
    with here, there:
        here.sendall(data)
        here.shutdown(socket.SHUT_WR)
        with pytest.raises((parameters.Refused, ConnectionResetError)):
            parameters._receive(there, 0, most=4096)


@pytest.mark.parametrize(
    "shapes", [[["w", [-1]]], [["w", [1 << 60]]], [["w", [0, 1 << 70]]], [["w", "x"]], [3], {"w": 1}, None]
)
def test_shapes_that_cannot_be_are_refused(shapes: Any) -> None:
    here, there = socket.socketpair()
    with here, there:
        head = json.dumps({"arrays": shapes}).encode()
        here.sendall(struct.pack(">I", len(head)) + head)
        with pytest.raises(parameters.Refused):
            parameters._receive(there, 1000)


def test_a_server_that_is_not_there_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    client = Client(f"127.0.0.1:{port}", patience=30.0)
    late: list[Server] = []
    sleep = parameters.time.sleep

    def start_meanwhile(seconds: float) -> None:
        if not late:
            late.append(Server(State(INITIAL, None, 1), ("127.0.0.1", port), 2, job_token()))
        sleep(seconds)

    monkeypatch.setattr(parameters.time, "sleep", start_meanwhile)
    assert client.push(ONES, 1.0) == 1
    client.close()
    late[0].stopping = True
    late[0].wait()


def test_patience_ends_with_a_reason() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
    with pytest.raises(ParametersError, match=f"no parameter server at {address} .*Connection refused"):
        Client(address, patience=0.01).pull()


def test_it_is_over_when_all_workers_are_done(connect: Callable[..., Client], tmp_path: Path) -> None:
    with running(workers=2, path=tmp_path / "ps.npz") as server:
        with connect(server, "worker-0") as first:
            first.push(ONES, 1.0)
        with connect(server, "worker-0") as again:  # started again: it is one worker, not two
            again.push(ONES, 1.0)
        assert not server._over.is_set()
        failing = connect(server, "worker-1")
        failing.pull()
        failing.__exit__(RuntimeError)
        assert not server._over.is_set()
        with connect(server, "worker-1") as second:
            second.push(ONES, 1.0)
        assert server._over.wait(5)


# ── checkpoints ──


def test_a_checkpoint_carries_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = str(tmp_path / "new" / "ps.npz")
    state = State(INITIAL, path, every=2)
    gradients = parameters._float32(ONES)
    state.apply("worker-0", "a", 1, 0.5, gradients)
    assert not os.path.exists(path)
    state.apply("worker-0", "a", 2, 0.5, gradients)
    state.apply("worker-0", "a", 3, 0.5, gradients)
    state.mark("worker-1", done=True)
    again = State(INITIAL, path, every=2)
    assert again.version == 2
    assert float(again.arrays["b"]) == 0.0
    assert again.apply("worker-0", "a", 2, 0.5, gradients) == 2  # was applied before the checkpoint
    assert again.apply("worker-0", "a", 3, 0.5, gradients) == 3  # was lost, and is sent again
    state.save()
    assert State(INITIAL, path, every=2).done == {"worker-1"}
    monkeypatch.setenv("WEFT_LAUNCH", "2")  # the whole job is started again: nobody is done
    assert State(INITIAL, path, every=2).done == set()
    assert os.listdir(tmp_path / "new") == ["ps.npz"]


def test_a_checkpoint_of_something_else_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "ps.npz"
    State({"other": np.zeros(3)}, str(path), every=1).save()
    with pytest.raises(ParametersError, match="another model; remove it"):
        State(INITIAL, str(path), every=1)
    path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(ParametersError, match="cannot be read"):
        State(INITIAL, str(path), every=1)


def test_a_disk_that_refuses_a_checkpoint_does_not_stop_training(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").touch()
    state = State(INITIAL, str(tmp_path / "file" / "ps.npz"), every=1)
    assert state.apply("worker-0", "a", 1, 1.0, parameters._float32(ONES)) == 1
    assert "weft: no checkpoint of version 1: " in capsys.readouterr().err


SERVE = """
import numpy as np
from weft.runtime.parameters import serve
arrays, version = serve({"b": np.zeros(())}, every=1)
print(version, float(arrays["b"]))
"""


def start(env: dict[str, str]) -> subprocess.Popen[str]:
    return subprocess.Popen([sys.executable, "-c", SERVE], env=env, stdout=subprocess.PIPE, text=True)


def test_a_killed_server_is_started_again_and_the_worker_notices_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    hosts = {"ps": [f"127.0.0.1:{port}"], "worker": ["127.0.0.1:1"]}
    monkeypatch.setenv("WEFT_HOSTS", json.dumps(hosts))
    monkeypatch.setenv("WEFT_JOB_UID", "u1")
    env = {**os.environ, "WEFT_ROLE": "ps", "WEFT_INDEX": "0", "CHECKPOINT_DIR": str(tmp_path)}
    server = start(env)
    with Client(patience=60) as client:
        assert client.push({"b": 1.0}, lr=-1.0) == 1
        server.kill()
        server.communicate()
        server = start(env)
        assert client.push({"b": 1.0}, lr=-1.0) == 2
        server.send_signal(signal.SIGTERM)  # halted: a clean end, with a checkpoint
        assert server.communicate(timeout=20)[0] == "2 2.0\n"
        assert server.returncode == 0
        server = start(env)
        assert client.push({"b": 1.0}, lr=-1.0) == 3
    assert server.communicate(timeout=20)[0] == "3 3.0\n"


def test_importing_it_does_not_import_numpy() -> None:
    code = "import sys, weft.runtime.parameters; sys.exit('numpy' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)
