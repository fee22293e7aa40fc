"""Metrics into the store: each task's JSON lines, read on from where the store says.

The offset is written in the same transaction as the points, so a crash at any moment neither loses nor
doubles one; the file itself stays until the job is deleted.
"""

from __future__ import annotations

import asyncio
import json
import math
import os
from collections.abc import Callable, Iterable
from typing import Any

from weft.control.live import LiveJob
from weft.model.status import TaskState
from weft.runtime.regularfile import open_to_read
from weft.store.changes import Measured, Point
from weft.store.store import Store

INTERVAL = 0.3
CHUNK = 1 << 16
LITTLE = 1 << 18
LONGEST_NAME = 253
MOST_VALUES = 1000
PROGRESS = "progress"


class MetricsIntake:
    def __init__(self, store: Store, metrics_file: Callable[[str, str], str]):
        self._store = store
        self._file = metrics_file

    async def run(self, jobs: Callable[[], Iterable[LiveJob]]) -> None:
        """Follow the metrics of every running task."""
        while True:
            await asyncio.sleep(INTERVAL)
            for job in list(jobs()):
                for task in job.status.tasks:
                    if task.state is TaskState.RUNNING:
                        self._read(job, task.name)
                        await asyncio.sleep(0)

    def drain(self, job: LiveJob, task: str) -> bool:
        """Read what is left of a task that has ended, if it is little; False if it is much."""
        return any(not self._read(job, task) for _ in range(LITTLE // CHUNK))

    async def drain_much(self, job: LiveJob, task: str) -> None:
        """Read all that is left, a piece at a time, each on disk before the next."""
        while self._read(job, task):
            await asyncio.shield(self._store.write(()))

    def _read(self, job: LiveJob, task: str) -> bool:
        """Take in the next piece; False when there is nothing more for now."""
        path = self._file(job.uid, task)
        offset = job.metric_offsets.get(task, 0)
        try:
            if os.stat(path).st_size <= offset:  # noqa: PTH116
                return False
            with open_to_read(path) as file:
                file.seek(offset)
                data = file.read(CHUNK)
        except OSError:
            return False
        end = data.rfind(b"\n") + 1
        if end == 0:
            if len(data) < CHUNK:
                return False
            end = len(data)  # no line is that long: skip it
        points = [point for line in data[:end].splitlines() for point in parse_line(line, task)]
        job.metric_offsets[task] = offset + end
        _note(job, points)
        self._store.write([Measured(job.uid, task, offset + end, tuple(points))])
        return True


def _note(job: LiveJob, points: list[Point]) -> None:
    """How far the job is, for who looks at it."""
    for point in points:
        if point.step is not None and point.step > (-1 if job.step is None else job.step):
            job.step = point.step
        if point.name == PROGRESS and 0 <= point.value <= 1:
            job.progress = point.value


def parse_line(line: bytes, task: str) -> list[Point]:
    """The points of one JSON line; a line that is none gives none."""
    try:
        record: Any = json.loads(line)
        time = float(record["time"])
        values = record["values"].items()
        step = record.get("step")
        step = None if step is None else int(step)
    except (ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError):
        return []
    if not math.isfinite(time) or (step is not None and abs(step) >= 2**63):
        return []
    points = []
    for name, value in list(values)[:MOST_VALUES]:
        try:
            number = float(value)
        except (ValueError, TypeError, OverflowError):
            continue
        if not isinstance(value, bool):
            text = str(name)[:LONGEST_NAME].encode(errors="replace").decode()  # half a surrogate pair
            points.append(Point(task, text, step, time, number))
    return points
