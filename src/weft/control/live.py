"""A job in memory: everything that is not finished, and nothing that is."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from pydantic_core import to_json

from weft.backends.api import Assignment
from weft.model.gang import gang_of, sized
from weft.model.job import JobMetadata, TrainingJob, TrainingJobSpec
from weft.model.lifecycle import submitted
from weft.model.resource import API_VERSION
from weft.model.status import JobStatus

KIND = "TrainingJob"


@dataclass(slots=True)
class LiveJob(Assignment):
    metadata: JobMetadata = field(default_factory=JobMetadata)
    timer: asyncio.TimerHandle | None = None
    fetching: asyncio.Task[Any] | None = None
    """The fetch of its code, while that lasts."""
    metric_offsets: dict[str, int] = field(default_factory=dict)
    step: int | None = None
    """The highest that it has measured something at since this server runs."""
    progress: float | None = None
    """The last value of its metric `progress`, from 0 to 1, where it has one."""
    written: tuple[bytes, bytes] = (b"", b"")
    """Metadata and spec as JSON: they never change, so they are written out once."""
    _status_written: tuple[JobStatus | None, bytes] = (None, b"")

    @property
    def priority(self) -> int:
        return self.spec.priority

    def written_status(self) -> bytes:
        """The status as JSON: also written out once, as what is stored is also what is shown."""
        if self._status_written[0] is not self.status:
            self._status_written = (self.status, self.status.dump())
        return self._status_written[1]


def live_job(job: TrainingJob) -> LiveJob:
    """A job that has just been submitted."""
    metadata = job.metadata
    assert metadata.uid is not None
    assert metadata.name is not None
    written = (
        to_json(metadata, by_alias=True, exclude_none=True),
        to_json(job.spec, by_alias=True, exclude_none=True),
    )
    gang = gang_of(job.spec)
    return LiveJob(
        metadata.uid,
        metadata.name,
        job.spec,
        gang,
        submitted(gang),
        metadata.project,
        metadata=metadata,
        written=written,
    )


def from_row(row: Any) -> LiveJob:
    """A job as the store kept it."""
    metadata = JobMetadata.model_validate_json(row.metadata)
    return LiveJob(
        uid=row.uid,
        name=row.name,
        spec=(spec := TrainingJobSpec.model_validate_json(row.spec)),
        gang=sized(gang_of(spec), dict((status := JobStatus.load(row.status)).sizes)),
        status=status,
        project=metadata.project,
        metadata=metadata,
        written=(row.metadata.encode(), row.spec.encode()),
    )


def document(
    job: LiveJob, urls: Mapping[str, str] | None = None, forwards: Mapping[str, str] | None = None
) -> bytes:
    """The resource as JSON. `urls` may hold secrets: they are shown to who asks for this job, and never stored."""
    status = job.written_status()
    for name, told in ((b"urls", urls), (b"forwards", forwards)):
        if told:
            status = b"".join((status[:-1], b',"', name, b'":', to_json(told), b"}"))
    return _document(*job.written, status)


def stored_document(row: Any) -> bytes:
    return _document(row.metadata.encode(), row.spec.encode(), row.status.encode())


def _document(metadata: bytes, spec: bytes, status: bytes) -> bytes:
    head = f'{{"apiVersion":"{API_VERSION}","kind":"{KIND}","metadata":'.encode()
    return b"".join((head, metadata, b',"spec":', spec, b',"status":', status, b"}"))


def creation_row(job: LiveJob, submit_key: str | None) -> dict[str, Any]:
    return {
        "uid": job.uid,
        "kind": KIND,
        "name": job.name,
        "type": job.spec.type,
        "owner": job.metadata.owner or "",
        "queue": job.spec.queue,
        "project": job.project,
        "priority": job.priority,
        "created": job.metadata.created,
        "tasks": len(job.gang.preferred),
        "cpus": sum(task.request.cpu for task in job.gang.preferred) / 1000,
        "gpus": sum(task.request.gpus for task in job.gang.preferred),
        "submit_key": submit_key,
        "metadata": job.written[0].decode(),
        "spec": job.written[1].decode(),
        **status_row(job),
    }


def status_row(job: LiveJob) -> dict[str, Any]:
    """The columns that follow the status."""
    status = job.status
    ttl = job.spec.ttl_after_finished
    return {
        "state": status.state.value,
        "reason": status.reason,
        "queued": status.queued,
        "started": status.started,
        "finished": status.finished,
        "expires": status.finished + ttl if ttl is not None and status.finished is not None else None,
        "restarts": status.restarts,
        "status": job.written_status().decode(),
    }
