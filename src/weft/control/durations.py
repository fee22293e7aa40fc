"""What the scheduler may know of running jobs beside their state: how long jobs like them took, and when they last saved."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING

from weft.control import live
from weft.control.live import KIND
from weft.model.status import State
from weft.scheduler.history import Likeness, likeness

if TYPE_CHECKING:
    from weft.control.control import Control

LEARNED = 1000
PAGE = 25
CHECKPOINT_CHECK = 10.0


@dataclass(frozen=True, slots=True)
class Past:
    """A job of which only the store knows."""

    uid: str
    came: float
    like: Likeness


async def learn(control: Control) -> None:
    """The latest jobs of the store that ended by themselves, a few at a time: predictions survive a restart."""
    found: list[live.LiveJob] = []
    before = None
    states = [State.COMPLETED.value, State.FAILED.value]
    while len(found) < LEARNED:
        rows = control.store.page(KIND, states=states, limit=PAGE, before=before)
        if not rows:
            break
        found += [live.from_row(row) for row in rows]
        before = (rows[-1].created, rows[-1].uid)
        await asyncio.sleep(0.01)
    for job in reversed(found):
        status = job.status
        if status.started is not None and status.finished is not None:
            like = likeness(job.metadata.owner or "", job.name, job.gang.gpus)
            seconds = status.ran + status.finished - status.started
            past = Past(job.uid, job.metadata.created or status.started, like)
            control.books.ended(past, seconds, completed=status.state is State.COMPLETED)


async def watch_checkpoints(control: Control) -> None:
    """While others wait, know who could give way without losing much."""
    while True:
        await asyncio.sleep(CHECKPOINT_CHECK)
        if not len(control.books.pending):
            continue
        for uid in list(control.books.running.jobs):
            saved = await asyncio.to_thread(control.backend.saved, uid)
            if saved is not None and uid in control.books.running:
                control.books.running.saved(control.books.running[uid], saved, control.clock())
