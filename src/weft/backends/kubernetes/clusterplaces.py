"""Pods that the cluster itself places (`scheduling: default`): their room is counted, and their data brought, where they are
found to be.

Such a pod waits for its data in its first container (`pods`). What its node cannot hold takes the gang back, as anything else
does that keeps a pod from starting.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any

from weft.backends.api import Listener
from weft.backends.kubernetes.client import Document
from weft.backends.kubernetes.datasets import ClusterData
from weft.backends.kubernetes.rooms import Rooms
from weft.backends.kubernetes.tracked import Launch, TaskPod, Tracked
from weft.model.cluster import node_name
from weft.model.events import Progressed
from weft.model.failures import Code, Failure, Permanent, Temporary
from weft.model.status import Progress

log = logging.getLogger("weft.data")


class ClusterPlaces:
    def __init__(
        self,
        cluster: str,
        data: ClusterData,
        tracked: Tracked,
        spawn: Callable[[Coroutine[Any, Any, None]], asyncio.Task[None]],
        give_up: Callable[[Launch, Failure, bool], None],
    ):
        self._cluster = cluster
        self._data = data
        self._tracked = tracked
        self._spawn = spawn
        self._give_up = give_up
        self._listener: Listener
        self._rooms: Rooms
        data.placed = self._nodes

    def begin(self, listener: Listener, rooms: Rooms) -> None:
        self._listener, self._rooms = listener, rooms

    def note(self, one: TaskPod, pod: Document) -> None:
        node = pod["spec"].get("nodeName")
        if one.job.spec.scheduling != "default" or not node:
            return
        one.node = node_name(self._cluster, node)
        self._rooms.keep(one)
        if one.job.spec.datasets and one.lending is None and not (one.over or one.stopping):
            one.lending = self._spawn(self._lend(one))

    def _nodes(self, uid: str) -> set[str]:
        return {one.node for one in self._tracked.of(uid) if one.lending is not None and not one.over}

    async def _lend(self, one: TaskPod) -> None:
        def tell(far: Progress) -> None:
            self._listener(one.job.uid, Progressed(one.launch, far))

        try:
            await self._data.lend(one.job, one.node, tell)
        except (Permanent, Temporary, KeyError) as problem:  # KeyError: the job is over
            made = self._tracked.launch_of(one)
            if made is None or isinstance(problem, KeyError):
                log.info("job %s: node %s: %s", one.job.name, one.node, problem)
            elif isinstance(problem, Permanent):
                self._give_up(made, problem.failure, False)
            else:
                self._give_up(made, Failure(Code.DATA, f"{one.task}: {problem}", one.task), True)
