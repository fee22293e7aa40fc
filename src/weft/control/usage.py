"""What tasks used over time: measured while they run, and kept beside their logs, so that it outlives the server and the job.

A file a task, of fixed records: the first says of how many measurements one is kept, each other one is kept. It is written
anew when it is thinned out, so it stays below 20 KB; what it holds, whoever could write to the task's folder may have put there.
"""

from __future__ import annotations

import asyncio
import math
import os
import struct
from collections import OrderedDict
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from weft.backends.api import TaskUsage
from weft.runtime.regularfile import open_to_append, open_to_read
from weft.runtime.tasklog import unlink

if TYPE_CHECKING:
    from weft.control.control import Control
    from weft.control.live import LiveJob

INTERVAL = 5.0
KEPT = 720
"""Of each task: an hour; then every second one goes, and so it covers twice as long."""
JOBS = 500
"""Whose points are in memory too."""
RECORD = struct.Struct("<3d")
Point = tuple[float, float, float]
"""Time, CPUs and bytes of memory."""


class Usage:
    def __init__(self, control: Control):
        self._control = control
        self._held: OrderedDict[str, dict[str, Measured]] = OrderedDict()
        """By uid and task."""
        self.heard: Callable[[float], None] = lambda _: None
        """Told whenever there is a new point of all that run."""

    async def run(self) -> None:
        while True:
            now = self._control.clock()
            await asyncio.to_thread(self._take, now, self._control.usage())
            self.heard(now)
            await asyncio.sleep(INTERVAL)

    def _take(self, now: float, found: Iterable[TaskUsage]) -> None:
        for usage in found:
            tasks = self._held.setdefault(usage.uid, {})
            if usage.task not in tasks:
                tasks[usage.task] = Measured(self._control.backend.usage_file(usage.uid, usage.task))
            tasks[usage.task].add((now, usage.cpu, usage.memory))
        while len(self._held) > JOBS:
            self._held.popitem(last=False)

    def of(self, job: LiveJob) -> dict[str, list[Point]]:
        """Of those of its tasks that were ever measured."""
        held = self._held.get(job.uid, {})
        found = {
            task.name: held.get(task.name) or Measured(self._control.backend.usage_file(job.uid, task.name))
            for task in job.gang.tasks
        }
        return {task: list(measured.points) for task, measured in found.items() if measured.points}


class Measured:
    """What one task used: all of its life in at most KEPT points."""

    def __init__(self, file: str):
        self.points: list[Point] = []
        self._file = file
        self._every = 1
        self._passed = 0
        self._read()

    def add(self, point: Point) -> None:
        self._passed += 1
        if self._passed < self._every:
            return
        self._passed = 0
        if len(self.points) >= KEPT:
            self.points = self.points[::2]
            self._every *= 2
            self.points.append(point)
            self._write_anew()
            return
        self.points.append(point)
        first = len(self.points) == 1
        self._append((self._head() if first else b"") + RECORD.pack(*point), self._file)

    def _head(self) -> bytes:
        return RECORD.pack(self._every, 0, 0)

    def _read(self) -> None:
        try:
            with open_to_read(self._file) as file:
                data = file.read((KEPT + 2) * RECORD.size)
        except OSError:
            return
        records = list(RECORD.iter_unpack(data[: len(data) - len(data) % RECORD.size]))
        points = [record for record in records[1:] if all(map(math.isfinite, record))]
        every = records[0][0] if records else 1.0
        self._every = int(every) if 1 <= every <= 2**20 else 1
        self.points = points
        if len(points) + 1 != len(records) or len(data) % RECORD.size:
            self._write_anew()

    def _write_anew(self) -> None:
        fresh = f"{self._file}.new"
        try:
            unlink(fresh)
            self._append(self._head() + b"".join(RECORD.pack(*point) for point in self.points), fresh)
            os.replace(fresh, self._file)  # noqa: PTH105
        except OSError:
            return

    def _append(self, data: bytes, path: str) -> None:
        """Where the disk is full or the folder is gone, memory has it."""
        try:
            file = open_to_append(path)
        except OSError:
            return
        try:
            os.write(file, data)
        except OSError:
            return
        finally:
            os.close(file)
