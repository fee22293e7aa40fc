"""Nodes and pods as the API server tells of them, in the scheduler's words."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import pytest

from weft.backends.kubernetes import nodes
from weft.backends.kubernetes.nodes import quantity, silent, unready
from weft.backends.kubernetes.settings import Settings
from weft.model.gang import Request
from weft.model.node import Node

READY = {"type": "Ready", "status": "True"}
SETTINGS = Settings()


def node_of(document: dict[str, Any], settings: Settings = SETTINGS) -> Node:
    return nodes.node_of(document, settings)


def request_of(pod: dict[str, Any]) -> Request:
    return nodes.request_of(pod, SETTINGS)


def a_node(**status: Any) -> dict[str, Any]:
    room = {"cpu": "32", "memory": "256Gi", "pods": "110", "nvidia.com/gpu": "8", "rdma/hca": "2"}
    return {
        "metadata": {"name": "n1", "labels": {"weft.dev/rack": "r7", "nvidia.com/gpu.product": "A100", "nvidia.com/gpu.memory": "40960"}},
        "spec": {},
        "status": {"allocatable": room, "conditions": [READY], **status},
    }  # fmt: skip


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("2", 2), ("100m", "0.1"), ("1500m", "1.5"), ("1Ki", 1024), ("1k", 1000), ("1.5Gi", 1610612736), ("1e3", 1000),
        ("12E", 12 * 10**18), ("1E3", 1000), (4, 4), ("0.5", "0.5"), ("100n", "1e-7"), ("nonsense", 0), ("", 0),
    ],
)  # fmt: skip
def test_quantities_are_read_in_all_forms_that_kubernetes_writes(text: Any, value: Any) -> None:
    assert quantity(text) == Decimal(value)


def test_a_node_has_what_it_can_give_not_what_it_is_made_of() -> None:
    document = a_node(capacity={"cpu": "64", "memory": "512Gi"})
    node = node_of(document)
    assert (node.cpu, node.memory, node.slots) == (32_000, 256 * 2**30, 110)
    assert [gpu.index for gpu in node.gpus] == list(range(8))
    assert (node.gpus[0].type, node.gpus[0].memory) == ("A100", 40 * 2**30)
    assert node.devices == (("rdma/hca", 2),)
    assert node.rack == "r7"
    assert node.schedulable


def test_the_racks_label_can_be_another() -> None:
    document = a_node()
    document["metadata"]["labels"] = {"example.com/row": "b"}
    assert node_of(document, Settings(rack_label="example.com/row")).rack == "b"


def test_images_that_lie_on_a_node_count_under_each_of_their_names() -> None:
    image = {"names": ["a/b:1", "a/b@sha256:0"], "sizeBytes": 7}
    assert node_of(a_node(images=[image])).holds == (("a/b:1", 7), ("a/b@sha256:0", 7))


@pytest.mark.parametrize(
    ("conditions", "why"),
    [
        ([READY], None),
        (
            [{"type": "Ready", "status": "Unknown", "message": "Kubelet stopped posting node status."}],
            "Kubelet stopped",
        ),
        ([{"type": "Ready", "status": "False", "reason": "KubeletNotReady"}], "KubeletNotReady"),
        ([], "has not said"),
    ],
)
def test_a_node_that_is_not_ready_takes_nothing(conditions: list[Any], why: str | None) -> None:
    document = a_node(conditions=conditions)
    assert node_of(document).schedulable is (why is None)
    told = unready(document)
    assert told is None if why is None else told is not None and why in told


def test_a_node_that_says_nothing_is_told_apart_from_one_that_is_not_ready() -> None:
    assert silent(a_node(conditions=[{"type": "Ready", "status": "Unknown"}]))
    assert not silent(a_node(conditions=[{"type": "Ready", "status": "False"}]))
    assert not silent(a_node())


@pytest.mark.parametrize("what", ["MemoryPressure", "DiskPressure", "PIDPressure"])
def test_a_node_under_pressure_takes_nothing_new(what: str) -> None:
    """It would put out again what came: kubelet does so until the pressure is gone."""
    assert not node_of(a_node(conditions=[READY, {"type": what, "status": "True"}])).schedulable
    assert node_of(a_node(conditions=[READY, {"type": what, "status": "False"}])).schedulable


def test_a_cordoned_node_takes_nothing_and_taints_keep_away() -> None:
    document = a_node()
    document["spec"] = {
        "unschedulable": True,
        "taints": [
            {"key": "team", "effect": "NoSchedule"},
            {"key": "soft", "effect": "PreferNoSchedule"},
            {"key": "node.kubernetes.io/unschedulable", "effect": "NoSchedule"},
        ],
    }
    node = node_of(document)
    assert not node.schedulable
    assert node.taints == ("team",)


def container(**requests: str) -> dict[str, Any]:
    return {"resources": {"requests": requests}}


def test_a_pod_takes_what_its_containers_take_together() -> None:
    pod = {
        "spec": {
            "containers": [container(cpu="1", memory="1Gi"), container(cpu="500m", **{"nvidia.com/gpu": "2"})]
        }
    }
    request = request_of(pod)
    assert (request.cpu, request.memory, request.gpu) == (1500, 2**30, 2)


def test_containers_that_run_first_count_only_where_they_are_larger() -> None:
    spec = {
        "containers": [container(cpu="1", memory="1Gi")],
        "initContainers": [container(cpu="4", memory="1Mi")],
    }
    request = request_of({"spec": spec})
    assert (request.cpu, request.memory) == (4000, 2**30)


def test_sidecars_that_stay_and_overhead_are_added() -> None:
    spec = {
        "containers": [container(cpu="1")],
        "initContainers": [{**container(cpu="1"), "restartPolicy": "Always"}],
        "overhead": {"cpu": "250m"},
    }
    assert request_of({"spec": spec}).cpu == 2250


def test_what_runs_first_runs_beside_the_sidecars_that_were_started_before_it() -> None:
    sidecar = {**container(cpu="1"), "restartPolicy": "Always"}
    after = {"containers": [container(cpu="1")], "initContainers": [sidecar, container(cpu="2")]}
    assert request_of({"spec": after}).cpu == 3000
    before = {"containers": [container(cpu="1")], "initContainers": [container(cpu="2"), sidecar]}
    assert request_of({"spec": before}).cpu == 2000


def test_a_limit_without_a_request_is_the_request() -> None:
    assert request_of({"spec": {"containers": [{"resources": {"limits": {"rdma/hca": "1"}}}]}}).devices == (
        ("rdma/hca", 1),
    )
    assert request_of({"spec": {"containers": [{}]}}).cpu == 0


def test_devices_without_a_domain_are_those_of_weft() -> None:
    document = a_node(
        allocatable={"weft.dev/fpga": "2", "attachable-volumes.kubernetes.io/x": "9", "hugepages-2Mi": "0"}
    )
    assert node_of(document).devices == (("fpga", 2),)
    pod = {"spec": {"containers": [container(**{"weft.dev/fpga": "1"})]}}
    assert request_of(pod).devices == (("fpga", 1),)
