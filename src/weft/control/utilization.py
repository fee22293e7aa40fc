"""How much of the cluster was given away over time: read from the books every ten seconds and kept for a day, also over
restarts, in a file of fixed records beside the database, of which an unfinished last one is cut off.
"""

from __future__ import annotations

import asyncio
import os
import struct
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import asdict, astuple, dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from weft.model.status import State

if TYPE_CHECKING:
    from weft.control.control import Control

INTERVAL = 10.0
KEPT = 8640
"""A day."""


@dataclass(frozen=True, slots=True)
class Sample:
    """One moment; CPUs and GPUs as people count them, memory in bytes."""

    time: float
    cpu: float
    cpu_total: float
    memory: float
    memory_total: float
    gpu: float
    gpu_total: float
    running: float
    waiting: float

    def document(self) -> dict[str, Any]:
        found = asdict(self)
        return {
            "time": self.time,
            **{
                kind: {"used": found[kind], "total": found[f"{kind}_total"]}
                for kind in ("cpu", "memory", "gpu")
            },
            "running": int(self.running),
            "waiting": int(self.waiting),
        }


RECORD = struct.Struct(f"<{len(fields(Sample))}d")


class Utilization:
    def __init__(self, control: Control, file: Path):
        self._control = control
        self._file = file
        self.samples: deque[Sample] = deque(_read(file), KEPT)
        self.heard: Callable[[Sample], None] = lambda _: None
        """Told of every new sample."""

    async def run(self) -> None:
        while True:
            sample = self.now()
            self.samples.append(sample)
            self.heard(sample)
            self._keep(sample)
            await asyncio.sleep(INTERVAL)

    def now(self) -> Sample:
        control = self._control
        rooms = control.books.cluster.rooms.values()
        states = [job.status.state for job in control.jobs.values()]
        waiting = sum(state in (State.PENDING, State.QUEUED, State.PREEMPTED) for state in states)
        cpus = sum(room.node.cpu for room in rooms) / 1000
        memory = sum(room.node.memory for room in rooms)
        gpus = sum(len(room.node.gpus) for room in rooms)
        free = sum(len(room.gpus) + sum(room.split.values()) / 1000 for room in rooms)
        return Sample(
            time=control.clock(),
            cpu=cpus - sum(room.cpu for room in rooms) / 1000,
            cpu_total=cpus,
            memory=memory - sum(room.memory for room in rooms),
            memory_total=memory,
            gpu=gpus - free,
            gpu_total=gpus,
            running=len(states) - waiting,
            waiting=waiting,
        )

    def since(self, moment: float, points: int) -> list[Sample]:
        """What was since then, at most about so many: neighbours become their mean."""
        found = [sample for sample in self.samples if sample.time >= moment]
        width = -(-len(found) // points)
        if width <= 1:
            return found
        groups = [found[begin : begin + width] for begin in range(0, len(found), width)]
        return [
            Sample(*(sum(column) / len(group) for column in zip(*map(astuple, group), strict=True)))
            for group in groups
        ]

    def _keep(self, sample: Sample) -> None:
        """Where the disk is full, memory has it."""
        try:
            if self._file.exists() and self._file.stat().st_size > 2 * KEPT * RECORD.size:
                fresh = self._file.with_suffix(".new")
                fresh.write_bytes(b"".join(RECORD.pack(*astuple(kept)) for kept in self.samples))
                fresh.replace(self._file)
                return
            with self._file.open("ab") as file:
                file.write(RECORD.pack(*astuple(sample)))
        except OSError:
            return


def _read(file: Path) -> Sequence[Sample]:
    try:
        size = file.stat().st_size
        if size % RECORD.size:
            os.truncate(file, size - size % RECORD.size)
        data = file.read_bytes()
    except OSError:
        return ()
    return [Sample(*values) for values in RECORD.iter_unpack(data)][-KEPT:]
