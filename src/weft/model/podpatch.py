"""A role's own part of its pods, for a cluster: what a person may write there, and what is Weft's.

Nothing of a pod is hidden from who knows Kubernetes; but what Weft finds a pod by, and what makes it start and
end as a task, is refused when the job is written and not when its first pod is strange.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import PurePosixPath
from typing import Annotated, Any

from pydantic import AfterValidator, JsonValue, WithJsonSchema

AGENT, TASK = "weft", "task"
"""The containers of a pod: Weft's own, and the user's."""
DATA = "weft-data"
"""The volume and the claim by which a pod sees the data that its node holds."""
ROOT = "/weft"
"""Where a job's folders are, in both."""
_OWN = ("data", "home")
"""Those of them that Weft puts nothing into, and fetches nothing from."""
LABEL_PREFIX = "weft.dev/"
MANAGED_BY = "app.kubernetes.io/managed-by"

_METADATA = {
    "name": "Weft knows the pod by it",
    "generateName": "Weft names the pod",
    "namespace": "write `metadata.project`: all pods of a job are in one",
    "ownerReferences": "they delete the pod with its job",
}
_SPEC = {
    "schedulerName": "write `scheduling: default` to have the cluster's own",
    "nodeName": "write `placement`",
    "hostname": "the other tasks find the task by it",
    "subdomain": "the other tasks find the task by it",
    "restartPolicy": "write `restart`",
    "terminationGracePeriodSeconds": "write `grace`",
    "shareProcessNamespace": "Weft measures the task by it",
}
_TASK = {"command": "write `command`", "args": "write `args`", "image": "write `image`"}
_AGENT = {
    "command": "Weft's own container runs nothing else",
    "args": "Weft's own container runs nothing else",
}


def _refusals(patch: Mapping[str, Any]) -> Iterator[str]:
    for name in patch:
        if name not in ("metadata", "spec"):
            yield f"{name}: a pod has `metadata` and `spec` to change"
    metadata, spec = patch.get("metadata", {}), patch.get("spec", {})
    for name, part in (("metadata", metadata), ("spec", spec)):
        if not isinstance(part, dict):
            yield f"{name}: must be a mapping of fields (name: value)"
    if isinstance(metadata, dict):
        yield from (
            f"metadata.{name} is Weft's: {why}" for name, why in _METADATA.items() if name in metadata
        )
        yield from _labels(metadata)
    if isinstance(spec, dict):
        yield from (f"spec.{name} is Weft's: {why}" for name, why in _SPEC.items() if name in spec)
        yield from _containers(spec)


def _labels(metadata: Mapping[str, Any]) -> Iterator[str]:
    for part in ("labels", "annotations"):
        values = metadata.get(part, {})
        if not isinstance(values, dict):
            yield f"metadata.{part}: must be a mapping of fields (name: value)"
            continue
        for key in values:
            if key.startswith(LABEL_PREFIX) or key == MANAGED_BY:
                yield f"metadata.{part}.{key} is Weft's: it knows its pods by these"


def _containers(spec: Mapping[str, Any]) -> Iterator[str]:
    for part in ("containers", "initContainers", "volumes"):
        items = spec.get(part, [])
        if not isinstance(items, list) or not all(
            isinstance(item, dict) and isinstance(item.get("name"), str) for item in items
        ):
            yield f"spec.{part}: must be a list of mappings, each with a `name`, by which it is found"
        elif part == "containers":
            for item in items:
                own = {TASK: _TASK, AGENT: _AGENT}.get(item["name"], {})
                for name, why in own.items():
                    if name in item:
                        yield f"spec.containers.{item['name']}.{name} is Weft's: {why}"
                yield from _mounts(item)
        if f"'{DATA}'" in str(items):  # wherever it is: the whole of it holds other projects' data, too
            yield f"spec.{part}: {DATA} is Weft's: write `datasets`"


def _mounts(container: Mapping[str, Any]) -> Iterator[str]:
    """The two containers of a pod have these folders in common, and no two pods have."""
    mounts = container.get("volumeMounts")
    for mount in mounts if isinstance(mounts, list) else ():
        path = mount.get("mountPath") if isinstance(mount, dict) else None
        if isinstance(path, str) and _of_weft(PurePosixPath("/", path.lstrip("/"))):
            yield (
                f"spec.containers.{container['name']}.volumeMounts: {path} is Weft's: it fetches from there what the task "
                "leaves; mount it elsewhere and tell the task by `env`"
            )


def _of_weft(path: PurePosixPath) -> bool:
    return path.is_relative_to(ROOT) and not any(path.is_relative_to(f"{ROOT}/{own}") for own in _OWN)


def _allowed(patch: dict[str, Any]) -> dict[str, Any]:
    if wrong := list(_refusals(patch)):
        raise ValueError("; ".join(wrong))
    return patch


PodPatch = Annotated[
    dict[str, JsonValue],
    AfterValidator(_allowed),
    WithJsonSchema({"type": "object", "additionalProperties": True}),
]
