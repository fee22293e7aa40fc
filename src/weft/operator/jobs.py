"""TrainingJobs: what kubectl applies becomes a job, what `weft run` submits becomes a resource, and they end together.

A resource's spec is read once. Whatever is written into it later stays there and is told to be ignored, so that
nobody fights over it; what a person wishes of a job comes as the annotation `weft.dev/desire`.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import replace
from typing import Any

from weft.backends.kubernetes.client import Document
from weft.backends.kubernetes.settings import Settings
from weft.backends.kubernetes.shared import namespace_of
from weft.control.control import Control, NameTaken
from weft.control.live import LiveJob
from weft.control.nosuch import NoJob
from weft.jobtypes.complete import Rule, read_job
from weft.model.lifecycle import Refused
from weft.model.problems import Invalid, Problem
from weft.model.status import Desire, State
from weft.operator.cluster import Definition
from weft.operator.decide import JobTurn, Newcomer, of_a_newcomer, of_a_pair
from weft.operator.links import Link, Links
from weft.operator.resource import (
    DESIRE,
    JOB,
    JOB_UID,
    KUBECTL,
    SOURCE,
    annotation,
    digest,
    instance_of,
    job_file,
    mirror_of,
    owner_of,
    second_name,
    source_of,
    trimmed,
)
from weft.operator.status import BAD, SPEC_IGNORED, camel, job_status, refused_status
from weft.operator.work import Work
from weft.store.changes import Happened

WISHES = {desire.value: desire for desire in (Desire.RUN, Desire.HALT, Desire.CANCEL)}
CODE_PATH = (
    "a folder of your machine cannot come by kubectl; name a version of it (code.git and code.commit), or a package that "
    "Weft has (code.package), or submit with weft run"
)
OLD = 1800.0
"""Seconds after which what happened is not told any more by a server that starts: Kubernetes forgets Events too."""
LOOK_AGAIN = 0.3
AT_A_TIME = 200
"""Jobs whose reason to wait is looked at anew in one round."""
log = logging.getLogger("weft.operator")


class JobMirror:
    def __init__(self, control: Control, settings: Settings, definition: Definition, further: Rule):
        self._control = control
        self._settings = settings
        self._definition = definition
        self._further = further
        self._links = Links(JOB, control.store)
        self._seen: dict[str, dict[str, Document]] = {}
        """By name and namespace. The first of a name has it in Weft, too; others have a second name there."""
        self._uids: set[str] = set()
        """Of all of them."""
        self._refused: set[str] = set()
        self._deleted: dict[str, str] = {}
        """Uids, by name, of jobs that are gone and may still be found for a moment."""
        self._news: set[str] = set()
        """Jobs to which something happened that was not yet told as an Event."""
        self._round = 0
        self._ready = False
        self._began = control.clock()
        self.work = Work("job", self._look)

    # ── what happens ──

    def changed(self, document: Document) -> None:
        metadata = document["metadata"]
        if instance_of(document) in (None, self._settings.instance):
            self._seen.setdefault(metadata["name"], {})[metadata["namespace"]] = trimmed(document)
            self._uids.add(metadata["uid"])
            self._wake_for(document)

    def gone(self, document: Document) -> None:
        metadata = document["metadata"]
        there = self._seen.get(metadata["name"], {})
        if instance_of(document) in (None, self._settings.instance):
            there.pop(metadata["namespace"], None)
            self._uids.discard(metadata["uid"])
            if not there:
                self._seen.pop(metadata["name"], None)
                self._refused.discard(metadata["name"])
            self._wake_for(document)

    def _wake_for(self, document: Document) -> None:
        self.wake(document["metadata"]["name"])
        if (second := second_name(document)) in self._links:
            self.wake(second)

    def happened(self, event: Happened) -> None:
        if event.type == "deleted":
            self._deleted[event.job] = event.uid
        self._news.add(event.job)
        self.wake(event.job)

    def stepped(self, job: LiveJob) -> None:
        self.wake(job.name)

    def wake(self, name: str) -> None:
        if self._ready:
            self.work.wake(name)

    def begin(self) -> None:
        """All resources are known: now what is missing is gone."""
        self._links.load()
        self._ready = True
        ended = {row.name: row for row in self._control.store.page(JOB, limit=1_000_000, summary=True)}
        for name in {*self._seen, *self._links, *(job.name for job in self._control.jobs.values())}:
            if not self._as_left(name, ended.get(name)):
                self._news.add(name)
                self.wake(name)

    def _as_left(self, name: str, row: Any) -> bool:
        """Most jobs have ended long ago, and were told of to the end."""
        link = self._links.get(name)
        document = None if link is None else self._resource(link)
        if link is None or document is None or row is None or link.crd != self._definition.uid:
            return False
        status = document.get("status") or {}
        told = (status.get("jobUid"), status.get("state"), status.get("observedGeneration"))
        return (
            State(row.state).idle
            and link.seq > 0
            and told == (row.uid, row.state, document["metadata"].get("generation"))
            and (annotation(document, DESIRE) or "") == link.desire
            and len(self._seen[link.resource_name]) == 1
            and row.uid == link.job
        )

    def try_again(self) -> None:
        """Something that jobs name has changed."""
        for name in self._refused:
            self.wake(name)

    def look_around(self) -> None:
        """Now and then: why jobs wait changes without anything happening to them."""
        self.try_again()
        jobs = self._control.jobs.values()
        some = [job.name for job in jobs if job.status.state is State.QUEUED or job.name not in self._links]
        start = self._round % max(len(some), 1)
        for name in some[start : start + AT_A_TIME]:
            self.wake(name)
        self._round = start + AT_A_TIME

    # ── one name ──

    async def _look(self, name: str) -> None:
        link = self._links.get(name)
        if link is not None and link.crd != self._definition.uid:
            await self._links.drop(name)
            link = None
        if link is not None and not await self._pair(link):
            return
        link = self._links.get(name) or await self._newcomers(name)
        if link is not None:
            await self._tell(link)
            await self._namesakes(link)

    async def _pair(self, link: Link) -> bool:
        """A job and its resource: True if both are there, or neither is and the name is free for others."""
        job, document = self._job(link.name, link.job), self._resource(link)
        match of_a_pair(resource=document is not None, job=job is not None):
            case JobTurn.DELETE_JOB:
                if not await self._definition.stands():
                    await self._links.drop(link.name)
                    return False
                if job is not None and not await self._remove(job):
                    return False  # it is being stopped, and its end wakes us
                await self._links.drop(link.name)
            case JobTurn.DELETE_RESOURCE:
                await self._definition.client.delete(
                    JOB, link.resource_name, link.namespace, uid=link.resource
                )
                await self._links.drop(link.name)
            case JobTurn.FORGET:
                await self._links.drop(link.name)
            case JobTurn.FOLLOW:
                return True
        there = self._seen.get(link.resource_name, {})
        kept = there.get(link.namespace or "")
        if kept is not None and kept["metadata"]["uid"] == link.resource:
            there.pop(link.namespace or "")
            self._uids.discard(link.resource)
        return True

    async def _remove(self, job: LiveJob) -> bool:
        if job.status.desire is Desire.DELETE and not job.status.state.idle:
            return False
        gone = await self._control.remove(job.name, KUBECTL)
        if gone:
            self._deleted[job.name] = job.uid
        return gone

    def _job(self, name: str, uid: str | None = None) -> LiveJob | None:
        try:
            job = self._control.find(name)
        except NoJob:
            self._deleted.pop(name, None)
            return None
        return None if self._deleted.get(name) == job.uid or uid not in (None, job.uid) else job

    def _resource(self, link: Link) -> Document | None:
        document = self._seen.get(link.resource_name, {}).get(link.namespace or "")
        return document if document is not None and document["metadata"]["uid"] == link.resource else None

    # ── resources without a job, and jobs without a resource ──

    async def _newcomers(self, name: str) -> Link | None:
        job = self._job(name)
        for document in self._unlinked(name):
            had = (document.get("status") or {}).get("jobUid")
            match of_a_newcomer(
                claimed=instance_of(document) is not None,
                made_for_job=job is not None and self._made_for(job, document, had),
                had_a_job=had is not None,
            ):
                case Newcomer.CLAIM:
                    await self._definition.claim(document, self._settings.instance)
                    return None  # its change is told, and then it is ours
                case Newcomer.LINK if job is not None:
                    return await self._link(document, job)
                case Newcomer.SUBMIT:
                    link = await self._submit(document, name)
                    if link is not None and link.name == name:
                        return link
                case _:
                    log.warning("job %s: its resource is of a job %s that is not known here", name, had)
        if job is None or job.uid not in self._control.jobs or job.status.desire is Desire.DELETE:
            return None
        return await self._show(job)

    def _unlinked(self, name: str) -> list[Document]:
        """Resources of this name that are of no job yet."""
        documents = self._seen.get(name, {}).values()
        return [document for document in documents if self._link_of(document) is None]

    def _link_of(self, document: Document) -> Link | None:
        metadata = document["metadata"]
        for name in (metadata["name"], second_name(document)):
            link = self._links.get(name)
            if link is not None and link.resource == metadata["uid"]:
                return link
        return None

    async def _namesakes(self, link: Link) -> None:
        """Resources of the same name in other namespaces: their jobs have a second name in Weft."""
        for document in self._unlinked(link.name):
            if instance_of(document) is None:
                await self._definition.claim(document, self._settings.instance)
                continue
            second, had = second_name(document), (document.get("status") or {}).get("jobUid")
            job = self._job(second)
            if job is not None and self._made_for(job, document, had):
                await self._link(document, job)
            elif had is None:
                await self._submit(document, second)
            else:
                log.warning("job %s: its resource is of a job %s that is not known here", second, had)

    def _made_for(self, job: LiveJob, document: Document, had: str | None) -> bool:
        source = job.metadata.annotations.get(SOURCE)
        own = source == source_of(self._definition.uid, document["metadata"]["uid"])
        return own or job.uid in (had, annotation(document, JOB_UID))

    async def _link(self, document: Document, job: LiveJob) -> Link:
        metadata = document["metadata"]
        wish = annotation(document, DESIRE) or ""
        self._refused.discard(metadata["name"])
        link = await self._links.keep(
            Link(
                job.name,
                metadata["namespace"],
                metadata["uid"],
                self._definition.uid,
                digest(document.get("spec") or {}),
                job.uid,
                wish if wish == Desire.RUN else "",  # a new job runs without being told
                named="" if metadata["name"] == job.name else metadata["name"],
            )
        )
        self.wake(job.name)
        return link

    async def _submit(self, document: Document, name: str) -> Link | None:
        uid, control = document["metadata"]["uid"], self._control
        for each in (control.queues, control.job_types, control.sizes):
            await each.settled()
        try:
            words = job_file(document, self._definition.uid, name)
            job = read_job(words, f"job {name}", self._further, control.job_types.specs, control.sizes.specs)
        except Invalid as refusal:
            await self._refuse(document, "; ".join(str(_for_kubectl(each)) for each in refusal.problems))
            return None
        try:
            entry, _ = await control.submit(job, owner_of(document), uid)
        except NameTaken:
            other, second = self._job(name), second_name(document)
            if other is None or other.status.desire is Desire.DELETE:
                asyncio.get_running_loop().call_later(LOOK_AGAIN, self._wake_for, document)
                return None
            if name != second:
                return await self._submit(document, second)
            await self._refuse(
                document,
                f"Weft has a job {document['metadata']['name']} of another namespace, and also a job {name}, as this one would be "
                "called there; choose another name, or delete one of them first",
            )
            return None
        return await self._link(document, entry)

    async def _show(self, job: LiveJob) -> Link | None:
        """A job that came another way is shown, too; one whose resource went before it was linked goes."""
        definition, _, source = (job.metadata.annotations.get(SOURCE) or "").partition("/")
        if definition == self._definition.uid:
            if source not in self._uids and await self._definition.stands():
                await self._remove(job)
            return None
        namespace = namespace_of(job, self._settings)
        if namespace in self._seen.get(job.name, {}):
            return None  # somebody else's, by chance of the same name
        made = await self._definition.client.create(
            mirror_of(job, self._settings.instance, namespace), namespace
        )
        self._seen.setdefault(job.name, {}).setdefault(namespace, trimmed(made))
        return await self._link(made, job)

    async def _refuse(self, document: Document, problems: str) -> None:
        metadata = document["metadata"]
        generation = metadata.get("generation", 0)
        self._refused.add(metadata["name"])
        await self._definition.tell_status(document, refused_status(problems, generation))
        await self._definition.tell_event(
            (metadata["name"], metadata["namespace"], metadata["uid"]),
            f"refused.{digest([metadata['uid'], generation, problems])[:10]}",
            "Refused",
            problems,
            self._control.clock(),
            warning=True,
        )

    # ── a pair that stands ──

    async def _tell(self, link: Link) -> None:
        document = self._resource(link)
        if document is None:
            return
        link = await self._follow_wish(link, document)
        job = self._job(link.name, link.job)
        if job is None:
            return
        ignored = digest(document.get("spec") or {}) != link.spec
        generation = document["metadata"].get("generation", 0)
        status = job.status
        reason = status.reason
        if reason is None and status.state is State.QUEUED:
            reason = self._control.why_waiting(job)
        await self._definition.tell_status(
            document,
            job_status(
                job.name, job.uid, status, len(job.gang.preferred), reason, generation, ignored=ignored
            ),
        )
        if ignored:
            await self._event(link, f"spec.{generation}", "SpecIgnored", SPEC_IGNORED, warning=True)
        if link.name in self._news:
            self._news.discard(link.name)
            try:
                await self._tell_history(link, job)
            except BaseException:
                self._news.add(link.name)
                raise

    async def _follow_wish(self, link: Link, document: Document) -> Link:
        """Once for each change of it: what a person asks of Weft afterwards holds."""
        wish = annotation(document, DESIRE) or ""
        if wish == link.desire:
            return link
        refusal = None
        if wish and wish not in WISHES:
            refusal = f"{DESIRE}: {wish} is not one of {', '.join(WISHES)}"
        elif wish:
            try:
                await self._control.ask(link.name, WISHES[wish], owner_of(document))
            except Refused as problem:
                refusal = str(problem)
        if refusal is not None:
            key = f"wish.{digest([link.job, wish, document['metadata']['resourceVersion']])[:10]}"
            await self._event(link, key, "WishRefused", refusal, warning=True)
        return await self._links.keep(replace(link, desire=wish))

    async def _tell_history(self, link: Link, job: LiveJob) -> None:
        since = link.seq
        for event in self._control.store.events(uid=job.uid, after=link.seq):
            if event.type == "state" and event.state is not None and event.time > self._began - OLD:
                message = event.cause or f"is {event.state.lower()}"
                bad = event.state in BAD
                await self._event(
                    link,
                    f"{job.uid}.{event.seq:x}",
                    camel(event.state),
                    message,
                    warning=bad,
                    when=event.time,
                )
            since = event.seq
        if since == link.seq:
            return
        told = replace(link, seq=since)
        if job.status.state.idle:
            await self._links.keep(told)
        else:
            self._links.note(told)

    async def _event(
        self,
        link: Link,
        key: str,
        reason: str,
        message: str,
        *,
        warning: bool = False,
        when: float | None = None,
    ) -> None:
        about = (link.resource_name, link.namespace, link.resource)
        at = self._control.clock() if when is None else when
        await self._definition.tell_event(about, key, reason, message, at, warning=warning)


def _for_kubectl(problem: Problem) -> Problem:
    return replace(problem, message=CODE_PATH) if problem.field == "spec.code.path" else problem
