"""What the API server told of its objects, change by change: what a look now and then would miss."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from testbed.api import Api

Document = dict[str, Any]


class Watched:
    """Everything that happens to objects from now on."""

    def __init__(self, api: Api, path: str, seconds: int = 200):
        found = api.get(path)
        self._there = {item["metadata"]["uid"]: item for item in found["items"]}
        self._events: list[Document] = []
        events = api.watch(path, found["metadata"]["resourceVersion"], seconds)
        threading.Thread(target=self._follow, args=(events,), daemon=True).start()

    def _follow(self, events: Any) -> None:
        for event in events:
            if event["type"] != "BOOKMARK":
                self._events.append(event)

    def seen(self) -> list[Document]:
        """Each as it last was, also those that are gone."""
        found = {event["object"]["metadata"]["uid"]: event["object"] for event in list(self._events)}
        return list({**self._there, **found}.values())

    def states(self, name: str) -> list[str | None]:
        """What the status of one said, change by change; None at its end."""
        own = [event for event in list(self._events) if event["object"]["metadata"]["name"] == name]
        return [
            None if event["type"] == "DELETED" else event["object"].get("status", {}).get("state")
            for event in own
        ]

    def most(self, amount: Callable[[Document], float]) -> float:
        """The largest sum of this over all objects that there was at any moment."""
        there = {uid: amount(item) for uid, item in self._there.items()}
        most = sum(there.values())
        for event in list(self._events):
            uid = event["object"]["metadata"]["uid"]
            there[uid] = 0 if event["type"] == "DELETED" else amount(event["object"])
            most = max(most, sum(there.values()))
        return most
