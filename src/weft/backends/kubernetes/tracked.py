"""What the engine knows of each task's pod, and of the launches that are on their way."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from weft.backends.api import Assignment
from weft.backends.kubernetes.agents import Told
from weft.backends.kubernetes.client import Document
from weft.backends.kubernetes.names import base_name, host_name, pod_name
from weft.backends.kubernetes.requests import filled, pod_request
from weft.backends.kubernetes.settings import Settings
from weft.model.failures import Failure
from weft.model.gang import Request
from weft.model.status import Exit, TaskStatus

Key = tuple[str, str, int]
"""A job's uid, a task as its label has it, and the number of its launch."""


@dataclass(slots=True, eq=False)
class TaskPod:
    job: Assignment
    task: str
    launch: int
    name: str
    node: str
    request: Request
    """Of the whole pod."""
    memory: int
    """The limit of the task itself."""
    pod: Document | None = None
    """As the API server last told of it."""
    told: Told = field(default_factory=Told)
    """As its agent last did."""
    notes: tuple[str, ...] = ()
    """What it left and could not be fetched."""
    pushes: list[str] = field(default_factory=list)
    """Folders that its agent waits for."""
    follower: asyncio.Task[None] | None = None
    lending: asyncio.Task[None] | None = None
    """Data is brought to the node that the cluster has chosen for it."""
    begun: float | None = None
    exit: Exit | None = None
    """How it ended; told once the rest of its gang has begun."""
    over: bool = False
    """Its end was told."""
    stopping: bool = False
    """We have deleted the pod."""
    failure: Failure | None = None
    """Why we killed it."""
    stopped: asyncio.Event = field(default_factory=asyncio.Event)
    """Nothing of it runs any more."""
    disturbed: bool = False
    """Told that somebody is taking the pod away."""
    pulls_failed: int = 0
    """Times in a row that its image could not be pulled."""

    @property
    def key(self) -> Key:
        return (self.job.uid, host_name(self.task), self.launch)


@dataclass(slots=True, eq=False)
class Launch:
    """A gang on its way: made, bound, and not yet begun by all."""

    job: Assignment
    number: int
    tasks: dict[str, TaskPod]
    work: asyncio.Task[None] | None = None
    bound: bool = False
    undoing: bool = False

    @property
    def begun(self) -> bool:
        return all(one.begun is not None for one in self.tasks.values())


class Tracked:
    """All of them."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._pods: dict[str, dict[Key, TaskPod]] = {}
        """By job: with thousands of jobs nothing may look through the pods of all of them."""
        self._orphans: dict[str, dict[str, Document]] = {}
        """Pods of ours that nobody has asked about, by the job that they say they are of, and by uid."""
        self.launches: dict[tuple[str, int], Launch] = {}
        self.jobs: set[str] = set()
        """Jobs that may have objects in the cluster."""

    def begin(self, job: Assignment, launch: int, tasks: Sequence[str]) -> Launch:
        """Know the pods before they are made: what the watch tells of them finds its place."""
        made = Launch(job, launch, {})
        base = base_name(job.name, job.uid)
        for task in tasks:
            binding = job.status.task(task).binding
            assert binding is not None
            name = pod_name(base, task, launch)
            asked = job.gang.task(task)
            request, memory = (
                pod_request(job, asked, self._settings),
                filled(asked.request, self._settings).memory,
            )
            one = TaskPod(job, task, launch, name, binding.node, request, memory)
            made.tasks[task] = self.add(one)
        self.launches[job.uid, launch] = made
        return made

    def add(self, one: TaskPod) -> TaskPod:
        """It, or who is known by its name already."""
        return self._pods.setdefault(one.job.uid, {}).setdefault(one.key, one)

    def find(self, key: Key) -> TaskPod | None:
        return self._pods.get(key[0], {}).get(key)

    def forget(self, one: TaskPod) -> None:
        pods = self._pods.get(one.job.uid, {})
        pods.pop(one.key, None)
        if not pods:
            self._pods.pop(one.job.uid, None)

    def orphan(self, pod: Document) -> None:
        self._orphans.setdefault(key_of(pod)[0], {})[pod["metadata"]["uid"]] = pod

    def claim(self, pod: Document) -> None:
        """It is somebody's, or gone."""
        uid = key_of(pod)[0]
        pods = self._orphans.get(uid, {})
        pods.pop(pod["metadata"]["uid"], None)
        if not pods:
            self._orphans.pop(uid, None)

    def orphans(self) -> list[Document]:
        return [pod for pods in self._orphans.values() for pod in pods.values()]

    def launch_of(self, one: TaskPod) -> Launch | None:
        """The one it is part of, while that is on its way."""
        return self.launches.get((one.job.uid, one.launch))

    def orphans_of(self, uid: str, launch: int) -> list[Document]:
        return [pod for pod in self._orphans.get(uid, {}).values() if key_of(pod)[2] == launch]

    def left_of(
        self, job: Assignment, launch: int
    ) -> tuple[list[TaskStatus], list[tuple[TaskStatus, Document]], bool]:
        """After a restart: the tasks of a launch that should be alive, the pods of those that are there, and whether all of
        them have a node."""
        found = {key_of(pod): pod for pod in self._orphans.get(job.uid, {}).values()}
        alive = [task for task in job.status.tasks if task.launch == launch and task.state.alive]
        there = [(task, pod) for task in alive if (pod := found.get(keyed(job.uid, task.name, launch)))]
        bound = [task for task, pod in there if pod["spec"].get("nodeName")]
        return alive, there, len(bound) == len(alive)

    def starting(self, pod: str | None) -> list[tuple[Launch, TaskPod]]:
        """The task whose pod has this uid, while its launch is on its way."""
        return [
            (made, one)
            for made in self.launches.values()
            for one in made.tasks.values()
            if one.pod is not None and one.pod["metadata"]["uid"] == pod
        ]

    def current(self, job: Assignment, task: str) -> TaskPod | None:
        return self.find(keyed(job.uid, task, job.status.task(task).launch))

    def of(self, uid: str) -> list[TaskPod]:
        return list(self._pods.get(uid, {}).values())

    def before(self, one: TaskPod) -> Iterator[TaskPod]:
        """The pods of the task's earlier launches that are known still."""
        uid, task, launch = one.key
        for number in range(1, launch):
            if (earlier := self.find((uid, task, number))) is not None:
                yield earlier

    def told(self, uid: str, tasks: Sequence[str]) -> dict[str, Told]:
        """What the agents of these tasks last said. Also asked in threads."""
        newest: dict[str, Told] = dict.fromkeys(tasks, Told())
        for one in self.of(uid):
            if one.task in newest:
                newest[one.task] = one.told
        return newest


def keyed(uid: str, task: str, launch: int) -> Key:
    return (uid, host_name(task), launch)


def key_of(pod: Document) -> Key:
    labels = pod["metadata"].get("labels") or {}
    number = labels.get("weft.dev/launch", "0")
    return (
        labels.get("weft.dev/uid", ""),
        labels.get("weft.dev/task", ""),
        int(number) if number.isdigit() else 0,
    )
