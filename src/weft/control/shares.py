"""What queues have had lately, kept over a restart: else a queue that had much would stand as if it had had nothing."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from pydantic_core import from_json, to_json

from weft.control.declared import creation_row
from weft.store.changes import Create, Update

if TYPE_CHECKING:
    from weft.control.control import Control

KIND, NAME = "Shares", "queues"
EVERY = 60.0
"""Seconds of it that a crash may take: the window is one of hours."""


class Shares:
    def __init__(self, control: Control):
        self._control = control
        self._kept: dict[str, tuple[float, float]] | None = None

    def load(self) -> None:
        """Before anything of the jobs that run is counted."""
        row = self._control.store.resource(KIND, NAME)
        if row is None:
            return
        self._kept = {name: (past, at) for name, (past, at) in from_json(row.spec).items()}
        for name, account in self._control.books.queues.accounts.items():
            account.past, account.at = self._kept.get(name, (account.past, account.at))

    async def run(self) -> None:
        while True:
            await asyncio.sleep(EVERY)
            self.keep()

    def keep(self) -> None:
        """Nothing is written where one queue has all, or nothing was used."""
        queues, now = self._control.books.queues, self._control.clock()
        if not queues.fair:
            return
        found = {
            name: (round(queues.lately(account, now), 9), now) for name, account in queues.accounts.items()
        }
        if not any(past for past, _ in found.values()) and not self._kept:
            return
        said = {"metadata": "{}", "spec": to_json(found).decode(), "owner": ""}
        change: Create | Update = Update(KIND.lower(), lambda: said)
        if self._kept is None:
            change = Create(_row(said))
        self._kept = found
        self._control.store.write([change])


def _row(said: dict[str, Any]) -> dict[str, Any]:
    return creation_row(KIND, KIND.lower(), NAME, 0.0, said)
