"""What the API server says of a node or of somebody's pod, in the scheduler's words."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from decimal import Decimal, InvalidOperation
from math import ceil
from typing import Any

from weft.backends.kubernetes.client import Document
from weft.backends.kubernetes.names import device_name
from weft.backends.kubernetes.settings import Settings
from weft.model.cluster import CLUSTER, HOME, node_name
from weft.model.gang import Gang, Request
from weft.model.node import Gpu, Node

GPU_MEMORY = "nvidia.com/gpu.memory"
GPU_GENERATION = "weft.dev/gpu-generation"
KEEPS_AWAY = ("NoSchedule", "NoExecute")
OF_THE_NODE_ITSELF = ("node.kubernetes.io/", "node.cloudprovider.kubernetes.io/")
"""Taints by which Kubernetes says what the node's conditions say, too."""
PRESSURE = ("MemoryPressure", "DiskPressure", "PIDPressure")
_SUFFIXES = {
    "n": Decimal("1e-9"), "u": Decimal("1e-6"), "m": Decimal("1e-3"), "": Decimal(1),
    "k": Decimal(10) ** 3, "M": Decimal(10) ** 6, "G": Decimal(10) ** 9, "T": Decimal(10) ** 12, "P": Decimal(10) ** 15,
    "E": Decimal(10) ** 18, "Ki": Decimal(2) ** 10, "Mi": Decimal(2) ** 20, "Gi": Decimal(2) ** 30,
    "Ti": Decimal(2) ** 40, "Pi": Decimal(2) ** 50, "Ei": Decimal(2) ** 60,
}  # fmt: skip


def quantity(text: str | int | float) -> Decimal:
    """Kubernetes' own notation, in all its forms; what cannot be read counts as nothing."""
    written = str(text)
    number = written.rstrip("numkKMGTPEi")
    try:
        return Decimal(number) * _SUFFIXES[written[len(number) :]]
    except (InvalidOperation, KeyError):
        try:
            return Decimal(written)  # 1e3
        except InvalidOperation:
            return Decimal(0)


def node_of(document: Document, settings: Settings) -> Node:
    metadata, spec, status = document["metadata"], document.get("spec", {}), document.get("status", {})
    labels = metadata.get("labels") or {}
    room = status.get("allocatable") or status.get("capacity") or {}
    cluster, taints = settings.cluster, _taints(spec.get("taints") or ())
    if cluster:
        labels, taints = {**labels, CLUSTER: cluster}, taints | {CLUSTER}
    return Node(
        name=node_name(cluster, metadata["name"]),
        cpu=int(1000 * quantity(room.get("cpu", 0))),
        memory=int(quantity(room.get("memory", 0))),
        slots=int(quantity(room.get("pods", 0))),
        gpus=_gpus(int(quantity(room.get(settings.gpu, 0))), labels, settings),
        labels=tuple(sorted(labels.items())),
        schedulable=not (spec.get("unschedulable") or unready(document) or pressed(document)),
        taints=tuple(sorted(taints)),
        rack=_zone(cluster, labels.get(settings.rack_label)),
        fabric=_zone(cluster, labels.get(settings.fabric_label)),
        cluster=cluster or HOME,
        devices=tuple(sorted(_devices(room, settings).items())),
        holds=tuple(sorted(_images(status.get("images") or ()).items())),
    )


def _zone(cluster: str, name: str | None) -> str:
    """Racks of two clusters may have the same name."""
    return node_name(cluster, name) if name else ""


def could_take(node: Node, gang: Gang, request: Request) -> bool:
    """Whether the node is open to the gang, and large enough for such a task, however full it is now."""
    labels, devices = dict(node.labels), dict(node.devices)
    return (
        node.schedulable
        and all(labels.get(key) == value for key, value in gang.selector)
        and {*node.taints} <= {*gang.tolerations}
        and node.cpu >= request.cpu
        and node.memory >= request.memory
        and node.slots >= request.slots
        and sum(request.gpu_type in (None, gpu.type) for gpu in node.gpus) >= request.gpu
        and all(devices.get(name, 0) >= count for name, count in request.devices)
    )


def unready(document: Document) -> str | None:
    """Why the node runs nothing, if so."""
    for condition in document.get("status", {}).get("conditions") or ():
        if condition["type"] == "Ready":
            if condition["status"] == "True":
                return None
            return condition.get("message") or condition.get("reason") or "not ready"
    return "it has not said that it is ready"


def pressed(document: Document) -> bool:
    """Whether the node runs out of memory, disk or processes: it puts pods out, and takes few in."""
    conditions = document.get("status", {}).get("conditions") or ()
    return any(each["type"] in PRESSURE and each["status"] == "True" for each in conditions)


def silent(document: Document) -> bool:
    """Whether nothing was heard of the node for so long that the cluster has given it up."""
    conditions = document.get("status", {}).get("conditions") or ()
    return any(each["type"] == "Ready" and each["status"] == "Unknown" for each in conditions)


def _gpus(count: int, labels: Mapping[str, str], settings: Settings) -> tuple[Gpu, ...]:
    """Numbers by which they are counted; which device a container gets, the node's device plugin says."""
    kind = labels.get(settings.gpu_type_label, "gpu")
    memory = int(quantity(labels.get(GPU_MEMORY, 0))) * 2**20
    generation = int(quantity(labels.get(GPU_GENERATION, 0)))
    return tuple(Gpu(index, kind, memory=memory, generation=generation) for index in range(count))


def _taints(taints: Iterable[Mapping[str, Any]]) -> set[str]:
    return {
        taint["key"]
        for taint in taints
        if taint.get("effect") in KEEPS_AWAY and not taint["key"].startswith(OF_THE_NODE_ITSELF)
    }


def _devices(room: Mapping[str, Any], settings: Settings) -> dict[str, int]:
    """Extended resources: those with a domain, which is nobody's of Kubernetes itself."""
    return {
        device_name(name, settings.device_domain): int(quantity(count))
        for name, count in room.items()
        if "/" in name and name != settings.gpu and ".kubernetes.io/" not in name
    }


def _images(images: Iterable[Mapping[str, Any]]) -> dict[str, int]:
    """By every name that an image has."""
    return {name: int(image.get("sizeBytes", 0)) for image in images for name in image.get("names") or ()}


def request_of(pod: Document, settings: Settings) -> Request:
    """What a pod takes of its node, as kubelet counts it: its containers together, or the largest of those that run first,
    each beside the sidecars that were started before it."""
    spec = pod["spec"]
    together: Counter[str] = Counter()
    for container in spec.get("containers") or ():
        together.update(_requests(container))
    sidecars: Counter[str] = Counter()
    peak: Counter[str] = Counter()
    for container in spec.get("initContainers") or ():
        own = _requests(container)
        peak |= sidecars + own
        if container.get("restartPolicy") == "Always":
            sidecars += own
    together = together + sidecars | peak
    together.update(_amounts(spec.get("overhead") or {}))
    devices = {
        device_name(name, settings.device_domain): count
        for name, count in together.items()
        if "/" in name and name != settings.gpu
    }
    return Request(
        cpu=together["cpu"],
        memory=together["memory"],
        gpu=together[settings.gpu],
        devices=tuple(sorted(devices.items())),
    )


def _requests(container: Mapping[str, Any]) -> Counter[str]:
    resources = container.get("resources") or {}
    return _amounts({**(resources.get("limits") or {}), **(resources.get("requests") or {})})


def _amounts(named: Mapping[str, Any]) -> Counter[str]:
    return Counter(
        {name: ceil(quantity(text) * (1000 if name == "cpu" else 1)) for name, text in named.items()}
    )
