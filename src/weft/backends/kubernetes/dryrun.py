"""What a job would be as objects, before it is submitted: no place is decided, and nothing secret is made."""

from __future__ import annotations

from typing import Any

from weft.backends.api import Assignment
from weft.backends.kubernetes.render import render, unsupported
from weft.backends.kubernetes.settings import Settings
from weft.model.failures import Code, Permanent
from weft.model.gang import gang_of
from weft.model.job import TrainingJobSpec
from weft.model.lifecycle import submitted

LATER = "made when it is submitted"
NO_UID = "0" * 12


def objects_of(
    name: str, spec: TrainingJobSpec, settings: Settings, project: str | None = None
) -> list[dict[str, Any]]:
    """The objects of its first launch; Permanent where no cluster could run it.

    A package may still be with the client, so its code is told of as sent to the agents, however small it is.
    """
    gang = gang_of(spec)
    job = Assignment(NO_UID, name, spec, gang, submitted(gang), project)
    if (problem := unsupported(job)) is not None:
        raise Permanent(Code.CANNOT_START, problem)
    pushes = ["code"] if spec.code is not None else []
    tasks = [task.name for task in gang.preferred]
    return render(job, 1, tasks, settings, LATER, None, pushes, LATER, LATER).objects()
