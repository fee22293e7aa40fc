"""What the engine may ask: who reads what, and what to bring, to show and to let go."""

from __future__ import annotations

import asyncio
from dataclasses import asdict
from typing import Any

from weft.data.agent.ahead import Ahead
from weft.data.agent.desk import Desk
from weft.data.agent.frames import Answer, Connection
from weft.data.agent.node import Node
from weft.data.agent.sources import KnownSources
from weft.data.cache.admission import UNLIMITED
from weft.data.cache.leases import Terms
from weft.data.cache.versions import checked
from weft.data.errors import Missing, Refused

REPORTED = (
    "job",
    "dataset",
    "hits",
    "misses",
    "hitBytes",
    "missBytes",
    "remoteBytes",
    "peerBytes",
    "stallSeconds",
)
LAID_OUT_WITHIN = 1.0
"""Seconds after which whoever waits for files hears how far they are."""


class Tree:
    """Files that are being laid out."""

    def __init__(self) -> None:
        self.bytes = 0
        self.work: asyncio.Future[Any]

    def more(self, size: int) -> None:
        self.bytes += size


class Control:
    def __init__(
        self,
        node: Node,
        ahead: Ahead,
        desk: Desk,
        peer_address: str = "",
        sources: KnownSources | None = None,
    ):
        self._node = node
        self._desk = desk
        self._sources = sources or KnownSources()
        self._ahead = ahead
        self._peer_address = peer_address
        self._since = node.now()
        self._background: set[asyncio.Task[Any]] = set()
        self._trees: dict[str, Tree] = {}
        self._answers = {
            "grant": self._grant,
            "revoke": self._revoke,
            "tree": self._tree,
            "warm": self._warm,
            "holds": self._holds,
            "collect": self._collect,
            "status": self._status,
            "forget": self._forget,
            "peers": self._peers,
        }

    async def handle(self, connection: Connection, request: dict[str, Any]) -> Answer:
        return await self.answer(request)

    async def answer(self, request: dict[str, Any]) -> Answer:
        wanted = request.get("do")
        if not isinstance(wanted, str) or wanted not in self._answers:
            raise Refused(
                f"nobody here knows how to do {str(wanted)[:40]!r}; {', '.join(self._answers)} can be done"
            )
        return await self._answers[wanted](request)

    async def _grant(self, request: dict[str, Any]) -> Answer:
        """A lease. Room for what will be read is made now, before its reader waits for it."""
        job, token, versions = _text(request, "job"), _text(request, "token"), request.get("versions")
        if isinstance(versions, dict):
            for name, terms in versions.items():
                checked(name)
                self._learn(terms)
        grant = await self._node.aside(self._node.leases.grant, job, token, versions)
        self._node.filling.hope()
        for name, terms in grant.versions.items():
            self._later(self._node.expect(name, terms))
        return Answer()

    def _learn(self, terms: Any) -> None:
        """How the dataset's source is read, if it is said: that stays out of the books."""
        if isinstance(terms, dict) and isinstance(source := terms.pop("source", None), dict):
            self._sources.learn(str(terms.get("dataset")), source, terms.pop("credentials", {}))

    async def _revoke(self, request: dict[str, Any]) -> Answer:
        """The end of a lease, with the last counts of its job."""
        job = _text(request, "job")
        await self._desk.hear_out(job)
        counted = [line for line in self._node.counts.shown() if line["job"] == job]
        known = await self._node.aside(self._node.leases.revoke, job)
        await self._node.aside(self._node.counts.forget, job)
        self._node.filling.hope()
        return Answer({"known": known, "counts": counted})

    async def _tree(self, request: dict[str, Any]) -> Answer:
        """Begin to lay out the files of a version that a job was granted; asked again, it says how far that is."""
        job, name = _text(request, "job"), checked(request.get("version"))
        grant = self._node.leases.of(job)
        terms = grant.versions.get(name) if grant is not None else None
        if terms is None:
            raise Refused(f"job {job} was not granted version {name[:12]}")
        version = await self._node.version(name, terms.dataset)
        tree = self._trees.get(name)
        if tree is None:
            tree = self._trees[name] = Tree()
            tree.work = asyncio.ensure_future(
                self._node.aside(self._node.tree, version, terms, job, tree.more)
            )
        await asyncio.wait({tree.work}, timeout=LAID_OUT_WITHIN)
        if tree.work.done():
            self._trees.pop(name, None)
            tree.work.result()
        every = sum(part.size for part in version.parts)
        return Answer({"done": tree.work.done(), "bytes": min(tree.bytes, every), "of": every})

    async def _warm(self, request: dict[str, Any]) -> Answer:
        name = checked(request.get("version"))
        self._learn(request)
        terms = self._node.leases.terms(name)
        if terms is None:
            quota = request.get("quota")
            terms = Terms(str(request.get("dataset", "")), 0, quota=None if quota is None else int(quota))
        version = await self._node.version(name, terms.dataset)
        self._ahead.warm(version, terms)
        return Answer({"bytes": sum(part.size for part in version.parts)})

    async def _holds(self, request: dict[str, Any]) -> Answer:
        return Answer({"versions": await self._node.aside(self._node.holds)})

    async def _collect(self, request: dict[str, Any]) -> Answer:
        """Down to the quota and of what is too old; with `all`, whatever nobody has a lease on."""
        if request.get("all") is True:
            collected = await self._node.aside(self._node.collector.collect, UNLIMITED)
        else:
            collected = await self._node.aside(self._node.keep_house)
        return Answer(
            {"bytes": collected.freed.bytes, "inodes": collected.freed.inodes, "kept": collected.kept}
        )

    async def _forget(self, request: dict[str, Any]) -> Answer:
        name = checked(request.get("version"))
        readers = self._node.leases.readers(name)
        if readers:
            raise Refused(f"version {name[:12]} is read by {', '.join(readers)}; halt them first")
        version = self._node.catalog.get(name)
        if version is None:
            raise Missing(f"version {name[:12]} is not on node {self._node.settings.name}")
        await self._ahead.stop(name)
        freed = await self._node.aside(self._node.forget, version)
        return Answer({"bytes": freed.bytes, "inodes": freed.inodes})

    async def _peers(self, request: dict[str, Any]) -> Answer:
        nodes = request.get("nodes")
        if not isinstance(nodes, dict) or not all(isinstance(address, str) for address in nodes.values()):
            raise Refused('peers are named with their addresses: {"nodes": {NAME: "HOST:PORT"}}')
        await self._node.aside(self._node.peers.introduce, nodes)
        return Answer()

    def report(self) -> dict[str, Any]:
        """For an engine that is told of changes: who reads here, what is held, and what came of it."""
        node = self._node
        warming = {name: far.of for name, far in self._ahead.warming.items() if not far.finished}
        return {
            "since": self._since,
            "jobs": sorted(grant.job for grant in node.leases.grants),
            "holds": node.held,
            "counts": [{key: line[key] for key in REPORTED} for line in node.counts.shown()],
            "warming": warming,
            "quota": node.settings.quota.bytes if node.settings.quota != UNLIMITED else None,
        }

    async def _status(self, request: dict[str, Any]) -> Answer:
        node = self._node
        totals, used = await node.aside(lambda: (node.books.totals(), node.books.total()))
        limited = node.settings.quota != UNLIMITED
        return Answer(
            {
                "node": node.settings.name,
                "since": self._since,
                "swept": node.swept,
                "peerAddress": self._peer_address,
                "peers": node.peers.addresses,
                "quota": asdict(node.settings.quota) if limited else None,
                "used": asdict(used),
                "datasets": {dataset: asdict(room) for dataset, room in totals.items()},
                "jobs": {grant.job: sorted(grant.versions) for grant in node.leases.grants},
                "counts": node.counts.shown(),
                "warming": {version: asdict(progress) for version, progress in self._ahead.warming.items()},
            }
        )

    async def close(self) -> None:
        for task in self._background:
            task.cancel()
        await asyncio.gather(*self._background, return_exceptions=True)

    def _later(self, work: Any) -> None:
        task = asyncio.ensure_future(work)
        self._background.add(task)
        task.add_done_callback(self._finished)

    def _finished(self, task: asyncio.Task[Any]) -> None:
        self._background.discard(task)
        if not task.cancelled():
            task.exception()


def _text(request: dict[str, Any], field: str) -> str:
    value = request.get(field)
    if not isinstance(value, str) or not value:
        raise Refused(f"{request['do']} needs a {field}")
    return value
