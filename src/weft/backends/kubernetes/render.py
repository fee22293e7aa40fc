"""From a job, its launch and the cluster's settings to the objects that Kubernetes is sent. Nothing is read or asked:
the same job gives the same objects, so they can be shown before anything runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from weft.backends.api import Assignment
from weft.backends.kubernetes import groups, shared
from weft.backends.kubernetes.pods import HOSTS_FILE, Launch, awaited, places, pod
from weft.backends.kubernetes.settings import Settings
from weft.backends.tasks import gather
from weft.runtime.agent.script import START
from weft.runtime.hosts import INLINE

WEFT_PLACES = {
    "nodeSelector": "write `placement.selector`",
    "affinity": "write `placement` (selector, nodes, strategy), or `scheduling: default` to have the cluster place them",
    "topologySpreadConstraints": "write `placement.strategy: spread`, or `scheduling: default` to have the cluster place them",
}
"""What says where a pod may be, to a scheduler that is not Weft's: Weft's would bind it elsewhere, and the node refuse it."""


@dataclass(frozen=True, slots=True)
class Rendered:
    """Plain objects, as the API takes them."""

    owner: dict[str, Any]
    """Made first: all others name the uid that it is given."""
    shared: list[dict[str, Any]]
    pods: dict[str, dict[str, Any]]
    """By task."""
    hosts: Mapping[str, list[str]] | None = None
    """What the agents are to be sent before their tasks start, where the gang reads its hosts from a file."""

    def objects(self) -> list[dict[str, Any]]:
        """In the order in which they are made."""
        return [self.owner, *self.shared, *self.pods.values()]


def render(
    job: Assignment,
    launch: int,
    tasks: Sequence[str],
    settings: Settings,
    owner_uid: str,
    code: bytes | None,
    pushes: Sequence[str],
    token: str,
    data_token: str,
    script: str = START,
) -> Rendered:
    """The objects of one launch of these tasks.

    `code` is a package small enough to travel as an object; `pushes` are the folders that the agents wait for
    the control plane to send instead.
    """
    objects = [] if code is None else [shared.code_map(job, settings, owner_uid, code)]
    objects.append(shared.token_secret(job, settings, owner_uid, token, data_token))
    if len(job.gang.tasks) > 1:
        objects.append(shared.service(job, settings, owner_uid))
    objects.append(shared.network_policy(job, settings, owner_uid))
    group = groups.pod_group(job, launch, tasks, settings)
    if group is not None:
        group["metadata"] = shared.metadata(job, group["metadata"]["name"], settings, owner_uid)
        objects.append(group)
    # a container counts the GPUs that it was given from 0, whichever they are of its node
    gpus = {task.name: range(task.request.gpu) for task in job.gang.tasks}
    gathered = gather(job, launch, places(job, settings), HOSTS_FILE, gpus, {})
    together = Launch(
        gathered,
        tasks,
        settings,
        owner_uid,
        code is not None,
        pushes,
        script,
        awaited(gathered, tasks),
    )
    pods = {name: pod(together, job.gang.task(name)) for name in tasks}
    hosts = gathered.hosts if gathered.hosts_file is not None else None
    return Rendered(shared.owner(job, settings), objects, pods, hosts)


def reads_hosts(job: Assignment) -> bool:
    """Whether its tasks find each other by a file, which their agents have to be sent."""
    return job.gang.elastic or len(job.gang.tasks) > INLINE


def unsupported(job: Assignment) -> str | None:
    """Why no cluster can run the job as it is written, or None."""
    for use in job.spec.datasets:
        if use.mode == "mount":
            return (
                f"dataset {use.name}: mode: mount needs the right to mount file systems, which no pod of a job has; "
                "use replicate (files), or stream (weft.data)"
            )
    for role, about in job.spec.roles.items():
        patched, resources = about.pod.get("spec") or {}, about.resources
        for name, instead in WEFT_PLACES.items() if job.spec.scheduling == "weft" else ():
            if isinstance(patched, dict) and name in patched:
                return f"roles.{role}.pod.spec.{name} is not read by Weft's scheduler, which places the pods; {instead}"
        if resources.gpu and resources.gpu < 1:
            return (
                f"roles.{role}.resources.gpu: {resources.gpu:g} of a GPU cannot be had on Kubernetes, which "
                "counts whole ones; ask for 1, or for a part that the device plugin offers, by its name under "
                "`devices`"
            )
        if job.spec.scheduling == "default" and (resources.gpu_memory or resources.gpu_generation):
            what = "gpuMemory" if resources.gpu_memory else "gpuGeneration"
            return (
                f"roles.{role}.resources.{what} is for Weft's own scheduler; with scheduling: default choose nodes "
                "by their labels, with gpuType or placement.selector"
            )
    return None
