"""The testbed itself: real pods run, simulated ones live as told, and what is asked for twice is there once."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from testbed import places, processes
from testbed.image import WEFT
from testbed.node import BUSYBOX, NAME
from testbed.telling import until

import weft

ROOT = Path(__file__).parents[2]
pytestmark = [pytest.mark.usefixtures("testbed_only"), pytest.mark.timeout(300)]
Make = Callable[..., dict[str, Any]]


def test_a_pod_runs_on_the_real_node_and_its_log_can_be_read(kubectl: Any, pod: Make) -> None:
    kubectl.create(pod("hello", NAME, BUSYBOX, "sh", "-c", "echo hello from $(hostname)"))
    assert kubectl.await_phase("hello", "Succeeded", "Failed") == "Succeeded"
    assert kubectl("logs", "hello") == "hello from hello\n"


def test_an_exit_code_of_a_real_pod_is_told(kubectl: Any, pod: Make) -> None:
    kubectl.create(pod("fails", NAME, BUSYBOX, "sh", "-c", "exit 7"))
    assert kubectl.await_phase("fails", "Succeeded", "Failed") == "Failed"
    (container,) = kubectl.get("pod", "fails")["status"]["containerStatuses"]
    assert container["state"]["terminated"]["exitCode"] == 7


def test_real_pods_reach_each_other_by_address(kubectl: Any, pod: Make) -> None:
    kubectl.create(pod("serves", NAME, BUSYBOX, "sh", "-c", "echo found | nc -l -p 8000"))
    kubectl.await_phase("serves", "Running")
    address = kubectl.get("pod", "serves")["status"]["podIP"]
    ask = f"for i in $(seq 50); do nc {address} 8000 </dev/null && exit 0; sleep 0.2; done; exit 1"
    kubectl.create(pod("asks", NAME, BUSYBOX, "sh", "-c", ask))
    assert kubectl.await_phase("asks", "Succeeded", "Failed") == "Succeeded"
    assert kubectl("logs", "asks") == "found\n"


def test_a_pod_of_weft_imports_weft(kubectl: Any, pod: Make) -> None:
    kubectl.create(pod("weft", NAME, WEFT, "python", "-c", "import weft; print(weft.__version__)"))
    assert kubectl.await_phase("weft", "Succeeded", "Failed") == "Succeeded", kubectl("logs", "weft")
    assert kubectl("logs", "weft").strip() == weft.__version__


def test_the_command_line_is_in_the_image(kubectl: Any, pod: Make) -> None:
    kubectl.create(pod("cli", NAME, WEFT, "weft", "--version"))
    assert kubectl.await_phase("cli", "Succeeded", "Failed") == "Succeeded", kubectl("logs", "cli")
    assert weft.__version__ in kubectl("logs", "cli")


def simulated(kubectl: Any) -> list[dict[str, Any]]:
    return kubectl.get("nodes", "-l", "testbed.weft.dev/kind=simulated")["items"]


def test_every_simulated_node_is_ready(kubectl: Any) -> None:
    nodes = simulated(kubectl)
    assert len(nodes) >= 1
    states = [
        each["status"] for node in nodes for each in node["status"]["conditions"] if each["type"] == "Ready"
    ]
    assert states == ["True"] * len(nodes)


def test_a_simulated_pod_runs_and_ends_as_its_annotations_say(kubectl: Any, pod: Make) -> None:
    kubectl.create(pod("good", "sim-0000", "any", runs_for="10"))
    kubectl.create(pod("bad", "sim-0001", "any", runs_for="0.2", exit_code="3"))
    kubectl.await_phase("good", "Running")
    assert kubectl.await_phase("bad", "Succeeded", "Failed") == "Failed"
    assert kubectl.await_phase("good", "Succeeded", "Failed") == "Succeeded"
    (container,) = kubectl.get("pod", "bad")["status"]["containerStatuses"]
    assert container["state"]["terminated"]["exitCode"] == 3


def test_a_deleted_simulated_pod_is_gone(kubectl: Any, pod: Make) -> None:
    kubectl.create(pod("stays", "sim-0000", "any", runs_for="forever"))
    kubectl.await_phase("stays", "Running")
    kubectl("delete", "pod", "stays", "--wait=false")
    assert until(lambda: kubectl("get", "pod", "stays", "--ignore-not-found") == "", 60)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root starts a testbed")
def test_up_twice_is_one_testbed() -> None:
    record = processes.read(places.state())
    assert record is not None
    nodes = str(record.options["nodes"])
    scheduler = ["--scheduler"] if record.options["scheduler"] else []
    again = [sys.executable, "-m", "testbed", "up", "--nodes", nodes, *scheduler]
    env = {**os.environ, "PYTHONPATH": str(ROOT / "scripts")}
    done = subprocess.run(again, env=env, capture_output=True, text=True, check=True, timeout=60)
    assert "is up already" in done.stdout
    after = processes.read(places.state())
    assert after is not None
    assert {*record.processes} <= {*after.processes}
