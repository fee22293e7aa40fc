"""A gang as other schedulers know one, for jobs with `scheduling: default`.

Kueue admits plain pods together that share the label `kueue.x-k8s.io/pod-group-name` and say by an annotation how many
they are; it looks at pods whose queue is named. Volcano and the coscheduling plugin want a PodGroup
object and a mark on each pod that names it: an annotation for the one, a label for the other.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from weft.backends.api import Assignment
from weft.backends.kubernetes.names import base_name, group_name
from weft.backends.kubernetes.settings import Settings

KUEUE = "kueue.x-k8s.io"
VOLCANO = "scheduling.k8s.io/group-name"
COSCHEDULING = "scheduling.x-k8s.io/pod-group"


@dataclass(frozen=True, slots=True)
class Marks:
    """What the pods of one launch carry."""

    labels: dict[str, str] = field(default_factory=dict)
    annotations: dict[str, str] = field(default_factory=dict)


def marks(job: Assignment, launch: int, tasks: Sequence[str], settings: Settings) -> Marks:
    found = Marks()
    if job.spec.scheduling != "default":
        return found
    if job.spec.queue != "default":
        found.labels[f"{KUEUE}/queue-name"] = job.spec.queue
    if len(tasks) > 1:
        name = group_name(base_name(job.name, job.uid), launch)
        found.labels[f"{KUEUE}/pod-group-name"] = name
        found.annotations[f"{KUEUE}/pod-group-total-count"] = str(len(tasks))
        if settings.pod_groups == "volcano":
            found.annotations[VOLCANO] = name
        elif settings.pod_groups == "coscheduling":
            found.labels[COSCHEDULING] = name
    return found


def pod_group(
    job: Assignment, launch: int, tasks: Sequence[str], settings: Settings
) -> dict[str, Any] | None:
    """The PodGroup of a launch without its metadata but for the name; None where nobody wants one."""
    if job.spec.scheduling != "default" or settings.pod_groups is None or len(tasks) < 2:
        return None
    least = {task.name for task in job.gang.least}
    spec: dict[str, Any] = {"minMember": max(1, sum(task in least for task in tasks))}
    if settings.pod_groups == "volcano":
        if job.spec.queue != "default":
            spec["queue"] = job.spec.queue
        version = "scheduling.volcano.sh/v1beta1"
    else:
        version = "scheduling.x-k8s.io/v1alpha1"
    name = group_name(base_name(job.name, job.uid), launch)
    return {"apiVersion": version, "kind": "PodGroup", "metadata": {"name": name}, "spec": spec}


def absent(group: dict[str, Any]) -> str:
    """What to do where the API server knows no such object."""
    return (
        f"the cluster has no PodGroup ({group['apiVersion']}) for its gang: install the scheduler that it belongs to, or "
        "start Weft without --pod-groups"
    )
