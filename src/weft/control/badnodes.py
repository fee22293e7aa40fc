"""A memory of bad nodes: one on which job after job fails for reasons that may be its own is cordoned."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from weft.control.live import LiveJob
from weft.model.failures import MAYBE_THE_NODE
from weft.model.status import Desire, State

if TYPE_CHECKING:
    from weft.control.control import Control

IN_A_ROW = 3
"""Jobs that fail on a node, with none that succeeds there in between, before it is cordoned. One may have had bad luck
and two may be one bad program sent twice; and every one more is somebody's job."""
log = logging.getLogger("weft.control")


class BadNodes:
    """Counts by node. The counts begin anew with each server; the cordons stay until a person takes them away."""

    def __init__(self, control: Control):
        self._control = control
        self._failed: dict[str, dict[str, str]] = {}
        """By node: the last that failed there since a success, as `name (CODE)` by uid."""
        self._suspects: asyncio.Queue[str] = asyncio.Queue()

    def ended(self, job: LiveJob) -> None:
        """A job is over; one that a person ended says nothing of its nodes."""
        status = job.status
        if status.desire is not Desire.RUN:
            return
        if status.state is State.COMPLETED:
            for node in _nodes(job):
                self._failed.pop(node, None)
        elif status.state is State.FAILED and status.failure and status.failure.code in MAYBE_THE_NODE:
            nodes = _nodes(job, status.failure.task)
            if len(nodes) != 1:
                return  # of several nodes, nobody knows which it was
            node = nodes.pop()
            failed = self._failed.setdefault(node, {})
            failed[job.uid] = f"{job.name} ({status.failure.code})"
            if len(failed) > IN_A_ROW:
                del failed[next(iter(failed))]
            if len(failed) >= IN_A_ROW:
                self._suspects.put_nowait(node)

    async def run(self) -> None:
        """Cordon suspects, one at a time, so that each sees which nodes are still open."""
        while True:
            node = await self._suspects.get()
            try:
                await self._cordon(node)
            except Exception:  # its count stays: the next failure there tries again
                log.exception("node %s: cannot cordon it", node)

    async def _cordon(self, node: str) -> None:
        failed = [*self._failed.get(node, {}).values()]
        rooms = self._control.books.cluster.rooms
        if len(failed) < IN_A_ROW or node not in rooms or not rooms[node].node.schedulable:
            return
        reason = f"{len(failed)} jobs in a row failed here: {', '.join(failed)}"
        if not any(room.node.schedulable for name, room in rooms.items() if name != node):
            if len(rooms) > 1:
                log.warning("node %s stays open, as the last: %s", node, reason)
            return
        log.warning("node %s is cordoned: %s", node, reason)
        await self._control.cordons.cordon(node, actor="weft", reason=reason)
        self._failed.pop(node, None)


def _nodes(job: LiveJob, task: str | None = None) -> set[str]:
    """Where this task, or each, was placed last."""
    return {
        status.binding.node
        for status in job.status.tasks
        if status.binding is not None and task in (None, status.name)
    }
