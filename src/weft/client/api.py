"""`Client`: every operation of a Weft server as a method.

Documents go in and out as plain dictionaries, exactly as the REST API has them; `Job` is a handle on one
of them. Streams survive a restart of the server: they connect again and leave out what they had.
"""

from __future__ import annotations

import heapq
import os
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from weft.client.documents import Document, load_documents
from weft.client.errors import (
    ApiError,
    BadDocument,
    NoServer,
    PackageError,
    Unreachable,
    WeftError,
    describe_problem,
)
from weft.client.home import Endpoint, find_endpoint, home_folder
from weft.client.progress import Counted, Progress
from weft.client.refusals import blamed, refused
from weft.client.sse import Event, Parser
from weft.client.transport import Answer, Transport, segment

if TYPE_CHECKING:
    from weft.client.job import Job
    from weft.client.package import Package
    from weft.model.job import TrainingJob

    Jobs = list[Job]
    AnyJob = Mapping[str, Any] | str | os.PathLike[str] | TrainingJob | Document

Json = dict[str, Any]
Items = list[Json]

LOG_PAGE = 1 << 20
"""Bytes of each task's log in one answer."""
EVENT_PAGE = 1000
SIGN_OF_LIFE = 45.0
"""Three missed keep-alives of the server: the stream is dead."""
PATIENCE = 60.0
"""How long a stream waits for a server that went away to come back."""


class Client:
    """A connection to one server: by address and token, or the one of a home (WEFT_HOME, ~/.weft)."""

    def __init__(
        self,
        address: str | None = None,
        token: str | None = None,
        home: str | os.PathLike[str] | None = None,
        timeout: float = 60.0,
    ):
        self.home = home_folder(home)
        self._http = Transport(
            (lambda: Endpoint(address, token)) if address else lambda: find_endpoint(self.home), timeout
        )

    def close(self) -> None:
        self._http.close()

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def ask(self, method: str, path: str, query: Mapping[str, object] | None = None, body: Any = None) -> Any:
        """Any request of the REST API, for what has no method here."""
        return self._http.request(method, path, query=query, json_body=body)

    # ── jobs ─────────────────────────────────────────────────────────────────────────────────────

    def submit(self, job: AnyJob, *, key: str | None = None, progress: Progress | None = None) -> Job:
        """Submit a job: a document, a model, or the path of a file with exactly one.

        A folder named in `spec.code.path` is packed and uploaded if the server does not have it. The same
        `key` submits once, however often it is sent; by default every call makes a key of its own.
        """
        from weft.client.job import Job

        with self._packed(self.as_document(job), progress) as (ready, package):
            if package is not None and not self.has_package(package.digest):
                self._create(ready, dry_run=True)  # what is refused anyway need not be uploaded first
                self.put_package(package.digest, package.file, package.size, progress)
            return Job(self, self._create(ready, key=key or uuid.uuid4().hex))

    def check(self, job: AnyJob, *, progress: Progress | None = None) -> Json:
        """The job as the server would take it, with every default filled in; nothing is submitted."""
        document = self.as_document(job)
        with self._packed(document, progress) as (ready, package):
            checked = self._create(ready, dry_run=True)
            if package is not None:  # as it was written, so that what is printed can be run
                checked["spec"]["code"] = document.value["spec"]["code"]
            return checked

    def objects(self, job: AnyJob, *, progress: Progress | None = None) -> Items:
        """What the job would be on a Kubernetes cluster, as its API takes it; nothing is submitted."""
        with self._packed(self.as_document(job), progress) as (ready, _):
            items: Items = self._create(ready, dry_run=True, objects="kubernetes")["items"]
            return items

    def put_code(self, document: Document) -> Json:
        """Pack and upload the folder that a document names; the `code` that names the package instead."""
        with self._packed(document, None) as (ready, package):
            if package is not None and not self.has_package(package.digest):
                self.put_package(package.digest, package.file, package.size)
            code: Json = ready["spec"]["code"]
            return code

    @contextmanager
    def _packed(self, document: Document, progress: Progress | None) -> Iterator[tuple[Json, Package | None]]:
        """The document with its code as a package. A refusal names the file, and tells of a folder that
        cannot be packed together with what the server finds wrong in the rest."""
        from weft.client.upload import packed_code

        try:
            with packed_code(document, progress) as packed:
                yield packed
        except PackageError as problem:
            others = self._problems({**document.value, "spec": {**document.value["spec"], "code": None}})
            if not (document.source or others):
                raise
            wrong = [("spec.code.path", f"spec.code.path: {problem}")]
            wrong += [(other.get("field") or "", describe_problem(other)) for other in others]
            raise blamed(document, wrong, problem.next) from None
        except ApiError as error:
            raise (refused(document, error) if error.problems and document.source else error) from None

    def _problems(self, document: Json) -> Items:
        """What the server finds wrong with a document; nothing where it cannot be asked."""
        try:
            self._create(document, dry_run=True)
        except ApiError as error:
            return error.problems
        except WeftError:
            pass
        return []

    def as_document(self, job: AnyJob) -> Document:
        """Any form of a job as a document with its source; a dictionary's paths are relative to here."""
        if isinstance(job, Document):
            return job
        if isinstance(job, Mapping):
            return Document(dict(job), "", Path.cwd())
        if hasattr(job, "model_dump"):
            return Document(job.model_dump(mode="json", by_alias=True, exclude_none=True), "", Path.cwd())
        documents = load_documents(os.fspath(job))
        if len(documents) != 1:
            raise BadDocument(
                os.fspath(job), f"{len(documents)} documents in it, one expected", f"weft apply -f {job}"
            )
        return documents[0]

    def _create(
        self, document: Json, *, key: str | None = None, dry_run: bool = False, objects: str | None = None
    ) -> Json:
        headers = {"Idempotency-Key": key} if key else {}
        query = {"dryRun": True, "objects": objects} if dry_run else None
        created: Json = self._http.request(
            "POST", "/v1/jobs", query=query, json_body=document, headers=headers
        )
        return created

    def get(self, name: str) -> Job:
        from weft.client.job import Job

        return Job(self, self.document(name))

    def document(self, name: str) -> Json:
        """The job's whole resource: metadata, spec and status."""
        return self._get(f"/v1/jobs/{segment(name)}")

    def list(self, *, state: Sequence[str] = (), label: str | None = None, limit: int | None = None) -> Jobs:
        """Jobs, newest first; `label` is `key=value`."""
        from weft.client.job import Job

        pages = self.pages(state=state, label=label, limit=limit, view="full")
        return [Job(self, item) for page in pages for item in page["items"]]

    def pages(
        self,
        *,
        state: Sequence[str] = (),
        label: str | None = None,
        limit: int | None = None,
        view: str = "summary",
    ) -> Iterator[Json]:
        """The server's pages of jobs until `limit` are seen; each `{"items", "total", "next"}`."""
        query: Json = {"state": ",".join(state) or None, "label": label, "view": view}
        left = limit
        while left is None or left > 0:
            query["limit"] = 1000 if left is None else min(left, 1000)
            page = self._get("/v1/jobs", query)
            yield page
            query["before"] = page.get("next")
            left = None if left is None else left - len(page["items"])
            if not query["before"]:
                return

    def halt(self, name: str) -> Job:
        """Stop the job and keep its place in life: `resume` queues it again."""
        return self._act(name, "halt")

    def resume(self, name: str, from_checkpoint: int | None = None) -> Job:
        """Queue a halted or failed job again, from its newest checkpoint or the one of this step."""
        query = None if from_checkpoint is None else {"fromCheckpoint": from_checkpoint}
        return self._act(name, "resume", query)

    def scale(self, name: str, **roles: int) -> Job:
        """So many tasks of these roles from now on: `scale("mnist", worker=2)`."""
        from weft.client.job import Job

        return Job(self, self.ask("POST", f"/v1/jobs/{segment(name)}/scale", body={"roles": roles}))

    def cancel(self, name: str) -> Job:
        return self._act(name, "cancel")

    def delete(self, name: str) -> bool:
        """Remove a job and its files. False: it still runs, is being stopped and goes then."""
        return self.ask("DELETE", f"/v1/jobs/{segment(name)}") is None

    def _act(self, name: str, verb: str, query: Mapping[str, object] | None = None) -> Job:
        from weft.client.job import Job

        return Job(self, self.ask("POST", f"/v1/jobs/{segment(name)}/{verb}", query))

    def explain(self, name: str) -> Json:
        """Why the job is in its state: what it waits for and how long."""
        return self._get(f"/v1/jobs/{segment(name)}/explain")

    # ── what jobs leave behind ───────────────────────────────────────────────────────────────────

    def logs(
        self, name: str, *, task: str | None = None, offset: int | None = None, tail: int | None = None
    ) -> Iterator[Json]:
        """The log lines that there are, as `{task, offset, time, text}`, in the order of their times."""
        path = f"/v1/jobs/{segment(name)}/logs"
        begin = offset or 0
        page = self._get(path, {"task": task, "offset": offset, "tail": tail, "limit": LOG_PAGE})
        if tail is not None or all(after - begin < LOG_PAGE // 2 for after in page["next"].values()):
            yield from page["items"]
            return
        # Too long for one page. An offset belongs to one log, so read each on its own and merge them.
        tasks = (self._task_log(path, one, begin) for one in page["next"])
        yield from heapq.merge(*tasks, key=lambda line: line["time"])

    def _task_log(self, path: str, task: str, offset: int) -> Iterator[Json]:
        while items := (page := self._get(path, {"task": task, "offset": offset, "limit": LOG_PAGE}))[
            "items"
        ]:
            yield from items
            offset = page["next"][task]

    def follow_logs(
        self, name: str, *, task: str | None = None, offset: int | None = None, tail: int | None = None
    ) -> Iterator[Items]:
        """Log lines as they are written, in batches, until the job has ended."""
        seen: dict[str, int] = {}
        query: Json = {"task": task, "offset": offset, "tail": tail}
        for event in self.follow(f"/v1/jobs/{segment(name)}/logs", lambda: query):
            if event is None or event.name != "lines":
                continue
            fresh = [item for item in event.json()["items"] if item["offset"] > seen.get(item["task"], -1)]
            for item in fresh:
                seen[item["task"]] = item["offset"]
            if fresh:
                query.pop("tail", None)  # a stream that begins again must not begin in the middle
                yield fresh

    def metrics(self, name: str, metric: str | None = None) -> Items:
        """All points, as `{id, task, name, step, time, value}`."""
        points: Items = []
        query: Json = {"name": metric, "limit": 10000}
        while items := (page := self._get(f"/v1/jobs/{segment(name)}/metrics", query))["items"]:
            points += map(_numeric, items)
            query["after"] = page["next"]
            if page["next"] is None or len(items) < query["limit"]:
                break
        return points

    def has_metrics(self, name: str) -> bool:
        """Whether the job has measured anything yet."""
        return bool(self._get(f"/v1/jobs/{segment(name)}/metrics", {"limit": 1})["items"])

    def follow_metrics(self, name: str, metric: str | None = None) -> Iterator[Items]:
        """Points as they are logged, in batches, until the job has ended."""
        query: Json = {"name": metric}
        for event in self.follow(f"/v1/jobs/{segment(name)}/metrics", lambda: query):
            if event is not None and event.name == "points" and (items := event.json()["items"]):
                query["after"] = max(item["id"] for item in items)
                yield [_numeric(item) for item in items]

    def events(self, name: str) -> Items:
        """The job's history, oldest first."""
        found: Items = []
        while True:
            after = found[-1]["seq"] if found else None
            items = self._get(f"/v1/jobs/{segment(name)}/events", {"after": after})["items"]
            found += items
            if len(items) < EVENT_PAGE:
                return found

    def follow_events(self, name: str, deadline: float | None = None) -> Iterator[Json | None]:
        """The job's history and what is added to it until the job is idle. None now and then, so that a
        caller can look up."""
        query: Json = {}
        for event in self.follow(f"/v1/jobs/{segment(name)}/events", lambda: query, deadline=deadline):
            if event is None:
                yield None
            elif event.name == "event":
                item = event.json()
                query["after"] = item["seq"]
                yield item

    def checkpoints(self, name: str) -> Json:
        """The steps the job can go on from, as `{"items": [{step, size, saved, here, copied}]}`."""
        return self._get(f"/v1/jobs/{segment(name)}/checkpoints")

    def results(self, name: str) -> Json:
        """The files of the job's results, as `{"items": [{path, size, modified}], "bytes"}`."""
        return self._get(f"/v1/jobs/{segment(name)}/results")

    def download(
        self, path: str, use: Callable[[Answer], Any], query: Mapping[str, object] | None = None
    ) -> Any:
        """Give an answer to `use` while it arrives (results.tar, a backup)."""
        with self._http.exchange(
            "GET", path, query=query, headers={"Accept": "*/*"}, timeout=600.0
        ) as answer:
            return use(answer)

    # ── the machine ──────────────────────────────────────────────────────────────────────────────

    def status(self) -> Json:
        return self._get("/v1/status")

    def nodes(self) -> Items:
        return self._items("/v1/nodes")

    def cordon(self, node: str, reason: str | None = None) -> Json:
        """Place nothing new on a node; what runs there goes on. The node, as all three return it."""
        return self._node(node, "cordon", reason)

    def uncordon(self, node: str) -> Json:
        """Let tasks come to a node again."""
        return self._node(node, "uncordon")

    def lose_node(self, node: str, reason: str | None = None) -> Json:
        """Declare a node lost: what runs there is killed and runs again elsewhere."""
        return self._node(node, "lost", reason)

    def _node(self, node: str, verb: str, reason: str | None = None) -> Json:
        said = {"reason": reason} if reason else None
        found: Json = self.ask("POST", f"/v1/nodes/{segment(node)}/{verb}", said)
        return found

    def queue(self) -> Items:
        return self._items("/v1/queue")

    def queues(self) -> Items:
        """The queues, each after its parent: spec, and status with what it uses."""
        return self._items("/v1/queues")

    def put_queue(self, queue: Mapping[str, Any] | Document) -> Json:
        """Declare a queue or change it: a whole document with `metadata.name`."""
        return self._put("queues", "queue", queue)

    def _put(self, where: str, what: str, given: Mapping[str, Any] | Document) -> Json:
        document = given if isinstance(given, Document) else Document(dict(given), "", Path.cwd())
        if document.name is None:
            raise blamed(document, [("metadata.name", f"metadata.name: is required: the {what}'s name")])
        try:
            kept: Json = self.ask("PUT", f"/v1/{where}/{segment(document.name)}", body=document.value)
        except ApiError as error:
            for problem in error.problems:
                if problem.get("field") == "path.name":  # where this method has put it
                    problem["field"] = "metadata.name"
            raise (refused(document, error) if error.problems and document.source else error) from None
        return kept

    def delete_queue(self, name: str) -> None:
        self.ask("DELETE", f"/v1/queues/{segment(name)}")

    def top(self) -> Items:
        return self._items("/v1/top")

    def job_types(self) -> Items:
        return self._items("/v1/jobtypes")

    def job_type(self, name: str) -> Json:
        found: Json = self.ask("GET", f"/v1/jobtypes/{segment(name)}")
        return found

    def put_job_type(self, job_type: Mapping[str, Any] | Document) -> Json:
        """Keep a job type or change it: a whole document with `metadata.name`."""
        return self._put("jobtypes", "job type", job_type)

    def delete_job_type(self, name: str) -> None:
        self.ask("DELETE", f"/v1/jobtypes/{segment(name)}")

    def sizes(self) -> Items:
        """The sizes: spec, and status with where each is from."""
        return self._items("/v1/sizes")

    def put_size(self, size: Mapping[str, Any] | Document) -> Json:
        """Declare a size or change it: a whole document with `metadata.name`."""
        return self._put("sizes", "size", size)

    def delete_size(self, name: str) -> None:
        self.ask("DELETE", f"/v1/sizes/{segment(name)}")

    def clusters(self) -> Items:
        """The clusters that were added to the server: spec, and status with what they have."""
        return self._items("/v1/clusters")

    def put_cluster(self, cluster: Mapping[str, Any] | Document) -> Json:
        """Add a cluster or reach it in another way: a whole document with `metadata.name`."""
        return self._put("clusters", "cluster", cluster)

    def delete_cluster(self, name: str) -> None:
        self.ask("DELETE", f"/v1/clusters/{segment(name)}")

    def datasets(self) -> Items:
        """The datasets: spec, and status with their versions and who reads them."""
        return self._items("/v1/datasets")

    def dataset(self, name: str) -> Json:
        return self._get(f"/v1/datasets/{segment(name)}")

    def put_dataset(self, dataset: Mapping[str, Any] | Document) -> Json:
        """Declare a dataset or change it: a whole document with `metadata.name`. A new source is read at once."""
        return self._put("datasets", "dataset", dataset)

    def delete_dataset(self, name: str) -> None:
        self.ask("DELETE", f"/v1/datasets/{segment(name)}")

    def refresh_dataset(self, name: str) -> Json:
        """Read its source again; the dataset, whose status says how far that is."""
        found: Json = self.ask("POST", f"/v1/datasets/{segment(name)}/refresh")
        return found

    def verify_dataset(self, name: str, version: str | None = None) -> Json:
        """Prove every byte of a version; what is wrong is in `problems`."""
        query = {"version": version} if version else None
        found: Json = self.ask("POST", f"/v1/datasets/{segment(name)}/verify", query)
        return found

    def warm_dataset(self, name: str, nodes: Sequence[str] = (), version: str | None = None) -> Json:
        """Bring a version to these nodes, or to all; `status.cached` then says how far it is."""
        query = {"version": version} if version else None
        where: Json = {"nodes": list(nodes)} if nodes else {"all": True}
        found: Json = self.ask("POST", f"/v1/datasets/{segment(name)}/warm", query, where)
        return found

    def lineage(self, name: str, version: str | None = None) -> Json:
        """What a version was made from, and what was made from it: `nodes` and `edges`."""
        query = {"version": version} if version else None
        found: Json = self.ask("GET", f"/v1/datasets/{segment(name)}/lineage", query)
        return found

    def suggestion(self, job: str) -> Json:
        """What would have been enough for a job that has ended, by role."""
        return self._get(f"/v1/jobs/{segment(job)}/suggestion")

    def schema(self, kind: str = "TrainingJob") -> Json:
        return self._get(f"/v1/schemas/{segment(kind)}")

    def secrets(self) -> Items:
        return self._items("/v1/secrets")

    def set_secret(self, name: str, data: Mapping[str, str]) -> None:
        self.ask("PUT", f"/v1/secrets/{segment(name)}", body={"data": dict(data)})

    def delete_secret(self, name: str) -> None:
        self.ask("DELETE", f"/v1/secrets/{segment(name)}")

    def backup(
        self, target: str | os.PathLike[str], *, files: bool = False, progress: Progress | None = None
    ) -> int:
        """Write a consistent copy of the server's data (with `files`, also all jobs' files) to a tar file;
        its size in bytes."""
        from weft.client.download import save_private

        size: int = self.download(
            f"/v1/backup?files={str(files).lower()}",
            lambda answer: save_private(answer, Path(target), progress),
        )
        return size

    # ── packages ─────────────────────────────────────────────────────────────────────────────────

    def has_package(self, digest: str) -> bool:
        try:
            self._http.request("HEAD", f"/v1/packages/{digest}")
        except ApiError as error:
            if error.status == 404:
                return False
            raise
        return True

    def put_package(self, digest: str, content: Any, size: int, progress: Progress | None = None) -> None:
        content = Counted(content, "uploading", size, progress) if progress else content
        headers = {"Content-Type": "application/gzip", "Content-Length": str(size)}
        self._http.request("PUT", f"/v1/packages/{digest}", body=content, headers=headers)

    # ── reading ──────────────────────────────────────────────────────────────────────────────────

    def follow(
        self, path: str, query: Callable[[], Mapping[str, object]], *, deadline: float | None = None
    ) -> Iterator[Event | None]:
        """A stream's events until its `end`, across restarts of the server; None is a sign of life.

        `query` is asked again for each connection, so that it can say where to go on. Past `deadline`
        (of `time.monotonic`) the stream stops without an `end`.
        """
        alive = time.monotonic()
        last_id: str | None = None
        while deadline is None or time.monotonic() < deadline:
            parser = Parser()
            headers = {"Accept": "text/event-stream"} | ({"Last-Event-ID": last_id} if last_id else {})
            try:
                with self._http.exchange(
                    "GET",
                    path,
                    query={**query(), "follow": True},
                    headers=headers,
                    timeout=_patience(deadline),
                ) as answer:
                    while chunk := answer.read_some():
                        alive = time.monotonic()
                        for event in parser.feed(chunk):
                            yield event
                            if event is not None and event.name == "end":
                                return
                        answer.give_up_after(_patience(deadline))
            except (NoServer, Unreachable):
                if time.monotonic() - alive > PATIENCE:
                    raise
            last_id = parser.last_id or last_id
            yield None
            time.sleep(0.2)

    def _get(self, path: str, query: Mapping[str, object] | None = None) -> Json:
        document: Json = self._http.request("GET", path, query=query)
        return document

    def _items(self, path: str) -> Items:
        items: Items = self._get(path)["items"]
        return items


def _numeric(point: Json) -> Json:
    """JSON has no NaN and no infinities: the server sends them as text."""
    value = point["value"]
    return {**point, "value": float(value)} if isinstance(value, str) else point


def _patience(deadline: float | None) -> float:
    return SIGN_OF_LIFE if deadline is None else max(0.001, min(SIGN_OF_LIFE, deadline - time.monotonic()))
