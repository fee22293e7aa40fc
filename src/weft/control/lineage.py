"""What a version was made from, and what was made from it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from weft.control.live import LiveJob

SHORT = 12
"""So many letters of a version are shown."""


@dataclass(frozen=True, slots=True)
class Version:
    """One version of a dataset, and what it was made from."""

    dataset: str
    version: str
    samples: int
    bytes: int
    parts: int
    created: float
    uid: str
    seen: float
    """When its source last had it."""
    lineage: Mapping[str, Any] = field(default_factory=dict)
    """The job that made it, its code, and the versions that it read."""


def shown(dataset: str, version: str) -> str:
    """`faces@0123456789ab`."""
    return f"{dataset}@{version[:SHORT]}"


def lineage_of(job: LiveJob) -> dict[str, Any]:
    code = job.spec.code
    told = code.model_dump(mode="json", by_alias=True, exclude_none=True) if code is not None else None
    return {"job": job.name, "uid": job.uid, "code": told, "inputs": dict(job.status.datasets)}


def graph(wanted: Version, every: Sequence[Version]) -> dict[str, Any]:
    """All that is connected with a version, as far as it is known."""
    known = {(each.dataset, each.version): each for each in every}
    nodes: dict[str, dict[str, Any]] = {}
    edges: dict[tuple[str, str], None] = {}
    left = [(wanted.dataset, wanted.version)]
    while left:
        key = left.pop()
        me, version = shown(*key), known.get(key)
        if me in nodes:
            continue
        nodes[me] = {
            "kind": "version",
            "dataset": key[0],
            "version": key[1],
            "there": version is not None,
        }
        if version is not None and version.lineage:
            job, inputs = f"job/{version.lineage['job']}", version.lineage["inputs"].items()
            nodes[job] = {"kind": "job", "job": version.lineage["job"], "code": version.lineage["code"]}
            edges |= dict.fromkeys([(job, me), *((shown(*read), job) for read in inputs)])
            left += inputs
        left += [
            (each.dataset, each.version)
            for each in every
            if key in (each.lineage.get("inputs") or {}).items()
        ]
    listed = [{"from": one, "to": other} for one, other in edges]
    return {"of": shown(wanted.dataset, wanted.version), "nodes": nodes, "edges": listed}
