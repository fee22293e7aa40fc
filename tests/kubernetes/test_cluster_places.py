"""`scheduling: default`: the cluster's own scheduler places a job's pods, and Weft's own jobs keep out of their way."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from harness import Server, sh, until
from testbed.api import Api
from testbed.node import NAME

from .conftest import Town
from .test_jobs import BUSYBOX, REAL, SIMULATED, free_gpus, simulated, small
from .watching import Watched

pytestmark = [pytest.mark.timeout(240), pytest.mark.usefixtures("testbed_only", "kube_scheduler")]
SOON = 2.0


def on(node: str) -> dict[str, Any]:
    return {"selector": {"kubernetes.io/hostname": node}}


def condition(town: Town, job: str) -> dict[str, Any] | None:
    """What kube-scheduler says of a pod that it finds no place for."""
    for pod in town.kubectl.get("pods", "-l", f"weft.dev/job={job}")["items"]:
        for each in pod["status"].get("conditions", []):
            if each.get("reason") == "Unschedulable":
                return each
    return None


def told_soon(town: Town, job: str) -> str:
    """The cluster's sentence, once Weft has told it."""
    said = until(lambda: condition(town, job), "kube-scheduler to find no place", every=0.05)
    seen = time.monotonic()
    until(lambda: said["message"] in (town.server.status(job).get("reason") or ""), "it to be told", SOON)
    assert time.monotonic() - seen < SOON
    assert town.server.status(job)["reasonCode"] == "UNSCHEDULABLE"
    return town.server.status(job)["reason"]


def test_a_gang_that_the_cluster_places_meets_and_completes(town: Town) -> None:
    server = town.server
    server.submit(
        sh("echo $WEFT_TASK of $WORLD_SIZE", name="theirs", image=BUSYBOX, roles=small(2), placement=REAL, scheduling="default")
    )  # fmt: skip
    ended = server.wait_for("theirs")
    assert ended["status"]["state"] == "COMPLETED", server.story("theirs")
    assert sorted(server.text("theirs")) == ["worker-0 of 2", "worker-1 of 2"]
    assert server.states("theirs")[-4:] == ["DEPLOYING", "PROCESSING", "STORING", "COMPLETED"]
    until(lambda: town.nothing_left("theirs"), "everything of it to be gone from the cluster")


def test_the_clusters_own_sentence_says_why_there_is_no_place_until_there_is(town: Town) -> None:
    server = town.server
    first = sh("true", name="first", roles=simulated(gpu=8), placement=on("sim-0011"))
    server.run(first, "PROCESSING")
    document = sh(
        "true", name="waits", roles=simulated(gpu=8), placement=on("sim-0011"), scheduling="default"
    )
    server.submit(document)
    reason = told_soon(town, "waits")
    assert reason.startswith("worker-0: the cluster finds no place for it: 0/")
    assert "Insufficient nvidia.com/gpu" in reason
    assert server.ask("first", "cancel").status == 200
    server.wait_for("waits", "PROCESSING")
    assert server.status("waits").get("reason") is None
    server.ask("waits", "cancel")
    server.wait_for("waits", "CANCELLED")
    until(lambda: town.nothing_left("waits"), "everything of it to be gone from the cluster")


def test_one_that_waits_for_a_place_can_be_cancelled(town: Town) -> None:
    server = town.server
    document = sh(
        "true", name="never", roles=simulated(cpu=900), placement=on("sim-0012"), scheduling="default"
    )
    server.submit(document)
    told_soon(town, "never")
    server.ask("never", "cancel")
    server.wait_for("never", "CANCELLED")
    until(lambda: town.nothing_left("never"), "everything of it to be gone from the cluster")


def test_what_the_cluster_placed_is_not_given_away(town: Town) -> None:
    server = town.server
    there = sh(
        "true", name="there", roles=simulated(2, gpu=3), placement=on("sim-0013"), scheduling="default"
    )
    placed = server.run(there, "PROCESSING")["status"]
    until(lambda: free_gpus(server, "sim-0013") == 2, "its pods to be in the books")
    assert placed["state"] == "PROCESSING"
    server.submit(sh("true", name="our-own", roles=simulated(gpu=3), placement=on("sim-0013")))
    server.submit(sh("true", name="fits", roles=simulated(gpu=2), placement=on("sim-0013")))
    server.wait_for("fits", "PROCESSING")
    assert server.status("our-own")["state"] == "QUEUED"
    assert free_gpus(server, "sim-0013") == 0
    server.ask("there", "cancel")
    server.wait_for("our-own", "PROCESSING")
    for name in ("our-own", "fits"):
        server.ask(name, "cancel")
    until(lambda: free_gpus(server, "sim-0013") == 8, "everything to be free again")


def test_both_schedulers_at_once_never_run_more_on_a_node_than_it_has(
    cluster: Callable[..., Server], kubectl: Any, api: Api
) -> None:
    """Where both were quicker than the other could see, kubelet refuses one, and it is tried again."""
    server = cluster()
    pods = Watched(api, "/api/v1/pods")
    names = []
    for number in range(8):
        scheduling = "default" if number % 2 else "weft"
        names.append(f"{scheduling}-{number}")
        roles = {"worker": {"resources": {"cpu": 0.4, "memory": "64Mi"}}}
        server.submit(
            sh("sleep 1", name=names[-1], image=BUSYBOX, roles=roles, placement=REAL, scheduling=scheduling)
        )
    room = millicpus(kubectl.get("node", NAME)["status"]["allocatable"]["cpu"])
    for name in names:
        status = server.wait_for(name, timeout=150)["status"]
        assert (status["state"], status["restarts"]) == ("COMPLETED", 0), server.story(name)
    assert 500 <= pods.most(lambda pod: requested(pod) if runs_here(pod) else 0) <= room


def runs_here(pod: dict[str, Any]) -> bool:
    return pod["spec"].get("nodeName") == NAME and pod["status"]["phase"] == "Running"


def test_what_was_bound_counts_before_it_is_seen(
    cluster: Callable[..., Server], kubectl: Any, api: Api
) -> None:
    """Jobs that all wait for the GPUs of one node: at no moment more are bound there than it has."""
    server = cluster()
    server.run(sh("true", name="first", roles=simulated(gpu=8), placement=on("sim-0010")), "PROCESSING")
    names = [f"one-{number}" for number in range(24)]
    for name in names:
        server.submit(sh("true", name=name, roles=simulated(lives="0.5", gpu=1), placement=on("sim-0010")))
    pods = Watched(api, f"/api/v1/namespaces/{kubectl.namespace}/pods")
    server.ask("first", "cancel")
    for name in names:
        status = server.wait_for(name, timeout=150)["status"]
        assert (status["state"], status["restarts"]) == ("COMPLETED", 0), server.story(name)
    assert 1 < pods.most(gpus_here) <= 8


def gpus_here(pod: dict[str, Any]) -> int:
    if pod["spec"].get("nodeName") != "sim-0010" or not unfinished(pod):
        return 0
    return sum(
        int(each["resources"]["limits"].get("nvidia.com/gpu", "0")) for each in pod["spec"]["containers"]
    )


def unfinished(pod: dict[str, Any]) -> bool:
    return pod["status"]["phase"] not in ("Succeeded", "Failed")


def requested(pod: dict[str, Any]) -> int:
    asked = (
        each.get("resources", {}).get("requests", {}).get("cpu", "0") for each in pod["spec"]["containers"]
    )
    return sum(millicpus(text) for text in asked)


def millicpus(text: str) -> int:
    return int(text[:-1]) if text.endswith("m") else int(text) * 1000


@pytest.fixture
def coscheduling(kubectl: Any) -> Iterator[None]:
    """The groups of the coscheduling plugin, without the plugin: the API server knows them."""
    schema = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    version = {"name": "v1alpha1", "served": True, "storage": True, "schema": {"openAPIV3Schema": schema}}
    names = {"kind": "PodGroup", "plural": "podgroups", "singular": "podgroup", "listKind": "PodGroupList"}
    definition = {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": "podgroups.scheduling.x-k8s.io"},
        "spec": {
            "group": "scheduling.x-k8s.io",
            "scope": "Namespaced",
            "names": names,
            "versions": [version],
        },
    }
    kubectl("apply", "-f", "-", told=definition)
    kubectl.established("crd/podgroups.scheduling.x-k8s.io")
    yield
    kubectl("delete", "crd", "podgroups.scheduling.x-k8s.io", "--timeout=50s")


def test_a_gang_is_in_the_group_that_coscheduling_looks_for(
    cluster: Callable[..., Server], kubectl: Any, coscheduling: None
) -> None:
    server = cluster("--pod-groups", "coscheduling")
    gang = sh("true", name="gang", roles=simulated(2), placement=SIMULATED, scheduling="default")
    server.run(gang, "PROCESSING")
    [group] = kubectl.get("podgroups")["items"]
    assert group["spec"] == {"minMember": 2}
    pods = kubectl.get("pods", "-l", "weft.dev/job=gang")["items"]
    named = [pod["metadata"]["labels"]["scheduling.x-k8s.io/pod-group"] for pod in pods]
    assert named == [group["metadata"]["name"]] * 2
    server.ask("gang", "cancel")
    until(lambda: kubectl.get("podgroups")["items"] == [], "the group to go with the job", every=0.2)


def test_pods_are_given_to_the_scheduler_that_was_named(cluster: Callable[..., Server], kubectl: Any) -> None:
    server = cluster("--cluster-scheduler", "volcano")
    server.submit(sh("true", name="theirs", roles=simulated(), placement=SIMULATED, scheduling="default"))
    [pod] = until(lambda: kubectl.get("pods")["items"], "its pod", every=0.2)
    assert pod["spec"]["schedulerName"] == "volcano"
    assert "nodeName" not in pod["spec"]
    server.ask("theirs", "cancel")
    server.wait_for("theirs", "CANCELLED")


def test_a_cluster_that_knows_no_such_group_is_told_of(cluster: Callable[..., Server], kubectl: Any) -> None:
    server = cluster("--pod-groups", "volcano")
    ended = server.run(sh("true", name="gang", roles=simulated(2), placement=SIMULATED, scheduling="default"))
    assert ended["status"]["failure"]["code"] == "CANNOT_START"
    assert "no PodGroup (scheduling.volcano.sh/v1beta1)" in ended["status"]["failure"]["message"]
    until(lambda: kubectl.get("pods,configmaps", "-l", "weft.dev/job=gang")["items"] == [], "nothing to stay")
