"""Custom resources on a real API server: it takes them, and tells of a mistake where it is."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from harness import Server
from testbed import binaries, places, processes
from testbed.telling import until

from weft.backends.kubernetes.crds import KINDS
from weft.operator.operator import ABSENT

from .conftest import lacking

ROOT = Path(__file__).parents[2]
CRDS = ROOT / "deploy" / "chart" / "crds"
NAMES = [kind.full_name for kind in KINDS]
SIMULATED = {"selector": {"testbed.weft.dev/kind": "simulated"}}
EXAMPLES = sorted(ROOT.glob("examples/*/job.yaml"))
Apply = Callable[[dict[str, Any]], "subprocess.CompletedProcess[str]"]


@pytest.fixture(scope="module")
def survives(kubeconfig: str) -> None:
    """An API server of the testbed that was built before reflect2 was mended dies of the first custom object."""
    if kubeconfig != str(places.state() / "kubeconfig"):
        return
    record = processes.read(places.state())
    running = (
        [] if record is None else [each for each in record.processes if each.name == binaries.API_SERVER]
    )
    old = any("(deleted)" in str(Path(f"/proc/{each.pid}/exe").readlink()) for each in running)
    if old or not binaries.mended():
        lacking("this testbed's API server would die of it: make k8s-testbed-down k8s-testbed")


@pytest.fixture(scope="module")
def at_the_end() -> Iterator[list[Callable[[], object]]]:
    things: list[Callable[[], object]] = []
    yield things
    for do in things:
        do()


@pytest.fixture
def installed(
    survives: None, testbed_only: None, kubectl: Any, at_the_end: list[Callable[[], object]]
) -> Any:
    """The definitions stay, since others use them; what belongs to no namespace goes."""
    if at_the_end:
        return kubectl
    at_the_end.append(lambda: kubectl("delete", "jobtypes,queues.weft.dev,sizes", "--all", "--timeout=50s"))
    kubectl("apply", "-f", str(CRDS))
    kubectl.established(*(f"crd/{name}" for name in NAMES))
    for field in (
        "trainingjobs.spec.roles.replicas",
        "jobtypes.spec.checks",
        "queues.spec.weight",
        "sizes.spec.perGpu",
    ):
        # kubectl knows fields, and refuses others, only once the server has published them
        assert until(lambda field=field: "FIELD" in kubectl("explain", field, check=False), 60, every=0.5), (
            field
        )
    return kubectl


@pytest.fixture
def applied(installed: Any) -> Apply:
    def apply(document: dict[str, Any], *options: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*installed._command, "apply", "-f", "-", *options],
            input=json.dumps(document), capture_output=True, text=True, check=False, timeout=60,
        )  # fmt: skip

    return apply


def job(name: str, **spec: Any) -> dict[str, Any]:
    return {"apiVersion": "weft.dev/v1", "kind": "TrainingJob", "metadata": {"name": name}, "spec": spec}


def test_the_server_takes_them_without_complaint(installed: Any) -> None:
    for name in NAMES:
        conditions = installed.get("crd", name)["status"]["conditions"]
        assert {each["type"]: each["status"] for each in conditions} == {
            "NamesAccepted": "True",
            "Established": "True",
        }


def test_it_takes_every_example_and_every_job_type(installed: Any) -> None:
    for path in EXAMPLES:
        named = "name" in yaml.safe_load(path.read_text())["metadata"]
        installed("apply" if named else "create", "-f", str(path))
    types = sorted(ROOT.glob("src/weft/jobtypes/*.yaml"))
    for path in types:
        installed("apply", "-f", str(path))
    assert len(installed.get("tj")["items"]) == len(EXAMPLES)
    kept = {item["metadata"]["name"]: item["spec"] for item in installed.get("jt")["items"]}
    for path in types:
        wrote = yaml.safe_load(path.read_text())
        assert kept[wrote["metadata"]["name"]] == wrote["spec"]


def test_nothing_of_a_job_is_lost_or_added(applied: Apply, installed: Any) -> None:
    spec = {
        "priority": "high",
        "env": {"A": 1, "B": 0.5, "C": "x"},
        "roles": {
            "worker": {"replicas": 2, "resources": {"cpu": "500m", "gpu": 0.5, "devices": {"x.dev/y": 1}}}
        },
        "template": {"env": {"R": "${rank}"}, "roles": {"worker": {"command": ["${command}"]}}},
        "deadline": 90,
    }
    assert applied(job("whole", **spec)).returncode == 0
    assert installed.get("tj", "whole")["spec"] == spec


def test_a_queue_and_a_size(applied: Apply, installed: Any) -> None:
    queue = {"weight": 2.5, "guarantee": {"gpu": 0.5, "memory": "1Gi"}, "limit": {"gpu": 8}}
    size = {"cpu": "500m", "gpu": 2, "memory": "2G", "gpuType": "v100"}
    for kind, spec in (("Queue", queue), ("Size", size)):
        document = {
            "apiVersion": "weft.dev/v1",
            "kind": kind,
            "metadata": {"name": "weft-test"},
            "spec": spec,
        }
        assert applied(document).returncode == 0
        assert installed.get(kind.lower(), "weft-test")["spec"] == spec


@pytest.mark.parametrize(
    ("spec", "told"),
    [
        ({"comand": ["x"]}, 'unknown field "comand"'),
        ({"roles": {"w": {"replica": 1}}}, 'unknown field "replica"'),
        ({"roles": {"w": {"replicas": "many"}}}, "spec.roles.w.replicas"),
        ({"roles": {"w": {"replicas": 0}}}, "spec.roles.w.replicas"),
        ({"priority": "hih"}, 'spec.priority: Invalid value: "hih"'),
        ({"priority": 1.5}, "spec.priority"),
        (
            {"roles": {"w": {"resources": {"memory": "512MB"}}}},
            'spec.roles.w.resources.memory: Invalid value: "512MB"',
        ),
        ({"roles": {"w": {"resources": {"gpu": 1.5}}}}, "spec.roles.w.resources.gpu"),
        ({"roles": {"w": {"resources": {"cpu": {"a": 1}}}}}, "spec.roles.w.resources.cpu"),
        ({"env": {"A": True}}, "spec.env.A"),
    ],
    ids=str,
)
def test_a_mistake_is_refused_by_its_name(applied: Apply, spec: dict[str, Any], told: str) -> None:
    done = applied(job("wrong", **spec))
    assert done.returncode != 0
    assert told in done.stderr


def test_the_server_refuses_a_wrong_value_by_itself(installed: Any) -> None:
    """kubectl looks first; other clients do not."""
    for spec in ({"roles": {"w": {"replicas": "many"}}}, {"priority": "hih"}):
        done = subprocess.run(
            [*installed._command, "create", "--validate=false", "-f", "-"],
            input=json.dumps(job("wrong", **spec)), capture_output=True, text=True, check=False, timeout=60,
        )  # fmt: skip
        assert done.returncode != 0
        assert ("spec.roles.w.replicas" if "roles" in spec else "spec.priority") in done.stderr


def test_a_job_is_shown_with_its_state_which_only_the_status_sets(applied: Apply, installed: Any) -> None:
    assert applied(job("shown", queue="vision", priority=5)).returncode == 0
    installed("patch", "tj", "shown", "--type=merge", "-p", json.dumps({"status": {"state": "HALTED"}}))
    assert "status" not in installed.get("tj", "shown")
    document = installed.get("tj", "shown")
    document["status"] = {"state": "QUEUED", "reason": "waits for 2 GPUs", "more": {"a": 1}}
    document["spec"]["queue"] = "other"
    path = f"/apis/weft.dev/v1/namespaces/{document['metadata']['namespace']}/trainingjobs/shown/status"
    installed("replace", "--raw", path, "-f", "-", told=document)
    now = installed.get("tj", "shown")
    assert (now["status"], now["spec"]["queue"]) == (document["status"], "vision")
    head, line = installed("get", "tj").splitlines()
    assert head.split() == ["NAME", "STATE", "TASKS", "QUEUE", "PRIORITY", "REASON", "AGE"]
    assert line.split()[:8] == ["shown", "QUEUED", "vision", "5", "waits", "for", "2", "GPUs"]
    assert "shown" in installed("get", "weft")


# ── and with servers that follow them; these come and go last ──


def published(kubectl: Any) -> None:
    kubectl("apply", "-f", str(CRDS))
    kubectl.established(*(f"crd/{name}" for name in NAMES))


def simulated(name: str) -> dict[str, Any]:
    """One that runs until it is ended."""
    pod = {"metadata": {"annotations": {"testbed.weft.dev/runs-for": "forever"}}}
    roles = {"worker": {"resources": {"cpu": 1, "memory": "64Mi"}, "pod": pod}}
    return job(name, command=["true"], placement=SIMULATED, roles=roles)


def shown(kubectl: Any, name: str) -> str:
    return kubectl("get", "tj", name, "--ignore-not-found", "-o", "jsonpath={.status.state}")


def runs(kubectl: Any, name: str) -> bool:
    return shown(kubectl, name) == "PROCESSING"


@pytest.mark.timeout(300)
def test_of_two_control_planes_one_has_a_job_that_names_none(
    installed: Any, cluster: Callable[..., Server]
) -> None:
    servers = [cluster(), cluster(home="other")]
    names = [f"anyones-{number}" for number in range(4)]
    for name in names:
        installed("apply", "-f", "-", told=simulated(name))
    for name in names:
        assert until(lambda name=name: runs(installed, name), 60, every=0.2), name
        assert sum(not server.gone(name) for server in servers) == 1
        pods = installed.get("pods", "-l", f"weft.dev/job={name}")["items"]
        assert len(pods) == 1


@pytest.mark.timeout(300)
def test_definitions_that_go_take_no_job_with_them_and_when_they_come_it_is_shown_again(
    installed: Any, cluster: Callable[..., Server]
) -> None:
    server = cluster()
    installed("apply", "-f", "-", told=simulated("theirs"))
    server.submit(simulated("ours"))
    for name in ("theirs", "ours"):
        assert until(lambda name=name: runs(installed, name), 60, every=0.2), name
    installed("delete", "-f", str(CRDS), "--timeout=50s")
    try:
        assert until(lambda: ABSENT in server.get("/v1/status").json["notes"], 120, every=0.2)
        for name in ("theirs", "ours"):
            assert server.status(name)["state"] == "PROCESSING"
    finally:
        published(installed)
    for name in ("theirs", "ours"):
        assert until(lambda name=name: runs(installed, name), 60, every=0.2), name
    assert ABSENT not in server.get("/v1/status").json["notes"]
    server.kill()
    installed("delete", "-f", str(CRDS), "--timeout=50s")
    published(installed)
    server.start()  # as in another cluster: none of its resources is there, and nobody deleted one
    for name in ("theirs", "ours"):
        assert until(lambda name=name: runs(installed, name), 60, every=0.2), name
        assert server.states(name).count("PENDING") == 1
