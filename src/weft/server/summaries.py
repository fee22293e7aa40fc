"""A job in a line of a list: what is stored, and of a live one what only memory knows."""

from __future__ import annotations

from typing import Any

from weft.control.control import Control
from weft.control.live import LiveJob
from weft.model.status import State, TaskState
from weft.store.store import SUMMARY

COLUMNS = tuple(column.name for column in SUMMARY)
MOST_NODES = 8


def summary_of(control: Control, row: Any) -> dict[str, Any]:
    """A job that waits says why, one that runs how far it is; jobs that ask for the same get the same answer."""
    found = {name: value for name, value in zip(COLUMNS, row, strict=True) if value is not None}
    job = control.jobs.get(found["uid"])
    return found if job is None else found | now_of(control, job, found["state"])


def now_of(control: Control, job: LiveJob, state: str) -> dict[str, Any]:
    """What changes without an event."""
    if state == State.QUEUED:
        return {"reason": control.why_waiting(job)}
    tasks = [task for task in job.status.tasks if task.binding is not None]
    found: dict[str, Any] = {
        "nodes": sorted({task.binding.node for task in tasks if task.binding is not None})[:MOST_NODES],
        "running": sum(task.state is TaskState.RUNNING for task in tasks),
    }
    if job.gang.elastic and tasks:
        found["size"] = {"now": len(tasks), "least": len(job.gang.least), "most": len(job.gang.tasks)}
    if (far := job.status.progress) is not None:
        found |= {"reason": str(far), "progress": far.bytes / far.all_bytes if far.all_bytes else 0.0}
    if job.step is not None:
        found["step"] = job.step
    if job.progress is not None:
        found["progress"] = job.progress
    return found


def places(job: LiveJob) -> int:
    """How many of its tasks have a place."""
    return sum(task.binding is not None for task in job.status.tasks)
