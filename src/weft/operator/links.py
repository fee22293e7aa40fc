"""Which resource of the cluster belongs to what in Weft, and what both last agreed on. On disk before it counts."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

from pydantic_core import from_json, to_json

from weft.control.declared import creation_row
from weft.store.changes import Create, Delete, Update
from weft.store.store import Store


@dataclass(frozen=True, slots=True)
class Link:
    name: str
    """In Weft."""
    namespace: str | None
    resource: str
    """The resource's uid."""
    crd: str
    """The uid of its definition: what is missing in another cluster, or went with its definition, was not deleted."""
    spec: str
    """Of a job: a digest of what the resource said when it was submitted. Else: what both sides last said."""
    job: str = ""
    desire: str = ""
    """The wish of a person that was last followed."""
    seq: int = 0
    """What happened up to here was told as Events."""
    named: str = ""
    """The resource, where it has another name: that of a job of another namespace."""

    @property
    def resource_name(self) -> str:
        return self.named or self.name


class Links:
    """Those of one kind, by name."""

    def __init__(self, kind: str, store: Store):
        self._kind = f"{kind}Link"
        self._store = store
        self._by_name: dict[str, Link] = {}

    def load(self) -> None:
        for row in self._store.page(self._kind, limit=1_000_000):
            self._by_name[row.name] = Link(**from_json(row.spec))

    def __iter__(self) -> Iterator[str]:
        return iter(list(self._by_name))

    def __contains__(self, name: object) -> bool:
        return name in self._by_name

    def get(self, name: str) -> Link | None:
        return self._by_name.get(name)

    def note(self, link: Link) -> None:
        """In memory alone: what a crash may forget."""
        self._by_name[link.name] = link

    async def keep(self, link: Link) -> Link:
        said = partial(_said, link)
        change: Create | Update = Update(self._uid(link.name), said)
        if link.name not in self._by_name:
            change = Create(creation_row(self._kind, self._uid(link.name), link.name, 0.0, said()))
        await asyncio.shield(self._store.write([change]))
        self._by_name[link.name] = link
        return link

    async def drop(self, name: str) -> None:
        await asyncio.shield(self._store.write([Delete(self._uid(name))]))
        self._by_name.pop(name, None)

    def _uid(self, name: str) -> str:
        return f"link-{hashlib.sha256(f'{self._kind}/{name}'.encode()).hexdigest()[:24]}"


def _said(link: Link) -> dict[str, Any]:
    return {"metadata": "{}", "spec": to_json(asdict(link)).decode(), "owner": ""}
