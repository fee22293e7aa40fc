"""A cluster for the tests: the one that WEFT_TEST_KUBECONFIG names, or the testbed, or none and every test says so."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "scripts"))

from testbed import binaries, places
from testbed.telling import until


class Kubectl:
    """kubectl in a namespace of the test's own."""

    def __init__(self, program: str, kubeconfig: str, namespace: str) -> None:
        self._command = [program, "--kubeconfig", kubeconfig, "--namespace", namespace]

    def __call__(self, *arguments: str, told: dict[str, Any] | None = None, check: bool = True) -> str:
        text = None if told is None else json.dumps(told)
        done = subprocess.run(
            [*self._command, *arguments], input=text, capture_output=True, text=True, check=False, timeout=60
        )
        assert not check or done.returncode == 0, f"kubectl {' '.join(arguments)}: {done.stderr}"
        return done.stdout

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


@pytest.fixture(scope="session")
def kubeconfig() -> str:
    if named := os.environ.get("WEFT_TEST_KUBECONFIG"):
        return str(Path(named).expanduser())
    started = places.state() / "kubeconfig"
    if not started.exists():
        pytest.skip("there is no cluster: make k8s-testbed, or set WEFT_TEST_KUBECONFIG")
    return str(started)


@pytest.fixture
def testbed_only(kubeconfig: str) -> None:
    """For what only the testbed has: its images and its simulated nodes."""
    if kubeconfig != str(places.state() / "kubeconfig"):
        pytest.skip("WEFT_TEST_KUBECONFIG names another cluster; this is about the testbed: make k8s-testbed")


@pytest.fixture
def kubectl(kubeconfig: str) -> Iterator[Kubectl]:
    built = binaries.found()
    program = str(built / "kubectl") if built else shutil.which("kubectl")
    if program is None:
        pytest.skip("there is no kubectl on the path")
    namespace = f"weft-test-{uuid.uuid4().hex[:8]}"
    told = Kubectl(program, kubeconfig, namespace)
    told("create", "namespace", namespace)
    account = ("get", "serviceaccount", "default", "-o", "jsonpath={.metadata.name}")
    assert until(lambda: told(*account, check=False) == "default", 30, every=0.1)
    yield told
    told("delete", "namespace", namespace, "--wait=false")


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
