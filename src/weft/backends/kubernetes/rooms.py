"""Room on nodes that our own pods take beside the scheduler's books: before it placed them, or after it let them go."""

from __future__ import annotations

import asyncio

from weft.backends.api import Surroundings
from weft.backends.kubernetes.client import Document
from weft.backends.kubernetes.tracked import TaskPod

HELD = 1.0
"""Seconds until we have heard for whom a pod was put out."""


class Rooms:
    def __init__(self, surroundings: Surroundings):
        self._surroundings = surroundings

    def keep(self, one: TaskPod) -> None:
        """Its pod is there still, or was placed by another scheduler: kubelet would take nobody else in its place."""
        if one.pod is not None and not one.stopped.is_set():
            self._surroundings.occupied(one.pod["metadata"]["uid"], one.node, one.request)

    def hold(self, one: TaskPod) -> None:
        """Whoever put it out may want its room for somebody: so long as it takes us to hear of that, it is nobody's."""
        who = f"{one.name}-was-here"
        self._surroundings.occupied(who, one.node, one.request)
        asyncio.get_running_loop().call_later(HELD, self._surroundings.vacated, who)

    def free(self, pod: Document) -> None:
        self._surroundings.vacated(pod["metadata"]["uid"])
