"""Datasets on this machine: agents that lend jobs their versions, and what nodes hold.

Jobs read what lies in the server's own store, so nothing is copied, except for samples that are laid out as files. With a
cache for each node (`weft up --nodes 4 --cache 10Gi`) nodes are as far from the store, and from each other, as they
would be in a cluster: each has an agent of its own.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import secrets
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from weft.backends.api import Assignment, Cached, Lent, Tell
from weft.backends.folders import JobFolder
from weft.backends.local.agents import PATIENCE, Agent
from weft.backends.local.mounts import Mounts, point
from weft.backends.tasks import dataset_variables, taking_part, terms_of
from weft.model.failures import Code, Permanent, Temporary
from weft.model.status import Progress
from weft.runtime.data.errors import DataError, Unreachable
from weft.runtime.data.link import Link
from weft.runtime.data.parts import AgentParts

LOOK = 1.0
TOLD = 0.5
"""Seconds between two words on how far data is."""
FORGOTTEN = 30.0
"""Seconds after its start in which a server has taken over all jobs that run: whatever else is lent belongs to nobody."""
MACHINE = "this machine"
log = logging.getLogger("weft.data")


class NodeData:
    def __init__(self, home: str, nodes: Sequence[str], cache: int | None = None):
        self._store = Path(home, "datasets")
        self._key = Path(home, "datacache", "peers.key")
        self._mounts = Mounts(Path(home, "datacache", "mounts"))
        self._own = cache is not None
        """Every node has a cache of its own."""
        self.lent: Callable[[str], Lent]
        """How a dataset is read and cached; set when the engine starts."""
        self._changed: Callable[[], None] = lambda: None
        folder, origin = Path(home, "datacache"), ["--origin-folder", str(self._store)]
        if self._own:
            peers = ["--peer-listen", "127.0.0.1:0", "--peer-key-file", str(self._key)]
            options = [*origin, "--far", "--quota", str(cache), *peers]
            self._agents = {node: Agent(node, folder / node, options) for node in nodes}
        else:
            self._agents = dict.fromkeys(
                nodes, Agent(nodes[0] if len(nodes) == 1 else MACHINE, folder, origin)
            )
        self._each = list(dict.fromkeys(self._agents.values()))
        self._introduced: dict[str, str] = {}
        self._stored: dict[str, int] = {}
        self._stored_at = 0
        self._noticed: list[dict[str, int]] = []
        self._looking: asyncio.Task[None] | None = None
        self._releasing: set[asyncio.Task[None]] = set()

    def start(self, lent: Callable[[str], Lent], changed: Callable[[], None]) -> None:
        """`changed` is told when nodes hold something else."""
        self.lent, self._changed = lent, changed
        if self._own and not self._key.exists():
            self._key.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
            _write_secret(self._key, secrets.token_hex(32))
        self._look_at_store()
        self._looking = asyncio.get_running_loop().create_task(self._look())

    def holds(self, node: str) -> tuple[tuple[str, int], ...]:
        """The versions that lie on a node, and how many bytes of each."""
        return tuple(sorted((self._agents[node].held if self._own else self._stored).items()))

    # ── for jobs ──

    async def bring(self, job: Assignment, folder: JobFolder, tell: Tell) -> None:
        """Lend the job its versions on the nodes of its tasks, and lay out or mount those that it wants as files."""
        agents = self._of(job)
        token = _token(folder)
        terms = self._terms(job, agents)
        await _all(agent.grant(job.uid, token, terms) for agent in agents)
        if len(agents) > 1:
            await self._introduce(agents)
        far = _Far(len(agents), tell)
        await _all(self._lay_out(job, folder, agent, token, far) for agent in agents)
        await self._leave(job.uid, agents)

    async def _lay_out(self, job: Assignment, folder: JobFolder, agent: Agent, token: str, far: _Far) -> None:
        versions = dict(job.status.datasets)
        place = Path(self.folder(folder, agent.node))
        os.makedirs(place, exist_ok=True)  # noqa: PTH103
        for use in job.spec.datasets:
            version = versions[use.name]
            if use.mode == "mount":
                called = f"{use.called}.{agent.node}" if self._own else use.called
                about = {"version": version, "socket": agent.socket, "token": folder.data_token}
                await self._mounts.make(job.uid, called, place / use.called, about)
            elif use.mode == "replicate" and use.files:
                made = await self._tree(agent, token, version, f"bringing dataset {use.name}", far)
                point(place / use.called, made)

    async def _tree(self, agent: Agent, token: str, version: str, what: str, far: _Far) -> str:
        link, watch = Link(agent.socket, token, PATIENCE), Link(agent.socket, token, PATIENCE)
        try:
            making = asyncio.ensure_future(asyncio.to_thread(link.tree, version))
            index = await asyncio.to_thread(AgentParts(watch).open, version)
            before = await asyncio.to_thread(_bytes, watch)
            while not (await asyncio.wait({making}, timeout=TOLD))[0]:
                far.tell(what, agent.node, await asyncio.to_thread(_bytes, watch) - before, index.bytes)
            return making.result()
        except Unreachable as problem:
            raise Temporary(str(problem)) from None
        except DataError as problem:
            raise Permanent(Code.DATA, str(problem)) from None
        finally:
            link.close()
            watch.close()

    def _of(self, job: Assignment) -> list[Agent]:
        """The agents of the nodes on which the job's tasks have their places."""
        staying = {task.name for task in taking_part(job)}
        places = [task.binding.node for task in job.status.tasks if task.binding and task.name in staying]
        return list(dict.fromkeys(self._agents[node] for node in places if node in self._agents))

    def _terms(self, job: Assignment, agents: Sequence[Agent]) -> dict[str, dict[str, Any]]:
        """By version."""
        versions = dict(job.status.datasets)
        nodes = [agent.node for agent in agents]
        found = {}
        for use in job.spec.datasets:
            lent = self.lent(use.name)
            about = terms_of(job, use, lent, nodes)
            found[versions[use.name]] = {**about, "source": lent.source, "credentials": lent.credentials}
        return found

    async def _introduce(self, agents: Sequence[Agent]) -> None:
        """Tell agents where the others are."""
        for agent in agents:
            await agent.look()
        known = {agent.node: agent.address for agent in self._each if agent.address}
        for agent in agents:
            await agent.ask({"do": "peers", "nodes": known})
        self._introduced = known

    async def rebalance(self, job: Assignment, folder: JobFolder) -> None:
        """The job goes on with fewer nodes: what it reads is divided among those."""
        agents = self._of(job)
        if any(use.mode == "shard" for use in job.spec.datasets) and {
            agent for agent in self._each if job.uid in agent.readers
        } - {*agents}:
            terms, token = self._terms(job, agents), _token(folder)
            await _all(agent.grant(job.uid, token, terms) for agent in agents)

    async def _leave(self, uid: str, staying: Sequence[Agent]) -> None:
        await _all(agent.revoke(uid) for agent in self._each if uid in agent.readers and agent not in staying)

    def folder(self, folder: JobFolder, node: str) -> str:
        """DATA_DIR of a job's tasks on a node."""
        return f"{folder.data}/{node}" if self._own else folder.data

    def environment(self, job: Assignment, folder: JobFolder, node: str) -> dict[str, str]:
        return dataset_variables(job, self._agents[node].socket, folder.data_token)

    def reads(self, folder: JobFolder, node: str) -> list[str]:
        """What an isolated task must see besides its job's folder."""
        links = Path(self.folder(folder, node)).iterdir()
        trees = [str(entry.readlink()) for entry in links if entry.is_symlink()]
        return [str(self._agents[node].door), *dict.fromkeys(trees)]

    def adopt(self, job: Assignment, folder: JobFolder) -> None:
        """A job that read before this server began reads on."""
        agents = self._of(job)
        terms = self._terms(job, agents) if job.status.datasets else {}
        for agent in agents:
            agent.readers.add(job.uid)
            if terms:
                agent.grants[job.uid] = {
                    "do": "grant", "job": job.uid, "token": _token(folder), "versions": terms,
                }  # fmt: skip

    def release(self, uid: str) -> asyncio.Task[None] | None:
        """The job is over: nothing of it is lent or mounted any more."""
        if not any(uid in agent.readers for agent in self._each):
            return None
        releasing = asyncio.get_running_loop().create_task(self._release(uid))
        self._releasing.add(releasing)
        releasing.add_done_callback(self._releasing.discard)
        return releasing

    async def _release(self, uid: str) -> None:
        await self._mounts.end(uid)
        await self._leave(uid, ())

    # ── before jobs ──

    async def warm(self, dataset: str, version: str, nodes: Sequence[str]) -> None:
        if not self._own:
            return  # it is on this machine already
        lent = self.lent(dataset)
        about = {
            "dataset": dataset,
            "quota": lent.quota,
            "source": lent.source,
            "credentials": lent.credentials,
        }
        await _all(self._agents[node].warm(version, about) for node in nodes)

    async def cached(self) -> list[Cached]:
        found = []
        for agent in self._each:
            with contextlib.suppress(Temporary, Permanent):
                if agent.wanted:
                    await agent.look()
            cached = agent.cached()
            if not self._own:
                cached = Cached(cached.node, self._stored, cached.reads)
            found.append(cached)
        self._notice()
        return found

    # ── looking after them ──

    async def _look(self) -> None:
        began, swept = time.monotonic(), False
        while True:
            await asyncio.sleep(LOOK)
            strays = time.monotonic() - began > FORGOTTEN
            try:
                self._look_at_store()
                for agent in self._each:
                    if agent.wanted:
                        await self._look_at(agent, strays)
                    elif strays and not swept:
                        with contextlib.suppress(Temporary):  # nothing is left of it
                            await self._look_at(agent, strays)
                    else:
                        agent.read_note()
                await self._reintroduce()
                await self._look_at_mounts(strays)
                swept = strays
            except (Temporary, Permanent, OSError) as problem:
                log.warning("datasets on this machine: %s", problem)
            self._notice()

    def _notice(self) -> None:
        """Tell of it if nodes hold something else than they did."""
        holds = [agent.held for agent in self._each] if self._own else [self._stored]
        if holds != self._noticed:
            self._noticed = holds
            self._changed()

    async def _look_at(self, agent: Agent, strays: bool) -> None:
        status = await agent.look()
        for uid in status["jobs"] if strays else ():
            if uid not in agent.readers:  # a server died after its job was over
                await agent.revoke(uid)
        if not agent.wanted:
            await agent.end()

    async def _reintroduce(self) -> None:
        """An agent that was started again is elsewhere."""
        wanted = [agent for agent in self._each if agent.wanted]
        known = {agent.node: agent.address for agent in wanted if agent.address}
        if self._introduced and not known.items() <= self._introduced.items():
            await self._introduce(wanted)

    async def _look_at_mounts(self, strays: bool) -> None:
        read = {uid for agent in self._each for uid in agent.readers}
        for uid in self._mounts.jobs() if strays else ():
            if uid not in read:
                await self._mounts.end(uid)
        await self._mounts.look(read)

    def _look_at_store(self) -> None:
        """Which versions it has."""
        versions = self._store / "versions"
        try:
            at = versions.stat().st_mtime_ns
        except FileNotFoundError:
            return
        if at == self._stored_at:
            return
        found = {}
        for folder in versions.iterdir():
            with contextlib.suppress(OSError, ValueError, KeyError):
                known = self._stored.get(folder.name)
                found[folder.name] = known or int(json.loads((folder / "version.json").read_bytes())["bytes"])
        self._stored, self._stored_at = found, at

    async def close(self) -> None:
        """The server goes: so do the agents that nobody reads from."""
        if self._looking is not None:
            self._looking.cancel()
        if self._releasing:
            await asyncio.wait(self._releasing, timeout=PATIENCE)
        for agent in self._each:
            if not agent.readers:
                await agent.end()


class _Far:
    """How far all nodes of a job together are with what they lay out."""

    def __init__(self, nodes: int, tell: Tell):
        self._nodes = nodes
        self._tell = tell
        self._done: dict[tuple[str, str], tuple[int, int]] = {}
        self._began = time.monotonic()

    def tell(self, what: str, node: str, done: int, of: int) -> None:
        self._done[what, node] = (min(done, of), of)
        all_done, all_of = map(sum, zip(*self._done.values(), strict=True))
        where = f" to {self._nodes} nodes" if self._nodes > 1 else ""
        self._tell(Progress(what + where, all_done, all_of, all_done / (time.monotonic() - self._began)))


def _bytes(link: Link) -> int:
    counts = link.counts()
    return int(counts["givenBytes"] + counts["remoteBytes"] + counts["peerBytes"])


async def _all(work: Iterable[Awaitable[None]]) -> None:
    """All of them, also if some fail; then the first failure."""
    done = await asyncio.gather(*work, return_exceptions=True)
    for problem in done:
        if isinstance(problem, BaseException):
            raise problem


def _token(folder: JobFolder) -> str:
    """One for all starts of the job, in a file that only its user can read."""
    path = Path(folder.data_token)
    if path.exists():
        return path.read_text().strip()
    path.parent.mkdir(parents=True, exist_ok=True)
    made = secrets.token_hex(32)
    _write_secret(path, made)
    return made


def _write_secret(path: Path, text: str) -> None:
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(file, "w") as writer:
        writer.write(text)
