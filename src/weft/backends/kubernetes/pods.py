"""The pod of one task: Weft's agent, and beside it the user's container, which waits until the agent lets it go.

There is no init container: it costs a second until the user's process starts (a kubelet looks at its containers once a
second), where an agent beside it costs a tenth. So the agent prepares the folders, and `task` begins with a
script that waits for a file of it. Only a pod that reads data and is placed by the cluster itself has one: the data is brought
when it is known where to, and its files must be there before `task`, which sees them, is made.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from weft.backends.api import Assignment
from weft.backends.kubernetes import groups, shared
from weft.backends.kubernetes.names import (
    DATA_AGENTS,
    UID,
    base_name,
    code_name,
    host_name,
    pod_name,
    task_labels,
)
from weft.backends.kubernetes.patch import merged
from weft.backends.kubernetes.requests import agent_resources, filled, task_resources
from weft.backends.kubernetes.settings import Settings
from weft.backends.tasks import (
    Gathering,
    Paths,
    as_files,
    dataset_variables,
    image_of,
    metrics_of,
    task_command,
    task_environment,
    version_of,
    working_folder,
)
from weft.model.gang import Request, Task, Within
from weft.model.job import Strategy
from weft.model.podpatch import AGENT, DATA, ROOT, TASK
from weft.model.quantities import format_memory
from weft.runtime.hosts import INLINE

HOSTS_FILE = f"{ROOT}/task/hosts.json"
PATHS = Paths(
    code=f"{ROOT}/code",
    results=f"{ROOT}/results",
    checkpoints=f"{ROOT}/checkpoints",
    logs=f"{ROOT}/logs",
    data=f"{ROOT}/data",
    metrics=f"{ROOT}/task/metrics.jsonl",
    activity=f"{ROOT}/task/active",
    url=f"{ROOT}/task/url",
)
AFTER_GRACE = 30
"""Seconds that a pod has after its task was killed: the agent still has its last output and results to hand over."""
HOSTNAME = "kubernetes.io/hostname"
DATA_PLACE, DATA_TOKEN = "/weft-data", "/weft-data-token"


def places(job: Assignment, settings: Settings) -> dict[str, str]:
    """host:port of every task. A task that is alone needs no service to be found by."""
    if len(job.gang.tasks) == 1:
        return {task.name: f"127.0.0.1:{settings.task_port}" for task in job.gang.tasks}
    base = base_name(job.name, job.uid)
    return {task.name: f"{host_name(task.name)}.{base}:{settings.task_port}" for task in job.gang.tasks}


@dataclass(frozen=True, slots=True)
class Launch:
    """What all pods of one launch are made from."""

    gathered: Gathering
    tasks: Sequence[str]
    """Those that start together."""
    settings: Settings
    owner_uid: str
    has_code: bool
    """The code is an object, which the agents read."""
    pushes: Sequence[str]
    script: str
    awaited: Mapping[str, str]
    """By task, the hosts that must have a name before another task starts."""


def awaited(gathered: Gathering, tasks: Sequence[str]) -> dict[str, str]:
    """All that start with it: those that run have had a name for long, and if one of them ends meanwhile it never has one
    again. Of a wide gang only the one where all meet, since lists of all others would grow with the gang's square."""
    job = gathered.job
    wide = len(job.gang.tasks) > INLINE
    return {
        task.name: gathered.places[task.name].rpartition(":")[0]
        for task in job.gang.tasks
        if task.name in tasks and task.name in gathered.ranks and (task.chief or not wide)
    }


def pod(launch: Launch, task: Task) -> dict[str, Any]:
    gathered, settings = launch.gathered, launch.settings
    job, number = gathered.job, gathered.launch
    base = base_name(job.name, job.uid)
    marks = groups.marks(job, number, launch.tasks, settings)
    labels = {**task_labels(task.name, task.role, number), **marks.labels}
    metadata = shared.metadata(job, pod_name(base, task.name, number), settings, launch.owner_uid, labels)
    metadata["annotations"] = {
        # the agent repeats what the task prints, so this is what `kubectl logs` should show
        "kubectl.kubernetes.io/default-container": AGENT,
        "kubectl.kubernetes.io/default-logs-container": AGENT,
        **marks.annotations,
    }
    spec: dict[str, Any] = {
        **_scheduling(job, task, settings),
        "hostname": host_name(task.name),
        **({"subdomain": base} if len(job.gang.tasks) > 1 else {}),
        "restartPolicy": "OnFailure",  # for the agent: the task's script always ends well
        "terminationGracePeriodSeconds": _grace(job) + AFTER_GRACE,
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "shareProcessNamespace": True,
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": settings.run_as,
            "runAsGroup": settings.run_as,
            "fsGroup": settings.run_as,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "containers": [_agent(launch, task), _task(launch, task)],
        "volumes": [
            *_volumes(base, filled(task.request, settings), settings, launch.has_code),
            *(_data_volumes(base) if job.spec.datasets else ()),
        ],
    }
    if _waits_for_data(job):
        spec["initContainers"] = [_arrival(job, settings)]
    if settings.pull_secrets:
        spec["imagePullSecrets"] = [{"name": name} for name in settings.pull_secrets]
    made = {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}
    return merged(made, job.spec.roles[task.role].pod)


# ── the two containers ──


def _agent(launch: Launch, task: Task) -> dict[str, Any]:
    settings = launch.settings
    told = {
        "port": settings.agent_port,
        "task": task.name,
        "await": [host for name, host in launch.awaited.items() if name != task.name],
        "pushes": list(launch.pushes),
        "desk": _desk(launch, task),
        "metrics": metrics_of(launch.gathered.job, task, one_folder=False),
        "output": {"kept": settings.output_kept, "rate": settings.output_rate},
    }
    mounts = [_mount("weft", ROOT), _mount("weft-token", "/weft-token", read_only=True)]
    if launch.has_code:
        mounts.append(_mount("code", "/weft-code", read_only=True))
    return {
        "name": AGENT,
        "image": settings.image,
        "imagePullPolicy": settings.image_pull_policy,
        "command": ["python", "-m", "weft.runtime.agent"],
        "env": [{"name": "WEFT_AGENT", "value": literal(json.dumps(told))}],
        "ports": [{"name": "agent", "containerPort": settings.agent_port}],
        "resources": agent_resources(settings),
        "securityContext": _confined(),
        "volumeMounts": mounts,
    }


def _desk(launch: Launch, task: Task) -> str | None:
    """The agent that hands out shards: the first task's. None: this one."""
    chief = next(each for each in launch.gathered.job.gang.tasks if each.chief)
    host = launch.gathered.places[chief.name].rpartition(":")[0]
    return None if task.chief else f"{host}:{launch.settings.agent_port}"


def pushes_of(pod: Mapping[str, Any]) -> list[str]:
    """What its agent was told to wait for."""
    told = [
        variable["value"]
        for container in pod["spec"]["containers"]
        for variable in container.get("env") or ()
        if container["name"] == AGENT and variable["name"] == "WEFT_AGENT"
    ]
    return list(json.loads(told[0]).get("pushes") or ()) if told else []


def _task(launch: Launch, task: Task) -> dict[str, Any]:
    gathered, settings = launch.gathered, launch.settings
    job = gathered.job
    command = ("/bin/sh", "-c", launch.script, "weft", *task_command(gathered, task))
    return {
        "name": TASK,
        "image": image_of(job, task) or settings.image,
        "imagePullPolicy": settings.image_pull_policy,
        "command": [literal(part) for part in command],
        "env": _environment(gathered, task),
        "ports": [{"name": "task", "containerPort": settings.task_port}],
        "resources": task_resources(task.request, settings),
        "securityContext": _confined(read_only=job.spec.isolation == "sandbox"),
        "volumeMounts": [
            _mount("weft", ROOT),
            _mount("shm", "/dev/shm"),
            _mount("tmp", "/tmp"),
            *((*_data_mounts(), *_file_mounts(job)) if job.spec.datasets else ()),
        ],
    }


def _waits_for_data(job: Assignment) -> bool:
    return bool(job.spec.datasets) and job.spec.scheduling == "default"


def _arrival(job: Assignment, settings: Settings) -> dict[str, Any]:
    """Ends when the node lends the job its data, and the files are there."""
    told = dataset_variables(job, f"{DATA_PLACE}/data.sock", f"{DATA_TOKEN}/token")
    return {
        "name": DATA,
        "image": settings.image,
        "imagePullPolicy": settings.image_pull_policy,
        "command": ["python", "-m", "weft.runtime.data.arrival", *as_files(job)],
        "env": [{"name": name, "value": literal(value)} for name, value in told.items()],
        "resources": agent_resources(settings),
        "securityContext": _confined(),
        "volumeMounts": _data_mounts(),
    }


def _environment(gathered: Gathering, task: Task) -> list[dict[str, Any]]:
    """Variables in Kubernetes' form. Secrets are named and not read: no value of one passes through here."""
    job = gathered.job
    base = {
        "PYTHONPATH": f"{ROOT}/lib",
        "PYTHONUNBUFFERED": "1",
        "HOME": f"{ROOT}/home",
        "USER": "weft",  # an image knows no user of this number, and programs ask for a name
        "LOGNAME": "weft",
        "TMPDIR": "/tmp",
        "WEFT_CWD": working_folder(job, PATHS.code),
        "WEFT_GRACE": str(_grace(job)),
        "WEFT_SHARDS_FILE": f"{ROOT}/task/shards.json",
    }
    if job.spec.datasets:
        base |= dataset_variables(job, f"{DATA_PLACE}/data.sock", f"{DATA_TOKEN}/token")
    plain = task_environment(base, gathered, task, PATHS, hide_gpus=not task.request.devices)
    secret = {reference.env: reference for reference in job.spec.secrets}
    found: list[dict[str, Any]] = [
        {"name": name, "value": literal(value)}
        for name, value in plain.items()
        if name != "WEFT_NODE" and name not in secret
    ]
    found.append({"name": "WEFT_NODE", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}})
    found += [
        {"name": name, "valueFrom": {"secretKeyRef": {"name": reference.name, "key": reference.key}}}
        for name, reference in secret.items()
    ]
    return found


def literal(text: str) -> str:
    """As Kubernetes takes it for itself: in commands and variables `$(NAME)` is a reference and `$$` a dollar sign."""
    return text.replace("$", "$$") if "$(" in text or "$$" in text else text


def _confined(*, read_only: bool = False) -> dict[str, Any]:
    """Read-only: the image's files; /tmp, /dev/shm and the job's own folders are volumes."""
    confined = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
    return {**confined, "readOnlyRootFilesystem": True} if read_only else confined


def _grace(job: Assignment) -> int:
    return math.ceil(job.spec.grace)


# ── what it has ──


def _volumes(base: str, request: Request, settings: Settings, has_code: bool) -> list[dict[str, Any]]:
    shm = format_memory(request.memory // 2) if request.memory else settings.shm
    volumes: list[dict[str, Any]] = [
        {"name": "weft", "emptyDir": {}},
        {"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": shm}},
        {"name": "tmp", "emptyDir": {}},
        {"name": "weft-token", "secret": {"secretName": base}},
    ]
    if has_code:
        volumes.append({"name": "code", "configMap": {"name": code_name(base)}})
    return volumes


def _data_volumes(base: str) -> list[dict[str, Any]]:
    """A claim of the namespace on the folder that the data agent has on each node: a pod that asked for a folder of its
    node itself would be refused by restricted namespaces."""
    token = {"secretName": base, "items": [{"key": shared.DATA_TOKEN_FILE, "path": "token"}]}
    return [
        {"name": DATA, "persistentVolumeClaim": {"claimName": DATA, "readOnly": True}},
        {"name": "weft-data-token", "secret": token},
    ]


def _data_mounts() -> list[dict[str, Any]]:
    """The agent's socket, and what is shown there."""
    return [
        {**_mount(DATA, DATA_PLACE, read_only=True), "subPath": "door"},
        _mount("weft-data-token", DATA_TOKEN, read_only=True),
    ]


def _file_mounts(job: Assignment) -> list[dict[str, Any]]:
    """The files of what the job reads: of the node's cache it sees nothing else."""
    return [
        {
            **_mount(DATA, f"{PATHS.data}/{use.called}", read_only=True),
            "subPath": f"cache/trees/{version_of(job, use)}",
        }
        for use in job.spec.datasets
        if use.mode == "replicate" and use.files
    ]


def _mount(name: str, path: str, *, read_only: bool = False) -> dict[str, Any]:
    return {"name": name, "mountPath": path, **({"readOnly": True} if read_only else {})}


# ── where it goes ──


def _scheduling(job: Assignment, task: Task, settings: Settings) -> dict[str, Any]:
    found: dict[str, Any] = {}
    placement = job.spec.placement
    selector = dict(placement.selector)
    by_weft = job.spec.scheduling == "weft"
    scheduler = settings.scheduler if by_weft else settings.cluster_scheduler
    if scheduler is not None:
        found["schedulerName"] = scheduler
    if not by_weft:
        if task.request.gpu_type is not None:
            selector[settings.gpu_type_label] = task.request.gpu_type
        if affinity := _affinity(job, settings):
            found["affinity"] = affinity
    if selector:
        found["nodeSelector"] = selector
    if placement.tolerations:
        found["tolerations"] = [{"key": key, "operator": "Exists"} for key in placement.tolerations]
    if settings.priority_class is not None:
        found["priorityClassName"] = settings.priority_class
    return found


def _affinity(job: Assignment, settings: Settings) -> dict[str, Any]:
    """What Weft's scheduler would have kept to, as far as it can be told to another; and where data is read, a node that
    has a data agent."""

    def near(label: str) -> dict[str, Any]:
        return {"labelSelector": {"matchLabels": {UID: job.uid}}, "topologyKey": label}

    label = {
        Within.ANYWHERE: None,
        Within.NODE: HOSTNAME,
        Within.RACK: settings.rack_label,
        Within.FABRIC: settings.fabric_label,
        Within.CLUSTER: None,
    }[job.gang.within]
    gang = len(job.gang.tasks) > 1
    wished = {
        "preferredDuringSchedulingIgnoredDuringExecution": [
            {"weight": 100, "podAffinityTerm": near(HOSTNAME)}
        ]
    }
    needed = [near(label)] if label and gang else []
    if _waits_for_data(job):
        agents = {"labelSelector": {"matchLabels": DATA_AGENTS}, "namespaces": [settings.data_namespace]}
        needed.append({**agents, "topologyKey": HOSTNAME})
    required = {"requiredDuringSchedulingIgnoredDuringExecution": needed} if needed else {}
    if not gang:
        return {"podAffinity": required} if required else {}
    if job.gang.strategy is Strategy.SPREAD:
        return {"podAntiAffinity": wished, **({"podAffinity": required} if required else {})}
    return {"podAffinity": {**required, **wished}}
