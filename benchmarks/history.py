"""A home with many finished jobs, made without running them: by Weft's own state machine and store.

Every job is a whole resource with its events and its folder, exactly as a real run leaves it; only the
processes are left out.
"""

from __future__ import annotations

import asyncio
import os
import time
from pathlib import Path
from typing import Any

from harness import job

from weft.backends.folders import JobFolder
from weft.control import live
from weft.jobtypes.complete import read_job
from weft.model import events, lifecycle
from weft.model.job import TrainingJob
from weft.model.status import Binding, Exit, Stored
from weft.store.changes import Create, Happened
from weft.store.store import Store

OWNER = "someone"
SPACING = 30.0
AT_ONCE = 500


def fill(home: Path, count: int) -> None:
    """So many finished jobs, the last of them a moment ago; one in ten failed, one in ten has two tasks."""
    home.mkdir(parents=True, exist_ok=True, mode=0o700)
    (home / "jobs").mkdir(exist_ok=True)
    asyncio.run(_write(home, count))


async def _write(home: Path, count: int) -> None:
    store = Store(home / "weft.db")
    begin = time.time() - SPACING * count
    changes: list[Any] = []
    for number in range(count):
        changes += _finished(home, number, begin + SPACING * number)
        if (number + 1) % AT_ONCE == 0 or number + 1 == count:
            await store.write(changes)
            changes = []
    store.close()


def _finished(home: Path, number: int, created: float) -> list[Any]:
    entry = live.live_job(_submitted(number, created))
    gang = entry.gang
    code = 1 if number % 10 == 3 else 0
    names = [task.name for task in gang.tasks]
    happened = [
        Happened(created, entry.uid, entry.name, "state", "submitted", OWNER, entry.status.state.value)
    ]
    steps: list[tuple[float, str, events.Event]] = [
        (0.0, "weft", events.Admitted()),
        (0.001, "scheduler", events.Placed(tuple(Binding(name, "local", (0,)) for name in names))),
        (0.002, "weft", events.Provisioned()),
        (0.004, "weft", events.Launched(1, tuple((name, 10_000 + number) for name in names))),
        *((20.0, "weft", events.Exited(n, 1, Exit(code, peak_memory=9 << 20, cpu_seconds=9.5))) for n in names),
        (20.001, "weft", events.ResultsStored(Stored(2, 4096))),
    ]  # fmt: skip
    for after, actor, event in steps:
        previous = entry.status.state
        outcome = lifecycle.advance(entry.status, event, gang, created + after)
        entry.status = outcome.status
        if entry.status.state is not previous:
            state = entry.status.state.value
            happened.append(
                Happened(
                    created + after,
                    entry.uid,
                    entry.name,
                    "state",
                    outcome.cause,
                    actor,
                    state,
                    previous.value,
                )
            )
    assert entry.status.state.finished, entry.status
    for folder in JobFolder(str(home / "jobs"), entry.uid).for_tasks(names):
        os.mkdir(folder)
    return [Create(live.creation_row(entry, None)), *happened]


def _submitted(number: int, created: float) -> TrainingJob:
    document = job(
        f"train-{number:05d}",
        ["python", "train.py", "--lr", "0.1", "--epochs", "20"],
        env={"DATASET": "digits", "SEED": str(number)},
        roles={
            "worker": {"replicas": 2 if number % 10 == 7 else 1, "resources": {"cpu": 1, "memory": "1Gi"}}
        },
    )
    document["metadata"] |= {"labels": {"team": "vision", "sweep": f"s{number // 100}"}}
    asked = read_job(document, "job")
    uid = f"{int(created * 1000):011x}{number:010x}"
    metadata = asked.metadata.model_copy(update={"uid": uid, "created": created, "owner": OWNER})
    return asked.model_copy(update={"metadata": metadata})
