"""Server-sent events, read incrementally: bytes in, whole events out."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Event:
    name: str
    data: str
    id: str | None = None

    def json(self) -> Any:
        return json.loads(self.data) if self.data else {}


class Parser:
    """Feed it chunks as they come. A comment (the server's keep-alive) comes out as None: a sign of life."""

    def __init__(self) -> None:
        self._rest = b""
        self._name = "message"
        self._data: list[str] = []
        self.last_id: str | None = None

    def feed(self, chunk: bytes) -> list[Event | None]:
        *lines, self._rest = (self._rest + chunk).split(b"\n")
        found: list[Event | None] = []
        for raw in lines:
            line = raw.removesuffix(b"\r").decode("utf-8", "replace")
            if line.startswith(":"):
                found.append(None)
            elif line:
                self._field(line)
            else:
                found.extend(self._dispatch())
        return found

    def _field(self, line: str) -> None:
        name, _, value = line.partition(":")
        value = value.removeprefix(" ")
        if name == "data":
            self._data.append(value)
        elif name == "event":
            self._name = value
        elif name == "id":
            self.last_id = value

    def _dispatch(self) -> list[Event]:
        """An event without data is none, but for a named one: `event: end` may come bare."""
        name, data = self._name, self._data
        self._name, self._data = "message", []
        return [Event(name, "\n".join(data), self.last_id)] if data or name != "message" else []
