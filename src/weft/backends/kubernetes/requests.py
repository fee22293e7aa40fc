"""What the pod of a task asks for: as its containers are rendered, and as the scheduler counts it. One is the other."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from weft.backends.api import Assignment
from weft.backends.kubernetes.names import resource_name
from weft.backends.kubernetes.nodes import request_of
from weft.backends.kubernetes.patch import merged
from weft.backends.kubernetes.settings import Settings
from weft.backends.tasks import image_of
from weft.model.gang import Gang, Request, Task
from weft.model.podpatch import AGENT, TASK
from weft.model.quantities import format_memory

NOTHING = Request(cpu=0, slots=0)


def filled(request: Request, settings: Settings) -> Request:
    """With the memory that goes with its CPUs, where it asks for none."""
    if request.memory:
        return request
    return replace(request, memory=request.cpu * settings.memory_per_cpu // 1000 >> 20 << 20)


def task_resources(request: Request, settings: Settings) -> dict[str, Any]:
    return _resources(amounts(filled(request, settings), settings))


def agent_resources(settings: Settings) -> dict[str, Any]:
    return _resources({"cpu": settings.agent_cpu, "memory": settings.agent_memory})


def amounts(request: Request, settings: Settings) -> dict[str, str]:
    """What a task asks for, in Kubernetes' names and as it writes numbers itself, so that what is read back is the same."""
    found = {}
    if request.cpu:
        found["cpu"] = str(request.whole_cpus) if request.whole_cpus else f"{request.cpu}m"
    if request.memory:
        found["memory"] = format_memory(request.memory)
    if request.gpu:
        found[settings.gpu] = str(request.gpu)
    for device, count in request.devices:
        found[resource_name(device, settings.device_domain)] = str(count)
    return found


def _resources(amounts: Mapping[str, str]) -> dict[str, Any]:
    """As much as it may use is kept for it. A pod in which that holds for the CPU and memory of every container is
    Guaranteed, and only of such a pod does a kubelet give a container with whole CPUs these for itself."""
    return {"requests": dict(amounts), "limits": dict(amounts)} if amounts else {}


def pod_request(job: Assignment, task: Task, settings: Settings) -> Request:
    """What the task's whole pod takes: the agent beside it, and what its role's own part of the pod adds or changes."""
    containers = [
        {"name": AGENT, "resources": agent_resources(settings)},
        {"name": TASK, "resources": task_resources(task.request, settings)},
    ]
    whole = request_of(merged({"spec": {"containers": containers}}, job.spec.roles[task.role].pod), settings)
    return replace(task.request, cpu=whole.cpu, memory=whole.memory, gpu=whole.gpu, devices=whole.devices)


def counted(job: Assignment, settings: Settings, images: Mapping[str, int]) -> Gang:
    """The gang with all of each pod, and with the images that lie on some nodes already and not on others.

    What the cluster itself places counts where it is found, as everybody else's pods do.
    """
    if job.spec.scheduling == "default":
        return replace(job.gang, tasks=tuple(replace(task, request=NOTHING) for task in job.gang.tasks))
    requests = {task.role: pod_request(job, task, settings) for task in _first_of_each_role(job.gang)}
    tasks = tuple(replace(task, request=requests[task.role]) for task in job.gang.tasks)
    wanted = {image_of(job, task) or settings.image for task in job.gang.tasks}
    wants = sorted((image, size) for image in wanted if (size := images.get(image)))
    return replace(job.gang, tasks=tasks, wants=(*job.gang.wants, *wants))


def _first_of_each_role(gang: Gang) -> list[Task]:
    return [task for task in gang.tasks if task.index == 0]
