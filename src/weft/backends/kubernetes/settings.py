"""What an administrator says once about a cluster, and every job's objects are made with."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from weft.version import __version__


@dataclass(frozen=True, slots=True)
class Settings:
    namespace: str = "weft"
    image: str = f"weft:{__version__}"
    """Weft's own: the agent's, and that of tasks whose job has none."""
    image_pull_policy: str = "IfNotPresent"
    pull_secrets: tuple[str, ...] = ()
    """Secrets of the namespace with the passwords of registries."""
    instance: str = "weft"
    """Which control plane these objects belong to: there may be several in one cluster."""
    cluster: str = ""
    """Its name among those that were added to a server; empty for the server's own."""
    agent_port: int = 8470
    task_port: int = 29500
    """Where the task itself listens, if it does; each pod has an address of its own, so all may have the same."""
    run_as: int = 1000
    """User and group of all processes; never root."""
    scheduler: str = "weft"
    cluster_scheduler: str | None = None
    """Who places the pods of jobs with `scheduling: default`; None: who does so for everybody else."""
    pod_groups: Literal["volcano", "coscheduling"] | None = None
    """Whose PodGroup is made for the gangs of such jobs. Only where it is installed: the API server refuses it elsewhere,
    and a pod that names a group which does not exist never starts."""
    memory_per_cpu: int = 4 << 30
    """Of tasks that ask for no memory, in bytes: without a limit no pod is Guaranteed, and its CPUs are never its own."""
    shm: str = "1Gi"
    """The size of /dev/shm of tasks without memory and CPUs; others have half of their memory."""
    agent_cpu: str = "100m"
    agent_memory: str = "128Mi"
    priority_class: str | None = None
    gpu: str = "nvidia.com/gpu"
    """What the device plugin calls a GPU."""
    device_domain: str = "weft.dev"
    """Of devices that a job names without one: `fpga` is asked for as `weft.dev/fpga`."""
    gpu_type_label: str = "nvidia.com/gpu.product"
    """The label of nodes that says what their GPUs are."""
    rack_label: str = "weft.dev/rack"
    fabric_label: str = "weft.dev/fabric"
    output_kept: int = 64 << 20
    """Bytes of a task's output that its agent keeps for a control plane that is away."""
    output_rate: int = 4 << 20
    """Bytes a second of it that it sends in the long run."""

    @property
    def data_namespace(self) -> str:
        """Where the data agents are: apart from jobs, since their pods mount a folder of the node."""
        return f"{self.namespace}-data"
