"""The job types that there are: those that come with Weft, and those that somebody applied, which are kept in the store.

A job carries what its type made of it, so that a type can be changed while jobs of it run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from weft.control.declared import Declared
from weft.control.nosuch import NoJobType
from weft.jobtypes.catalogue import built_in, catalogue
from weft.model.jobtype import JobType, JobTypeSpec, wrong_with
from weft.model.lifecycle import Refused
from weft.model.problems import Invalid
from weft.store.store import Store

KIND = "JobType"


class JobTypes:
    def __init__(self, store: Store, clock: Callable[[], float], new_uid: Callable[[float], str]):
        self._own = Declared(KIND, JobType, store, clock, new_uid)

    def load(self) -> None:
        """As they were when the last server ended."""
        self._own.load()

    def load_built_in(self) -> None:
        """They are files, which are otherwise read when first asked for."""
        catalogue()

    @property
    def specs(self) -> dict[str, JobTypeSpec]:
        """All of them by name: what jobs are completed with."""
        return {**built_in(), **{name: job_type.spec for name, job_type in self._own.by_name.items()}}

    @property
    def own(self) -> Mapping[str, JobType]:
        """Those that somebody applied."""
        return self._own.by_name

    def __iter__(self) -> Iterator[JobType]:
        yield from (self.get(name) for name in sorted(self.specs))

    def get(self, name: str) -> JobType:
        found = self._own.by_name.get(name) or catalogue().get(name)
        if found is None:
            raise NoJobType(name, self.specs)
        return found

    async def settled(self) -> None:
        await self._own.settled()

    async def put(self, name: str, given: JobType, actor: str) -> tuple[JobType, bool]:
        """Keep a type, or change it; True if it is new."""
        async with self._own.one:
            if name in catalogue():
                raise Refused(f"job type {name} comes with Weft and cannot be changed; choose another name")
            if problems := list(wrong_with(given.spec)):
                raise Invalid(f"job type {name}", problems, KIND)
            new = name not in self._own.by_name
            return await self._own.put(name, given, actor), new

    async def remove(self, name: str, actor: str) -> None:
        """Jobs of the type have what they need of it, and go on."""
        async with self._own.one:
            if name in catalogue():
                raise Refused(f"job type {name} comes with Weft and cannot be deleted")
            self.get(name)
            await self._own.remove(name, actor)


def document(job_type: JobType) -> dict[str, Any]:
    found: dict[str, Any] = job_type.model_dump(mode="json", by_alias=True, exclude_none=True)
    found["status"] = {"builtIn": job_type.metadata.uid is None}
    return found
