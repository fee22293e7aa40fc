"""Nodes that an operator keeps new tasks from, or has declared lost: so until they are uncordoned, whatever restarts."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from pydantic_core import from_json, to_json

from weft.control.declared import creation_row
from weft.control.live import LiveJob
from weft.control.nosuch import NoNode
from weft.model.events import Preempted
from weft.model.lifecycle import ending
from weft.model.status import TaskState
from weft.store.changes import Create, Delete, Happened, Update

if TYPE_CHECKING:
    from weft.control.control import Control

KIND = "Cordon"


@dataclass(frozen=True, slots=True)
class Cordon:
    uid: str
    node: str
    since: float
    by: str
    reason: str = ""
    lost: bool = False

    def document(self) -> dict[str, Any]:
        return {"since": self.since, "by": self.by, "reason": self.reason or None, "lost": self.lost}

    def row(self) -> dict[str, Any]:
        """The columns that a change of mind changes."""
        said = to_json({"reason": self.reason, "lost": self.lost}).decode()
        return {"owner": self.by, "spec": said, "metadata": "{}"}


class Cordons:
    """By node. One change at a time, and none before it is on disk."""

    def __init__(self, control: Control, new_uid: Callable[[float], str]):
        self._control = control
        self._new_uid = new_uid
        self._one = asyncio.Lock()
        self._kept: dict[str, Cordon] = {}

    def load(self) -> None:
        """As they were when the last server ended, also for nodes that this one has not."""
        for row in self._control.store.page(KIND, limit=1_000_000):
            said = from_json(row.spec)
            self._kept[row.name] = Cordon(row.uid, row.name, row.created, row.owner, **said)
            if row.name in self._control.books.cluster.rooms:
                self._open(row.name, False)

    def of(self, node: str) -> Cordon | None:
        return self._kept.get(node)

    # ── what an operator asks ──

    async def cordon(self, node: str, actor: str, reason: str | None = None, *, lost: bool = False) -> None:
        """Place nothing new there; what runs goes on."""
        async with self._one:
            self._check(node)
            now = self._control.clock()
            old = self._kept.get(node)
            cordon = old or Cordon(self._new_uid(now), node, now, actor)
            said = cordon.reason if reason is None else reason
            cordon = replace(cordon, by=actor, reason=said, lost=cordon.lost or lost)
            row = creation_row(KIND, cordon.uid, node, cordon.since, cordon.row())
            change = Create(row) if old is None else Update(cordon.uid, cordon.row)
            cause = f"{'lost' if lost else 'cordoned'}{said and f': {said}'}"
            await self._write([change, Happened(now, cordon.uid, node, "node", cause, actor)])
            self._kept[node] = cordon
            self._open(node, False)

    async def uncordon(self, node: str, actor: str) -> None:
        """Let tasks come again."""
        async with self._one:
            self._check(node)
            cordon = self._kept.get(node)
            if cordon is None:
                return
            gone = Happened(self._control.clock(), cordon.uid, node, "node", "uncordoned", actor)
            await self._write([Delete(cordon.uid), gone])
            del self._kept[node]
            self._open(node, True)

    async def lose(self, node: str, actor: str, reason: str | None = None) -> None:
        """The node is gone: nothing of what ran there runs on, and it runs again elsewhere."""
        await self.cordon(node, actor, reason, lost=True)
        self.leave_all(node, actor)

    async def _write(self, changes: list[Any]) -> None:
        await asyncio.shield(self._control.store.write(changes, refusable=True))

    def _check(self, node: str) -> None:
        rooms = self._control.books.cluster.rooms
        if node not in rooms:
            raise NoNode(node, list(rooms))

    def _open(self, node: str, open: bool) -> None:
        books = self._control.books
        books.cluster.set_open(node, open)
        for uid, made in list(books.promises.items()):
            if any(binding.node == node for binding in made.bindings):
                del books.promises[uid]  # it is promised anew, elsewhere
        self._control.look_again()

    def close_again(self) -> None:
        """The nodes were counted anew: those that are cordoned stay closed."""
        rooms = self._control.books.cluster.rooms
        for node in self._kept:
            if node in rooms:
                self._control.books.cluster.set_open(node, False)

    # ── what a lost node takes with it ──

    def leave_all(self, node: str, actor: str) -> None:
        for job in list(self._control.jobs.values()):
            self._leave(job, node, actor)

    def leave_lost(self, job: LiveJob) -> None:
        """After a restart: what was begun when a node was declared lost is brought to its end."""
        for cordon in self._kept.values():
            if cordon.lost:
                self._leave(job, cordon.node, "weft")

    def _leave(self, job: LiveJob, node: str, actor: str) -> None:
        """What runs there is killed, and then reported as lost. A start that is under way there, or due again, cannot
        be: the whole job waits for another place."""
        here = [task for task in job.status.tasks if task.binding and task.binding.node == node]
        starting = any(task.state in (TaskState.STARTING, TaskState.BACKOFF) for task in here)
        running = tuple(task.name for task in here if task.state is TaskState.RUNNING)
        if starting and not ending(job.status):
            self._control.books.running.tell_to_leave(job.uid)
            self._control.guardian.handle(job, Preempted(f"others: node {node} is lost"), actor)
        if running:
            self._control.backend.lose(job, node, running)
