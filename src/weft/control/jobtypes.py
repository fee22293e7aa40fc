"""The job types that there are: those that come with Weft, and those that somebody applied, which are kept in the store.

A job carries what its type made of it, so that a type can be changed while jobs of it run.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator
from difflib import get_close_matches
from functools import partial
from typing import Any

from pydantic_core import to_json

from weft.jobtypes.catalogue import built_in, catalogue
from weft.model.jobtype import JobType, JobTypeSpec, wrong_with
from weft.model.lifecycle import Refused
from weft.model.problems import Invalid
from weft.model.resource import Metadata
from weft.store.changes import Create, Delete, Happened, Update
from weft.store.store import Store

KIND = "JobType"


class NoJobType(Exception):
    def __init__(self, name: str, known: Iterable[str]):
        super().__init__(f"there is no job type {name}")
        self.near = get_close_matches(name, known, n=3)


class JobTypes:
    def __init__(self, store: Store, clock: Callable[[], float], new_uid: Callable[[float], str]):
        self._store = store
        self._clock = clock
        self._new_uid = new_uid
        self._one = asyncio.Lock()
        self._own: dict[str, JobType] = {}
        self.specs: dict[str, JobTypeSpec] = dict(built_in())
        """All of them by name: what jobs are completed with."""

    def load(self) -> None:
        """As they were when the last server ended."""
        for row in self._store.page(KIND, limit=1_000_000):
            metadata = Metadata.model_validate_json(row.metadata)
            spec = JobTypeSpec.model_validate_json(row.spec)
            self._keep(JobType(metadata=metadata, spec=spec))

    def __iter__(self) -> Iterator[JobType]:
        yield from sorted({**catalogue(), **self._own}.values(), key=lambda kind: kind.metadata.name or "")

    def get(self, name: str) -> JobType:
        found = self._own.get(name) or catalogue().get(name)
        if found is None:
            raise NoJobType(name, self.specs)
        return found

    async def put(self, name: str, given: JobType, actor: str) -> tuple[JobType, bool]:
        """Keep a type, or change it; True if it is new."""
        async with self._one:
            if name in catalogue():
                raise Refused(f"job type {name} comes with Weft and cannot be changed; choose another name")
            if problems := list(wrong_with(given.spec)):
                raise Invalid(f"job type {name}", problems, KIND)
            now = self._clock()
            old = self._own.get(name)
            own: dict[str, Any] = {"name": name, "generate_name": None, "owner": actor}
            own |= {"uid": self._new_uid(now), "created": now} if old is None else _known(old.metadata)
            kept = JobType(metadata=given.metadata.model_copy(update=own), spec=given.spec)
            uid = kept.metadata.uid or ""
            change = Create(_creation_row(kept)) if old is None else Update(uid, partial(_said, kept))
            note = Happened(now, uid, name, "jobtype", "kept" if old is None else "changed", actor)
            await asyncio.shield(self._store.write([change, note], refusable=True))
            self._keep(kept)
            return kept, old is None

    async def remove(self, name: str, actor: str) -> None:
        """Jobs of the type have what they need of it, and go on."""
        async with self._one:
            if name in catalogue():
                raise Refused(f"job type {name} comes with Weft and cannot be deleted")
            kept = self.get(name)
            uid = kept.metadata.uid or ""
            gone = Happened(self._clock(), uid, name, "jobtype", "deleted", actor)
            await asyncio.shield(self._store.write([Delete(uid), gone], refusable=True))
            del self._own[name], self.specs[name]

    def _keep(self, job_type: JobType) -> None:
        name = job_type.metadata.name or ""
        self._own[name] = job_type
        self.specs[name] = job_type.spec


def document(job_type: JobType) -> dict[str, Any]:
    found: dict[str, Any] = job_type.model_dump(mode="json", by_alias=True, exclude_none=True)
    found["status"] = {"builtIn": job_type.metadata.uid is None}
    return found


def _known(metadata: Metadata) -> dict[str, Any]:
    return {"uid": metadata.uid, "created": metadata.created}


def _said(job_type: JobType) -> dict[str, Any]:
    return {
        "metadata": to_json(job_type.metadata, by_alias=True, exclude_none=True).decode(),
        "spec": to_json(job_type.spec, by_alias=True, exclude_none=True).decode(),
        "owner": job_type.metadata.owner or "",
    }


def _creation_row(job_type: JobType) -> dict[str, Any]:
    return {
        "uid": job_type.metadata.uid,
        "kind": KIND,
        "name": job_type.metadata.name,
        "state": "",
        "type": "",
        "queue": "",
        "priority": 0,
        "created": job_type.metadata.created,
        "tasks": 0,
        "restarts": 0,
        "status": "{}",
        **_said(job_type),
    }
