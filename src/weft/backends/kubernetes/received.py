"""What has come from a pod, kept on the control plane's own disk as the local engine keeps it: it outlives pod and node."""

from __future__ import annotations

import json
import os
from pathlib import Path

from weft.backends.folders import JobFolder, replace_file
from weft.runtime.books import NAME
from weft.runtime.hidden import hidden
from weft.runtime.regularfile import open_to_append
from weft.runtime.tasklog import TaskLog

LOG_SEGMENT = 8 << 20
LOG_SEGMENTS_KEPT = 8


class Received:
    """The log and the metrics of one launch of a task, appended to those of the launches before it.

    A pod counts from 0. Where it began here is noted once, so that what is here already is never asked for twice,
    whichever of pod, agent and control plane was killed in between.
    """

    def __init__(self, folder: JobFolder, task: str, launch: int):
        os.makedirs(folder.task(task), exist_ok=True)  # noqa: PTH103
        self._log = TaskLog(folder.task(task), LOG_SEGMENT, LOG_SEGMENTS_KEPT)
        self._checkpoints = folder.checkpoints
        self._metrics = f"{folder.task(task)}/metrics.jsonl"
        self._note = f"{folder.task(task)}/received-{launch}.json"
        try:
            begun = json.loads(Path(self._note).read_text())
        except (OSError, ValueError):
            begun = {"log": self._log.offset, "metrics": self._size()}
            replace_file(self._note, json.dumps(begun))
        self._begun: dict[str, int] = begun

    @property
    def log_offset(self) -> int:
        return self._log.offset - self._begun["log"]

    @property
    def metrics_offset(self) -> int:
        return self._size() - self._begun["metrics"]

    def log(self, offset: int, data: bytes, time: float) -> None:
        """From this offset of the pod's output. What is here already is passed over, a gap is marked."""
        if offset > self.log_offset:
            mark = b"[weft: %d bytes left out: the task prints faster than they can be fetched]\n"
            missing = offset - self.log_offset
            self._log.write(mark % missing, time)
            self._begun["log"] = self._log.offset - offset
            replace_file(self._note, json.dumps(self._begun))
        self._log.write(data[self.log_offset - offset :], time)

    def metrics(self, offset: int, data: bytes) -> None:
        data = data[self.metrics_offset - offset :] if offset <= self.metrics_offset else data
        file = open_to_append(self._metrics)
        try:
            os.write(file, data)
        finally:
            os.close(file)

    def books(self, name: str, data: bytes) -> None:
        """Who had which shards, kept where a task's next pod gets them from."""
        if NAME.fullmatch(name):
            place = Path(hidden(self._checkpoints, "shards"), name)
            part = place.with_name(f"{name}.part")
            part.write_bytes(data)
            part.replace(place)

    def _size(self) -> int:
        try:
            return os.stat(self._metrics).st_size  # noqa: PTH116
        except OSError:
            return 0

    def close(self) -> None:
        self._log.close()
