"""The datasets that were declared: their versions, who reads them, and what is being read from their sources.

A version is made once and never changed. Reading a source happens in a process of its own (`weft.data.ingesting`), so
that neither its work nor its memory is the server's; a dataset is read by one at a time, however many jobs wait for it.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic_core import from_json, to_json

from weft.backends.api import Cached, Lent, Reads, Tell
from weft.control import caches
from weft.control.dataprocess import DataFailed, run, stream
from weft.control.declared import Declared, creation_row
from weft.control.lineage import SHORT, Version, graph, lineage_of
from weft.control.live import KIND as JOB
from weft.control.live import LiveJob
from weft.control.nosuch import NoDataset, NoJob, NoNode
from weft.model.dataset import Dataset
from weft.model.failures import Code, Permanent
from weft.model.lifecycle import Refused
from weft.model.problems import Invalid
from weft.model.quantities import show_bytes
from weft.model.status import Desire, Progress, State
from weft.store.changes import Change, Create, Delete, Happened, Update
from weft.store.database import StoreError

if TYPE_CHECKING:
    from weft.control.control import Control

KIND, VERSION = "Dataset", "DatasetVersion"
ALL = "all"
LOOK = 1.0
READABLE = [state.value for state in State if state not in (State.COMPLETED, State.CANCELLED)]
"""Jobs in these states run, or can be resumed: they keep the versions that they read."""
NO_DATASETS = '"datasets":[]'
"""In the stored spec of a job that reads none."""
log = logging.getLogger("weft.data")
Versions = tuple[tuple[str, str], ...]
Uses = dict[str, dict[str, list[str]]]
Credentials = Callable[[str], Mapping[str, str]]


@dataclass(slots=True)
class Reading:
    """A source that is being read."""

    task: asyncio.Task[Version]
    far: str = "listing its source"
    progress: Mapping[str, Any] = field(default_factory=dict)
    heard: list[Tell] = field(default_factory=list)
    outdated: bool = False
    """It was declared otherwise meanwhile, and is read again."""


class OperatorDatasets:
    def __init__(
        self, control: Control, new_uid: Callable[[float], str], folder: Path | None, credentials: Credentials
    ):
        self._control = control
        self._new_uid = new_uid
        self._folder = folder
        self._credentials = credentials
        self._own = Declared(KIND, Dataset, control.store, control.clock, new_uid)
        self._versions: dict[str, list[Version]] = {}
        """By dataset, the one first that its source has not had for longest."""
        self._keeping: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)
        """By dataset: whoever keeps a version of it."""
        self._reading: dict[str, Reading] = {}
        self._failed: dict[str, str] = {}
        self._looked: dict[str, float] = {}
        """When each source was last read, by this server."""

    # ── what there is ──

    def load(self) -> None:
        """As they were when the last server ended."""
        self._own.load()
        for row in reversed(self._control.store.page(VERSION, limit=1_000_000)):
            seen = from_json(row.status).get("seen", row.created)
            version = Version(created=row.created, uid=row.uid, seen=seen, **from_json(row.spec))
            self._versions.setdefault(version.dataset, []).append(version)
        for kept in self._versions.values():
            kept.sort(key=lambda version: version.seen)

    @property
    def store(self) -> Path:
        if self._folder is None:
            raise Refused("this server keeps no data")
        return self._folder

    def __contains__(self, name: str) -> bool:
        return name in self._own.by_name

    def __iter__(self) -> Iterator[Dataset]:
        for name in sorted(self._own.by_name):
            yield self._own.by_name[name]

    def get(self, name: str) -> Dataset:
        if name not in self._own.by_name:
            raise NoDataset(name, self._own.by_name)
        return self._own.by_name[name]

    def versions(self, name: str) -> list[Version]:
        """The newest first."""
        return self._versions.get(name, [])[::-1]

    def version(self, name: str, asked: str) -> Version | None:
        """The one whose name begins so."""
        found = [each for each in self._versions.get(name, ()) if each.version.startswith(asked)]
        return found[-1] if found else None

    def readable(self, name: str, project: str | None) -> bool:
        """Whether jobs of a project may read it: its own, and what is shared with it."""
        dataset = self._own.by_name.get(name)
        if dataset is None:
            return False
        shared = dataset.spec.share_with
        return (
            dataset.metadata.project == project
            or ALL in shared
            or (project is not None and project in shared)
        )

    def writable(self, name: str, project: str | None) -> bool:
        """Whether jobs of a project may make a version of it: it is theirs, or nobody has declared it."""
        dataset = self._own.by_name.get(name)
        return dataset is None or dataset.metadata.project == project

    def uses(self) -> Uses:
        """By dataset and version (empty while they have none): the jobs that wait for it, read it, or can be resumed to."""
        found: Uses = {}

        def add(job: str, uses: Iterable[tuple[str, str | None]], pinned: Versions) -> None:
            for name, asked in uses:
                named = self.version(name, asked) if asked else None
                version = dict(pinned).get(name) or (named.version if named else "")
                found.setdefault(name, {}).setdefault(version, []).append(job)

        live = self._control.jobs
        for job in live.values():
            add(job.name, [(use.name, use.version) for use in job.spec.datasets], job.status.datasets)
        for row in self._control.store.with_states(JOB, READABLE):
            if row.uid not in live and NO_DATASETS not in row.spec:
                uses = [
                    (use["name"], use.get("version")) for use in from_json(row.spec).get("datasets") or ()
                ]
                add(row.name, uses, tuple(map(tuple, from_json(row.status).get("datasets") or ())))
        return found

    def users(self, name: str) -> dict[str, list[str]]:
        return self.uses().get(name, {})

    # ── declaring ──

    async def settled(self) -> None:
        await self._own.settled()

    async def put(self, name: str, given: Dataset, actor: str) -> tuple[Dataset, bool]:
        """Declare a dataset, or change it. Its source is read at once if it is to be read otherwise than before, or could not
        be read so far. True if the dataset is new."""
        async with self._own.one:
            old = self._own.by_name.get(name)
            kept = old
            if old is None or (old.spec, old.metadata.project) != (given.spec, given.metadata.project):
                _ = self.store
                kept = await self._own.put(name, given, actor)
            assert kept is not None
        if old is not None and _how_read(old) != _how_read(kept):
            if (reading := self._reading.get(name)) is not None:
                reading.outdated = True
            self.refresh(name)
        elif name in self._failed or not self._versions.get(name):
            self.refresh(name)
        return kept, old is None

    async def remove(self, name: str, actor: str) -> None:
        async with self._own.one:
            self.get(name)
            users = sorted({job for jobs in self.users(name).values() for job in jobs})
            if users:
                raise Refused(
                    f"dataset {name} is in use: {', '.join(users[:10])}{' and more' if len(users) > 10 else ''} read it "
                    "or can be resumed to; cancel, complete or delete them first"
                )
            for job in self._control.jobs.values():
                if job.status.state is State.STORING and any(o.dataset == name for o in job.spec.outputs):
                    raise Refused(
                        f"dataset {name} is in use: job {job.name} stores its output in it; wait for its end "
                        f"(weft show {job.name})"
                    )
            if (reading := self._reading.get(name)) is not None:
                reading.task.cancel()
            await self._own.remove(name, actor)
            for version in self._versions.pop(name, []):
                await self._forget(version, actor)
            if reading is not None:
                await asyncio.wait({reading.task})  # else who declares it again would join that one

    async def _forget(self, version: Version, actor: str) -> None:
        about = Happened(
            self._control.clock(),
            version.uid,
            version.dataset,
            "dataset",
            f"version {version.version[:SHORT]} deleted",
            actor,
        )
        await asyncio.shield(self._control.store.write([Delete(version.uid), about]))
        if not any(each.version == version.version for kept in self._versions.values() for each in kept):
            try:
                await run(self.store, {"do": "remove", "version": version.version})
            except DataFailed as problem:
                log.warning(
                    "dataset %s: bytes of a deleted version stay for now: %s", version.dataset, problem
                )

    async def collect(self, name: str) -> None:
        """Versions beyond those that are kept go, unless somebody reads them."""
        kept = self._versions.get(name, [])
        keep, used = self.get(name).spec.keep, self.users(name)
        old = [version for version in kept[:-keep] if version.version not in used]
        for version in old:
            kept.remove(version)  # all at once: none can be chosen while others are being deleted
        for version in old:
            await self._forget(version, "weft")

    # ── reading sources ──

    def refresh(self, name: str) -> Reading:
        """Read the source, or join who does."""
        found = self._reading.get(name)
        if found is None:
            task = asyncio.get_running_loop().create_task(self._read(name))
            found = self._reading[name] = Reading(task)
            task.add_done_callback(lambda done: self._read_done(name, done))
        return found

    def _read_done(self, name: str, done: asyncio.Task[Version]) -> None:
        reading = self._reading.pop(name)
        self._failed.pop(name, None)
        self._looked[name] = self._control.clock()
        if not done.cancelled() and (problem := done.exception()) is not None:
            self._failed[name] = str(problem)
            if not isinstance(problem, DataFailed):
                log.error("dataset %s", name, exc_info=problem)
        if reading.outdated and not done.cancelled():
            self.refresh(name)

    async def _read(self, name: str) -> Version:
        dataset = self.get(name)
        source, spec = dataset.spec.source, dataset.spec
        lineage: dict[str, Any] = {}
        if source.code is not None:
            job = await self._made_by(name, dataset)
            told, lineage = self._results_of(job, None), lineage_of(job)
        elif source.output is not None:
            try:
                job = self._control.find(source.output.job)
            except NoJob as missing:
                raise DataFailed(
                    f"{missing}, whose results it is made of; run it (again), then refresh"
                ) from None
            if job.project != dataset.metadata.project:
                raise DataFailed(
                    f"job {job.name} is of project {job.project or '(none)'}: its results are that project's"
                )
            told, lineage = self._results_of(job, source.output.path), lineage_of(job)
        else:
            told = source.model_dump(mode="json", by_alias=True, exclude_none=True)
        return await self._ingest(name, told, spec.secret_ref, spec.pack, lineage, spec.in_place)

    async def _ingest(
        self,
        name: str,
        source: Mapping[str, Any],
        secret: str | None,
        pack: str,
        lineage: Mapping[str, Any],
        in_place: bool = False,
    ) -> Version:
        credentials = dict(self._credentials(secret)) if secret is not None else {}
        if secret is not None and not credentials:
            raise DataFailed(f"there is no secret {secret}; store it: weft secrets set {secret} KEY")
        asked = {
            "do": "ingest",
            "source": source,
            "credentials": credentials,
            "key": name,
            "pack": pack,
            "inPlace": in_place,
        }
        said = await run(self.store, asked, lambda far: self._progress(name, far))
        return await self._keep(name, said, lineage)

    async def _keep(self, name: str, said: Mapping[str, Any], lineage: Mapping[str, Any]) -> Version:
        """What the source has now is the newest version, also if it was there before."""
        async with self._keeping[name]:
            if name not in self:
                raise DataFailed("the dataset was deleted meanwhile")
            now, known = self._control.clock(), self.version(name, said["version"])
            seen = max([now, *(math.nextafter(each.seen, math.inf) for each in self._versions.get(name, ()))])
            if known is not None:
                version = replace(known, seen=seen)
                changes: list[Change] = [Update(version.uid, partial(_status, version))]
            else:
                facts = {key: said[key] for key in ("version", "samples", "bytes", "parts")}
                version = Version(
                    name, created=now, uid=self._new_uid(now), seen=seen, lineage=lineage, **facts
                )
                what = f"version {version.version[:SHORT]}: {version.samples} samples, {show_bytes(version.bytes)}"
                changes = [Create(_row(version)), Happened(now, version.uid, name, "dataset", what, "weft")]
            written = self._control.store.write(changes)
            written.add_done_callback(partial(self._kept, version))  # also when whoever read it has gone away
            await asyncio.shield(written)
            if known is None:
                await self.collect(name)
            return version

    def _kept(self, version: Version, written: asyncio.Future[None]) -> None:
        if not written.cancelled() and written.exception() is None:
            others = [each for each in self._versions.get(version.dataset, ()) if each.uid != version.uid]
            self._versions[version.dataset] = [*others, version]

    async def run(self) -> None:
        """Look at sources again as often as their datasets say."""
        while True:
            await asyncio.sleep(LOOK)
            for dataset in list(self._own.by_name.values()):
                name, every = dataset.metadata.name or "", dataset.spec.refresh
                newest = self.versions(name)
                last = self._looked.get(name, newest[0].seen if newest else 0.0)
                if every is not None and self._control.clock() - last >= every:
                    self.refresh(name)

    def _progress(self, name: str, far: Mapping[str, Any]) -> None:
        reading = self._reading.get(name)
        if reading is None:
            return
        reading.progress = far
        told = Progress(f"reading dataset {name}", far["bytes"], far["allBytes"], far["rate"])
        reading.far = str(told)
        for hear in reading.heard:
            hear(told)

    # ── data that jobs make ──

    async def _made_by(self, name: str, dataset: Dataset) -> LiveJob:
        """Run the command of a dataset as a job, and wait for its end."""
        source = dataset.spec.source.code
        assert source is not None
        from weft.jobtypes.complete import read_job

        document = {
            "metadata": {
                "generateName": f"data-{name[:40]}-",
                "project": dataset.metadata.project,
                "labels": {"weft.dev/dataset": name},
            },
            "spec": source.model_dump(mode="json", by_alias=True, exclude_none=True),
        }
        try:
            asked = read_job(document, f"dataset {name}")
            job, _ = await self._control.submit(asked, dataset.metadata.owner or "weft")
        except (Invalid, Refused, StoreError) as problem:
            raise DataFailed(f"its command cannot be run as a job: {problem}") from None
        job = await self._ended(name, job)
        if job.status.state is not State.COMPLETED:
            raise DataFailed(f"its command failed as job {job.name}: look at weft show {job.name}")
        return job

    async def _ended(self, name: str, job: LiveJob) -> LiveJob:
        """Wait for the end of a dataset's command, through halts and resumes: after each it is another object."""
        uid, happened = job.uid, asyncio.Event()
        unwatch = self._control.store.watch(lambda event: happened.set() if event.uid == uid else None)
        try:
            while not (job := self._still(job)).status.state.finished:
                if (reading := self._reading.get(name)) is not None:
                    reading.far = f"its command is job {job.name}, which is {job.status.state}"
                happened.clear()
                await happened.wait()
        finally:
            unwatch()
        return job

    def _still(self, job: LiveJob) -> LiveJob:
        """The job as it is now; DataFailed if it was deleted, or is about to be."""
        try:
            now = self._control.find(job.name)
        except NoJob:
            now = None
        if (
            now is None
            or now.uid != job.uid
            or (now.status.desire is Desire.DELETE and now.status.state.idle)
        ):
            raise DataFailed(f"its command was deleted as job {job.name}; refresh to run it again")
        return now

    def _results_of(self, job: LiveJob, path: str | None) -> dict[str, Any]:
        if job.status.state not in (State.COMPLETED, State.STORING):
            raise DataFailed(
                f"job {job.name} is {job.status.state}; its results can be read when it has completed"
            )
        folder = Path(self._control.backend.result_folder(job.uid), *(path or "").split("/"))
        return {"url": f"file://{folder}"}

    async def keep_outputs(self, job: LiveJob) -> None:
        """What a job's results are declared to be, as versions with their lineage."""
        for output in job.spec.outputs:
            name = output.dataset
            async with self._own.one:
                if not self.writable(name, job.project):
                    raise Permanent(
                        Code.DATA, f"its output {name} cannot be kept: the dataset is another project's"
                    )
                if name not in self:
                    source = {"output": {"job": job.name, **({"path": output.path} if output.path else {})}}
                    made = Dataset.model_validate(
                        {"metadata": {"name": name, "project": job.project}, "spec": {"source": source}}
                    )
                    await self._own.put(name, made, job.metadata.owner or "weft")
            try:
                told = self._results_of(job, output.path)
                await self._ingest(name, told, None, self.get(name).spec.pack, lineage_of(job))
            except (DataFailed, NoDataset, Refused) as problem:
                raise Permanent(Code.DATA, f"its output {name} cannot be kept: {problem}") from None

    # ── for a job ──

    def wants(self, job: LiveJob) -> tuple[tuple[str, int], ...]:
        """The versions that it will read, and their bytes: it is better placed where these are."""
        pinned = dict(job.status.datasets)
        found = {}
        for use in job.spec.datasets:
            asked = pinned.get(use.name) or use.version
            version = self.version(use.name, asked) if asked else next(iter(self.versions(use.name)), None)
            if version is not None:
                found[version.version] = version.bytes
        return tuple(sorted(found.items()))

    async def bring(self, job: LiveJob, tell: Tell) -> Versions:
        """The version of each of a job's datasets: those that it has, or else the newest; read now if there is none.

        All are chosen in the same moment, when there is one of each: a version that was chosen long before it is pinned
        could be collected meanwhile."""
        while True:
            chosen, missing = self._choice(job)
            if not missing:
                return tuple(sorted(chosen.items()))
            await self._first(missing[0], tell)

    def _choice(self, job: LiveJob) -> tuple[dict[str, str], list[str]]:
        """The versions that a job would read now, and the datasets that have none yet."""
        chosen, missing = dict(job.status.datasets), []
        for use in job.spec.datasets:
            if not self.readable(use.name, job.project):
                raise Permanent(
                    Code.DATA, f"there is no dataset {use.name} that the job may read (weft data ls)"
                )
            if use.name in chosen:
                continue
            newest = self.versions(use.name)
            if use.version is not None:
                found = self.version(use.name, use.version)
                if found is None:
                    raise Permanent(
                        Code.DATA,
                        f"dataset {use.name} has no version {use.version} (weft data show {use.name})",
                    )
                chosen[use.name] = found.version
            elif newest:
                chosen[use.name] = newest[0].version
            else:
                missing.append(use.name)
        return chosen, missing

    def lent(self, name: str) -> Lent:
        """How an engine reads and caches it."""
        spec = self.get(name).spec
        source = spec.source.model_dump(mode="json", by_alias=True, exclude_none=True)
        secret = dict(self._credentials(spec.secret_ref)) if spec.secret_ref is not None else {}
        return Lent(spec.cache.policy, spec.cache.quota, source, secret)

    async def warm(self, name: str, asked: str | None, nodes: Sequence[str]) -> Version:
        """Bring a version to nodes before anybody reads it there; no names of nodes mean all."""
        found = self.chosen(name, asked)
        known = self._control.books.cluster.rooms
        for node in nodes:
            if node not in known:
                raise NoNode(node, known)
        await self._control.backend.warm(name, found.version, nodes or list(known))
        return found

    async def _first(self, name: str, tell: Tell) -> Version:
        reading = self.refresh(name)
        reading.heard.append(tell)
        try:
            return await asyncio.shield(reading.task)
        except DataFailed as problem:
            raise Permanent(Code.DATA, f"dataset {name} cannot be read: {problem}") from None
        finally:
            reading.heard.remove(tell)

    # ── shown ──

    async def documents(self, *datasets: Dataset) -> list[dict[str, Any]]:
        """With what nodes hold of them."""
        cached, uses = await self._control.backend.cached(), self.uses()
        return [self.document(dataset, uses, cached) for dataset in datasets]

    async def touched(self, before: Sequence[Cached]) -> tuple[set[str], Sequence[Cached]]:
        """What nodes hold now, and whose caches have changed since they held that."""
        now = await self._control.backend.cached() if self._versions else ()
        owners: dict[str, list[str]] = {}
        if now != before:
            for name, kept in self._versions.items():
                for each in kept:
                    owners.setdefault(each.version, []).append(name)
        return caches.touched(before, now, owners), now

    def document(
        self, dataset: Dataset, uses: Uses | None = None, cached: Sequence[Cached] = ()
    ) -> dict[str, Any]:
        name = dataset.metadata.name or ""
        found: dict[str, Any] = dataset.model_dump(mode="json", by_alias=True, exclude_none=True)
        users = (self.uses() if uses is None else uses).get(name, {})
        versions, reading = self.versions(name), self._reading.get(name)
        state = (
            "READING" if reading else "FAILED" if name in self._failed else "READY" if versions else "EMPTY"
        )
        found["status"] = {
            "state": state,
            "reason": reading.far if reading else self._failed.get(name),
            "progress": dict(reading.progress) if reading else None,
            "version": versions[0].version if versions else None,
            "versions": [
                {
                    "version": each.version,
                    "created": each.created,
                    "samples": each.samples,
                    "bytes": each.bytes,
                    "parts": each.parts,
                    "lineage": dict(each.lineage),
                    "readers": sorted(users.get(each.version, ())),
                }
                for each in versions
            ],
            "readers": sorted({job for jobs in users.values() for job in jobs}),
            "cached": _shown(name, {one.version: one.bytes for one in versions}, cached),
        }
        return found

    def chosen(self, name: str, asked: str | None) -> Version:
        """The newest version, or the one whose name begins so."""
        self.get(name)
        versions = self.versions(name)
        found = self.version(name, asked) if asked else versions[0] if versions else None
        if found is None:
            which = f" {asked}" if asked else " yet"
            raise Refused(f"dataset {name} has no version{which} (weft data show {name})")
        return found

    def lineage(self, name: str, asked: str | None) -> dict[str, Any]:
        every = [each for kept in self._versions.values() for each in kept]
        return graph(self.chosen(name, asked), every)

    async def verify(self, name: str, asked: str | None) -> dict[str, Any]:
        """Prove every byte of a version against its names."""
        found = self.chosen(name, asked)
        about = {"version": found.version, **self._source(name)}
        said = await run(self.store, {"do": "verify", **about})
        return {"dataset": name, "version": found.version, **said}

    def _source(self, name: str) -> dict[str, Any]:
        """How objects are read that stay there: of other sources none do."""
        lent = self.lent(name)
        there = str(lent.source.get("url")).startswith(("s3://", "http://", "https://"))
        return {"source": lent.source if there else None, "credentials": lent.credentials}

    async def object(self, name: str, asked: str | None, digest: str) -> tuple[int, AsyncIterator[bytes]]:
        """An object of a version that stays at its source: how large it is, and its bytes."""
        found = self.chosen(name, asked)
        table = self.store / "versions" / found.version / "version.json"
        parts = from_json(await asyncio.to_thread(table.read_bytes))["parts"]
        there = (p for p in parts if p["digest"] == digest and p["place"]["kind"] == "source")
        part = next(there, None)
        if part is None:
            raise Refused(f"version {found.version[:SHORT]} of dataset {name} has no object {digest[:SHORT]}")
        about = {"folder": str(table.parent), "version": found.version, "digest": digest}
        chunks = stream({"do": "read", **about, **self._source(name)})
        await anext(chunks)  # a source that cannot be read is told before the answer begins
        return part["size"], chunks

    async def close(self) -> None:
        while tasks := [reading.task for reading in self._reading.values()]:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)


def _row(version: Version) -> dict[str, Any]:
    spec = {k: v for k, v in asdict(version).items() if k not in ("created", "uid", "seen")}
    said = {"metadata": "{}", "spec": to_json(spec).decode(), "owner": "", **_status(version)}
    return creation_row(VERSION, version.uid, f"{version.dataset}.{version.version}", version.created, said)


def _status(version: Version) -> dict[str, Any]:
    """The column of a version that changes."""
    return {"status": to_json({"seen": version.seen}).decode()}


def _how_read(dataset: Dataset) -> tuple[object, ...]:
    """All of a declaration on which depends what reading its source gives."""
    spec = dataset.spec
    return spec.source, spec.secret_ref, spec.pack, spec.in_place


def _shown(name: str, versions: Mapping[str, int], cached: Sequence[Cached]) -> list[dict[str, Any]]:
    """What each node holds of a dataset, and what came of it; nodes that have nothing to do with it are left out."""
    found = []
    for node in cached:
        held = {version: size for version, size in node.versions.items() if version in versions}
        warming = {version: size for version, size in node.warming.items() if version in versions}
        if not (held or warming or name in node.reads):
            continue
        reads = node.reads.get(name, Reads())
        whole = sum(versions[version] for version in held)
        found.append(
            {
                "node": node.node,
                "versions": held,
                "warming": warming,
                "hits": reads.hits,
                "misses": reads.misses,
                "hitRatio": None if reads.ratio is None else round(reads.ratio, 4),
                "heldRatio": round(sum(held.values()) / whole, 4) if whole else None,
                "remoteBytes": reads.remote,
                "peerBytes": reads.peer,
                "stallSeconds": round(reads.stalled, 3),
            }
        )
    return found
