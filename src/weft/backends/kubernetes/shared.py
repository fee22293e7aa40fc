"""The objects that all pods of a job share. Everything is owned by the first: deleting that deletes the job."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from typing import Any

from weft.backends.api import Assignment
from weft.backends.kubernetes.names import UID, base_name, code_name, job_labels
from weft.backends.kubernetes.settings import Settings
from weft.model.resource import API_VERSION

CODE_FILE = "code.tar.gz"
TOKEN_FILE, DATA_TOKEN_FILE = "token", "data"


def namespace_of(job: Assignment, settings: Settings) -> str:
    """Where all objects of a job are: a project is a namespace."""
    return job.project or settings.namespace


def metadata(
    job: Assignment,
    name: str,
    settings: Settings,
    owner_uid: str | None,
    labels: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    """Name, namespace, labels and owner of any object of a job; `owner_uid` is None for the owner itself."""
    found: dict[str, Any] = {
        "name": name,
        "namespace": namespace_of(job, settings),
        "labels": {**job_labels(job, settings.instance), **(labels or {})},
    }
    if owner_uid is not None:
        # `controller`: without one, `kubectl drain` refuses to move a pod
        found["ownerReferences"] = [
            {
                "apiVersion": "v1",
                "kind": "ConfigMap",
                "name": base_name(job.name, job.uid),
                "uid": owner_uid,
                "controller": True,
            }
        ]
    return found


def owner(job: Assignment, settings: Settings) -> dict[str, Any]:
    """What the job asked for, for people who look into the cluster. Of secrets it has the names, as every job."""
    import yaml

    document = {
        "apiVersion": API_VERSION,
        "kind": "TrainingJob",
        "metadata": {"name": job.name, "uid": job.uid},
        "spec": job.spec.model_dump(mode="json", by_alias=True, exclude_none=True),
    }
    dumper = getattr(yaml, "CSafeDumper", yaml.SafeDumper)  # the other takes seven milliseconds
    text = yaml.dump(document, Dumper=dumper, sort_keys=False, allow_unicode=True, width=110)
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": metadata(job, base_name(job.name, job.uid), settings, None),
        "data": {"job.yaml": text},
    }


def code_map(job: Assignment, settings: Settings, owner_uid: str, code: bytes) -> dict[str, Any]:
    name = code_name(base_name(job.name, job.uid))
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": metadata(job, name, settings, owner_uid),
        "binaryData": {CODE_FILE: base64.b64encode(code).decode()},
    }


def token_secret(
    job: Assignment, settings: Settings, owner_uid: str, token: str, data_token: str
) -> dict[str, Any]:
    """What the control plane shows to the job's agents, and what its tasks show to the node's data agent."""
    tokens = {TOKEN_FILE: token, **({DATA_TOKEN_FILE: data_token} if job.spec.datasets else {})}
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": metadata(job, base_name(job.name, job.uid), settings, owner_uid),
        "type": "Opaque",
        "stringData": tokens,
    }


def service(job: Assignment, settings: Settings, owner_uid: str) -> dict[str, Any]:
    """Gives each pod a name that the others find it by, from the moment that it has an address."""
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": metadata(job, base_name(job.name, job.uid), settings, owner_uid),
        "spec": {
            "clusterIP": "None",
            "publishNotReadyAddresses": True,
            "selector": {UID: job.uid},
            "ports": [{"name": "task", "port": settings.task_port}],
        },
    }


def network_policy(job: Assignment, settings: Settings, owner_uid: str) -> dict[str, Any]:
    """Only the job's own pods reach its tasks.

    The agent is reached through the API server, whose address is not known here; it asks for the token.
    """
    own = {"matchLabels": {UID: job.uid}}
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": metadata(job, base_name(job.name, job.uid), settings, owner_uid),
        "spec": {
            "podSelector": own,
            "policyTypes": ["Ingress"],
            "ingress": [
                {"from": [{"podSelector": own}]},
                {"ports": [{"protocol": "TCP", "port": settings.agent_port}]},
            ],
        },
    }
