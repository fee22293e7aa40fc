"""Bringing a gang into the cluster: its objects are made unscheduled under one owner, then its pods are bound together."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Iterable
from pathlib import Path

from weft.backends.files import JobFiles
from weft.backends.kubernetes import groups, shared
from weft.backends.kubernetes.agents import INCOMING, packed_code
from weft.backends.kubernetes.client import ApiError, Client, Document, insist
from weft.backends.kubernetes.datasets import data_token_of
from weft.backends.kubernetes.following import Following
from weft.backends.kubernetes.render import Rendered, reads_hosts, render
from weft.backends.kubernetes.settings import Settings
from weft.backends.kubernetes.tracked import Launch, TaskPod, Tracked
from weft.model.cluster import node_name
from weft.model.failures import Code, Failure, Permanent

CODE_WITH_POD = 700_000
"""Bytes of packed code that go along in a ConfigMap; what is larger is brought by way of the agent."""

NO_RIGHT = "cannot create resource"
"""How the API server says that the account itself may not, wherever to; anything else that is forbidden is one node's."""
UNDER_WAY = 2.0
"""Seconds in which the API server has made what it was asked for, mostly."""
COLLECTED = 30.0
"""Seconds in which the cluster has collected what an owner that was deleted had."""


class NotBound(ApiError):
    """The API server would have the pod, but not there."""

    def __init__(self, status: int, message: str, node: str):
        super().__init__(status, f"{message} (node {node})")
        self.node = node


class Launching:
    def __init__(
        self, client: Client, settings: Settings, files: JobFiles, agents: Following, tracked: Tracked
    ):
        self._client = client
        self._settings = settings
        self._files = files
        self._agents = agents
        self._tracked = tracked

    async def bring(self, made: Launch) -> None:
        """All of it, or an error: ApiError, NotBound, Permanent or OSError. What was made until then is there."""
        owner, new = await self._owner(made)
        rendered, pushes = await self._rendered(made, owner)
        for one in made.tasks.values():
            one.pushes = list(pushes)
        # Everything at once: nobody looks at a pod before it is bound.
        await _all(self._make(document, new) for document in (*rendered.shared, *rendered.pods.values()))
        await _all(self._bind(one) for one in made.tasks.values())

    async def _rendered(self, made: Launch, owner: str) -> tuple[Rendered, tuple[str, ...]]:
        job, folder = made.job, self._files.folder(made.job.uid)
        packed, pushes = None, []
        if job.spec.code is not None:
            packed = await asyncio.to_thread(packed_code, Path(folder.code), CODE_WITH_POD)
            if packed is None:
                pushes.append("code")
        if _filled(Path(folder.checkpoints)):
            pushes.append("checkpoints")
        if reads_hosts(job):
            pushes.append("hosts")
        token, data_token = self._agents.token(job.uid), data_token_of(self._agents.token, job.uid)
        tasks = list(made.tasks)
        return (
            render(job, made.number, tasks, self._settings, owner, packed, pushes, token, data_token),
            tuple(pushes),
        )

    async def _owner(self, made: Launch) -> tuple[str, bool]:
        """The uid of the object that all others of the job belong to, and whether it is new."""
        document = shared.owner(made.job, self._settings)
        name, where = document["metadata"]["name"], _where(document)
        while True:
            try:
                kept = await insist(self._client.create, document, where)
                return str(kept["metadata"]["uid"]), True
            except ApiError as problem:
                if problem.status != 409:
                    raise
            try:
                kept = await insist(self._client.get, "ConfigMap", name, where)
                return str(kept["metadata"]["uid"]), False
            except ApiError as problem:
                if not problem.missing:  # else it has gone meanwhile
                    raise

    async def _make(self, document: Document, new: bool) -> None:
        """What is there already was made before a crash; or, where its owner is new, it was an earlier owner's and is
        about to go with that."""
        given_up = asyncio.get_running_loop().time() + COLLECTED
        while True:
            try:
                await insist(self._create, document)
            except ApiError as problem:
                if problem.missing and document["kind"] == "PodGroup" and not _no_namespace(problem):
                    raise Permanent(Code.CANNOT_START, groups.absent(document)) from None
                if problem.status != 409:
                    raise
                if new and asyncio.get_running_loop().time() < given_up:
                    await asyncio.sleep(0.2)
                    continue
            return

    async def _create(self, document: Document) -> None:
        """Heard out for a moment also when the gang is given up: what is under way then would come after its deletion."""
        asked = asyncio.ensure_future(self._client.create(document, _where(document)))
        try:
            await asyncio.shield(asked)
        except asyncio.CancelledError:
            await asyncio.wait({asked}, timeout=UNDER_WAY)
            asked.cancel()
            raise

    async def _bind(self, one: TaskPod) -> None:
        for before in self._tracked.before(one):
            await before.stopped.wait()  # its room is not free before
        if one.job.spec.scheduling == "default":
            return
        namespace = shared.namespace_of(one.job, self._settings)
        node = one.node.removeprefix(node_name(self._settings.cluster, ""))
        try:
            await insist(self._client.bind, one.name, namespace, node)
        except ApiError as problem:
            if problem.status == 403 and NO_RIGHT not in str(problem):
                raise NotBound(problem.status, str(problem), one.node) from None
            if problem.status != 409:
                raise
            there = await insist(self._client.get, "Pod", one.name, namespace)
            if there["spec"].get("nodeName") != node:
                raise


def _filled(folder: Path) -> bool:
    try:
        return any(not entry.name.startswith(INCOMING) for entry in folder.iterdir())
    except OSError:
        return False


def refusal(problem: ApiError) -> Failure:
    if _no_namespace(problem):
        return Failure(Code.CANNOT_START, f"{problem}; make its project: kubectl create namespace NAME")
    return Failure(Code.CANNOT_START, f"the API server refused it: {problem}")


def passing(problem: ApiError) -> bool:
    """Whether another place, or a later time, may do: the node is gone, its pod is elsewhere, a quota is used up."""
    if _no_namespace(problem):
        return False
    return problem.status in (404, 409) or "exceeded quota" in str(problem)


def _no_namespace(problem: ApiError) -> bool:
    return problem.missing and str(problem).startswith("namespaces ")


def _where(document: Document) -> str:
    namespace: str = document["metadata"]["namespace"]
    return namespace


async def _all(calls: Iterable[Awaitable[None]]) -> None:
    """All of them, also when one fails: what is under way when the gang is taken back would come after that."""
    for outcome in await asyncio.gather(*calls, return_exceptions=True):
        if isinstance(outcome, BaseException):
            raise outcome
