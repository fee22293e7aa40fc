"""What is written to the cluster: marks, statuses and Events. All of it may be written twice."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from weft.backends.kubernetes.client import ApiError, Client, Document
from weft.backends.kubernetes.crds import GROUP, KINDS
from weft.backends.kubernetes.names import INSTANCE
from weft.operator.status import difference, event

CRD = "CustomResourceDefinition"
REMEMBERED = 10_000
PLURALS = {kind.name: kind.plural for kind in KINDS}
log = logging.getLogger("weft.operator")


class Definition:
    """One kind of custom resource, as the cluster knows it."""

    def __init__(self, client: Client, kind: str, uid: str):
        self.client = client
        self.kind = kind
        self.uid = uid
        """Of its definition."""
        self._told: set[str] = set()

    async def stands(self) -> bool:
        """Whether its definition is the one that it was: else its resources went with it, and nobody deleted them."""
        try:
            found = await self.client.get(CRD, f"{PLURALS[self.kind]}.{GROUP}")
        except ApiError as problem:
            if problem.missing:
                return False
            raise
        metadata = found["metadata"]
        return metadata["uid"] == self.uid and "deletionTimestamp" not in metadata

    async def claim(self, document: Document, instance: str) -> None:
        """Mark a resource as ours, if nobody has touched it since: of several control planes one has it."""
        metadata = document["metadata"]
        change = {
            "metadata": {"labels": {INSTANCE: instance}, "resourceVersion": metadata["resourceVersion"]}
        }
        await self.client.patch(self.kind, metadata["name"], metadata.get("namespace"), change)

    async def tell_status(self, document: Document, wanted: Mapping[str, Any]) -> None:
        change = difference(wanted, document.get("status") or {})
        if change:
            metadata = document["metadata"]
            await self.client.patch(
                self.kind, metadata["name"], metadata.get("namespace"), {"status": change}, "status"
            )

    async def tell_event(
        self,
        about: tuple[str, str | None, str],
        key: str,
        reason: str,
        message: str,
        when: float,
        *,
        warning: bool = False,
    ) -> None:
        """`about`: name, namespace and uid. An Event that cannot be made is no reason to stop."""
        name, namespace, uid = about
        own = f"{name}.{key}"
        if own in self._told:
            return
        of = {"kind": self.kind, "name": name, "uid": uid}
        if namespace is not None:
            of["namespace"] = namespace
        made = event(of, own, reason, message, when, warning=warning)
        try:
            await self.client.create(made, made["metadata"]["namespace"])
        except ApiError as problem:
            if problem.passing:
                raise
            if problem.status != 409:
                log.info("event on %s %s: %s", self.kind, name, problem)
        if len(self._told) >= REMEMBERED:
            self._told.clear()  # the API server remembers, too
        self._told.add(own)


async def definitions(client: Client) -> dict[str, Definition]:
    """All of ours that are installed, by kind. ApiError if one is not."""
    found = {}
    for kind, plural in PLURALS.items():
        document = await client.get(CRD, f"{plural}.{GROUP}")
        if "deletionTimestamp" in document["metadata"]:
            raise ApiError(404, f"{plural}.{GROUP} is being deleted")
        found[kind] = Definition(client, kind, document["metadata"]["uid"])
    return found
