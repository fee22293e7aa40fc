"""Traces of the shape of Alibaba's `openb`: a list of unlike nodes, and pods that may share GPUs or name their models."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from functools import lru_cache
from pathlib import Path

from weft.model.gang import Gang, Request
from weft.model.node import Gpu, Node
from weft.sim.badfile import BadFile
from weft.sim.rows import Row, rows_of
from weft.sim.workload import Arrival, workers

NODE_COLUMNS = ("sn", "cpu_milli", "memory_mib", "gpu", "model")
POD_COLUMNS = (
    "name",
    "cpu_milli",
    "memory_mib",
    "num_gpu",
    "gpu_milli",
    "gpu_spec",
    "qos",
    "pod_phase",
    "creation_time",
    "deletion_time",
    "scheduled_time",
)
MIB = 2**20
WHOLE = 1000


def read_nodes(path: Path) -> list[Node]:
    nodes: dict[str, Node] = {}
    for row in rows_of(path, NODE_COLUMNS):
        name, model = row.text("sn"), row.text("model")
        if not name or name in nodes:
            raise row.bad("sn", "a second node of this name" if name else "a node needs a name")
        gpus = tuple(Gpu(index, model or "gpu") for index in range(row.whole("gpu")))
        nodes[name] = Node(name, row.whole("cpu_milli", 1), row.whole("memory_mib") * MIB, gpus=gpus)
    if not nodes:
        raise BadFile(path, "holds no node", 1)
    return list(nodes.values())


def read_jobs(path: Path, limit: int | None = None) -> list[Arrival]:
    """Pods as jobs of one task. Those that never ran (no scheduled_time) are left out: how long they
    would have run is not known."""
    found: list[Arrival] = []
    names: set[str] = set()
    for row in rows_of(path, POD_COLUMNS):
        name = row.text("name")
        if not name or name in names:
            raise row.bad("name", "a second pod of this name" if name else "a pod needs a name")
        names.add(name)
        gang = _gang(_request(row), row.text("gpu_spec"))
        created = row.number("creation_time")
        if not row.text("scheduled_time"):
            continue
        seconds = row.number("deletion_time") - row.number("scheduled_time")
        if seconds < 0:
            raise row.bad("deletion_time", f"before its scheduled_time, {row.text('scheduled_time')}")
        found.append(Arrival(name, created, max(seconds, 1.0), gang, owner=row.text("qos")))
    if not found:
        raise BadFile(path, "holds no pod that ran", 1)
    found.sort(key=lambda arrival: (arrival.time, arrival.name))
    return found[:limit]


def _request(row: Row) -> Request:
    gpus, thousandths = row.whole("num_gpu"), row.whole("gpu_milli")
    if thousandths > WHOLE:
        raise row.bad("gpu_milli", f"more than {WHOLE}: a pod of several GPUs says so in num_gpu")
    if gpus > 1 and thousandths not in (0, WHOLE):
        raise row.bad("gpu_milli", "only a part of one GPU can be asked for, not of several")
    shared = gpus == 1 and 0 < thousandths < WHOLE
    return Request(
        cpu=row.whole("cpu_milli"),
        memory=row.whole("memory_mib") * MIB,
        gpu=0 if shared else gpus,
        gpu_share=thousandths if shared else 0,
    )


@lru_cache(maxsize=4096)
def _gang(request: Request, spec: str) -> Gang:
    return replace(workers([request]), selector=((label_of(spec), "yes"),) if spec else ())


def label_of(spec: str) -> str:
    """One of several models will do (`V100M16|V100M32`): to the scheduler that is a label of the nodes."""
    return "gpu:" + "|".join(sorted(spec.split("|")))


def labelled(nodes: Iterable[Node], arrivals: Iterable[Arrival]) -> list[Node]:
    """The nodes, with a label for every choice of models that a job makes and they meet."""
    wanted = {
        key for gang in {a.gang for a in arrivals} for key, _ in gang.selector if key.startswith("gpu:")
    }
    choices = [(key, {*key.removeprefix("gpu:").split("|")}) for key in sorted(wanted)]
    found = []
    for node in nodes:
        models = {gpu.type for gpu in node.gpus}
        met = tuple((key, "yes") for key, choice in choices if models & choice)
        found.append(replace(node, labels=(*node.labels, *met)) if met else node)
    return found
