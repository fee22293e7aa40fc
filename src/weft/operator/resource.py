"""A custom resource as Weft reads it, and a job as the resource that shows it."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from typing import Any

from pydantic_core import from_json, to_json

from weft.backends.kubernetes.client import Document
from weft.backends.kubernetes.names import INSTANCE, MANAGER
from weft.control.live import LiveJob
from weft.model.podpatch import LABEL_PREFIX, MANAGED_BY
from weft.model.resource import API_VERSION

JOB = "TrainingJob"
OWNER = f"{LABEL_PREFIX}owner"
DESIRE = f"{LABEL_PREFIX}desire"
MIRRORED = f"{LABEL_PREFIX}mirrored"
JOB_UID = f"{LABEL_PREFIX}job-uid"
SOURCE = f"{LABEL_PREFIX}resource"
"""Of a job: the definition and the resource that it came from, by uid. Kept with the job, so that no crash parts them."""
KUBECTL = "kubectl"
LONGEST_NAME = 63
LABEL_VALUE = re.compile(r"([A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?)?")


def trimmed(document: Document) -> Document:
    """Without what nobody here reads, which is most of a resource."""
    metadata = {name: value for name, value in document["metadata"].items() if name != "managedFields"}
    return {**document, "metadata": metadata}


def annotation(document: Document, name: str) -> str | None:
    return (document["metadata"].get("annotations") or {}).get(name)


def instance_of(document: Document) -> str | None:
    """Whose it is."""
    return (document["metadata"].get("labels") or {}).get(INSTANCE)


def owner_of(document: Document) -> str:
    return (annotation(document, OWNER) or KUBECTL)[:253]


def source_of(crd: str, uid: str) -> str:
    return f"{crd}/{uid}"


def canonical(value: Any) -> str:
    """The same text for the same thing, in whatever order it was written."""
    ordered = from_json(to_json(value))
    return to_json(_sorted(ordered)).decode()


def _sorted(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _sorted(value[name]) for name in sorted(value)}
    return [_sorted(item) for item in value] if isinstance(value, list) else value


def digest(value: Any) -> str:
    return hashlib.sha256(canonical(value).encode()).hexdigest()[:32]


def own_words(document: Document) -> dict[str, Any]:
    """The labels and annotations that a person wrote, and neither kubectl nor Weft."""
    metadata = document["metadata"]
    return {part: _foreign(metadata.get(part) or {}) for part in ("labels", "annotations")}


def _foreign(words: Mapping[str, str]) -> dict[str, str]:
    ours = (LABEL_PREFIX, "kubectl.kubernetes.io/")
    return {name: value for name, value in words.items() if not name.startswith(ours) and name != MANAGED_BY}


def second_name(document: Document) -> str:
    """What a job is called in Weft, where names are unique, if another namespace has one of the same name."""
    metadata = document["metadata"]
    name = f"{metadata['name']}-{metadata['namespace']}"
    return (
        name if len(name) <= LONGEST_NAME else f"{name[: LONGEST_NAME - 9].rstrip('-.')}-{digest(name)[:8]}"
    )


def job_file(document: Document, crd: str, name: str) -> dict[str, Any]:
    """What the resource would be as a job file. Its namespace is the project."""
    metadata = document["metadata"]
    words = own_words(document)
    words["annotations"][SOURCE] = source_of(crd, metadata["uid"])
    return {
        "apiVersion": document.get("apiVersion", API_VERSION),
        "kind": document.get("kind", JOB),
        "metadata": {"name": name, "project": metadata["namespace"], **words},
        "spec": document.get("spec") or {},
    }


def mirror_of(job: LiveJob, instance: str, namespace: str) -> Document:
    """The resource that shows a job which did not come from one. A label that is none on Kubernetes is an annotation."""
    labels: dict[str, str] = {}
    annotations = _foreign(job.metadata.annotations)
    for name, value in _foreign(job.metadata.labels).items():
        (labels if LABEL_VALUE.fullmatch(value) else annotations)[name] = value
    return {
        "apiVersion": API_VERSION,
        "kind": JOB,
        "metadata": {
            "name": job.name,
            "namespace": namespace,
            "labels": {**labels, MANAGED_BY: MANAGER, INSTANCE: instance},
            "annotations": {
                **annotations,
                MIRRORED: "true",
                JOB_UID: job.uid,
                OWNER: job.metadata.owner or "",
            },
        },
        "spec": from_json(job.written[1]),
    }
