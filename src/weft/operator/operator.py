"""The mirrors together: begun when the definitions are in the cluster, and begun anew when these are others."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable
from typing import Any

from weft.backends.kubernetes.client import ApiError, Client
from weft.backends.kubernetes.settings import Settings
from weft.backends.kubernetes.watch import Watch
from weft.control.control import Control
from weft.jobtypes.complete import Rule
from weft.operator.cluster import Definition, definitions
from weft.operator.declared import DeclaredMirror, registries
from weft.operator.jobs import JobMirror
from weft.operator.resource import JOB
from weft.store.changes import Happened

RETRY = 10.0
"""Definitions that are not there are looked for this often."""
RESYNC = 15.0
ABSENT = (
    "Weft's custom resources are not installed in the cluster, so that kubectl neither shows nor takes jobs "
    "(kubectl apply -f deploy/crds)"
)
log = logging.getLogger("weft.operator")


class Operator:
    def __init__(self, control: Control, client: Client, settings: Settings, further: Rule):
        self._control = control
        self._client = client
        self._settings = settings
        self._further = further
        self._problem: str | None = None
        self._watches: list[Watch] = []
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = asyncio.get_running_loop().create_task(self._run())

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    def notes(self) -> tuple[str, ...]:
        """What does not work, for `weft status`."""
        found = [self._problem, *(watch.problem for watch in self._watches)]
        return tuple(dict.fromkeys(note for note in found if note))

    async def _run(self) -> None:
        while True:
            try:
                found = await definitions(self._client)
            except ApiError as problem:
                said = ABSENT if problem.missing else f"custom resources are not followed: {problem}"
                if said != self._problem:
                    log.info("%s", said)
                self._problem = said
            except Exception as problem:
                log.exception("custom resources")
                self._problem = f"custom resources are not followed: {type(problem).__name__}: {problem}"
            else:
                self._problem = None
                try:
                    await self._mirror(found)
                except Exception:
                    log.exception("custom resources")
            await asyncio.sleep(RETRY)

    async def _mirror(self, found: dict[str, Definition]) -> None:
        """Until one of the definitions is no longer what it was."""
        control, instance = self._control, self._settings.instance
        declared = {
            kind: DeclaredMirror(control, registry, found[kind], instance)
            for kind, registry in registries(control).items()
        }
        jobs = JobMirror(control, self._settings, found[JOB], self._further)
        mirrors: dict[str, DeclaredMirror | JobMirror] = {**declared, JOB: jobs}
        self._watches = [Watch(self._client, kind, each.changed, each.gone) for kind, each in mirrors.items()]
        background = [asyncio.ensure_future(watch.run()) for watch in self._watches]
        unwatch = control.store.watch(_listener(declared, jobs))
        try:
            for watch in self._watches:
                await watch.synced.wait()
            control.guardian.stepped = jobs.stepped
            for mirror in mirrors.values():
                mirror.begin()
            log.info("custom resources are followed")
            while await self._stand(found):
                await asyncio.sleep(RESYNC)
                jobs.look_around()
                for each in declared.values():
                    each.try_again()
            log.warning(
                "the definitions of Weft's custom resources are gone, or others; looking for them again"
            )
        finally:
            unwatch()
            control.guardian.stepped = None
            for task in background:
                task.cancel()
            await asyncio.gather(*background, return_exceptions=True)
            for mirror in mirrors.values():
                await mirror.work.close()
            self._watches = []

    async def _stand(self, found: dict[str, Definition]) -> bool:
        """Asked only when a watch is in trouble."""
        if not any(watch.problem for watch in self._watches):
            return True
        with contextlib.suppress(ApiError):
            return all([await each.stands() for each in found.values()])
        return True


def _listener(declared: dict[str, DeclaredMirror], jobs: JobMirror) -> Callable[[Happened], Any]:
    by_type = {kind.lower(): mirror for kind, mirror in declared.items()}

    def heard(event: Happened) -> None:
        if event.type in ("state", "note", "deleted"):
            jobs.happened(event)
            if event.type == "deleted" or event.state in ("COMPLETED", "FAILED", "CANCELLED", "HALTED"):
                declared["Queue"].try_again()
        elif (mirror := by_type.get(event.type)) is not None:
            mirror.wake(event.job)
            jobs.try_again()
            for each in declared.values():
                each.try_again()

    return heard
