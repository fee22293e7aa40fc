"""A control plane and the data agents of two nodes: real agents, each at a loopback address of its own, and in place of
the API server one that passes everything on to them."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import ExitStack, asynccontextmanager
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from support.builders import a_complete_job, a_gang, a_node, a_request
from support.datasets import SAMPLES, Agent, Store, agent, files_below
from support.straight import asked
from weft.backends.api import Assignment, Lent, Reads
from weft.backends.kubernetes import datasets
from weft.backends.kubernetes.datanodes import PEER_PORT, PORT
from weft.backends.kubernetes.datasets import ClusterData, data_token_of
from weft.backends.kubernetes.errands import Errands
from weft.backends.kubernetes.settings import Settings
from weft.data.agent.peers import owner
from weft.model.failures import Permanent, Temporary
from weft.model.gang import gang_of
from weft.model.lifecycle import submitted
from weft.model.status import Binding, Progress
from weft.runtime.data.arrival import wait
from weft.runtime.data.link import Link
from weft.scheduler.cluster import Cluster as Nodes
from weft.scheduler.feasible import place

pytestmark = pytest.mark.slow
NUMBERS = count(1)
NODES = ("a", "b")


def token(what: str) -> str:
    return f"token of {what}"


class Straight:
    """As a client whose API server passes requests on to the pods, which are on this machine."""

    server = "https://here"

    def __init__(self, addresses: dict[str, str]):
        self.addresses = addresses
        self.made: list[dict[str, Any]] = []
        self.asked: list[tuple[str, str]] = []

    async def create(self, document: dict[str, Any], namespace: str) -> dict[str, Any]:
        self.made.append(document)
        return document

    @asynccontextmanager
    async def stream(
        self,
        method: str,
        path: str,
        query: Any = None,
        headers: Any = None,
        content: Any = b"",
        size: int | None = None,
    ) -> AsyncIterator[Any]:
        before, _, after = path.partition("/proxy")
        name, _, port = before.rpartition("/")[2].partition(":")
        if method == "POST":
            self.asked.append((name, json.loads(content)["do"]))
        where = f"http://{self.addresses[name]}:{port}"
        async with asked(where, method, after, query, headers, content, size) as reply:
            yield reply


class Cluster:
    """Two nodes with agents, and what a control plane knows of them."""

    def __init__(self, folder: Path, store: Store, ends: ExitStack):
        self.store = store
        self.token_file = folder / "token"
        self.token_file.write_text(token("data agents"))
        number = os.getpid() % 60_000 + 1
        self.addresses = {
            node: f"127.{next(NUMBERS) % 250 + 1}.{number // 250}.{number % 250 + 1}" for node in NODES
        }
        self.agents: dict[str, Agent] = {}
        for node, address in self.addresses.items():
            options = ("--engine-listen", f"{address}:{PORT}", "--engine-token-file", str(self.token_file))
            peers = ("--peer-listen", f"{address}:{PEER_PORT}", "--peer-key-file", str(self.token_file))
            self.agents[node] = ends.enter_context(agent(folder / node, *options, *peers, "--node", node))
        self.client = Straight({f"agent-{node}": address for node, address in self.addresses.items()})
        self.told: list[Progress] = []
        self.changes = 0

    def run(self, story: Callable[[ClusterData], Awaitable[None]]) -> None:
        asyncio.run(self._run(story))

    async def _run(self, story: Callable[[ClusterData], Awaitable[None]]) -> None:
        errands, client = Errands(), self.client
        settings = Settings(namespace="team")
        data = ClusterData(client, settings, self.store.folder, token, errands.begin)  # type: ignore[arg-type]
        data.lent = lambda name: Lent("nr", None, {"url": "file:///nowhere"}, {})
        data.changed = self._changed
        try:
            async with asyncio.timeout(60):
                await story(data)
        finally:
            data.close()
            await errands.end()

    def _changed(self) -> None:
        self.changes += 1

    def appears(self, data: ClusterData, *nodes: str, uid: str = "1") -> None:
        for node in nodes or NODES:
            data._pod_changed(self.pod(node, uid))

    async def all_appear(self, data: ClusterData) -> None:
        """And are followed."""
        self.appears(data)
        await until(lambda: all(found.there.is_set() for found in data._agents.values()))

    def pod(self, node: str, uid: str = "1") -> dict[str, Any]:
        return {
            "metadata": {"name": f"agent-{node}", "namespace": "team-data", "uid": f"{node}-{uid}"},
            "spec": {"nodeName": node},
            "status": {"phase": "Running", "podIP": self.addresses[node]},
        }


@pytest.fixture
def cluster(fast_folder: Path, store: Store) -> Iterator[Cluster]:
    with ExitStack() as ends:
        yield Cluster(fast_folder, store, ends)


def reading(
    version: str, *nodes: str, uid: str = "job-1", scheduling: str = "weft", **use: Any
) -> Assignment:
    roles = {"worker": {"replicas": len(nodes or NODES)}}
    job = a_complete_job("reads", roles=roles, datasets=[{"name": "faces", **use}], scheduling=scheduling)
    gang = gang_of(job.spec)
    status = submitted(gang)
    tasks = tuple(
        replace(task, binding=Binding(task.name, node))
        for task, node in zip(status.tasks, nodes or NODES, strict=True)
    )
    status = replace(status, tasks=tasks, datasets=(("faces", version),))
    return Assignment(uid, "reads", job.spec, gang, status)


async def until(true: Callable[[], Any]) -> Any:
    while not (found := true()):
        await asyncio.sleep(0.02)
    return found


async def jobs_at(cluster: Cluster, node: str) -> list[str]:
    return sorted((await asyncio.to_thread(cluster.agents[node].control, do="status"))["jobs"])


def test_files_are_laid_out_on_every_node_of_a_job_and_the_control_plane_hears_of_it(
    cluster: Cluster, version: str
) -> None:
    async def story(data: ClusterData) -> None:
        await cluster.all_appear(data)
        await data.bring(reading(version), cluster.told.append)
        for made in cluster.agents.values():
            assert files_below(made.folder / "trees" / version) == SAMPLES
        assert (cluster.told[-1].bytes, cluster.told[-1].all_bytes) == (40_000, 40_000)
        assert "2 nodes" in cluster.told[-1].what
        await until(
            lambda: all(dict(data.holding(a_node(node)).holds) == {version: 20_000} for node in NODES)
        )
        await until(lambda: cluster.changes)
        cached = {each.node: each for each in data.cached()}
        assert {node: cached[node].versions for node in NODES} == {node: {version: 20_000} for node in NODES}
        assert sum(cached[node].reads["faces"].remote for node in NODES) == 20_000, (
            "what one has the other reads there"
        )
        assert min(cached[node].reads["faces"].remote for node in NODES) > 0

    cluster.run(story)
    (secret,) = cluster.client.made
    assert secret["metadata"]["namespace"] == "team-data"
    assert secret["stringData"] == {"token": token("data agents")}


def test_what_is_divided_leaves_the_store_once_and_is_read_by_both(cluster: Cluster, version: str) -> None:
    def read(node: str) -> list[bytes]:
        link = Link(str(cluster.agents[node].socket), data_token_of(token, "job-1"), 30)
        try:
            return [link.read(version, number, 0, 1000) if part is None else os.pread(part, 1000, 0)
                    for number in range(20) for part in [link.part(version, number)]]  # fmt: skip
        finally:
            link.close()

    async def story(data: ClusterData) -> None:
        cluster.appears(data)
        await data.bring(reading(version, mode="shard"), cluster.told.append)
        for node in NODES:
            assert await asyncio.to_thread(read, node) == list(SAMPLES.values())
        held = await until(
            lambda: (
                (now := [len(each.versions) and each.versions[version] for each in data.cached()])
                and sum(now) == 20_000
                and now
            )
        )
        assert min(held) > 0, "each has its part"
        read_by = {each.node: each.reads["faces"].remote for each in data.cached()}
        assert sum(read_by.values()) == 20_000

    cluster.run(story)


def test_an_agent_that_dies_while_it_brings_files_is_waited_for(cluster: Cluster, version: str) -> None:
    async def story(data: ClusterData) -> None:
        await cluster.all_appear(data)
        await asyncio.to_thread(cluster.agents["b"].kill)
        bringing = asyncio.ensure_future(data.bring(reading(version), cluster.told.append))
        await until(lambda: cluster.told)
        assert not bringing.done()
        await asyncio.to_thread(cluster.agents["b"].start)
        await bringing
        assert files_below(cluster.agents["b"].folder / "trees" / version) == SAMPLES

    cluster.run(story)


def test_leases_end_with_the_job_also_where_nobody_could_be_told(cluster: Cluster, version: str) -> None:
    async def story(data: ClusterData) -> None:
        await cluster.all_appear(data)
        await data.bring(reading(version), cluster.told.append)
        assert [await jobs_at(cluster, node) for node in NODES] == [["job-1"], ["job-1"]]
        await asyncio.to_thread(cluster.agents["b"].kill)
        await until(lambda: not data._agents["b"].there.is_set())
        data.release("job-1")
        await asyncio.to_thread(cluster.agents["b"].start)
        while [await jobs_at(cluster, node) for node in NODES] != [[], []]:
            await asyncio.sleep(0.02)
        own = 1000 * sum(owner(part, NODES) == "a" for part in cluster.store.parts(version))
        await until(lambda: read(data).remote == own and read(data).hits + read(data).misses == 20)
        assert data.cached()[0].node == "a", "of the one that was killed the last second may be lost"

    def read(data: ClusterData) -> Reads:
        return data.cached()[0].reads.get("faces", Reads())

    cluster.run(story)


def test_a_new_server_ends_the_leases_of_jobs_that_are_no_more_and_says_again_those_that_are(
    cluster: Cluster, version: str
) -> None:
    async def before(data: ClusterData) -> None:
        cluster.appears(data)
        await data.bring(reading(version), cluster.told.append)
        await data.bring(reading(version, uid="job-2"), cluster.told.append)

    async def after(data: ClusterData) -> None:
        data.adopt(reading(version, uid="job-2"))
        cluster.appears(data)
        await until(lambda: all("job-1" in found.report.get("jobs", ()) for found in data._agents.values()))
        data.sweep({"job-2"})
        while [await jobs_at(cluster, node) for node in NODES] != [["job-2"], ["job-2"]]:
            await asyncio.sleep(0.02)

    cluster.run(before)
    cluster.run(after)


def test_an_agent_that_comes_back_is_told_its_grants_again_for_it_keeps_no_secrets(
    cluster: Cluster, version: str
) -> None:
    async def story(data: ClusterData) -> None:
        cluster.appears(data)
        await data.bring(reading(version), cluster.told.append)
        await asyncio.to_thread(cluster.agents["b"].kill)
        await until(lambda: not data._agents["b"].there.is_set())
        cluster.client.asked.clear()
        await asyncio.to_thread(cluster.agents["b"].start)
        await until(lambda: data._agents["b"].there.is_set())
        assert ("agent-b", "grant") in cluster.client.asked
        assert ("agent-a", "grant") not in cluster.client.asked

    cluster.run(story)


def test_of_a_version_that_was_deleted_a_node_keeps_nothing_and_what_the_store_lost_it_keeps(
    cluster: Cluster, version: str
) -> None:
    async def collected() -> dict[str, Any]:
        return await asyncio.to_thread(cluster.agents["a"].control, do="collect", all=True)

    async def warmed(data: ClusterData, name: str, size: int) -> None:
        await data.warm("faces", name, ["a"])
        await until(lambda: data.cached()[0].versions.get(name) == size)

    async def story(data: ClusterData) -> None:
        other = cluster.store.add({"other": b"another"})
        await cluster.all_appear(data)
        await warmed(data, version, 20_000)
        await warmed(data, other, 7)
        parts = cluster.store.parts(version)
        for part in (*parts, *cluster.store.parts(other)):
            cluster.store.path(part).unlink()
        assert (await collected())["kept"] == 21
        shutil.rmtree(cluster.store.folder / "versions" / version)
        assert (await collected())["kept"] == 1
        await until(lambda: data.cached()[0].versions == {other: 7})

    cluster.run(story)


def test_a_node_that_a_job_has_left_lends_it_nothing(cluster: Cluster, version: str) -> None:
    async def story(data: ClusterData) -> None:
        cluster.appears(data)
        await data.bring(reading(version), cluster.told.append)
        await data.bring(reading(version, "a"), cluster.told.append)
        while await jobs_at(cluster, "b"):
            await asyncio.sleep(0.02)
        assert await jobs_at(cluster, "a") == ["job-1"]

    cluster.run(story)


def test_of_what_a_node_was_not_told_yet_the_last_word_counts(cluster: Cluster, version: str) -> None:
    both, one = reading(version), reading(version, "a")

    async def story(data: ClusterData) -> None:
        await cluster.all_appear(data)
        await data.bring(both, cluster.told.append)
        for words, lent in (((both, one), []), ((one, both), ["job-1"]), ((one, both, one), [])):
            async with data._agents["b"].turn:  # as while another word is on its way
                for word in words:
                    data.rebalance(word)
                cluster.client.asked.clear()
            last = "grant" if lent else "revoke"
            await until(lambda last=last: ("agent-b", last) in cluster.client.asked)
            async with data._agents["b"].turn:
                assert await jobs_at(cluster, "b") == lent
            others = {"grant", "revoke"} - {last}
            assert not [
                asked for node, asked in cluster.client.asked if node == "agent-b" and asked in others
            ]

    cluster.run(story)


def test_where_the_cluster_places_pods_data_is_lent_on_the_nodes_that_it_has_chosen(
    cluster: Cluster, version: str
) -> None:
    """Whatever Weft's own books say of their place."""
    job = reading(version, "elsewhere", "elsewhere", scheduling="default", mode="shard")
    chosen: set[str] = set()

    async def story(data: ClusterData) -> None:
        data.placed = lambda uid: {*chosen}
        cluster.appears(data)
        await data.bring(job, cluster.told.append)
        assert [await jobs_at(cluster, node) for node in NODES] == [[], []], "nobody knows where yet"
        chosen.add("b")
        await data.lend(job, "b", cluster.told.append)
        assert [await jobs_at(cluster, node) for node in NODES] == [[], ["job-1"]]
        cluster.client.asked.clear()
        chosen.add("a")
        await data.lend(job, "a", cluster.told.append)
        assert await jobs_at(cluster, "a") == ["job-1"]
        await until(lambda: ("agent-b", "grant") in cluster.client.asked)  # it is divided by two now
        chosen.remove("b")
        await data.lend(job, "b", cluster.told.append)
        while await jobs_at(cluster, "b"):
            await asyncio.sleep(0.02)
        assert await jobs_at(cluster, "a") == ["job-1"]

    cluster.run(story)


def test_files_are_laid_out_where_the_cluster_has_put_the_pod(cluster: Cluster, version: str) -> None:
    job = reading(version, "elsewhere", scheduling="default")

    async def story(data: ClusterData) -> None:
        data.placed = lambda uid: {"b"}
        cluster.appears(data)
        waiting = asyncio.create_task(asyncio.to_thread(wait, link, [version], 0.02))
        await asyncio.sleep(0)
        assert not waiting.done()
        await data.lend(job, "b", cluster.told.append)
        await waiting
        assert files_below(cluster.agents["b"].folder / "trees" / version) == SAMPLES
        assert cluster.told[-1].bytes == 20_000

    link = Link(str(cluster.agents["b"].socket), data_token_of(token, "job-1"), 30)
    try:
        cluster.run(story)
    finally:
        link.close()


def test_what_a_job_reads_is_cached_as_it_says_or_else_as_the_dataset_says(
    cluster: Cluster, version: str
) -> None:
    async def story(data: ClusterData) -> None:
        for said, policy in ((None, "nr"), ("lru", "lru")):
            job = reading(version, "a")
            job.spec = job.spec.model_copy(update={"data_cache": said})
            assert data._grant(job, {"a"})["versions"][version]["policy"] == policy

    cluster.run(story)


def test_what_nobody_reads_is_collected_but_only_what_the_store_still_has(
    cluster: Cluster, version: str
) -> None:
    async def story(data: ClusterData) -> None:
        await cluster.all_appear(data)
        await data.warm("faces", version, ["a"])
        await until(lambda: data.cached()[0].versions == {version: 20_000})
        lost = cluster.store.parts(version)[4]
        cluster.store.path(lost).unlink()
        said = await asyncio.to_thread(cluster.agents["a"].control, do="collect", all=True)
        assert said["kept"] == 1
        await until(lambda: data.cached()[0].versions == {version: 1000})

    cluster.run(story)


def test_data_is_brought_before_anybody_reads_it(cluster: Cluster, version: str) -> None:
    async def story(data: ClusterData) -> None:
        await cluster.all_appear(data)
        await data.warm("faces", version, ["b", "a-node-without-an-agent"])
        await until(lambda: {each.node: each.versions for each in data.cached()}["b"] == {version: 20_000})
        assert {each.node: each.versions for each in data.cached()}["a"] == {}
        assert dict(data.holding(a_node("b")).holds) == {version: 20_000}
        assert a_node("a") == data.holding(a_node("a"))
        with pytest.raises(Permanent, match="none of these nodes has a data agent"):
            await data.warm("faces", version, ["elsewhere"])

    cluster.run(story)


@pytest.mark.parametrize("there", NODES)
def test_a_job_is_placed_where_its_data_is(cluster: Cluster, version: str, there: str) -> None:
    """By what the agents of the nodes report: nothing is written to a node for it."""

    async def story(data: ClusterData) -> None:
        await cluster.all_appear(data)
        await data.warm("faces", version, [there])
        await until(lambda: dict(data.holding(a_node(there)).holds) == {version: 20_000})
        nodes = Nodes([data.holding(a_node(node)) for node in NODES])
        bindings = place(nodes, a_gang(a_request(1), wants={version: 20_000}))
        assert bindings is not None
        assert [binding.node for binding in bindings] == [there]
        assert {document["kind"] for document in cluster.client.made} == {"Secret"}

    cluster.run(story)


def test_where_there_is_no_agent_it_says_so(
    cluster: Cluster, version: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(datasets, "PATIENCE", 0.3)

    async def story(data: ClusterData) -> None:
        with pytest.raises(Permanent, match="install them: deploy/data, in namespace team-data"):
            await data.bring(reading(version), cluster.told.append)
        cluster.appears(data, "a")
        await until(lambda: data._agents["a"].there.is_set())
        with pytest.raises(
            Temporary, match=r"node b has no data agent \(it does not run\): kubectl -n team-data"
        ):
            await data.bring(reading(version), cluster.told.append)

    cluster.run(story)


def test_agents_of_another_control_plane_are_told_from_agents_that_are_away(
    cluster: Cluster, version: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(datasets, "PATIENCE", 1.0)
    cluster.token_file.write_text("of another")

    async def story(data: ClusterData) -> None:
        cluster.appears(data)
        with pytest.raises(Temporary, match="kubectl -n team-data delete secret weft-data"):
            await data.bring(reading(version), cluster.told.append)
        assert any("belongs to another control plane" in note for note in data.notes())

    cluster.run(story)


def test_a_pod_in_place_of_another_is_followed_and_one_that_is_gone_is_not(
    cluster: Cluster, version: str
) -> None:
    async def story(data: ClusterData) -> None:
        cluster.appears(data)
        await data.bring(reading(version), cluster.told.append)
        cluster.appears(data, "a", uid="2")
        data._pod_gone(cluster.pod("a", "1"))
        assert data._agents["a"].uid == "a-2", "the end of the old one is not that of the new"
        await until(lambda: data._agents["a"].there.is_set())
        data._pod_gone(cluster.pod("b"))
        assert [each.node for each in data.cached()] == ["a"]

    cluster.run(story)
