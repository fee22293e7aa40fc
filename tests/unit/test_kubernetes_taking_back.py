"""A gang that is taken back, and pods that are deleted: it comes to an end, whatever the cluster does meanwhile. On virtual
time, with an API server that does what a real one cannot be made to do at the right moment."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from support import virtual
from weft.backends.kubernetes.backend import KubernetesBackend
from weft.backends.kubernetes.client import ApiError, Document
from weft.backends.kubernetes.leftovers import sweep
from weft.backends.kubernetes.settings import Settings
from weft.backends.kubernetes.tracked import Launch, TaskPod
from weft.model.events import Undone
from weft.model.failures import Code, Failure
from weft.model.gang import Request

SETTINGS = Settings()
JOB: Any = SimpleNamespace(
    uid="u",
    name="job",
    project=None,
    status=SimpleNamespace(datasets=(), tasks=(), task=lambda _: SimpleNamespace(launch=1)),
    spec=SimpleNamespace(scheduling="weft", datasets=()),
    gang=SimpleNamespace(elastic=False, grace=30.0),
)
FAILURE = Failure(Code.CANCELLED, "stopped before it began")


class Cluster:
    """Pods by name; told of at once, as a watch would."""

    server = "fake"

    def __init__(self) -> None:
        self.engine: KubernetesBackend
        self.pods: dict[str, Document] = {}
        self.dead: set[str] = set()
        """Pods of a node that answers nobody."""
        self.refusals = 0
        self.made_late: set[str] = set()
        self.deletes: list[tuple[str, int]] = []

    def make(self, name: str) -> None:
        labels = {"weft.dev/uid": "u", "weft.dev/task": name, "weft.dev/launch": "1"}
        metadata = {"uid": f"uid-{name}", "name": name, "namespace": "weft", "labels": labels}
        running = [{"name": "task", "state": {"running": {}}}]
        status = {"phase": "Running", "containerStatuses": running}
        self.pods[name] = {"metadata": metadata, "spec": {"nodeName": "n"}, "status": status}
        self.engine._pod_changed(self.pods[name])

    async def create(self, document: Document, namespace: str) -> Document:
        """Done also if nobody waits for the answer."""
        asyncio.get_running_loop().call_later(0.5, self.make, document["metadata"]["name"])
        await asyncio.sleep(0.6)
        return document

    async def delete(
        self, kind: str, name: str, namespace: str, grace: int = 0, uid: str | None = None
    ) -> None:
        await asyncio.sleep(0.1)
        self.deletes.append((name, grace))
        if self.refusals:
            self.refusals -= 1
            raise ApiError(403, "pods is forbidden", "Forbidden")
        if name in self.made_late:
            self.made_late.discard(name)
            asyncio.get_running_loop().call_later(0.5, self.make, name)
        elif (pod := self.pods.get(name)) is not None:
            if grace == 0 or name not in self.dead:
                del self.pods[name]
                self.engine._pod_gone(pod)
            else:
                pod["metadata"]["deletionTimestamp"] = "2020-01-01T00:00:00Z"
                self.engine._pod_changed(pod)

    async def listing(self, kind: str, **selectors: str) -> tuple[list[Document], str]:
        return [], "1"


Story = Callable[[KubernetesBackend, Cluster, Launch], Awaitable[None]]


def tell(story: Story, tmp_path: Path) -> list[Any]:
    told: list[Any] = []

    async def whole() -> None:
        cluster: Any = Cluster()
        engine = cluster.engine = KubernetesBackend(tmp_path, cluster, SETTINGS, b"key")
        engine._listener = lambda _, event: told.append(event)
        engine._loop = asyncio.get_running_loop()
        engine._rooms = SimpleNamespace(  # type: ignore[assignment]
            free=lambda _: None, keep=lambda _: None, hold=lambda _: None
        )
        engine._landscape.nodes["n"] = SimpleNamespace()  # type: ignore[assignment]
        tasks = {name: TaskPod(JOB, name, 1, name, "n", Request(cpu=1), 0) for name in ("w-0", "w-1")}
        made = engine._tracked.launches["u", 1] = Launch(JOB, 1, tasks)
        for one in tasks.values():
            engine._tracked.add(one)
        async with asyncio.timeout(3600):
            await story(engine, cluster, made)

    virtual.run(whole)
    return told


async def taken_back(engine: KubernetesBackend) -> None:
    while engine._tracked.launches:
        await asyncio.sleep(0.1)


def test_a_gang_is_taken_back_though_one_of_its_nodes_is_dead(tmp_path: Path) -> None:
    async def story(engine: KubernetesBackend, cluster: Cluster, made: Launch) -> None:
        for one in made.tasks.values():
            cluster.make(one.name)
            one.begun = 1.0
        cluster.dead.add("w-0")
        engine.stop(JOB, (), 30.0)
        async with asyncio.timeout(60):
            await taken_back(engine)
        assert cluster.deletes[-1] == ("w-0", 0)
        assert not cluster.pods

    assert [type(event) for event in tell(story, tmp_path)] == [Undone]


def test_a_node_that_is_known_to_be_dead_is_not_waited_for(tmp_path: Path) -> None:
    async def story(engine: KubernetesBackend, cluster: Cluster, made: Launch) -> None:
        for one in made.tasks.values():
            cluster.make(one.name)
            one.begun = 1.0
        cluster.dead.update(made.tasks)
        del engine._landscape.nodes["n"]
        engine.stop(JOB, (), 30.0)
        async with asyncio.timeout(1):
            await taken_back(engine)

    assert [type(event) for event in tell(story, tmp_path)] == [Undone]


def test_a_pod_that_comes_after_its_deletion_is_deleted_again(tmp_path: Path) -> None:
    async def story(engine: KubernetesBackend, cluster: Cluster, made: Launch) -> None:
        cluster.make("w-1")
        made.tasks["w-1"].begun = 1.0
        cluster.dead.add("w-1")
        cluster.made_late.add("w-0")
        engine._give_up(made, FAILURE)
        await taken_back(engine)
        assert not cluster.pods

    assert [type(event) for event in tell(story, tmp_path)] == [Undone]


def test_what_is_being_made_is_made_before_it_is_deleted(tmp_path: Path) -> None:
    async def story(engine: KubernetesBackend, cluster: Cluster, made: Launch) -> None:
        documents: list[Document] = [
            {"kind": "Pod", "metadata": {"name": name, "namespace": "weft"}} for name in made.tasks
        ]

        async def bring() -> None:
            await asyncio.gather(*(engine._launching._make(each, new=False) for each in documents))

        made.work = asyncio.ensure_future(bring())
        await asyncio.sleep(0.1)
        engine._give_up(made, FAILURE)
        async with asyncio.timeout(2):
            await taken_back(engine)
        await asyncio.sleep(1)
        assert not cluster.pods
        assert sorted(cluster.deletes) == [("w-0", 0), ("w-1", 0)]

    assert [type(event) for event in tell(story, tmp_path)] == [Undone]


def test_a_deletion_that_is_refused_is_tried_again(tmp_path: Path) -> None:
    async def story(engine: KubernetesBackend, cluster: Cluster, made: Launch) -> None:
        for name in made.tasks:
            cluster.make(name)
        cluster.refusals = 5
        engine.stop(JOB, (), 30.0)
        await taken_back(engine)
        assert not cluster.pods

    assert [type(event) for event in tell(story, tmp_path)] == [Undone]


def test_a_task_whose_deletion_was_refused_is_stopped_later(tmp_path: Path) -> None:
    async def story(engine: KubernetesBackend, cluster: Cluster, made: Launch) -> None:
        for name in made.tasks:
            cluster.make(name)
        engine._tracked.launches.clear()
        cluster.refusals = 5
        engine.stop(JOB, ("w-0", "w-1"), 30.0)
        while cluster.pods:
            await asyncio.sleep(0.1)

    tell(story, tmp_path)


def test_a_leftover_that_may_not_be_deleted_keeps_no_other(tmp_path: Path) -> None:
    async def story(engine: KubernetesBackend, cluster: Cluster, made: Launch) -> None:
        for one in made.tasks.values():
            engine._tracked.forget(one)
        for name in made.tasks:
            cluster.make(name)
        cluster.refusals = 1
        sweeping = asyncio.ensure_future(sweep(engine.client, SETTINGS, engine._tracked, lambda _: None))
        await asyncio.sleep(30)
        assert list(cluster.pods) == ["w-0"]
        await asyncio.sleep(60)
        assert not cluster.pods
        sweeping.cancel()

    tell(story, tmp_path)
