"""A server of one machine to which a cluster is added: the same job here and there, also while the cluster is away."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from urllib.parse import urlparse

import pytest
import yaml
from harness import Server, sh, until
from testbed.node import NAME

from .conftest import REAL, WEFT_IMAGE, Kubectl
from .test_jobs import small

IMAGE = ("--image", WEFT_IMAGE, "--image-pull-policy", "Never")


class Door:
    """The way to an API server, which can be shut: connections are passed on, or end."""

    def __init__(self, host: str, port: int):
        self._to = (host, port)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self._open = True
        self._through: list[socket.socket] = []
        threading.Thread(target=self._run, daemon=True).start()

    def _run(self) -> None:
        with suppress(OSError):
            while True:
                came, _ = self._listener.accept()
                if not self._open:
                    came.close()
                    continue
                going = socket.create_connection(self._to)
                self._through += [came, going]
                for one, other in ((came, going), (going, came)):
                    threading.Thread(target=_pass_on, args=(one, other), daemon=True).start()

    def shut(self) -> None:
        self._open = False
        for end in self._through:
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
        self._through.clear()

    def open(self) -> None:
        self._open = True

    def close(self) -> None:
        self.shut()
        self._listener.close()


def _pass_on(one: socket.socket, other: socket.socket) -> None:
    with suppress(OSError), ExitStack() as ends:
        ends.callback(one.close)
        ends.callback(other.close)
        while data := one.recv(1 << 16):
            other.sendall(data)


@pytest.fixture
def door(kubeconfig: str) -> Iterator[Door]:
    address = urlparse(yaml.safe_load(Path(kubeconfig).read_text())["clusters"][0]["cluster"]["server"])
    made = Door(str(address.hostname), address.port or 443)
    yield made
    made.close()


@pytest.fixture
def through(door: Door, kubeconfig: str, tmp_path: Path) -> str:
    """A kubeconfig that leads through the door."""
    told = yaml.safe_load(Path(kubeconfig).read_text())
    whole = told["clusters"][0]["cluster"]
    whole["tls-server-name"] = urlparse(whole["server"]).hostname
    whole["server"] = f"https://127.0.0.1:{door.port}"
    path = tmp_path / "kubeconfig"
    path.write_text(yaml.safe_dump(told))
    return str(path)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    made = Server(tmp_path / "home")
    made.start()
    yield made
    made.stop()


def test_a_server_of_a_laptop_needs_nothing_in_the_cluster_and_remembers_it(
    kubectl: Kubectl, kubeconfig: str, testbed_only: None, tmp_path: Path
) -> None:
    laptop = Server(tmp_path / "home")
    job = sh("echo on $WEFT_NODE", name="hello", roles=small(), placement=REAL)
    (tmp_path / "job.yaml").write_text(yaml.safe_dump(job))
    where = ("--kubeconfig", kubeconfig, "--namespace", kubectl.namespace)
    try:
        laptop.weft("up", "--backend", "kubernetes", *where, *IMAGE)
        laptop.weft("down")
        laptop.weft("up")
        assert f"on {NAME}" in laptop.weft("run", str(tmp_path / "job.yaml")).stdout
    finally:
        laptop.weft("down", check=False)


def test_the_same_job_here_and_in_a_cluster(
    server: Server, kubectl: Kubectl, kubeconfig: str, testbed_only: None, tmp_path: Path
) -> None:
    (tmp_path / "train.py").write_text(
        "import os, pathlib, weft\n"
        "weft.log(loss=0.5, step=1)\n"
        "print('on', os.environ['WEFT_NODE'])\n"
        "pathlib.Path(os.environ['RESULT_DIR'], 'model').write_text('trained')\n"
    )
    added = server.weft(
        "clusters",
        "add",
        "prod",
        "--kubeconfig",
        kubeconfig,
        "--namespace",
        kubectl.namespace,
        *IMAGE,
    )
    assert "cluster/prod: " in added.stdout
    assert "--cluster prod" in added.stderr
    for name, where in (("here", ()), ("there", ("--cluster", "prod"))):
        server.weft("run", "--name", name, *where, "train.py", cwd=tmp_path)
        assert server.status(name)["state"] == "COMPLETED", server.story(name)
        assert [point["value"] for point in server.metrics(name)] == [0.5]
        assert server.get(f"/v1/jobs/{name}/results").json["items"][0]["path"] == "model"
    (task,) = server.status("there")["tasks"]
    assert task["binding"]["node"].startswith("prod:")
    assert server.text("there") == [f"on {task['binding']['node'].removeprefix('prod:')}"]
    (line,) = server.weft("clusters").stdout.splitlines()[1:]
    assert line.split()[:2] == ["prod", "READY"]
    assert "prod:" in server.weft("nodes").stdout
    server.weft("clusters", "rm", "prod")
    assert "prod:" not in server.weft("nodes").stdout


def test_what_cannot_be_reached_is_not_added(server: Server, tmp_path: Path, kubeconfig: str) -> None:
    missing = server.weft("clusters", "add", "prod", "--kubeconfig", str(tmp_path / "none"), check=False)
    assert missing.returncode != 0
    assert "kubeconfig cannot be used" in missing.stderr
    told = yaml.safe_load(Path(kubeconfig).read_text())
    told["clusters"][0]["cluster"]["server"] = "https://127.0.0.1:1"
    (tmp_path / "dead").write_text(yaml.safe_dump(told))
    dead = server.weft("clusters", "add", "prod", "--kubeconfig", str(tmp_path / "dead"), check=False)
    assert dead.returncode != 0
    assert "127.0.0.1:1 does not answer" in dead.stderr
    assert server.get("/v1/clusters").json["items"] == []
    refused = server.post("/v1/jobs", sh("true", name="lost", placement={"cluster": "prod"}))
    assert refused.status == 422
    assert "no such cluster" in refused.body.decode()


def test_a_cluster_that_is_away_when_the_server_comes_back(
    server: Server, kubectl: Kubectl, through: str, door: Door, testbed_only: None
) -> None:
    where = ("--kubeconfig", through, "--namespace", kubectl.namespace)
    server.weft("clusters", "add", "prod", *where, *IMAGE)
    prod = {"cluster": "prod", **REAL}
    server.submit(
        sh(
            "echo begun; until [ -e $RESULT_DIR/go ]; do sleep 0.1; done; echo done",
            name="long",
            roles=small(),
            placement=prod,
        )
    )
    server.wait_for("long", "PROCESSING")
    server.printed_line("long", "begun")
    door.shut()
    server.kill()
    server.start()
    assert any("cluster prod is away" in note for note in server.get("/v1/status").json["notes"])
    assert server.get("/v1/clusters/prod").json["status"]["state"] == "AWAY"
    server.submit(sh("echo later", name="waits", roles=small(), placement=prod))
    assert server.run(sh("true", name="here"))["status"]["state"] == "COMPLETED"
    assert server.status("long")["state"] == "PROCESSING"
    assert server.status("waits")["state"] == "QUEUED"
    door.open()
    assert server.wait_for("waits")["status"]["state"] == "COMPLETED", server.story("waits")
    pod = kubectl.get("pods", "-l", "weft.dev/job=long")["items"][0]["metadata"]["name"]
    kubectl("exec", pod, "-c", "task", "--", "sh", "-c", "touch $RESULT_DIR/go")
    assert server.wait_for("long")["status"]["state"] == "COMPLETED", server.story("long")
    assert server.text("long") == ["begun", "done"]
    until(lambda: kubectl.get("pods")["items"] == [], "no pod to stay", 60, every=0.2)
