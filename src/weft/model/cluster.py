"""`Cluster`: a Kubernetes cluster that a server uses besides its own engine."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, StringConstraints

from weft.model.quantities import Memory
from weft.model.resource import Image, Metadata, Strict, Text

CLUSTER = "weft.dev/cluster"
"""The label of its nodes, and the taint that keeps away whoever has not asked for it."""
ANY = "any"
"""What a job says that may run in whichever cluster has room."""
HOME = "home"
"""The server's own engine, where jobs run that say nothing."""
RESERVED = (ANY, HOME)
FilePath = Annotated[str, StringConstraints(pattern=r"^/[^\x00-\x1f]{0,1000}$")]


class ClusterSpec(Strict):
    description: Text = ""
    kubeconfig: FilePath | None = None
    """A file on the server's machine, with an absolute path; what it holds is never stored elsewhere. Left out: as for
    `kubectl` there."""
    context: Text | None = None
    """Which context of it. Left out: its current one."""
    namespace: Text | None = None
    """Where objects of jobs without a project are made. Left out: the context's."""
    image: Image | None = None
    """Weft's own image, also for jobs that name none."""
    image_pull_policy: Literal["Always", "IfNotPresent", "Never"] | None = None
    rack_label: Text | None = None
    """The label that names a node's rack."""
    cluster_scheduler: Text | None = None
    """Who places the pods of jobs with `scheduling: default`. Left out: who does so for everybody else."""
    pod_groups: Literal["volcano", "coscheduling"] | None = None
    """Whose PodGroup is made for the gangs of such jobs; it must be installed there."""
    memory_per_cpu: Memory | None = None
    """What a task that asks for no memory gets for each of its CPUs. Left out: 4Gi."""


class Cluster(Strict):
    api_version: Literal["weft.dev/v1"] = "weft.dev/v1"
    kind: Literal["Cluster"] = "Cluster"
    metadata: Metadata = Field(default_factory=Metadata)
    spec: ClusterSpec = Field(default_factory=ClusterSpec)
    status: dict[str, Any] | None = None
    """Written by the server; ignored in what is sent."""


def node_name(cluster: str, node: str) -> str:
    """What a node is called among those of several clusters."""
    return f"{cluster}:{node}" if cluster else node


def cluster_of(node: str) -> str:
    """The cluster of a node that is called so; empty: the server's own."""
    return node.rpartition(":")[0]
