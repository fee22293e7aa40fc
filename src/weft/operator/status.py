"""What kubectl shows of a job: the status of its resource, and an Event for everything that happened to it."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from weft.backends.kubernetes.client import Document
from weft.model.resource import API_VERSION
from weft.model.status import JobStatus, State, TaskState
from weft.operator.resource import canonical

REFUSED, ACCEPTED = "REFUSED", "ACCEPTED"
BAD = frozenset({State.FAILED, State.PREEMPTED, State.RESTARTING})
LONGEST_MESSAGE = 1000
"""Kubernetes takes 1024 bytes of an Event's message."""
SPEC_IGNORED = (
    "a job does not change once it was submitted: the new spec is ignored; to run it, delete the job and apply it "
    "again, or apply it under another name"
)


def moment(seconds: float | None) -> str | None:
    return None if seconds is None else datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def job_status(
    name: str,
    uid: str,
    status: JobStatus,
    size: int,
    reason: str | None,
    generation: int,
    *,
    ignored: bool = False,
) -> dict[str, Any]:
    """`name`: what Weft calls it; `size`: how many tasks it asks for; `ignored`: the resource no longer says what was submitted."""
    up = sum(task.state in (TaskState.RUNNING, TaskState.SUCCEEDED) for task in status.tasks)
    failure = status.failure
    shown: dict[str, Any] = {
        "state": status.state.value,
        "reason": reason or (SPEC_IGNORED if ignored else None),
        "reasonCode": status.reason_code.value if status.reason_code and reason == status.reason else None,
        "desire": status.desire.value,
        "queued": moment(status.queued),
        "started": moment(status.started),
        "finished": moment(status.finished),
        "restarts": status.restarts,
        "preemptions": status.preemptions,
        "tasks": f"{up}/{size}",
        "failure": None
        if failure is None
        else {"code": failure.code.value, "message": failure.message, "task": failure.task},
        "conditions": _conditions(status, ignored),
        "observedGeneration": generation,
        "job": name,
        "jobUid": uid,
    }
    return _said(shown)


def _conditions(status: JobStatus, ignored: bool) -> list[dict[str, Any]]:
    """As a Job of Kubernetes has them, so that `kubectl wait --for=condition=Complete` works."""
    found = []
    for kind, state in (("Complete", State.COMPLETED), ("Failed", State.FAILED)):
        if status.state is state:
            found.append({"type": kind, "status": "True", "lastTransitionTime": moment(status.finished)})
    if ignored:
        found.append(
            {"type": "SpecIgnored", "status": "True", "reason": "JobsDoNotChange", "message": SPEC_IGNORED}
        )
    return found


def refused_status(problems: str, generation: int) -> dict[str, Any]:
    return {"state": REFUSED, "reason": problems, "observedGeneration": generation}


def accepted_status(generation: int) -> dict[str, Any]:
    return {"state": ACCEPTED, "observedGeneration": generation}


def _said(part: dict[str, Any]) -> dict[str, Any]:
    return {
        name: _said(value) if isinstance(value, dict) else value
        for name, value in part.items()
        if value is not None
    }


def difference(wanted: Mapping[str, Any], seen: Mapping[str, Any]) -> dict[str, Any]:
    """The merge patch that makes one of the other; empty if they are the same."""
    patch: dict[str, Any] = {name: None for name in seen if name not in wanted}
    for name, value in wanted.items():
        before = seen.get(name)
        if isinstance(value, Mapping) and isinstance(before, Mapping):
            if inside := difference(value, before):
                patch[name] = inside
        elif name not in seen or canonical(value) != canonical(before):  # in JSON, 0 is not false
            patch[name] = value
    return patch


def event(
    about: Mapping[str, Any], name: str, reason: str, message: str, when: float, *, warning: bool = False
) -> Document:
    """An Event on an object. Its name is the caller's, so that telling it twice tells it once."""
    at = moment(when)
    namespace = about.get("namespace") or "default"
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": name, "namespace": namespace},
        "involvedObject": {"apiVersion": API_VERSION, **about},
        "reason": reason,
        "message": message[:LONGEST_MESSAGE],
        "type": "Warning" if warning else "Normal",
        "source": {"component": "weft"},
        "firstTimestamp": at,
        "lastTimestamp": at,
        "count": 1,
    }


def camel(state: str) -> str:
    return "".join(word.capitalize() for word in state.split("_"))
