"""Queues, job types and sizes: declared by kubectl or by Weft's own commands, and the same on both sides.

A side that has changed since both last agreed is followed; if both have, the cluster is. What Weft alone has stays so.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel

from weft.backends.kubernetes.client import Document
from weft.control.control import Control
from weft.control.nosuch import NoSuch
from weft.model.jobtype import JobType
from weft.model.lifecycle import Refused
from weft.model.problems import Invalid, parse
from weft.model.queue import DEFAULT, Queue
from weft.model.sizes import Size
from weft.operator.cluster import Definition
from weft.operator.decide import Turn, decide
from weft.operator.links import Link, Links
from weft.operator.resource import KUBECTL, canonical, digest, instance_of, own_words, owner_of, trimmed
from weft.operator.status import accepted_status, difference, refused_status
from weft.operator.work import Work

Resource = Queue | JobType | Size
log = logging.getLogger("weft.operator")


@dataclass(frozen=True, slots=True)
class Registry:
    """Where Weft keeps one kind."""

    model: type[Resource]
    called: str
    own: Callable[[], Mapping[str, Resource]]
    put: Callable[[str, Any, str], Awaitable[object]]
    remove: Callable[[str, str], Awaitable[None]]
    settled: Callable[[], Awaitable[None]]


def registries(control: Control) -> dict[str, Registry]:
    queues, types, sizes = control.queues, control.job_types, control.sizes
    return {
        "Queue": Registry(
            Queue,
            "queue",
            lambda: queues.declared,
            lambda name, queue, who: queues.put(name, queue.spec, queue.metadata, who),
            lambda name, who: queues.remove(name, control.asking, who),
            queues.settled,
        ),
        "JobType": Registry(JobType, "job type", lambda: types.own, types.put, types.remove, types.settled),
        "Size": Registry(Size, "size", lambda: sizes.own, sizes.put, sizes.remove, sizes.settled),
    }


class DeclaredMirror:
    """One kind of them."""

    def __init__(self, control: Control, registry: Registry, definition: Definition, instance: str):
        self._registry = registry
        self._definition = definition
        self._instance = instance
        self._clock = control.clock
        self._links = Links(definition.kind, control.store)
        self._seen: dict[str, Document] = {}
        self._unsettled: set[str] = set()
        """Refused, or not yet removed: looked at again when something else changes."""
        self._ready = False
        self.work = Work(registry.called, self._look)

    # ── what happens ──

    def changed(self, document: Document) -> None:
        if instance_of(document) not in (None, self._instance):
            return
        self._seen[document["metadata"]["name"]] = trimmed(document)
        self.wake(document["metadata"]["name"])

    def gone(self, document: Document) -> None:
        if instance_of(document) in (None, self._instance):
            self._seen.pop(document["metadata"]["name"], None)
            self.wake(document["metadata"]["name"])

    def wake(self, name: str) -> None:
        if self._ready:
            self.work.wake(name)

    def begin(self) -> None:
        """All resources are known: now what is missing is gone."""
        self._links.load()
        self._ready = True
        for name in {*self._seen, *self._links}:
            self.wake(name)

    def try_again(self) -> None:
        for name in self._unsettled:
            self.wake(name)

    # ── one name ──

    async def _look(self, name: str) -> None:
        document, link = self._seen.get(name), self._links.get(name)
        if link is not None and link.crd != self._definition.uid:
            await self._links.drop(name)
            link = None
        if document is not None and instance_of(document) is None:
            await self._definition.claim(document, self._instance)
            return
        given = None
        if document is not None:
            try:
                given = self._read(document)
            except Invalid as refusal:
                await self._refuse(document, "; ".join(map(str, refusal.problems)))
                return
        await self._registry.settled()
        here = self._registry.own().get(name)
        weft = None if here is None or here.metadata.uid is None else _text(here)
        cluster = None if given is None else _text(given)
        decision = decide(None if link is None else link.spec, weft, cluster)
        if decision.both:
            log.warning("%s %s was changed on both sides: Kubernetes wins", self._registry.called, name)
        match decision.turn:
            case Turn.DECLARE if document is not None and given is not None:
                try:
                    await self._registry.put(name, given, owner_of(document))
                except (Invalid, Refused) as refusal:
                    problems = refusal.problems if isinstance(refusal, Invalid) else [refusal]
                    await self._refuse(document, "; ".join(map(str, problems)))
                    return
                await self._agree(document, cluster)
            case Turn.REMEMBER if document is not None:
                await self._agree(document, cluster)
            case Turn.WITHDRAW if link is not None:
                await self._withdraw(link)
            case Turn.WRITE if document is not None and here is not None:
                await self._write(document, here)
                await self._agree(document, weft)
            case Turn.DELETE if link is not None:
                await self._definition.client.delete(self._definition.kind, name, None, uid=link.resource)
                await self._links.drop(name)
                self._seen.pop(name, None)
                return
            case Turn.FORGET:
                await self._links.drop(name)
            case _:
                pass
        if document is not None:
            self._unsettled.discard(name)
            await self._definition.tell_status(document, accepted_status(_generation(document)))

    def _read(self, document: Document) -> Resource:
        name = document["metadata"]["name"]
        words = {"metadata": {"name": name, **own_words(document)}, "spec": document.get("spec") or {}}
        return parse(
            self._registry.model, words, f"{self._registry.called} {name}", self._registry.model.__name__
        )

    async def _agree(self, document: Document, said: str | None) -> None:
        metadata = document["metadata"]
        await self._links.keep(
            Link(metadata["name"], None, metadata["uid"], self._definition.uid, said or "")
        )

    async def _write(self, document: Document, here: Resource) -> None:
        spec = here.spec.model_dump(mode="json", by_alias=True, exclude_none=True, include=_said(here.spec))
        metadata = document["metadata"]
        change = {
            "metadata": {"resourceVersion": metadata["resourceVersion"]},
            "spec": difference(spec, document.get("spec") or {}),
        }
        written = await self._definition.client.patch(self._definition.kind, metadata["name"], None, change)
        document.update(deepcopy(trimmed(written)))

    async def _withdraw(self, link: Link) -> None:
        name = link.name
        if not await self._definition.stands():
            await self._links.drop(name)
            return
        try:
            await self._registry.remove(name, KUBECTL)
        except Refused as refusal:
            later = "" if name == DEFAULT else "; it goes as soon as nothing uses it"
            await self._definition.tell_event(
                (name, None, link.resource),
                f"kept.{digest(link.resource)[:10]}",
                "Kept",
                f"{refusal}{later}",
                self._clock(),
                warning=True,
            )
            if later:
                self._unsettled.add(name)
                return
        except NoSuch:
            pass
        self._unsettled.discard(name)
        await self._links.drop(name)

    async def _refuse(self, document: Document, problems: str) -> None:
        metadata = document["metadata"]
        self._unsettled.add(metadata["name"])
        await self._definition.tell_status(document, refused_status(problems, _generation(document)))
        await self._definition.tell_event(
            (metadata["name"], None, metadata["uid"]),
            f"refused.{digest([metadata['uid'], _generation(document), problems])[:10]}",
            "Refused",
            problems,
            self._clock(),
            warning=True,
        )


def _generation(document: Document) -> int:
    generation: int = document["metadata"].get("generation", 0)
    return generation


def _said(spec: BaseModel) -> set[str]:
    """The fields that are not as they would be if nobody had said anything."""
    fields = type(spec).model_fields
    return {
        n for n, field in fields.items() if getattr(spec, n) != field.get_default(call_default_factory=True)
    }


def _text(resource: Resource) -> str:
    return canonical(resource.spec.model_dump(mode="json", by_alias=True, exclude_none=True))
