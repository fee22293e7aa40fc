"""No node is given more than it can give: what counts is what its kubelet would count."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from harness import Server, sh, until
from testbed.api import Api

from .conftest import SHELL_IMAGE, Kubectl, Town
from .test_jobs import simulated
from .webhooks import patched, webhook

pytestmark = [pytest.mark.timeout(240), pytest.mark.usefixtures("testbed_only")]
FEW = "sim-0017"


def on(node: str) -> dict[str, Any]:
    return {"selector": {"kubernetes.io/hostname": node}}


@pytest.fixture
def few_pods(api: Api) -> Iterator[None]:
    """A node that takes three pods, however large it is."""
    path = f"/api/v1/nodes/{FEW}/status"
    api.patch(path, {"status": {"allocatable": {"pods": "3"}}})
    yield
    api.patch(path, {"status": {"allocatable": {"pods": "110"}}})


@pytest.mark.usefixtures("few_pods")
def test_a_node_gets_no_more_pods_than_it_takes_those_of_others_among_them(
    town: Town, pod: Callable[..., dict[str, Any]]
) -> None:
    server, kubectl = town.server, town.kubectl
    kubectl.create(pod("theirs", FEW, SHELL_IMAGE, "true", runs_for="forever"))
    kubectl.await_phase("theirs", "Running")
    server.run(sh("true", name="two", roles=simulated(2), placement=on(FEW)), "PROCESSING")
    server.submit(sh("true", name="fourth", roles=simulated(lives="0.2"), placement=on(FEW)))
    server.wait_for("fourth", "QUEUED")
    until(lambda: "as many as may be there" in server.weft("explain", "fourth").stdout, "it to be told why")
    kubectl("delete", "pod", "theirs", "--wait=false")
    assert server.wait_for("fourth")["status"]["state"] == "COMPLETED", server.story("fourth")
    server.delete("two")


def test_what_a_patch_adds_to_a_pod_is_counted(town: Town) -> None:
    server = town.server
    roles = simulated(cpu=2)
    proxy = {"name": "proxy", "image": SHELL_IMAGE, "resources": {"requests": {"cpu": "29"}}}
    roles["worker"]["pod"]["spec"] = {"containers": [proxy]}
    server.run(sh("true", name="wide", roles=roles, placement=on("sim-0018")), "PROCESSING")
    [node] = [each for each in server.nodes() if each["name"] == "sim-0018"]
    assert node["free"]["cpu"] == pytest.approx(32 - 2 - 29 - 0.1)
    server.delete("wide")


def test_a_node_that_does_not_take_a_pod_is_left_alone_and_another_one_is_found(
    cluster: Callable[..., Server], kubectl: Kubectl
) -> None:
    """Somebody makes the first pod one for other nodes: the kubelet says so, and no scheduler could have known."""
    server, mark = cluster(), f"weft-test/{kubectl.namespace}"

    def elsewhere(asked: dict[str, Any]) -> dict[str, Any] | None:
        first = asked["object"]["metadata"].get("labels", {}).get("weft.dev/launch") == "1"
        away = {"op": "add", "path": "/spec/nodeSelector", "value": {"no": "such"}}
        return patched(away) if first else None

    roles = simulated(cpu=0.1, lives="0.2")
    try:
        kubectl("label", "node", "real-0", "sim-0019", f"{mark}=yes")
        with webhook(kubectl, "pods", "Mutating", elsewhere):
            ended = server.run(sh("true", name="moves", roles=roles, placement={"selector": {mark: "yes"}}))
    finally:
        kubectl("label", "node", "real-0", "sim-0019", f"{mark}-")
    assert ended["status"]["state"] == "COMPLETED", server.story("moves")
    [task] = ended["status"]["tasks"]
    assert (task["binding"]["node"], task["launch"]) == ("sim-0019", 2), server.story("moves")
    assert any("node real-0 did not take it" in event.get("cause", "") for event in server.history("moves"))
    until(lambda: kubectl.get("pods", "-l", "weft.dev/job=moves")["items"] == [], "nothing to stay")
