"""Which engine a server runs on, and as what: this machine, or a cluster. As declared now, or else as the last time."""

from __future__ import annotations

import argparse
import os
import secrets
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from weft.backends.api import Backend, EngineUnavailable
from weft.backends.fleet import Connect
from weft.backends.local.machine import Shape
from weft.model.cluster import ClusterSpec
from weft.model.quantities import parse_memory
from weft.server.home import Home, HomeError

if TYPE_CHECKING:
    from weft.backends.kubernetes.client import Client
    from weft.control.control import Control
    from weft.jobtypes.complete import Rule
    from weft.operator.operator import Operator

Kind = TypeVar("Kind", Shape, "Cluster")
ENGINES = ("local", "kubernetes")
SAID = ("image", "image_pull_policy", "rack_label", "cluster_scheduler", "pod_groups", "memory_per_cpu")
POD = "WEFT_POD"
"""The variable with the name of the server's own pod, where it runs in one."""


@dataclass(frozen=True, slots=True)
class Cluster:
    """How a cluster is reached and used."""

    kubeconfig: str | None = None
    context: str | None = None
    namespace: str | None = None
    image: str | None = None
    image_pull_policy: str | None = None
    rack_label: str | None = None
    cluster_scheduler: str | None = None
    pod_groups: str | None = None
    memory_per_cpu: int | None = None
    custom_resources: str | None = None


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--backend", choices=ENGINES, default=None, help="where tasks run (default: the last one)"
    )
    cluster = parser.add_argument_group("kubernetes")
    cluster.add_argument(
        "--kubeconfig", default=None, help="default: KUBECONFIG, ~/.kube/config, or the pod's own account"
    )
    cluster.add_argument("--context", default=None, help="which context of it")
    cluster.add_argument("--namespace", default=None, help="where jobs' objects are made")
    cluster.add_argument("--image", default=None, help="Weft's own image, also for jobs that name none")
    cluster.add_argument("--image-pull-policy", choices=("Always", "IfNotPresent", "Never"), default=None)
    cluster.add_argument(
        "--custom-resources",
        choices=("all", "none"),
        default=None,
        help="follow TrainingJobs, queues, job types and sizes of the cluster (default: all)",
    )
    cluster.add_argument("--rack-label", default=None, help="the label that names a node's rack")
    cluster.add_argument(
        "--cluster-scheduler", default=None, help="who places the pods of jobs with scheduling: default"
    )
    cluster.add_argument(
        "--pod-groups",
        choices=("volcano", "coscheduling"),
        default=None,
        help="whose PodGroup is made for the gangs of such jobs (default: none)",
    )
    cluster.add_argument(
        "--memory-per-cpu",
        type=parse_memory,
        default=None,
        help="of tasks that ask for no memory (default: 4Gi)",
    )


def chosen(arguments: argparse.Namespace, home: Home, *, remember: bool = True) -> Shape | Cluster:
    """What was declared now, or else what was declared last: a server that was killed comes back as it was.

    Only who holds the home may write into it, and so remember."""
    name = arguments.backend or home.last("engine").get("backend", "local")
    if remember:
        home.remember("engine", {"backend": name})
    if name == "local":
        return _declared(Shape, "shape", arguments, home, remember)
    return _declared(Cluster, "cluster", arguments, home, remember)


def _declared(kind: type[Kind], what: str, arguments: argparse.Namespace, home: Home, remember: bool) -> Kind:
    given = {part.name: getattr(arguments, part.name) for part in fields(kind)}
    declared = {name: value for name, value in given.items() if value is not None}
    if not declared:
        return kind(**home.last(what))
    try:
        made = kind(**declared)
    except ValueError as problem:
        raise HomeError(str(problem)) from None
    if remember:
        home.remember(what, declared)
    return made


def engine(shape: Shape | Cluster, home: Home, secret: Callable[[str, str], str | None]) -> Backend:
    if isinstance(shape, Cluster):
        return _kubernetes(shape, home)
    from weft.backends.local.backend import LocalBackend

    return LocalBackend(home.path, shape, secret)


def client_of(cluster: Cluster | ClusterSpec) -> Client:
    try:
        import lightkube  # noqa: F401
    except ImportError:
        raise HomeError("Kubernetes needs lightkube: pip install 'weft[kubernetes]'") from None
    from weft.backends.kubernetes.client import Client

    try:
        return Client(cluster.kubeconfig, cluster.context)
    except Exception as problem:
        raise HomeError(
            f"the kubeconfig cannot be used: {problem}; name one with --kubeconfig FILE"
        ) from None


async def as_installed(shape: Shape | Cluster) -> Shape | Cluster:
    """In a pod: agents, and tasks that name no image, get the one that the server itself was started from."""
    name = os.environ.get(POD)
    if name is None or not isinstance(shape, Cluster) or shape.image is not None:
        return shape
    from weft.backends.kubernetes.client import ApiError, insist

    client = client_of(shape)
    try:
        pod = await insist(client.get, "Pod", name, client.namespace)
    except ApiError as problem:
        raise HomeError(
            f"the image of pod {name}, which {POD} names, cannot be found out: {problem}; name one with --image"
        ) from None
    finally:
        await client.close()
    own = pod["spec"]["containers"][0]
    return replace(
        shape, image=own["image"], image_pull_policy=shape.image_pull_policy or own["imagePullPolicy"]
    )


def connect(home: Home) -> Connect:
    """How clusters that are added are reached."""

    def made(name: str, spec: ClusterSpec) -> Backend:
        try:
            return _kubernetes(spec, home, name)
        except HomeError as problem:
            raise EngineUnavailable(str(problem)) from None

    return made


def _kubernetes(cluster: Cluster | ClusterSpec, home: Home, name: str = "") -> Backend:
    from weft.backends.kubernetes.backend import KubernetesBackend
    from weft.backends.kubernetes.settings import Settings

    client = client_of(cluster)
    own = {name: getattr(cluster, name) for name in SAID}
    said = {name: value for name, value in own.items() if value is not None}
    instance = f"{home.identity()}-{name}" if name else home.identity()
    namespace = cluster.namespace or client.namespace
    settings = Settings(namespace=namespace, instance=instance, cluster=name, **said)
    return KubernetesBackend(home.path, client, settings, _key(home.path / "agents.key"))


def operator(shape: Shape | Cluster, control: Control, further: Rule) -> Operator | None:
    """What follows the custom resources of a cluster."""
    if not isinstance(shape, Cluster) or shape.custom_resources == "none":
        return None
    from weft.backends.kubernetes.backend import KubernetesBackend
    from weft.operator.operator import Operator

    own = control.backend.home
    assert isinstance(own, KubernetesBackend)
    return Operator(control, own.client, own.settings, further)


def _key(path: Path) -> bytes:
    """What agents' tokens are made from; made once, readable by its owner alone."""
    if not path.exists():
        path.touch(mode=0o600)
        path.write_text(secrets.token_hex(32))
    return path.read_text().strip().encode()
