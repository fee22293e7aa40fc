"""What the objects of a job are called, and the labels that they are found by."""

from __future__ import annotations

import hashlib

from weft.backends.api import Assignment
from weft.model.podpatch import LABEL_PREFIX, MANAGED_BY

MANAGER = "weft"
INSTANCE = f"{LABEL_PREFIX}instance"
JOB = f"{LABEL_PREFIX}job"
UID = f"{LABEL_PREFIX}uid"
TASK = f"{LABEL_PREFIX}task"
ROLE = f"{LABEL_PREFIX}role"
LAUNCH = f"{LABEL_PREFIX}launch"
DATA_AGENTS = {"app.kubernetes.io/name": "weft-data"}
"""The labels of their pods."""

LONGEST = 63
"""Of a DNS label, and of a label's value."""
_JOB_PART, _UID_PART, _DIGEST = 37, 12, 8


def base_name(job: str, uid: str) -> str:
    """The beginning of all names of a job, and a DNS label itself: the job's name as far as it fits, and the end of its
    uid, which no other job has."""
    return f"weft-{job[:_JOB_PART].rstrip('-')}-{uid[-_UID_PART:]}"


def code_name(base: str) -> str:
    return f"{base}-code"


def pod_name(base: str, task: str, launch: int) -> str:
    """Another for each launch: a pod that is still going must not be in the way of the next."""
    return f"{base}-{task}-{launch}"


def group_name(base: str, launch: int) -> str:
    return f"{base}-{launch}"


def host_name(task: str) -> str:
    """The task's name as a host and as a label. A role's name may have 63 characters by itself: then the end is
    replaced by a digest of the whole."""
    if len(task) <= LONGEST:
        return task
    digest = hashlib.sha256(task.encode()).hexdigest()[:_DIGEST]
    return f"{task[: LONGEST - _DIGEST - 1].rstrip('-')}-{digest}"


def job_labels(job: Assignment, instance: str) -> dict[str, str]:
    return {MANAGED_BY: MANAGER, INSTANCE: instance, JOB: job.name, UID: job.uid}


def task_labels(task: str, role: str, launch: int) -> dict[str, str]:
    return {TASK: host_name(task), ROLE: role, LAUNCH: str(launch)}


def resource_name(device: str, domain: str) -> str:
    """A device as Kubernetes counts it: a name without a domain gets one, since it takes no other."""
    return device if "/" in device else f"{domain}/{device}"


def device_name(resource: str, domain: str) -> str:
    """The same the other way round."""
    return resource.removeprefix(f"{domain}/")
