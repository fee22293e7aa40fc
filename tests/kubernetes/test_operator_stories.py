"""kubectl and Weft side by side: a control plane in this process, which can die at any of its writes, and a real API server."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from itertools import count, pairwise
from pathlib import Path
from typing import Any

import pytest
from testbed.api import Api, ApiError

from support.builders import a_node
from support.machine import Machine
from support.simulated import FOREVER, Run
from weft.backends.kubernetes.client import Client
from weft.backends.kubernetes.settings import Settings
from weft.model.problems import Problem
from weft.operator import operator
from weft.operator.operator import Operator

from .test_operator import CRDS, MINE

pytestmark = [pytest.mark.timeout(300), pytest.mark.usefixtures("testbed_only")]
JOB = "TrainingJob"
AT_ONCE = 8
DEATHS = 20
NUMBERS = count()


class Loop(asyncio.SelectorEventLoop):
    def await_outside(self, future: asyncio.Future[Any]) -> None:
        """Real time goes on while threads work."""


class Mortal:
    """A server's client. When the server is dead, nothing that it still wants to write is written."""

    def __init__(self, client: Client, touch: Callable[[str], bool]):
        self._client = client
        self._touch = touch
        self.writes: list[tuple[float, str, str]] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._client, name)

    async def create(self, document: dict[str, Any], *rest: Any) -> Any:
        return await self._write("POST", document["kind"], self._client.create, document, *rest)

    async def patch(self, kind: str, *rest: Any) -> Any:
        return await self._write("PATCH", kind, self._client.patch, kind, *rest)

    async def delete(self, kind: str, *rest: Any, **more: Any) -> Any:
        return await self._write("DELETE", kind, self._client.delete, kind, *rest, **more)

    async def _write(
        self, method: str, kind: str, call: Callable[..., Awaitable[Any]], *rest: Any, **more: Any
    ) -> Any:
        loop = asyncio.get_running_loop()
        if not self._touch(f"{method} {kind}"):
            await loop.create_future()
        self.writes.append((loop.time(), method, kind))
        return await call(*rest, **more)


class Cluster:
    """What a person does and sees there."""

    def __init__(self, api: Api, kubeconfig: str, namespace: str):
        self.kubeconfig, self.namespace = kubeconfig, namespace
        self._api = api
        self._jobs = f"/apis/weft.dev/v1/namespaces/{namespace}/trainingjobs"

    def apply(self, instance: str, name: str, **spec: Any) -> None:
        """For one control plane alone: there are others."""
        metadata = {"name": name, "labels": {MINE: instance}}
        document = {
            "apiVersion": "weft.dev/v1",
            "kind": JOB,
            "metadata": metadata,
            "spec": {"command": ["x"], **spec},
        }
        self._api.post(self._jobs, document)

    def remove(self, name: str) -> None:
        self._api.delete(f"{self._jobs}/{name}")

    def there(self, name: str) -> bool:
        return self._get(name) is not None

    def state(self, name: str) -> str | None:
        found: str | None = ((self._get(name) or {}).get("status") or {}).get("state")
        return found

    def events(self, name: str) -> list[str]:
        path = f"/api/v1/namespaces/{self.namespace}/events?fieldSelector=involvedObject.name%3D{name}"
        return [event["reason"] for event in self._api.get(path)["items"]]

    def _get(self, name: str) -> dict[str, Any] | None:
        try:
            return self._api.get(f"{self._jobs}/{name}")
        except ApiError as problem:
            if problem.status != 404:
                raise
            return None


class Side:
    """A machine whose server follows the cluster."""

    def __init__(self, machine: Machine, cluster: Cluster):
        self.m, self.cluster = machine, cluster
        self.instance = f"story-{next(NUMBERS)}"

    async def begins(self) -> Side:
        self.client: Any = Mortal(Client(self.cluster.kubeconfig), self.m.touch)
        settings = Settings(self.cluster.namespace, instance=self.instance)
        self.operator = Operator(self.m.control, self.client, settings, self._absent)
        self.operator.start()
        return self

    def _absent(self, job: Any) -> list[Problem]:
        return [] if job.spec.queue in self.m.control.queues else [Problem("spec.queue", "no such queue")]

    async def dies(self) -> None:
        if not self.m.crashed:
            self.m.kill(keep=True)
        await self.ends()

    async def ends(self) -> None:
        await self.operator.close()
        await self.client.close()

    async def comes_back(self) -> None:
        await self.m.up()
        await self.begins()

    def apply(self, name: str, **spec: Any) -> None:
        self.cluster.apply(self.instance, name, **spec)


Story = Callable[[Side], Awaitable[None]]
Tell = Callable[[Story], None]


async def soon(true: Callable[[], Any], what: str) -> None:
    end = asyncio.get_running_loop().time() + 60
    while not true():
        assert asyncio.get_running_loop().time() < end, f"waited in vain for {what}"
        await asyncio.sleep(0.05)


@pytest.fixture
def cluster(kubeconfig: str, kubectl: Any, api: Api) -> Cluster:
    kubectl("apply", "-f", str(CRDS))
    kubectl.established("-f", str(CRDS))
    return Cluster(api, kubeconfig, kubectl.namespace)


def run(story: Callable[[], Awaitable[Any]]) -> Any:
    with asyncio.Runner(loop_factory=Loop) as runner:
        return runner.run(_whole(story))


async def _whole(story: Callable[[], Awaitable[Any]]) -> Any:
    return await story()


@pytest.fixture
def told(cluster: Cluster, tmp_path: Path) -> Tell:
    def tell(story: Story) -> None:
        async def whole() -> None:
            machine = await Machine(tmp_path, [a_node(cpu=8, memory=16)]).up()
            side = await Side(machine, cluster).begins()
            try:
                await story(side)
            finally:
                await side.ends()
                if not machine.crashed:
                    await machine.down()

        run(whole)

    return tell


def test_a_status_is_written_at_most_five_times_a_second(told: Tell) -> None:
    async def story(s: Side) -> None:
        s.m.world.script("a", "worker-0", *[Run(seconds=0.02, code=1)] * 100)
        s.apply("a", restart={"policy": "on-failure", "max": 60, "backoff": "0s"})
        await soon(lambda: s.cluster.state("a") == "FAILED", "its end")
        writes = [at for at, method, kind in s.client.writes if (method, kind) == ("PATCH", JOB)]
        assert len(writes) > 3
        assert all(later - before > 0.1 for before, later in pairwise(writes[1:]))

    told(story)


def test_nothing_is_asked_while_nothing_happens(told: Tell, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(operator, "RESYNC", 0.5)

    def asked(s: Side) -> dict[str, int]:
        return {call: times for call, times in s.client.calls.items() if "WATCH" not in call}

    async def story(s: Side) -> None:
        s.m.world.script("a", "worker-0", FOREVER)
        s.apply("a")
        await soon(lambda: "Processing" in s.cluster.events("a"), "all to be told")
        await asyncio.sleep(1)
        before = asked(s)
        await asyncio.sleep(2)
        assert asked(s) == before

    told(story)


def test_jobs_that_ended_long_ago_cost_a_server_that_starts_nothing(told: Tell) -> None:
    async def story(s: Side) -> None:
        s.apply("a")
        await s.m.submit("b")
        for name in "ab":
            await soon(lambda name=name: "Completed" in s.cluster.events(name), "its end to be told")  # type: ignore[misc]
        await asyncio.sleep(0.5)  # a status is written at most so often
        assert (s.cluster.state("a"), s.cluster.state("b")) == ("COMPLETED", "COMPLETED")
        await s.dies()
        await s.comes_back()
        s.cluster.remove("a")
        await soon(lambda: not s.m.exists("a"), "it to be missed")
        assert s.m.exists("b")
        assert s.client.writes == []

    told(story)


def test_a_server_that_dies_at_any_moment_submits_once_and_deletes_what_is_gone(
    cluster: Cluster, tmp_path: Path
) -> None:
    """Every write to the store or to the cluster is a moment to die at; several servers do so beside each other."""

    async def whole(moment: int) -> bool:
        folder = tmp_path / str(moment)
        folder.mkdir()
        s = await Side(await Machine(folder).up(), cluster).begins()
        kept, gone, ours = (f"{word}-{moment}" for word in ("kept", "gone", "ours"))
        for name in (kept, gone, ours):
            s.m.world.script(name, "worker-0", FOREVER, FOREVER)
        s.m.crash_after(moment, keep=moment % 2 == 0)
        for name in (kept, gone):
            s.apply(name)
        submitting = s.m.loop.create_task(s.m.submit(ours))

        def settled() -> bool:
            return all("Processing" in cluster.events(name) for name in (kept, gone, ours))

        await soon(lambda: s.m.crashed or settled(), f"all to run, or death at {moment}")
        submitting.cancel()
        died: bool = s.m.crashed
        await s.dies()
        cluster.remove(gone)
        await s.comes_back()
        await soon(lambda: cluster.state(kept) == "PROCESSING", f"{kept} to run")
        await soon(lambda: not s.m.exists(gone), f"{gone} to go")
        await soon(lambda: cluster.there(ours) == s.m.exists(ours), f"{ours} to be shown, or not to be")
        await soon(lambda: cluster.events(kept).count("Processing") == 1, "it to be told")
        assert [each[1] for each in s.m.world.starts].count(kept) == 1
        cluster.remove(kept)
        await soon(lambda: not s.m.exists(kept), f"{kept} to go")
        assert cluster.events(kept).count("Processing") == 1
        await s.ends()
        await s.m.down()
        return died

    async def all_moments() -> list[bool]:
        died: list[bool] = []
        while all(died):
            died += await asyncio.gather(*map(whole, range(len(died) + 1, len(died) + 1 + AT_ONCE)))
        return died

    assert sum(run(all_moments)) > DEATHS
