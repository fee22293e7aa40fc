"""Secrets: files that only the server's user can read, never part of a job, an event or a log."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

from weft.model.resource import NAME_PATTERN

KEY_PATTERN = r"^[A-Za-z0-9._-]{1,253}$"


class Secrets:
    def __init__(self, folder: Path):
        self._folder = folder

    def names(self) -> dict[str, list[str]]:
        """Each secret with its keys; no values."""
        return {file.stem: sorted(self._read(file.stem)) for file in sorted(self._folder.glob("*.json"))}

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

    def value(self, name: str, key: str) -> str | None:
        return self._read(name).get(key)

    def _read(self, name: str) -> dict[str, str]:
        try:
            found: dict[str, str] = json.loads((self._folder / f"{name}.json").read_text())
        except FileNotFoundError:
            return {}
        return found
