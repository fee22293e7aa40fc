"""`weft.ps` where things break: answers that are lost, servers that are killed, and come back from their snapshots."""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from weft import ps
from weft.runtime.ps import client as client_module
from weft.runtime.ps import snapshot
from weft.runtime.ps.arrays import float32
from weft.runtime.ps.job import job_token
from weft.runtime.ps.layout import layout_of
from weft.runtime.ps.server import Server
from weft.runtime.ps.state import State, shard_values

INITIAL = {"a": np.zeros((7, 30)), "b": np.zeros(11)}


def a_server(
    index: int = 0,
    servers: int = 1,
    port: int = 0,
    path: Path | None = None,
    every: int = 1000,
    optimizer: Any = None,
    staleness: int | None = None,
    initial: dict[str, Any] = INITIAL,
) -> Server:
    arrays = {name: float32(value) for name, value in initial.items()}
    layout = layout_of({name: array.shape for name, array in arrays.items()}, servers)
    shard = layout.shards[index]
    state = State(shard, shard_values(shard, arrays), optimizer or ps.SGD(1.0), staleness)
    file = str(path / f"ps-{index}.snapshot") if path else None
    return Server(
        state, layout, ("127.0.0.1", port), workers=lambda: 99, token=job_token(), path=file, every=every
    )


def stop(server: Server) -> None:
    server.stopping = True
    server.wait()


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as free:
        return int(free.getsockname()[1])


class FlakyProxy:
    """Cuts each connection after some bytes, in the one direction or the other, at any place in a message."""

    def __init__(self, address: str, seed: int, most: int):
        self.target = address.rsplit(":", 1)
        self.chance = random.Random(seed)
        self.most = most
        self.cuts = 0
        self.listening = socket.create_server(("127.0.0.1", 0))
        self.address = "{}:{}".format(*self.listening.getsockname())
        threading.Thread(target=self.accept, daemon=True).start()

    def accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                here, _ = self.listening.accept()
                try:
                    there = socket.create_connection(self.target)
                except ConnectionRefusedError:
                    here.close()
                    continue
                left = [self.chance.randint(900, self.most) for _ in range(2)]
                threading.Thread(target=self.carry, args=(here, there, *left), daemon=True).start()

    def carry(self, here: socket.socket, there: socket.socket, out: int, back: int) -> None:
        with here, there:
            other = threading.Thread(target=self.forward, args=(there, here, back), daemon=True)
            other.start()
            self.forward(here, there, out)
            other.join()

    def forward(self, source: socket.socket, target: socket.socket, left: int) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(min(700, left)):
                target.sendall(data)
                left -= len(data)
                if not left:
                    self.cuts += 1
                    break
        for sock in (source, target):
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)


@pytest.mark.parametrize("local", [0, 3, 100])
@pytest.mark.parametrize("compression", [None, "float16"])
def test_every_push_counts_once_however_often_the_connection_breaks(
    local: int, compression: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client_module, "LONGEST_PAUSE", 0.05)
    servers = [a_server(i, 2) for i in range(2)]
    proxies = [FlakyProxy(server.address, seed, 4500) for seed, server in enumerate(servers)]
    ones = {name: np.ones(value.shape) for name, value in INITIAL.items()}
    with ps.Client([proxy.address for proxy in proxies], local=local, compression=compression) as client:
        for number in range(60):
            client.push(ones)
            if number % 7 == 0:
                client.pull()
    assert client.waiting == 0
    assert all(proxy.cuts > 3 for proxy in proxies)
    with contextlib.closing(ps.Client([server.address for server in servers])) as direct:
        arrays, version = direct.pull()
        assert version == 60
        assert {float(value) for array in arrays.values() for value in array.flat} == {-60.0}
    for proxy in proxies:
        proxy.listening.close()
    for server in servers:
        stop(server)


def test_every_push_counts_once_also_when_servers_are_started_again_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client_module, "LONGEST_PAUSE", 0.05)
    servers = [a_server(i, 2, path=tmp_path) for i in range(2)]
    proxies = [FlakyProxy(server.address, seed, 6000) for seed, server in enumerate(servers)]
    ones = {name: np.ones(value.shape) for name, value in INITIAL.items()}
    pushed = threading.Semaphore(0)

    def work(local: int) -> None:
        with ps.Client([proxy.address for proxy in proxies], local=local, patience=60) as client:
            for number in range(40):
                client.push(ones)
                pushed.release()
                if number % 5 == 0:
                    client.pull()

    workers = [threading.Thread(target=work, args=(local,)) for local in (0, 3, 50)]
    for worker in workers:
        worker.start()
    for index in (0, 1, 0, 1):
        for _ in range(20):
            pushed.acquire(timeout=90)
        stop(servers[index])
        port = int(servers[index].address.rpartition(":")[2])
        servers[index] = a_server(index, 2, port=port, path=tmp_path)
    for worker in workers:
        worker.join()
    with contextlib.closing(ps.Client([server.address for server in servers])) as direct:
        arrays, version = direct.pull()
        assert version == 120
        assert {float(value) for array in arrays.values() for value in array.flat} == {-120.0}
    for proxy in proxies:
        proxy.listening.close()
    for server in servers:
        stop(server)


# ── a server that is away ──


def test_a_worker_goes_on_alone_and_pays_what_it_owes(tmp_path: Path) -> None:
    server = a_server(path=tmp_path)
    port = int(server.address.rpartition(":")[2])
    with contextlib.closing(ps.Client(server.address, patience=20)) as client:
        client.pull()
        client.push({"b": np.ones(11)})
        stop(server)
        answers = [client.push({"b": np.full(11, 2.0)}) for _ in range(3)]
        assert [(answer.version, answer.waiting) for answer in answers] == [(2, 1), (3, 2), (4, 3)]
        client.push({"a": ps.Rows([3], np.ones((1, 30)))}, lr=0.5)
        arrays, version = client.pull()  # its own copy, on which it went on
        assert (version, arrays["b"][0], arrays["a"][3, 0]) == (5, -6, -0.5)  # the push before was not pulled
        again = a_server(port=port, path=tmp_path)
        assert again.state.point == (2, 1)
        client._up(client._links[0], must=True)
        arrays, version = client.pull()
        assert (version, client.waiting) == (5, 0)
        assert (arrays["b"] == -7).all()
        assert (arrays["a"][3] == -0.5).all()
        assert not arrays["a"][:3].any()
        stop(again)


def test_with_several_servers_only_one_is_waited_for(tmp_path: Path) -> None:
    servers = [a_server(i, 2, path=tmp_path) for i in range(2)]
    with contextlib.closing(ps.Client([server.address for server in servers], patience=20)) as client:
        client.pull()
        stop(servers[0])
        for _ in range(5):
            client.push({name: np.ones(value.shape) for name, value in INITIAL.items()})
        assert servers[1].state.point.version == 5
        servers[0] = a_server(0, 2, port=int(servers[0].address.rpartition(":")[2]), path=tmp_path)
        client._up(client._links[0], must=True)
        assert servers[0].state.point.version == 5
        assert client.pull().version == 5
    for server in servers:
        stop(server)


def test_what_was_gathered_on_old_parameters_may_be_stale() -> None:
    """The server was there all the time, only this worker could not reach it."""
    server = a_server(staleness=2)
    proxy = FlakyProxy(server.address, 0, 1 << 30)
    client = ps.Client(proxy.address, patience=20)
    with contextlib.closing(client), contextlib.closing(ps.Client(server.address)) as other:
        client.pull()
        client._links[0].close()
        client._links[0].retry_at = time.monotonic() + 1000
        assert client.push({"b": np.ones(11)}).waiting == 1
        for _ in range(4):
            other.pull()
            other.push({"b": np.ones(11)})
        client._links[0].retry_at = 0.0
        client.pull()
        assert (client.stale, client.waiting, server.state.point.version) == (1, 0, 4)
    proxy.listening.close()
    stop(server)


def test_alone_is_alone_only_so_long() -> None:
    server = a_server()
    with contextlib.closing(ps.Client(server.address, local=2, patience=0.2)) as client:
        client.pull()
        stop(server)
        client.push({"b": np.ones(11)})
        client.push({"b": np.ones(11)})
        with pytest.raises(ps.Unreachable, match=f"no parameter server at {server.address} .*refused"):
            client.push({"b": np.ones(11)})


def test_a_push_that_gives_up_on_one_server_is_not_lost_on_the_others(tmp_path: Path) -> None:
    servers = [a_server(i, 2, path=tmp_path) for i in range(2)]
    ones = {name: np.ones(value.shape) for name, value in INITIAL.items()}
    addresses = [server.address for server in servers]
    with contextlib.closing(ps.Client(addresses, local=0, patience=0.3)) as client:
        client.pull()
        stop(servers[1])
        with pytest.raises(ps.Unreachable):
            client.push(ones)
        servers[1] = a_server(1, 2, port=int(addresses[1].rpartition(":")[2]), path=tmp_path)
        client.patience = 20
        client.push(ones)
        assert [server.state.point.version for server in servers] == [2, 2]
        assert (client.pull().arrays["a"] == -2).all()
    for server in servers:
        stop(server)


def test_nobody_can_go_on_with_what_was_never_pulled() -> None:
    port = free_port()
    with pytest.raises(ps.Unreachable, match="no parameter server at"):
        ps.Client(f"127.0.0.1:{port}", patience=0.01).pull()
    server = a_server()
    with contextlib.closing(ps.Client(server.address, patience=0.2)) as client:
        client.pull(rows={"a": [1]})
        stop(server)
        with pytest.raises(ps.Unreachable):
            client.pull(rows={"a": [2]})


def test_different_rates_are_gathered_as_one() -> None:
    server = a_server()
    with contextlib.closing(ps.Client(server.address, patience=20)) as client:
        client.pull()
        link = client._links[0]
        link.close()
        link.retry_at = time.monotonic() + 1000
        for lr in (0.0, 0.5, 2.0, 0.0):
            client.push({"b": np.ones(11)}, lr=lr)
        link.retry_at = 0.0
        arrays, version = client.pull()
        assert version == 4
        np.testing.assert_allclose(arrays["b"], -2.5)
    stop(server)


# ── snapshots ──


@pytest.mark.parametrize("optimizer", [ps.SGD(0.1), ps.Momentum(0.1), ps.Adam(0.1)])
def test_a_snapshot_carries_on(tmp_path: Path, optimizer: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    through, there = a_server(optimizer=optimizer), a_server(optimizer=optimizer, path=tmp_path / "new")
    gradients = [{"b": np.full(11, float(i))} for i in range(6)]
    for i, gradient in enumerate(gradients):
        for server in (through, there):
            with contextlib.closing(ps.Client(server.address)) as client:
                client.push(gradient)
        if i == 2:
            there.state.mark("worker-1", done=True)
            stop(there)
            there = a_server(optimizer=optimizer, path=tmp_path / "new")
            assert there.state.done == {"worker-1"}
    with through.state.reading() as (one, _), there.state.reading() as (other, point):
        assert (one == other).all()
        assert point == (2, 6)
    stop(through)
    stop(there)
    assert os.listdir(tmp_path / "new") == ["ps-0.snapshot"]
    monkeypatch.setenv("WEFT_LAUNCH", "2")  # the whole job is started again: nobody is done
    again = a_server(optimizer=optimizer, path=tmp_path / "new")
    assert again.state.done == set()
    stop(again)


def test_a_push_is_remembered_by_the_snapshot(tmp_path: Path) -> None:
    server = a_server(path=tmp_path)
    with contextlib.closing(ps.Client(server.address)) as client:
        client.push({"b": np.ones(11)})
        sessions = dict(server.state.sessions)
    stop(server)
    again = a_server(path=tmp_path)
    assert again.state.sessions == sessions
    assert list(sessions.values()) == [1]
    stop(again)


def test_a_snapshot_of_something_else_is_an_error(tmp_path: Path) -> None:
    stop(a_server(path=tmp_path))
    with pytest.raises(
        ps.ParameterServerError, match=r"another model or another number of servers .*remove it"
    ):
        a_server(path=tmp_path, initial={"other": np.zeros(3)})
    with pytest.raises(ps.ParameterServerError, match="another model or another number of servers"):
        a_server(servers=2, path=tmp_path)
    path = tmp_path / "ps-0.snapshot"
    whole = path.read_bytes()
    damaged = bytearray(whole)
    damaged[-9] ^= 1
    for data, why in [(whole[:10], "not a snapshot"), (whole[:-1], "cut short"), (bytes(damaged), "damaged")]:
        path.write_bytes(data)
        with pytest.raises(ps.ParameterServerError, match=f"cannot be read .*{why}"):
            a_server(path=tmp_path)


def test_a_disk_that_refuses_a_snapshot_does_not_stop_training(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(OSError):
        snapshot.write(str(tmp_path / "file" / "x"), a_kept(), {})
    path = tmp_path / "later"
    server = a_server(path=path)
    path.touch()
    with contextlib.closing(ps.Client(server.address)) as client:
        assert client.push({"b": np.ones(11)}).version == 1
    stop(server)
    assert "weft: no snapshot of version 1: " in capsys.readouterr().err


def a_kept() -> Any:
    shard = layout_of({"a": (2,)}, 1).shards[0]
    return State(shard, np.zeros(2), ps.SGD()).kept()


# ── real processes ──

SERVE = """
import numpy as np
from weft import ps
initial = {"a": np.zeros((7, 30)), "b": np.zeros(11)}
print(ps.serve(initial, optimizer=ps.SGD(lr=1.0), every=1))
"""


@contextlib.contextmanager
def ps_tasks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, servers: int) -> Iterator[Any]:
    hosts = {"ps": [f"127.0.0.1:{free_port()}" for _ in range(servers)], "worker": ["127.0.0.1:1"]}
    monkeypatch.setenv("WEFT_HOSTS", json.dumps(hosts))
    monkeypatch.setenv("WEFT_JOB_UID", "u1")
    monkeypatch.setenv("WEFT_TASK", "worker-0")
    started: list[subprocess.Popen[str]] = []

    def start(index: int) -> subprocess.Popen[str]:
        env = {**os.environ, "WEFT_ROLE": "ps", "WEFT_INDEX": str(index), "CHECKPOINT_DIR": str(tmp_path)}
        started.append(
            subprocess.Popen([sys.executable, "-c", SERVE], env=env, stdout=subprocess.PIPE, text=True)
        )
        return started[-1]

    try:
        yield start
    finally:
        for process in started:
            process.kill()
            process.wait()
            assert process.stdout is not None
            process.stdout.close()


def test_killed_servers_come_back_and_the_worker_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ones = {"a": np.ones((7, 30)), "b": np.ones(11)}
    with ps_tasks(tmp_path, monkeypatch, 2) as start:
        servers = [start(0), start(1)]
        with ps.Client(patience=60) as client:
            client.pull()
            for _ in range(5):
                client.push(ones)
            servers[1].send_signal(signal.SIGKILL)
            servers[1].communicate()
            for _ in range(5):
                assert client.push(ones).version <= 10
            assert client.waiting == 5
            cut = layout_of({"a": (7, 30), "b": (11,)}, 2).shards[1].start
            kept = snapshot.read(str(tmp_path / "ps-1.snapshot"), 221 - cut, {})
            lost = 5 - (kept[0].point.version if kept else 0)
            servers[1] = start(1)
            client._up(client._links[1], must=True)
            arrays, version = client.pull()
            assert (version, client.waiting) == (10 - lost, 0)
            line = np.concatenate([arrays["a"].reshape(-1), arrays["b"]])
            assert (line[:cut] == -10).all()
            assert (line[cut:] == -10 + lost).all()
            servers[0].send_signal(signal.SIGTERM)  # halted: a clean end, with a snapshot
            assert servers[0].communicate(timeout=90)[0] == "10\n"
            client.push(ones)
            servers[0] = start(0)
            client._up(client._links[0], must=True)
            assert client.pull().arrays["a"][0, 0] == -11
        assert [server.communicate(timeout=90)[0] for server in servers] == ["11\n", f"{11 - lost}\n"]


def test_a_server_that_hangs_is_as_one_that_is_away(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ones = {"b": np.ones(11)}
    with ps_tasks(tmp_path, monkeypatch, 1) as start:
        server = start(0)
        with ps.Client(patience=60, answer_seconds=2.0) as client:
            client.pull()
            client._links[0]._seconds = 0.1
            client._links[0].close()
            client.push(ones)
            server.send_signal(signal.SIGSTOP)
            assert os.WIFSTOPPED(os.waitpid(server.pid, os.WUNTRACED)[1]), (
                "the signal alone does not say that it stands"
            )
            assert [client.push(ones).waiting for _ in range(3)] == [1, 2, 3]
            server.send_signal(signal.SIGCONT)  # and applies what it had received, whose answer nobody hears
            client._links[0]._seconds = 20.0
            client._up(client._links[0], must=True)
            arrays, version = client.pull()
            assert (version, client.waiting) == (4, 0)
            assert (arrays["b"] == -4).all()
        assert server.communicate(timeout=90)[0] == "4\n"
