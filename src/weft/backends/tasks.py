"""What a task is told and what it runs, on any engine: its variables, its hosts and its command.

An engine says where each task is reached and where a task finds its files; nothing here knows more of the
engine than that.
"""

from __future__ import annotations

import json
import os
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from weft.backends.api import Assignment, Lent
from weft.jobtypes.render import render_command, render_env
from weft.model.gang import Task
from weft.model.job import DatasetUse, MetricSource
from weft.model.status import TaskStatus
from weft.model.template import Facts, RoleFacts
from weft.runtime.hosts import INLINE

OF_THE_JOB = (MetricSource.FILE, MetricSource.TENSORBOARD)
"""Sources in LOG_DIR. Where all tasks of a job share it one of them reads, or each point would count twice."""


@dataclass(frozen=True, slots=True)
class Paths:
    """Where one task finds what belongs to its job and to itself."""

    code: str
    results: str
    checkpoints: str
    logs: str
    data: str
    metrics: str
    activity: str
    """Its time is when the task last was in use."""
    url: str
    """What the task announces."""


@dataclass(frozen=True, slots=True)
class Gathering:
    """What the tasks of one launch share, worked out once: per task it would grow with the gang's square."""

    job: Assignment
    launch: int
    hosts: Mapping[str, list[str]]
    """host:port of those that take part, by role."""
    places: Mapping[str, str]
    """host:port by task."""
    variables: Mapping[str, str]
    """Where to meet."""
    secrets: Mapping[str, str]
    statuses: Mapping[str, TaskStatus]
    ranks: Mapping[str, int]
    """Among the tasks that run: an elastic gang has more than those."""
    local_ranks: Mapping[str, int]
    gpus: Mapping[str, Sequence[int]]
    """Of each task, as it is to name them."""

    @property
    def hosts_file(self) -> str | None:
        """Where the hosts have to be written as JSON before a task starts, if this gang reads them from a file."""
        return self.variables.get("WEFT_HOSTS_FILE")


def gather(
    job: Assignment,
    launch: int,
    places: Mapping[str, str],
    hosts_file: str,
    gpus: Mapping[str, Sequence[int]],
    secrets: Mapping[str, str],
) -> Gathering:
    """Work that out. `places` are host:port of every task; `hosts_file` is where a wide gang finds its hosts."""
    hosts = hosts_of(job, places)
    chief = next(t for t in job.gang.tasks if t.chief)
    address, _, port_of_chief = hosts[chief.role][0].rpartition(":")
    variables = {"MASTER_ADDR": address, "MASTER_PORT": port_of_chief}
    if len(job.gang.tasks) <= INLINE:
        variables["WEFT_HOSTS"] = json.dumps(hosts)
    if len(job.gang.tasks) > INLINE or job.gang.elastic:
        variables["WEFT_HOSTS_FILE"] = hosts_file
    if services := [name for name, role in job.spec.roles.items() if role.service]:
        variables["WEFT_SERVICES"] = ",".join(services)
    beside: Counter[str] = Counter()
    local_ranks = {}
    for status in job.status.tasks:
        if status.binding is not None:
            local_ranks[status.name] = beside[status.binding.node]
            beside[status.binding.node] += 1
    statuses = {status.name: status for status in job.status.tasks}
    ranks = {task.name: rank for rank, task in enumerate(taking_part(job))}
    return Gathering(job, launch, hosts, places, variables, secrets, statuses, ranks, local_ranks, gpus)


def taking_part(job: Assignment) -> list[Task]:
    """The tasks that have a place and keep it: all of them, unless the gang is elastic.

    Where no place is Weft's to give, or none is given yet: the tasks that the job asks for.
    """
    if all(t.binding is None for t in job.status.tasks):
        return list(job.gang.preferred)
    staying = {t.name for t in job.status.tasks if t.binding is not None and not t.leaving}
    return [task for task in job.gang.tasks if task.name in staying]


def hosts_of(job: Assignment, places: Mapping[str, str]) -> dict[str, list[str]]:
    """The addresses of those, by role."""
    hosts: dict[str, list[str]] = {task.role: [] for task in job.gang.tasks}
    for task in taking_part(job):
        hosts[task.role].append(places[task.name])
    return hosts


def task_environment(
    base: Mapping[str, str], shared: Gathering, task: Task, paths: Paths, *, hide_gpus: bool
) -> dict[str, str]:
    """The variables of one task: Weft's own, the names people know, the job type's, the user's.

    `hide_gpus`: a task without GPUs could see those of its node.
    """
    job, status = shared.job, shared.statuses[task.name]
    world = str(len(shared.ranks))
    rank = str(shared.ranks[task.name])
    indices = shared.gpus.get(task.name, ())
    gpus = ",".join(map(str, indices))
    own = {
        "WEFT_JOB": job.name,
        "WEFT_JOB_UID": job.uid,
        "WEFT_TASK": task.name,
        "WEFT_ROLE": task.role,
        "WEFT_INDEX": str(task.index),
        "WEFT_RANK": rank,
        "WEFT_WORLD_SIZE": world,
        "WEFT_ADDRESS": shared.places[task.name],
        **shared.variables,
        "WEFT_RESTARTS": str(status.restarts),
        "WEFT_LAUNCH": str(shared.launch),
        "WEFT_METRICS_FILE": paths.metrics,
        "WEFT_ACTIVITY_FILE": paths.activity,
        "WEFT_URL_FILE": paths.url,
        "WEFT_NODE": status.binding.node if status.binding is not None else "",
        "WEFT_GPUS": gpus,
        "DATA_DIR": paths.data,
        "RESULT_DIR": paths.results,
        "CHECKPOINT_DIR": paths.checkpoints,
        "MODEL_DIR": paths.code,
        "LOG_DIR": paths.logs,
        "RANK": rank,
        "WORLD_SIZE": world,
        "LOCAL_RANK": str(shared.local_ranks.get(task.name, 0)),
        "LEARNER_ID": str(shared.ranks[task.name] + 1),
        "NUM_LEARNERS": world,
        "GPU_COUNT": str(len(indices)),
        "TRAINING_ID": job.name,
    }
    if job.status.checkpoint is not None:
        own["WEFT_CHECKPOINT_STEP"] = job.status.checkpoint
    if job.spec.idle_timeout:
        own["WEFT_IDLE_TIMEOUT"] = f"{job.spec.idle_timeout:g}"
    if task.request.gpu_share:
        own["WEFT_GPU_SHARE"] = f"{task.request.gpu_share / 1000:g}"
    if hide_gpus or indices:
        own["CUDA_VISIBLE_DEVICES"] = gpus
    role = job.spec.roles[task.role]
    users = {**job.spec.env, **role.env, **shared.secrets}
    if "PYTHONPATH" in users:
        users["PYTHONPATH"] = f"{users['PYTHONPATH']}:{base['PYTHONPATH']}"
    template = job.spec.template
    of_the_type = render_env(template, task.role, facts(shared, task, own)) if template is not None else {}
    return {**base, **own, **of_the_type, **users}


def facts(shared: Gathering, task: Task, own: Mapping[str, str]) -> Facts:
    """What templates are filled from. A wide role is not listed: WEFT_HOSTS_FILE has it."""
    job, status = shared.job, shared.statuses[task.name]
    host, _, port = shared.places[task.name].rpartition(":")
    gpus = len(shared.gpus.get(task.name, ()))
    command = (job.spec.roles[task.role].command or job.spec.command or [""])[0]
    plain = {
        "job": job.name,
        "task": task.name,
        "role": task.role,
        "index": str(task.index),
        "rank": str(shared.ranks[task.name]),
        "localRank": str(shared.local_ranks.get(task.name, 0)),
        "world": str(len(shared.ranks)),
        "launch": str(shared.launch),
        "restarts": str(status.restarts),
        "host": host,
        "port": port,
        "gpus": str(gpus),
        "processes": str(max(1, gpus)),
        "python": command if re.match(r"python[\d.]*$", os.path.basename(command)) else "python",  # noqa: PTH119
        "chief": "true" if task.chief else "false",
        "chief.host": shared.variables["MASTER_ADDR"],
        "chief.port": shared.variables["MASTER_PORT"],
    }
    roles = {}
    for name, places in shared.hosts.items():
        role = job.spec.roles[name]
        least = role.replicas if role.min_replicas is None else role.min_replicas
        narrow = places if len(places) <= INLINE else ()
        roles[name] = RoleFacts(narrow, least, role.max_replicas or role.replicas)
    return Facts(plain, roles, own)


def task_command(shared: Gathering, task: Task) -> list[str]:
    job = shared.job
    role = job.spec.roles[task.role]
    command = role.command or job.spec.command
    assert command is not None, "completion refuses a job without a command"
    own = [*command, *(job.spec.args if role.args is None else role.args)]
    if job.spec.template is None:
        return own
    return render_command(job.spec.template, task.role, own, facts(shared, task, {}))


def dataset_variables(job: Assignment, socket: str, token_file: str) -> dict[str, str]:
    """By which `weft.data()` finds the node's agent, and the versions that the job reads."""
    uses = {
        use.called: {"version": version_of(job, use), "mode": use.mode, "as": use.called, "name": use.name}
        for use in job.spec.datasets
    }
    return {
        "WEFT_DATA_SOCKET": socket,
        "WEFT_DATA_TOKEN_FILE": token_file,
        "WEFT_DATASETS": json.dumps(uses),
    }


def version_of(job: Assignment, use: DatasetUse) -> str:
    """Of a job that was not started yet: the one that it asks for, or a word for the newest."""
    return dict(job.status.datasets).get(use.name) or use.version or "the-newest"


def terms_of(job: Assignment, use: DatasetUse, lent: Lent, nodes: Sequence[str]) -> dict[str, Any]:
    """On what terms the nodes of a job hold a version that it reads. One that is divided among them is cached by one a part, and the
    others read it there; what all of them hold comes to one, and from there to the others."""
    every = sorted(nodes) if len(nodes) > 1 else None
    return {
        "dataset": use.name,
        "bytes": 0,
        "policy": job.spec.data_cache or lent.policy,
        "quota": lent.quota,
        "share": every if use.mode == "shard" else None,
        **({"together": every} if every and use.mode == "replicate" else {}),
    }


def as_files(job: Assignment) -> list[str]:
    """The versions that a job wants laid out in a folder before it starts."""
    return [version_of(job, use) for use in job.spec.datasets if use.files and use.mode == "replicate"]


def working_folder(job: Assignment, code: str) -> str:
    """Where a task starts, its code being in this folder."""
    subdir = job.spec.code.subdir if job.spec.code is not None else None
    return f"{code}/{subdir}" if subdir else code


def metrics_of(job: Assignment, task: Task, *, one_folder: bool) -> list[dict[str, Any]]:
    """What is to be collected beside this task, as its collector reads it. `one_folder`: all tasks have the same LOG_DIR."""
    return [
        metric.model_dump(mode="json", by_alias=True)
        for metric in job.spec.metrics
        if task.chief or not one_folder or metric.source not in OF_THE_JOB
    ]


def image_of(job: Assignment, task: Task) -> str | None:
    return job.spec.roles[task.role].image or job.spec.image
