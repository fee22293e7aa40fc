"""A cluster for the tests: the one that WEFT_TEST_KUBECONFIG names, or the testbed, or none and every test says so."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, NoReturn

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "scripts"))
sys.path.insert(0, str(Path(__file__).parents[1] / "machine"))
sys.path.insert(0, str(Path(__file__).parents[1]))

from harness import Server
from testbed import binaries, controlplane, places, processes
from testbed.api import Api
from testbed.telling import until

ELSEWHERE = os.environ.get("WEFT_TEST_KUBECONFIG")
WEFT_IMAGE = os.environ.get("WEFT_TEST_IMAGE", "localhost/weft:testbed")
SHELL_IMAGE = os.environ.get("WEFT_TEST_SHELL_IMAGE", "localhost/busybox:testbed")
SELECTOR = os.environ.get("WEFT_TEST_SELECTOR", "" if ELSEWHERE else "testbed.weft.dev/kind=real")
REAL = {"selector": dict(each.split("=", 1) for each in SELECTOR.split(",") if each)}
"""Nodes that run what they are given."""


class Kubectl:
    """kubectl in a namespace of the test's own."""

    def __init__(self, program: str, kubeconfig: str, namespace: str) -> None:
        self.namespace = namespace
        self._command = [program, "--kubeconfig", kubeconfig, "--namespace", namespace]

    def __call__(self, *arguments: str, told: dict[str, Any] | None = None, check: bool = True) -> str:
        done = self._run(*arguments, text=None if told is None else json.dumps(told))
        assert not check or done.returncode == 0, f"kubectl {' '.join(arguments)}: {done.stderr}"
        return done.stdout

    def _run(self, *arguments: str, text: str | None = None) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*self._command, *arguments], input=text, capture_output=True, text=True, check=False, timeout=60
        )

    def established(self, *definitions: str) -> None:
        """Wait for definitions; kubectl itself gives up on one that has no conditions yet."""
        wait = ("wait", "--for=condition=Established", "--timeout=30s", *definitions)
        assert until(lambda: self._run(*wait).returncode == 0, 60), f"{definitions} are not established"

    def begin(self, *arguments: str, output: IO[str]) -> subprocess.Popen[bytes]:
        """One that goes on until it is ended."""
        return subprocess.Popen([*self._command, *arguments], stdout=output, stderr=output)

    def get(self, *arguments: str) -> dict[str, Any]:
        return json.loads(self("get", *arguments, "-o", "json"))

    def create(self, document: dict[str, Any]) -> None:
        self("create", "-f", "-", told=document)

    def phase(self, pod: str) -> str:
        return self("get", "pod", pod, "-o", "jsonpath={.status.phase}")

    def await_phase(self, pod: str, *phases: str, seconds: float = 60) -> str:
        reached = until(lambda: self.phase(pod) in phases, seconds, every=0.3)
        assert reached, f"{pod} is {self.phase(pod)}:\n{self('describe', 'pod', pod)}"
        return self.phase(pod)


@dataclass(frozen=True)
class Town:
    server: Server
    kubectl: Kubectl

    def nothing_left(self, job: str) -> bool:
        """Of a job, in the cluster."""
        kinds = "pods,configmaps,secrets,services,networkpolicies"
        return self.kubectl.get(kinds, "-l", f"weft.dev/job={job}")["items"] == []


def arguments(kubeconfig: str, namespace: str) -> tuple[str, ...]:
    own = ("--backend", "kubernetes", "--kubeconfig", kubeconfig, "--namespace", namespace)
    return (*own, "--image", WEFT_IMAGE, "--image-pull-policy", "IfNotPresent" if ELSEWHERE else "Never")


def lacking(what: str) -> NoReturn:
    """In CI they must run."""
    pytest.fail(what) if os.environ.get("CI") else pytest.skip(what)


@pytest.fixture(scope="session")
def kubeconfig() -> str:
    if ELSEWHERE:
        return str(Path(ELSEWHERE).expanduser())
    started = places.state() / "kubeconfig"
    if not started.exists():
        lacking("there is no cluster: make k8s-testbed, or set WEFT_TEST_KUBECONFIG")
    return str(started)


@pytest.fixture(scope="session")
def testbed_only(kubeconfig: str) -> None:
    """For what only the testbed has: simulated nodes, and processes on this machine that may be killed."""
    if kubeconfig != str(places.state() / "kubeconfig"):
        lacking(
            "WEFT_TEST_KUBECONFIG names another cluster; this needs the testbed's simulated nodes or processes: "
            "make k8s-testbed"
        )


@pytest.fixture(scope="session")
def images(kubeconfig: str) -> None:
    """For what needs an image of Weft that the cluster can pull, and one with a shell."""
    if ELSEWHERE and not {"WEFT_TEST_IMAGE", "WEFT_TEST_SHELL_IMAGE"} <= os.environ.keys():
        lacking(
            "WEFT_TEST_KUBECONFIG names another cluster: set WEFT_TEST_IMAGE (Weft's) and WEFT_TEST_SHELL_IMAGE "
            "(busybox, say) to images that it can pull, and WEFT_TEST_SELECTOR to the label of nodes for them"
        )


@contextmanager
def in_a_namespace(kubeconfig: str) -> Iterator[Kubectl]:
    built = binaries.found()
    program = str(built / "kubectl") if built else shutil.which("kubectl")
    if program is None:
        lacking("there is no kubectl on the path")
    namespace = f"weft-test-{uuid.uuid4().hex[:8]}"
    told = Kubectl(program, kubeconfig, namespace)
    told("create", "namespace", namespace)
    account = ("get", "serviceaccount", "default", "-o", "jsonpath={.metadata.name}")
    assert until(lambda: told(*account, check=False) == "default", 30, every=0.1)
    try:
        yield told
    finally:
        told("delete", "namespace", namespace, "--wait=false")


@pytest.fixture
def api(kubeconfig: str) -> Iterator[Api]:
    """For what kubectl has no words for; the testbed's kubeconfig alone is as simple as this needs."""
    made = Api.of(Path(kubeconfig))
    yield made
    made.close()


@pytest.fixture
def kubectl(kubeconfig: str) -> Iterator[Kubectl]:
    with in_a_namespace(kubeconfig) as told:
        yield told


@pytest.fixture(scope="session")
def town(kubeconfig: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Town]:
    """One server for all tests that do it no harm, and kubectl in its namespace."""
    with in_a_namespace(kubeconfig) as told:
        server = Server(tmp_path_factory.mktemp("town") / "home", arguments(kubeconfig, told.namespace))
        server.start()
        yield Town(server, told)
        server.stop()


@pytest.fixture(scope="session")
def kube_scheduler(testbed_only: None) -> None:
    """The cluster's own, beside Weft's. One for all workers and until the testbed ends: two that know nothing of each
    other would both place the same pods, and each would write over what the other has found."""
    built = binaries.found()
    assert built is not None
    processes.start_once(
        places.state(),
        "kube-scheduler",
        lambda record: controlplane.scheduler(record, built / "kube-scheduler"),
    )


@pytest.fixture
def pod() -> Callable[..., dict[str, Any]]:
    def make(name: str, node: str, image: str, *command: str, **notes: str) -> dict[str, Any]:
        annotations = {f"testbed.weft.dev/{key.replace('_', '-')}": value for key, value in notes.items()}
        container = {"name": "main", "image": image, "imagePullPolicy": "Never", "command": list(command)}
        return {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": name, "annotations": annotations},
            "spec": {"nodeName": node, "restartPolicy": "Never", "containers": [container]},
        }

    return make


@pytest.fixture
def cluster(kubeconfig: str, kubectl: Kubectl, tmp_path: Path) -> Iterator[Callable[..., Server]]:
    """Servers that use the cluster, in the test's own namespace; each is stopped at the end."""
    servers: list[Server] = []

    def make(*more: str, home: str = "home") -> Server:
        server = Server(tmp_path / home, (*arguments(kubeconfig, kubectl.namespace), *more))
        servers.append(server)
        return server.start()

    yield make
    for server in servers:
        server.stop()
