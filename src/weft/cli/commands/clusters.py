"""`weft clusters`: Kubernetes clusters that the server uses besides its own engine."""

from __future__ import annotations

import os
from typing import Any, Literal

from weft.cli import moments, terminal
from weft.cli.commands.run import connected
from weft.cli.output import ListForm, print_table, print_whole
from weft.cli.table import Column
from weft.client.api import Client
from weft.client.jobspec import BadOption

COLUMNS = (
    Column("CLUSTER"),
    Column("STATE"),
    Column("NODES", right=True),
    Column("GPUS", right=True),
    Column("JOBS", right=True),
    Column("REASON", flexible=True),
)
WIDE = (
    *COLUMNS[:-1],
    Column("NAMESPACE"),
    Column("KUBECONFIG"),
    Column("CONTEXT"),
    Column("ADDED"),
    COLUMNS[-1],
)
Json = dict[str, Any]


def list_clusters(*, output: ListForm = None) -> int:
    """The clusters that were added to the server, whether they answer, and what they have.

    Parameters
    ----------
    output
        json, yaml or wide (with how they are reached).
    """
    items = Client().clusters()
    if output in ("json", "yaml"):
        print_whole({"items": items}, str(output))
        return 0
    wide = output == "wide"
    print_table(WIDE if wide else COLUMNS, [_row(item, wide) for item in items])
    steps = ["weft clusters add NAME --kubeconfig FILE"]
    if items:
        steps.insert(0, f"weft run --cluster {items[0]['metadata']['name']} ...")
    terminal.next_step(*steps)
    return 0


def _row(item: Json, wide: bool) -> list[str]:
    spec, status = item["spec"], item["status"]
    row = [
        item["metadata"]["name"],
        status["state"],
        *(str(status[name]) for name in ("nodes", "gpus", "jobs")),
    ]
    if wide:
        row += [spec.get(name) or "-" for name in ("namespace", "kubeconfig", "context")]
        row.append(moments.clock(item["metadata"].get("created")))
    return [*row, status.get("reason") or ""]


def add(
    name: str,
    /,
    *,
    kubeconfig: str | None = None,
    context: str | None = None,
    namespace: str | None = None,
    image: str | None = None,
    image_pull_policy: Literal["Always", "IfNotPresent", "Never"] | None = None,
    rack_label: str | None = None,
    cluster_scheduler: str | None = None,
    pod_groups: Literal["volcano", "coscheduling"] | None = None,
    memory_per_cpu: str | None = None,
) -> int:
    """Add a cluster to the server, or reach one in another way. Nothing is installed in it.

    Jobs go there that ask for it (weft run --cluster NAME), or for any cluster (--cluster any).

    For example:
      weft clusters add prod --kubeconfig ~/.kube/config --context prod
      weft clusters add lab --namespace team-a --image registry.example/weft:1

    Parameters
    ----------
    name
        What the cluster is called here.
    kubeconfig
        A file on the server's machine. Left out: as for kubectl there.
    context
        Which context of it.
    namespace
        Where the objects of jobs without a project are made.
    image
        Weft's own image, also for jobs that name none.
    image_pull_policy
        Always, IfNotPresent or Never.
    rack_label
        The label that names a node's rack.
    cluster_scheduler
        Who places the pods of jobs with scheduling: default (default: who does so for everybody else).
    pod_groups
        Make the PodGroup of volcano or of coscheduling for the gangs of such jobs (default: none).
    memory_per_cpu
        What a task that asks for no memory gets, and may use, for each of its CPUs (default: 4Gi).
    """
    given = {
        "kubeconfig": os.path.abspath(os.path.expanduser(kubeconfig)) if kubeconfig else None,  # noqa: PTH100, PTH111
        "context": context,
        "namespace": namespace,
        "image": image,
        "imagePullPolicy": image_pull_policy,
        "rackLabel": rack_label,
        "clusterScheduler": cluster_scheduler,
        "podGroups": pod_groups,
        "memoryPerCpu": memory_per_cpu,
    }
    spec = {field: value for field, value in given.items() if value is not None}
    kept = connected().put_cluster({"kind": "Cluster", "metadata": {"name": name}, "spec": spec})
    status = kept["status"]
    print(f"cluster/{name}: {status['nodes']} nodes, {status['gpus']} GPUs")
    terminal.next_step(f"weft run --cluster {name} ...", "weft nodes", "weft clusters")
    return 0


def remove(*names: str) -> int:
    """Let go of clusters. Refused while jobs wait for them or run there.

    For example:
      weft clusters rm lab

    Parameters
    ----------
    names
        Names of clusters.
    """
    if not names:
        raise BadOption("name at least one cluster (weft clusters)")
    client = Client()
    for name in names:
        client.delete_cluster(name)
        print(f"cluster/{name} removed")
    terminal.next_step("weft clusters")
    return 0
