"""Secrets: files that only the server's user can read, never part of a job, an event or a log.

A secret is a file NAME.json, or a folder NAME with a file for each key: so a Secret of Kubernetes is mounted. Such a one is kept
elsewhere, and only read here.
"""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

from weft.model.resource import NAME_PATTERN

KEY_PATTERN = r"^[A-Za-z0-9._-]{1,253}$"
KEY = re.compile(r"(?!\.\.)" + KEY_PATTERN[1:])
"""Of a file with a key: what begins with two dots is kubelet's."""


class Secrets:
    def __init__(self, folder: Path):
        self._folder = folder

    def names(self) -> dict[str, list[str]]:
        """Each secret with its keys; no values."""
        stored = {file.stem for file in self._folder.glob("*.json")}
        mounted = {place.name for place in self._folder.iterdir() if place.is_dir()}
        return {name: sorted(self._read(name)) for name in sorted(stored | mounted)}

    def mounted(self, name: str) -> bool:
        """Whether it is kept elsewhere."""
        return (self._folder / name).is_dir()

    def put(self, name: str, data: dict[str, str]) -> None:
        """Add or replace keys, in one rename."""
        assert re.match(NAME_PATTERN, name)
        merged = {**self._read(name), **data}
        temporary = self._folder / f".{name}.new"
        fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(fd, "w") as file:
            json.dump(merged, file)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(self._folder / f"{name}.json")

    def remove(self, name: str) -> bool:
        path = self._folder / f"{name}.json"
        if not path.exists():
            return False
        path.unlink()
        return True

    def keys(self, name: str) -> list[str]:
        return sorted(self._read(name))

    def all(self, name: str) -> dict[str, str]:
        """Keys and values, for what the server itself reads from somewhere."""
        return self._read(name)

    def value(self, name: str, key: str) -> str | None:
        return self._read(name).get(key)

    def _read(self, name: str) -> dict[str, str]:
        if self.mounted(name):
            places = (self._folder / name).iterdir()
            return {
                place.name: place.read_text() for place in places if KEY.match(place.name) and place.is_file()
            }
        try:
            found: dict[str, str] = json.loads((self._folder / f"{name}.json").read_text())
        except FileNotFoundError:
            return {}
        return found
