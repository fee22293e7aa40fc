"""The cluster of a simulation: so many equal nodes, a list of nodes (CSV), or kinds of node and queues (YAML)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from weft.model.node import Gpu, Node
from weft.model.quantities import parse_cpu, parse_memory
from weft.scheduler.queues import QueueRule
from weft.sim import alibaba
from weft.sim.badfile import BadFile

GIB = 2**30
NODES_A_RACK = 20
NODE_FIELDS = ("count", "name", "cpu", "memory", "gpus", "gpuType", "gpuMemory", "nodesPerRack")
QUEUE_FIELDS = ("name", "parent", "weight", "guarantee", "limit", "userLimit")


@dataclass(frozen=True, slots=True)
class ClusterFile:
    nodes: tuple[Node, ...]
    queues: tuple[QueueRule, ...] = ()


def equal_nodes(
    count: int,
    gpus: int = 8,
    *,
    name: str = "node",
    gpu_type: str = "gpu",
    gpu_memory: int = 0,
    cpu: int | None = None,
    memory: int | None = None,
    rack: int = NODES_A_RACK,
) -> list[Node]:
    """So many of one kind, with 4 CPUs and 32 GiB for every GPU where nothing else is said."""
    cpu = cpu if cpu is not None else 4000 * max(gpus, 1)
    memory = memory if memory is not None else 32 * GIB * max(gpus, 1)
    devices = tuple(Gpu(index, gpu_type, memory=gpu_memory) for index in range(gpus))
    return [
        Node(f"{name}-{number:05d}", cpu, memory, gpus=devices, rack=f"{name}-rack-{number // rack}")
        for number in range(count)
    ]


def read_cluster(path: Path) -> ClusterFile:
    """By the ending of its name."""
    if path.suffix.lower() in (".yaml", ".yml", ".json"):
        return _from_yaml(path)
    return ClusterFile(tuple(alibaba.read_nodes(path)))


# ── YAML ──


class _Field:
    """A value that knows where it stands."""

    def __init__(self, path: Path, node: Any):
        self.path = path
        self.node = node

    def bad(self, cause: str) -> BadFile:
        mark = self.node.start_mark
        return BadFile(self.path, cause, mark.line + 1, mark.column + 1)

    def fields(self, known: tuple[str, ...]) -> dict[str, _Field]:
        if self.node.id != "mapping":
            raise self.bad(f"expected fields: {', '.join(known)}")
        found: dict[str, _Field] = {}
        for key, value in self.node.value:
            if key.value not in known:
                raise _Field(self.path, key).bad(f"no field {key.value}; there are {', '.join(known)}")
            found[key.value] = _Field(self.path, value)
        return found

    def items(self) -> Iterator[_Field]:
        if self.node.id != "sequence":
            raise self.bad("expected a list")
        return (_Field(self.path, item) for item in self.node.value)

    @property
    def text(self) -> str:
        if self.node.id != "scalar":
            raise self.bad("expected one value")
        return str(self.node.value)

    def parsed(self, parse: Any) -> Any:
        try:
            return parse(self.text)
        except (ValueError, TypeError) as problem:
            raise self.bad(
                f"{problem}" if parse in (parse_cpu, parse_memory) else f"not a number: {self.text}"
            ) from None

    def whole(self, least: int = 0) -> int:
        number: int = self.parsed(int)
        if number < least:
            raise self.bad(f"must be at least {least} (got {number})")
        return number


def _from_yaml(path: Path) -> ClusterFile:
    import yaml

    try:
        root = yaml.compose(path.read_text("utf-8"), Loader=yaml.SafeLoader)
    except OSError as problem:
        raise BadFile(path, (problem.strerror or str(problem)).lower()) from None
    except UnicodeDecodeError:
        raise BadFile(path, "not a text file (UTF-8)") from None
    except yaml.MarkedYAMLError as problem:
        mark = problem.problem_mark
        line, column = (mark.line + 1, mark.column + 1) if mark else (None, None)
        raise BadFile(path, f"not YAML: {problem.problem}", line, column) from None
    if root is None:
        raise BadFile(path, "is empty; it needs nodes: [{count: 40, gpus: 8}]")
    fields = _Field(path, root).fields(("nodes", "queues"))
    nodes: list[Node] = []
    if "nodes" in fields:
        for number, kind in enumerate(fields["nodes"].items()):
            nodes += _nodes(kind, number)
    if not nodes:
        raise BadFile(path, "has no nodes; it needs nodes: [{count: 40, gpus: 8}]")
    if len({node.name for node in nodes}) < len(nodes):
        raise fields["nodes"].bad("two kinds of node have the same name")
    queues = tuple(_queue(item) for item in fields["queues"].items()) if "queues" in fields else ()
    return ClusterFile(tuple(nodes), queues)


def _nodes(kind: _Field, number: int) -> list[Node]:
    fields = kind.fields(NODE_FIELDS)

    def given(name: str, parse: Any, default: Any) -> Any:
        return fields[name].parsed(parse) if name in fields else default

    return equal_nodes(
        fields["count"].whole(1) if "count" in fields else 1,
        fields["gpus"].whole() if "gpus" in fields else 0,
        name=fields["name"].text if "name" in fields else f"kind-{number}",
        gpu_type=fields["gpuType"].text if "gpuType" in fields else "gpu",
        gpu_memory=given("gpuMemory", parse_memory, 0),
        cpu=given("cpu", parse_cpu, None),
        memory=given("memory", parse_memory, None),
        rack=fields["nodesPerRack"].whole(1) if "nodesPerRack" in fields else NODES_A_RACK,
    )


def _queue(item: _Field) -> QueueRule:
    fields = item.fields(QUEUE_FIELDS)
    if "name" not in fields:
        raise item.bad("a queue needs a name")
    amounts = {
        name: _amounts(fields[name]) if name in fields else {} for name in ("guarantee", "limit", "userLimit")
    }
    return QueueRule(
        fields["name"].text,
        fields["parent"].text if "parent" in fields else "",
        fields["weight"].parsed(float) if "weight" in fields else 1.0,
        guarantee=amounts["guarantee"],
        limit=amounts["limit"],
        user_limit=amounts["userLimit"],
    )


def _amounts(field: _Field) -> dict[str, int]:
    parsers: dict[str, Any] = {
        "cpu": parse_cpu,
        "memory": parse_memory,
        "gpu": lambda text: round(1000 * float(text)),
    }
    return {name: value.parsed(parsers[name]) for name, value in field.fields(tuple(parsers)).items()}
