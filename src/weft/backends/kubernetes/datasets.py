"""Datasets on a cluster: which job was granted what on which node, and what nodes hold.

Every node has a data agent, a pod of a DaemonSet that an administrator installs (deploy/data). The control plane
follows each of them through the API server, as it follows the agents of tasks: no pod has to reach the control plane,
and none has a token of it. What was granted is said again to an agent that comes back.
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections import Counter
from collections.abc import Callable, Collection, Coroutine, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from weft.backends.api import Assignment, Cached, Lent, Reads, Tell
from weft.backends.kubernetes.client import ApiError, Client, Document, insist
from weft.backends.kubernetes.datanodes import PEER_PORT, Line, NodeAgent, Store, agent_of
from weft.backends.kubernetes.names import DATA_AGENTS, INSTANCE, MANAGER
from weft.backends.kubernetes.settings import Settings
from weft.backends.kubernetes.watch import Watch
from weft.backends.tasks import as_files, taking_part, terms_of
from weft.data.agent.brought import GONE
from weft.data.agent.origins import StoreFolder
from weft.data.errors import Missing
from weft.model.cluster import node_name
from weft.model.failures import Code, Permanent, Temporary
from weft.model.node import Node
from weft.model.podpatch import MANAGED_BY
from weft.model.status import Progress

NAME = "weft-data"
PATIENCE = 60.0
"""So long an agent that is not there, or does not answer, is waited for."""
FIRST_PAUSE, LONGEST_PAUSE = 0.1, 5.0
SETTLE = 0.5
"""What nodes hold is told so long after it changed."""
AT_ONCE = 8
"""Files that are carried at the same time."""
log = logging.getLogger("weft.data")


def data_token_of(token: Callable[[str], str], uid: str) -> str:
    """By which a job reads what it was granted; worked out, never stored."""
    return token(f"data {uid}")


class ClusterData:
    def __init__(
        self,
        client: Client,
        settings: Settings,
        store: Path,
        token: Callable[[str], str],
        spawn: Callable[[Coroutine[Any, Any, None]], asyncio.Task[None]],
    ):
        self._client = client
        self._settings = settings
        self._store = Store(store)
        self._folder = store
        self._token = token
        self._spawn = spawn
        self._namespace = settings.data_namespace
        self._seen: dict[str, str] = {}
        """The uids of all pods of agents, also of those that do not run yet, and their nodes."""
        self._agents: dict[str, NodeAgent] = {}
        """By node."""
        self._grants: dict[str, dict[str, Any]] = {}
        self._places: dict[str, set[str]] = {}
        """The nodes on which a job was granted its versions."""
        self._ended: dict[str, dict[str, Counter[str]]] = {}
        """What readers got that are no longer there, by node and dataset, since this server began."""
        self._ending: dict[str, set[str]] = {}
        """By node, jobs whose leases end there when its agent can be told."""
        self._carrying = asyncio.Semaphore(AT_ONCE)
        self._arrived = asyncio.Condition()
        self._secret: asyncio.Task[None] | None = None
        self._settling: asyncio.TimerHandle | None = None
        self.lent: Callable[[str], Lent]
        """How a dataset is read and cached; set when the engine starts."""
        self.changed: Callable[[], None]
        """Nodes hold other data than before."""
        self.placed: Callable[[str], set[str]]
        """The nodes that the cluster itself has chosen for the pods of a job; set by who follows them."""
        labels = ",".join(f"{key}={value}" for key, value in DATA_AGENTS.items())
        self.watch = Watch(
            client, "Pod", self._pod_changed, self._pod_gone, namespace=self._namespace, labels=labels
        )

    # ── for jobs ──

    async def bring(self, job: Assignment, tell: Tell) -> None:
        """Grant the job its versions on its nodes, and lay out there those that it wants as files; later (`lend`), where its
        nodes are the cluster's to choose."""
        if not self._seen:
            raise Permanent(
                Code.DATA,
                f"no node of the cluster has a data agent; install them: deploy/data, in namespace {self._namespace} "
                "(docs/kubernetes-install.md#datasets)",
            )
        if job.spec.scheduling == "default":
            return
        nodes, files = self._grant_on(job), as_files(job)
        far = _Far(len(nodes), tell)
        if files and len(nodes) > 1:  # they read from each other, so all should know of it before one begins
            await asyncio.gather(*(self._tell_again(agent, job.uid) for agent in self._there(nodes)))
        work = [asyncio.ensure_future(self._lay_out(node, job.uid, files, far)) for node in nodes]
        try:
            await asyncio.gather(*work)
        finally:
            for each in work:  # one that failed ends the others
                each.cancel()

    async def lend(self, job: Assignment, node: str, tell: Tell) -> None:
        """Likewise on one node, which the cluster has chosen for a pod of the job: it waits there."""
        before, nodes = self._places.get(job.uid, set()), self._grant_on(job)
        if node not in nodes:
            return  # the pod is no more
        if nodes != before:
            self._tell_all(job.uid, nodes - {node})
        await self._lay_out(node, job.uid, as_files(job), _Far(1, tell))

    def _nodes(self, job: Assignment) -> set[str]:
        if job.spec.scheduling == "default":
            return self.placed(job.uid)
        staying = {task.name for task in taking_part(job)}
        return {task.binding.node for task in job.status.tasks if task.binding and task.name in staying}

    def _grant_on(self, job: Assignment) -> set[str]:
        """Its nodes as they are now; those that it has left are no longer lent anything."""
        nodes = self._nodes(job)
        left, self._places[job.uid] = self._places.get(job.uid, set()) - nodes, nodes
        self._grants[job.uid] = self._grant(job, nodes)
        self._end_leases(job.uid, left)
        for node in nodes:
            self._ending.get(node, set()).discard(job.uid)
        return nodes

    def _grant(self, job: Assignment, nodes: Collection[str]) -> dict[str, Any]:
        granted, versions = {}, dict(job.status.datasets)
        plain = [self._plain(node) for node in nodes]
        for use in job.spec.datasets:
            lent = self.lent(use.name)
            granted[versions[use.name]] = {
                **terms_of(job, use, lent, plain),
                "source": dict(lent.source),
                "credentials": dict(lent.credentials),
            }
        return {
            "do": "grant",
            "job": job.uid,
            "token": data_token_of(self._token, job.uid),
            "versions": granted,
        }

    async def _at(self, node: str) -> NodeAgent:
        """The agent of a node; waited for, since it may just be starting again."""
        try:
            async with asyncio.timeout(PATIENCE), self._arrived:
                await self._arrived.wait_for(
                    lambda: node in self._agents and self._agents[node].there.is_set()
                )
                return self._agents[node]
        except TimeoutError:
            found = self._agents.get(node)
            why = found.problem if found is not None and found.problem else "it does not run"
            raise Temporary(
                f"node {node} has no data agent ({why}): kubectl -n {self._namespace} get pods -o wide"
            ) from None

    async def _lay_out(self, node: str, uid: str, files: Sequence[str], far: _Far) -> None:
        """Asked again for as long as the agent goes on with it, or comes back and goes on."""
        left, until = list(files), time.monotonic() + PATIENCE
        granted: NodeAgent | None = None
        while left or granted is None:
            agent = await self._at(node)
            try:
                if granted is not agent:
                    await self._tell_grant(agent, self._grants[uid])
                    granted = agent
                if left:
                    said = await self._line(agent).ask({"do": "tree", "job": uid, "version": left[0]})
                    far.heard(node, left[0], said["bytes"], said["of"])
                    until = time.monotonic() + PATIENCE
                    if said["done"]:
                        left.pop(0)
            except Temporary:
                if time.monotonic() > until:
                    raise
                granted = None
                await asyncio.sleep(FIRST_PAUSE)

    async def _tell_grant(self, agent: NodeAgent, grant: Mapping[str, Any]) -> None:
        """Unless the job has left the node meanwhile."""
        line = self._line(agent)
        async with agent.turn:
            if not self._reads(agent, grant["job"]):
                return
            if any(terms["share"] or terms.get("together") for terms in grant["versions"].values()):
                places = {self._plain(each.node): each.address for each in self._agents.values()}
                peers = {node: f"{address}:{PEER_PORT}" for node, address in places.items()}
                await line.ask({"do": "peers", "nodes": peers})
            agent.counted.discard(grant["job"])
            await line.ask(grant)

    def _reads(self, agent: NodeAgent, uid: str) -> bool:
        return agent.node in self._places.get(uid, ())

    def adopt(self, job: Assignment) -> None:
        """A job that read before this server began reads on."""
        if not job.status.datasets or job.uid in self._grants:
            return
        self.rebalance(job)

    def rebalance(self, job: Assignment) -> None:
        """It has other nodes than before, or this server is new: they are told, and nobody waits for it."""
        self._tell_all(job.uid, self._grant_on(job))

    def _tell_all(self, uid: str, nodes: set[str]) -> None:
        for agent in self._there(nodes):
            self._spawn(self._tell_again(agent, uid))

    def _there(self, nodes: set[str]) -> list[NodeAgent]:
        found = (self._agents.get(node) for node in nodes)
        return [agent for agent in found if agent is not None and agent.there.is_set()]

    async def _tell_again(self, agent: NodeAgent, uid: str) -> None:
        try:
            await self._tell_grant(agent, self._grants[uid])
        except (Temporary, Permanent, KeyError) as problem:
            log.info("node %s: %s", agent.node, problem)

    def release(self, uid: str) -> None:
        self._grants.pop(uid, None)
        self._end_leases(uid, self._places.pop(uid, set()))
        self._store.forget({version for grant in self._grants.values() for version in grant["versions"]})

    def _end_leases(self, uid: str, nodes: set[str]) -> None:
        for node in nodes:
            self._ending.setdefault(node, set()).add(uid)
        for agent in self._there(nodes):
            self._spawn(self._revoke(agent, uid))

    def sweep(self, jobs: set[str]) -> None:
        """End the leases of jobs that ended while there was no server."""
        for agent in self._agents.values():
            for uid in agent.report.get("jobs", ()):
                if uid not in jobs:
                    self._spawn(self._revoke(agent, uid))

    async def _revoke(self, agent: NodeAgent, uid: str) -> None:
        """Unless it has come back meanwhile."""
        try:
            async with agent.turn:
                if self._reads(agent, uid):
                    return
                said = await self._line(agent).ask({"do": "revoke", "job": uid})
        except (Temporary, Permanent) as problem:
            log.info("node %s: the lease of job %s ends later: %s", agent.node, uid, problem)
            return
        self._ending.get(agent.node, set()).discard(uid)
        agent.counted.add(uid)
        ended = self._ended.setdefault(agent.node, {})
        for line in said["counts"]:
            ended.setdefault(line["dataset"], Counter()).update(Reads.told(line))

    # ── what nodes hold ──

    def holding(self, node: Node) -> Node:
        """With the data that is there."""
        agent = self._agents.get(node.name)
        held = agent.report.get("holds") if agent is not None else None
        return replace(node, holds=(*node.holds, *sorted(held.items()))) if held else node

    def cached(self) -> list[Cached]:
        found = []
        for node, agent in sorted(self._agents.items()):
            counts = {name: counted.copy() for name, counted in self._ended.get(node, {}).items()}
            lines = agent.report.get("counts", ())
            for line in (line for line in lines if line["job"] not in agent.counted):
                counts.setdefault(line["dataset"], Counter()).update(Reads.told(line))
            reads = {name: Reads(**counted) for name, counted in counts.items()}
            report = agent.report
            found.append(Cached(node, report.get("holds", {}), reads, report.get("warming", {})))
        return found

    async def warm(self, dataset: str, version: str, nodes: Sequence[str]) -> None:
        """On those of the nodes that have an agent."""
        agents = [self._agents[node] for node in nodes if node in self._agents]
        if not agents:
            raise Permanent(
                Code.DATA,
                f"none of these nodes has a data agent: kubectl -n {self._namespace} get pods -o wide",
            )
        lent = self.lent(dataset)
        about: dict[str, Any] = {"dataset": dataset, "quota": lent.quota, "source": dict(lent.source)}
        asked = {"do": "warm", "version": version, **about, "credentials": dict(lent.credentials)}
        for agent in agents:
            agent.warming.add(version)
        await asyncio.gather(*(self._line(agent).ask(asked) for agent in agents))

    def notes(self) -> list[str]:
        return [agent.problem for agent in self._agents.values() if agent.problem]

    # ── the agents ──

    def _pod_changed(self, pod: Document) -> None:
        uid, where = pod["metadata"]["uid"], pod["spec"].get("nodeName")
        if where is None:
            return
        node = node_name(self._settings.cluster, where)
        self._seen[uid] = node
        if self._secret is None:
            self._secret = self._spawn(self._make_secret())
        found, known = agent_of(pod, node), self._agents.get(node)
        if found is None:
            if known is not None and known.uid == uid:
                self._leave(known)
        elif known is None or known.uid != uid:
            if known is not None:
                self._leave(known)
            self._agents[node] = found
            found.work = self._spawn(self._attend(found))

    def _pod_gone(self, pod: Document) -> None:
        node = self._seen.pop(pod["metadata"]["uid"], "")
        known = self._agents.get(node)
        if known is not None and known.uid == pod["metadata"]["uid"]:
            self._leave(known)

    def _leave(self, agent: NodeAgent) -> None:
        del self._agents[agent.node]
        if agent.work is not None:
            agent.work.cancel()
        self._tell_changed()

    async def _make_secret(self) -> None:
        """What the agents want to see of us; their pods wait for it."""
        document = {
            "apiVersion": "v1",
            "kind": "Secret",
            "metadata": {
                "name": NAME,
                "namespace": self._namespace,
                "labels": {MANAGED_BY: MANAGER, INSTANCE: self._settings.instance},
            },
            "type": "Opaque",
            "stringData": {"token": self._token("data agents")},
        }
        try:
            await insist(self._client.create, document, self._namespace)
        except ApiError as problem:
            if problem.status != 409:
                self._secret = None
                log.warning("the secret of the data agents cannot be made: %s", problem)

    async def _attend(self, agent: NodeAgent) -> None:
        """For as long as its pod runs."""
        line, pause = self._line(agent), FIRST_PAUSE
        while True:
            try:
                for grant in self._grants_of(agent):
                    await self._tell_grant(agent, grant)
                async with self._arrived:
                    agent.there.set()
                    self._arrived.notify_all()
                for uid in self._ending.get(agent.node, ()):  # those that come later find it there
                    self._spawn(self._revoke(agent, uid))
                async for said in line.follow():
                    pause, agent.problem = FIRST_PAUSE, None
                    self._heard(agent, said)
            except (Temporary, Permanent) as problem:
                agent.problem = str(problem)
            except ApiError as problem:
                agent.problem = line.explained(problem)
            agent.there.clear()
            if pause > 1:
                log.info("%s", agent.problem)
            await asyncio.sleep(pause)
            pause = min(2 * pause, LONGEST_PAUSE)

    def _heard(self, agent: NodeAgent, said: Mapping[str, Any]) -> None:
        if "want" in said:
            self._spawn(self._carry(agent, said["want"]))
        elif "report" in said:
            before, agent.report = agent.report, said["report"]
            if before.get("holds") != agent.report["holds"]:
                self._tell_changed()

    async def _carry(self, agent: NodeAgent, want: Mapping[str, Any]) -> None:
        async with self._carrying:
            try:
                await self._line(agent).carry(want, lambda: self._found(agent, want))
            except ApiError as problem:
                log.info("node %s: %s; it will ask again", agent.node, problem)

    def _found(self, agent: NodeAgent, want: Mapping[str, Any]) -> tuple[Path, int, int]:
        if want.get("file") == GONE:
            if StoreFolder(self._folder).gone(want["version"]):
                return Path(os.devnull), 0, 0
            raise Missing(f"version {want['version'][:12]} is in the store, or nobody can say")
        return self._store.wanted(want, self._granted(agent))

    def _granted(self, agent: NodeAgent) -> set[str]:
        return {
            *agent.warming,
            *(version for grant in self._grants_of(agent) for version in grant["versions"]),
        }

    def _grants_of(self, agent: NodeAgent) -> list[dict[str, Any]]:
        here = [uid for uid, nodes in self._places.items() if agent.node in nodes]
        return [self._grants[uid] for uid in here if uid in self._grants]

    def _line(self, agent: NodeAgent) -> Line:
        return Line(self._client, agent, self._token("data agents"))

    def _plain(self, node: str) -> str:
        """As the cluster itself calls it."""
        return node.removeprefix(node_name(self._settings.cluster, ""))

    def _tell_changed(self) -> None:
        if self._settling is None:
            self._settling = asyncio.get_running_loop().call_later(SETTLE, self._settled)

    def _settled(self) -> None:
        self._settling = None
        self.changed()

    def close(self) -> None:
        if self._settling is not None:
            self._settling.cancel()


class _Far:
    """How far files are, over all nodes."""

    def __init__(self, nodes: int, tell: Tell):
        self._nodes = nodes
        self._tell = tell
        self._begun = time.monotonic()
        self._come: dict[tuple[str, str], tuple[int, int]] = {}

    def heard(self, node: str, version: str, come: int, of: int) -> None:
        self._come[node, version] = (come, of)
        all_come, all_bytes = (sum(pair[part] for pair in self._come.values()) for part in (0, 1))
        rate = all_come / max(time.monotonic() - self._begun, 0.001)
        where = f"node {node}" if self._nodes == 1 else f"{self._nodes} nodes"
        self._tell(Progress(f"bringing data to {where}", all_come, all_bytes, rate))
