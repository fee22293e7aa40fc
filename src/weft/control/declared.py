"""What operators declare and the store keeps, by name: a row each, which says who said what, and an event for each change."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Any, Generic, TypeVar

from pydantic_core import from_json, to_json

from weft.model.cluster import Cluster
from weft.model.dataset import Dataset
from weft.model.jobtype import JobType
from weft.model.queue import Queue
from weft.model.resource import Metadata
from weft.model.sizes import Size
from weft.store.changes import Create, Delete, Happened, Update
from weft.store.store import Store

R = TypeVar("R", Queue, JobType, Size, Cluster, Dataset)


class Declared(Generic[R]):
    """The resources of one kind. Callers change one at a time, holding `one`; nothing is so before it is on disk."""

    def __init__(
        self,
        kind: str,
        model: type[R],
        store: Store,
        clock: Callable[[], float],
        new_uid: Callable[[float], str],
    ):
        self.one = asyncio.Lock()
        self.by_name: dict[str, R] = {}
        self._kind = kind
        self._model: type[R] = model
        self._store = store
        self._clock = clock
        self._new_uid = new_uid

    def load(self) -> None:
        """As they were when the last server ended."""
        for row in self._store.page(self._kind, limit=1_000_000):
            kept = {"metadata": from_json(row.metadata), "spec": from_json(row.spec)}
            self.by_name[row.name] = self._model.model_validate(kept)

    async def settled(self) -> None:
        """Wait for the change that is being made, if there is one: its event is told before it can be read."""
        async with self.one:
            pass

    async def put(self, name: str, given: R, actor: str) -> R:
        """Keep it, or change the one of this name; with the metadata that the server gives it."""
        now = self._clock()
        old = self.by_name[name].metadata if name in self.by_name else Metadata()
        uid, created = old.uid or self._new_uid(now), old.created or now
        own = {"name": name, "generate_name": None, "owner": actor, "uid": uid, "created": created}
        metadata = given.metadata.model_copy(update=own)
        kept = given.model_copy(update={"metadata": metadata, "status": None})
        said = partial(_said, kept)
        stored = old.uid is not None
        change = Update(uid, said) if stored else Create(creation_row(self._kind, uid, name, created, said()))
        await self._write(change, uid, name, "changed" if stored else "declared", actor)
        self.by_name[name] = kept
        return kept

    async def remove(self, name: str, actor: str) -> None:
        kept = self.by_name.pop(name)  # first, so that nobody builds on it meanwhile
        uid = kept.metadata.uid or ""
        try:
            await self._write(Delete(uid), uid, name, "deleted", actor)
        except Exception:
            self.by_name[name] = kept
            raise

    async def _write(
        self, change: Create | Update | Delete, uid: str, name: str, cause: str, actor: str
    ) -> None:
        note = Happened(self._clock(), uid, name, self._kind.lower(), cause, actor)
        await asyncio.shield(self._store.write([change, note], refusable=True))


def creation_row(kind: str, uid: str, name: str, created: float, said: dict[str, Any]) -> dict[str, Any]:
    """The row of something that never waits or runs; `said` are its owner, metadata and spec."""
    return {
        "uid": uid,
        "kind": kind,
        "name": name,
        "state": "",
        "type": "",
        "queue": "",
        "priority": 0,
        "created": created,
        "tasks": 0,
        "restarts": 0,
        "status": "{}",
        **said,
    }


def _said(resource: Queue | JobType | Size | Cluster | Dataset) -> dict[str, Any]:
    """The columns that a change of mind changes."""
    return {
        "metadata": to_json(resource.metadata, by_alias=True, exclude_none=True).decode(),
        "spec": to_json(resource.spec, by_alias=True, exclude_none=True).decode(),
        "owner": resource.metadata.owner or "",
    }
