"""A watch that never ends: list, follow, and list again when the API server has forgotten where we were."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable, Iterable

from weft.backends.api import EngineUnavailable
from weft.backends.kubernetes.client import ApiError, Client, Document

SECONDS = 60
"""A watch is asked for anew after so long; bookmarks keep its place."""
SHORTEST, LONGEST = 0.1, 5.0
GONE = 410
PATIENCE = 30.0
log = logging.getLogger("weft.kubernetes")


class Watch:
    """Tells of every object of a kind: all there are at first, then each change, and after a gap what changed in it.

    `changed` is called with a document, `gone` with the last that was known of it. What a listener keeps is its own.
    """

    def __init__(
        self,
        client: Client,
        kind: str,
        changed: Callable[[Document], None],
        gone: Callable[[Document], None],
        namespace: str | None = None,
        **selectors: str,
    ):
        self._client = client
        self._kind = kind
        self._changed = changed
        self._gone = gone
        self._namespace = namespace
        self._selectors = selectors
        self._version = ""
        self._known: dict[str, Document] = {}
        """By uid, no more of each than tells which it is."""
        self.synced = asyncio.Event()
        self.problem: str | None = None
        """Why nothing is heard at the moment."""

    async def run(self) -> None:
        pause = SHORTEST
        while True:
            try:
                if not self._version:
                    await self._list()
                await self._follow()
                pause = SHORTEST
                continue
            except ApiError as problem:
                if problem.status == GONE:
                    self._version = ""
                    continue
                if self.problem is None:
                    log.warning("watching %ss: %s", self._kind.lower(), problem)
                self.problem = str(problem)
            except Exception as problem:  # nobody would begin it again
                if self.problem is None:
                    log.exception("watching %ss", self._kind.lower())
                self.problem = f"{self._kind.lower()}s cannot be watched: {type(problem).__name__}: {problem}"
                self._version = ""
            await asyncio.sleep(pause * random.uniform(0.8, 1.2))  # noqa: S311
            pause = min(2 * pause, LONGEST)

    async def _list(self) -> None:
        found, version = await self._client.listing(self._kind, self._namespace, **self._selectors)
        self._heard()
        there = {item["metadata"]["uid"] for item in found}
        for uid, document in list(self._known.items()):
            if uid not in there:
                self._tell("DELETED", document)
        for item in found:
            item.setdefault("kind", self._kind)
            self._tell("ADDED", item)
        self._version = version
        self.synced.set()

    async def _follow(self) -> None:
        events = self._client.watch(self._kind, self._version, SECONDS, self._namespace, **self._selectors)
        async for kind, document in events:
            self._heard()
            self._version = document["metadata"]["resourceVersion"]
            if kind != "BOOKMARK":
                self._tell(kind, document)

    def _heard(self) -> None:
        if self.problem is not None:
            log.info("watching %ss again", self._kind.lower())
            self.problem = None

    def _tell(self, kind: str, document: Document) -> None:
        """A listener's mistake over one object must not end the watch of all."""
        uid = document["metadata"]["uid"]
        try:
            if kind == "DELETED":
                self._known.pop(uid, None)
                self._gone(document)
            else:
                self._known[uid] = _remembered(document)
                self._changed(document)
        except Exception:
            log.exception("%s %s", self._kind, document["metadata"].get("name"))


def _remembered(document: Document) -> Document:
    metadata = document["metadata"]
    kept = {key: metadata[key] for key in ("name", "namespace", "uid", "labels") if key in metadata}
    return {"metadata": kept}


async def all_synced(watches: Iterable[Watch], server: str) -> None:
    """Until each has told all that there is; EngineUnavailable if one cannot."""
    for watch in watches:
        try:
            await asyncio.wait_for(watch.synced.wait(), PATIENCE)
        except TimeoutError:
            why = watch.problem or "no answer"
            raise EngineUnavailable(
                f"cluster {server}: {why}; look at the kubeconfig (--kubeconfig, --context) and at what its user may do"
            ) from None
