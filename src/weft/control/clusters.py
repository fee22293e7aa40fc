"""The clusters that were added to the server: kept in the store, joined in the background, given up only when unused."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from weft.backends.fleet import Member
from weft.control.declared import Declared
from weft.control.nosuch import NoCluster
from weft.model.cluster import RESERVED, Cluster
from weft.model.lifecycle import Refused
from weft.model.problems import Invalid, Problem

if TYPE_CHECKING:
    from weft.control.control import Control

KIND = "Cluster"
PATIENCE = 10.0
"""Seconds for a cluster to answer, when it is added and when a server starts."""
SHOWN = 5


class OperatorClusters:
    def __init__(self, control: Control, new_uid: Callable[[float], str]):
        self._control = control
        self._own = Declared(KIND, Cluster, control.store, control.clock, new_uid)

    async def load(self) -> None:
        """As they were when the last server ended. Those that answer soon are there when its jobs are taken over."""
        self._own.load()
        fleet = self._control.backend
        await _tried([fleet.add(name, cluster.spec) for name, cluster in self._own.by_name.items()])

    def __contains__(self, name: str) -> bool:
        return name in self._own.by_name

    def __iter__(self) -> Iterator[Cluster]:
        for name in sorted(self._own.by_name):
            yield self._own.by_name[name]

    def get(self, name: str) -> Cluster:
        if name not in self._own.by_name:
            raise NoCluster(name, self._own.by_name)
        return self._own.by_name[name]

    async def settled(self) -> None:
        await self._own.settled()

    async def put(self, name: str, given: Cluster, actor: str) -> tuple[Cluster, bool]:
        """Add a cluster, or reach it in another way; True if it is new. It must answer."""
        async with self._own.one:
            if name in RESERVED:
                wrong = Problem("metadata.name", "has a meaning of its own; choose another", f'"{name}"')
                raise Invalid(f"cluster {name}", [wrong], KIND)
            old = self._own.by_name.get(name)
            if old is not None and old.spec == given.spec:
                return old, False
            if old is not None:
                self._refuse_used(name, "changed")
                await self._control.backend.leave(name)
            fleet = self._control.backend
            member = fleet.add(name, given.spec)
            try:
                await _tried([member])
                if member.backend is None:
                    raise Invalid(f"cluster {name}", [Problem("spec", member.problem or "no answer")], KIND)
                kept = await self._own.put(name, given, actor)
            except BaseException:
                await fleet.leave(name)
                if old is not None:
                    fleet.add(name, old.spec)
                raise
            self._control.look_again()
            return kept, old is None

    async def remove(self, name: str, actor: str) -> None:
        async with self._own.one:
            self.get(name)
            self._refuse_used(name, "removed")
            await self._own.remove(name, actor)
            await self._control.backend.leave(name)
            self._control.look_again()

    def _refuse_used(self, name: str, verb: str) -> None:
        users = sorted(
            job.name
            for job in self._control.jobs.values()
            if job.spec.placement.cluster == name or self._control.backend.cluster_of(job) == name
        )
        if users:
            more = f" and {len(users) - SHOWN} more" if len(users) > SHOWN else ""
            raise Refused(
                f"cluster {name} cannot be {verb} while jobs wait for it or run there: "
                f"{', '.join(users[:SHOWN])}{more}; cancel them or let them end"
            )

    def document(self, cluster: Cluster) -> dict[str, Any]:
        name, fleet = cluster.metadata.name or "", self._control.backend
        nodes = fleet.nodes_of(name)
        found: dict[str, Any] = cluster.model_dump(mode="json", by_alias=True, exclude_none=True)
        jobs = sum(fleet.cluster_of(job) == name for job in self._control.jobs.values())
        found["status"] = {
            "state": "READY" if fleet.problem(name) is None else "AWAY",
            "reason": fleet.problem(name),
            "nodes": len(nodes),
            "gpus": sum(len(node.gpus) for node in nodes),
            "jobs": jobs,
        }
        return found


async def _tried(members: list[Member]) -> None:
    if members:
        tries = [asyncio.ensure_future(member.tried.wait()) for member in members]
        _, left = await asyncio.wait(tries, timeout=PATIENCE)
        for task in left:
            task.cancel()
