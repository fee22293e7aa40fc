"""The operations on jobs."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import AsyncIterator
from dataclasses import asdict
from difflib import get_close_matches
from functools import partial
from math import ceil
from typing import Any

from pydantic_core import from_json, to_json
from starlette.requests import Request
from starlette.responses import Response

from weft.backends.fleet import Fleet
from weft.control import live, results
from weft.control.checkpoints import checkpoints
from weft.control.control import Control
from weft.control.foresight import UNKNOWN
from weft.control.live import KIND, LiveJob
from weft.jobtypes.complete import Rule, read_job
from weft.model.cluster import ANY
from weft.model.failures import Permanent
from weft.model.gang import Within
from weft.model.job import MAX_TASKS, TrainingJob
from weft.model.problems import Invalid, Problem
from weft.model.resource import LABEL_KEY_PATTERN, NAME_PATTERN
from weft.model.status import Desire, State
from weft.server import answers
from weft.server.answers import ref
from weft.server.archives import tar_stream
from weft.server.operations import Answer, Operation, Param, Query
from weft.server.packages import Packages
from weft.server.problems import ApiProblem
from weft.server.secrets import Secrets
from weft.server.streams import LAST_EVENT, NOTHING, Message, begin, events_of, stream
from weft.server.summaries import places, summary_of

BODY_LIMIT = 8 << 20
METRICS_POLL = 0.25
SMALL_PAGE = 200
JOB = {"$ref": "#/components/schemas/TrainingJob"}
ITEMS = {
    "type": "object",
    "required": ["items"],
    "properties": {"items": {"type": "array", "items": {"type": "object"}}},
}
JOBS = {
    "type": "object",
    "required": ["items", "total", "next"],
    "properties": {
        "items": {"type": "array", "items": {"anyOf": [ref("Job"), ref(answers.JobSummary)]}},
        "total": {"type": "integer", "description": "Of all pages."},
        "next": {
            "anyOf": [{"type": "string"}, {"type": "null"}],
            "description": "For `before`; null: the last page.",
        },
    },
}
NAME = {"name": NAME_PATTERN}
SIZES = {
    "type": "object",
    "required": ["roles"],
    "additionalProperties": False,
    "properties": {
        "roles": {
            "type": "object",
            "minProperties": 1,
            "additionalProperties": {"type": "integer", "minimum": 0, "maximum": MAX_TASKS},
        }
    },
}
STATES = "|".join(State)
FROM_CHECKPOINT = Param(
    "fromCheckpoint", "integer", "Go on from the checkpoint of this step, not the newest.", None, 0
)
FOLLOW = Param("follow", "boolean", "Go on as a stream of events (text/event-stream).", False)
EVENTS = events_of(event=ref(answers.Event), end=NOTHING)


class JobOperations:
    def __init__(self, control: Control, packages: Packages, secrets: Secrets, owner: str):
        self._control = control
        self._packages = packages
        self._secrets = secrets
        self._owner = owner

    def table(self) -> list[Operation]:
        ok = Answer("The job", ref("Job"))
        asked = {200: ok}
        return [
            Operation(
                "POST",
                "/v1/jobs",
                "Submit a job",
                self.submit_job,
                {
                    201: Answer("Kept; it waits for its place", ref("Job")),
                    200: Answer("A dry run, or this key was seen", {"anyOf": [JOB, ITEMS]}),
                },
                params=(
                    Param("dryRun", "boolean", "Only check, and answer with every default filled in.", False),
                    Param(
                        "objects",
                        "string",
                        "With dryRun: answer with the objects that it would be on Kubernetes, as `items`.",
                        pattern="^kubernetes$",
                        rule="must be kubernetes",
                    ),
                ),
                headers=(
                    Param(
                        "Idempotency-Key",
                        "string",
                        "Submitting twice with one key submits once.",
                        pattern=r"^[!-~]{1,255}$",
                    ),
                ),
                body=JOB,
                problems=(409, 413, 507),
            ),
            Operation(
                "GET",
                "/v1/jobs",
                "List jobs, newest first",
                self.list_jobs,
                {200: Answer("A page of jobs", JOBS)},
                params=(
                    Param(
                        "state",
                        "string",
                        "Only these states, separated by commas.",
                        pattern=rf"^({STATES})(,({STATES}))*$",
                        rule=f"must be states separated by commas, of {', '.join(State)}",
                    ),
                    Param("label", "string", "Only jobs with this label: key=value.", pattern=r"^[^=]+=.*$"),
                    Param("limit", "integer", "At most so many.", 100, 1, 100_000),
                    Param("before", "string", "Go on after a page: its `next`."),
                    Param(
                        "view",
                        "string",
                        "full resources, or a summary of each.",
                        "full",
                        pattern="^(full|summary)$",
                    ),
                ),
            ),
            Operation(
                "GET", "/v1/jobs/{name}", "One job", self.get_job, asked, problems=(404,), path_patterns=NAME
            ),
            Operation(
                "DELETE",
                "/v1/jobs/{name}",
                "Delete a job and its files; a running one is stopped first",
                self.delete_job,
                {204: Answer("Gone"), 202: Answer("Being stopped; then it goes", ref("Job"))},
                problems=(404, 409, 507),
                path_patterns=NAME,
            ),
            *(
                Operation(
                    "POST",
                    f"/v1/jobs/{{name}}/{verb}",
                    summary,
                    handler,
                    asked,
                    problems=(404, 409, 507),
                    path_patterns=NAME,
                    params=params,
                )
                for verb, summary, handler, params in (
                    ("halt", "Stop a job, keeping its checkpoints", self.halt_job, ()),
                    ("resume", "Let a halted or failed job run again", self.resume_job, (FROM_CHECKPOINT,)),
                    ("cancel", "End a job", self.cancel_job, ()),
                )
            ),
            Operation(
                "POST",
                "/v1/jobs/{name}/scale",
                "Change the size of a job that waits or runs",
                self.scale_job,
                asked,
                body=SIZES,
                problems=(404, 409, 413, 507),
                path_patterns=NAME,
            ),
            Operation(
                "GET",
                "/v1/jobs/{name}/events",
                "What happened to a job",
                self.job_events,
                {200: Answer("Its history", ref(answers.Events))},
                params=(Param("after", "integer", "Only later ones.", 0), FOLLOW),
                stream=EVENTS,
                headers=(LAST_EVENT,),
                problems=(404,),
                path_patterns=NAME,
            ),
            Operation(
                "GET",
                "/v1/jobs/{name}/metrics",
                "What it measured",
                self.job_metrics,
                {200: Answer("Points", ref(answers.MetricPoints))},
                params=(
                    Param("name", "string", "Only these metrics, separated by commas."),
                    Param("after", "integer", "Go on after a point: its `next`.", 0),
                    Param("limit", "integer", "At most so many.", 10_000, 1, 1_000_000),
                    FOLLOW,
                ),
                stream=events_of(points=ref(answers.MetricPoints), end=NOTHING),
                headers=(LAST_EVENT,),
                problems=(404,),
                path_patterns=NAME,
            ),
            Operation(
                "GET",
                "/v1/jobs/{name}/explain",
                "Why it is in the state it is in",
                self.explain_job,
                {200: Answer("The explanation", ref(answers.Explanation))},
                problems=(404,),
                path_patterns=NAME,
            ),
            Operation(
                "GET",
                "/v1/jobs/{name}/checkpoints",
                "The steps it can go on from",
                self.job_checkpoints,
                {200: Answer("Checkpoints, by step", ref(answers.Checkpoints))},
                problems=(404,),
                path_patterns=NAME,
            ),
            Operation(
                "GET",
                "/v1/jobs/{name}/results",
                "Its result files",
                self.job_results,
                {200: Answer("Files", ref(answers.ResultFiles))},
                problems=(404,),
                path_patterns=NAME,
            ),
            Operation(
                "GET",
                "/v1/jobs/{name}/results.tar",
                "All result files",
                self.job_results_tar,
                {200: Answer("A tar archive", {"type": "string"}, "application/x-tar")},
                problems=(404,),
                path_patterns=NAME,
            ),
            Operation(
                "GET",
                "/v1/events",
                "Everything that happens",
                self.all_events,
                {200: Answer("Events", ref(answers.Events))},
                params=(
                    Param("after", "integer", "Only later ones.", 0),
                    Param("limit", "integer", "At most so many.", 1000, 1, 100_000),
                    FOLLOW,
                ),
                stream=EVENTS,
                headers=(LAST_EVENT,),
            ),
        ]

    # ── submitting ──

    async def submit_job(self, request: Request, query: Query) -> Response:
        if query["objects"] and not query["dryRun"]:
            problem = Problem(
                "query.objects", "belongs to dryRun=true: only what is not submitted is shown so"
            )
            raise ApiProblem(422, "Not valid", str(problem), problems=[problem])
        document = await _read_document(request)
        if query["dryRun"]:
            # A package may be missing: the client asks first whether uploading it is worth while.
            job = self._read(document, self._absent_names)
            prepared = self._control.prepare(job, self._owner)
            if query["objects"]:
                return _json(
                    to_json({"items": await asyncio.to_thread(_objects, prepared, self._control.backend)})
                )
            return _json(to_json(prepared, by_alias=True, exclude_none=True))
        job = self._read(document, self.absent)
        key = request.headers.get("idempotency-key")
        if key is not None and not (0 < len(key) <= 255 and key.isascii() and key.isprintable()):
            raise ApiProblem(422, "Not valid", "Idempotency-Key must be 1 to 255 printable ASCII characters")
        entry, new = await self._control.submit(job, self._owner, key)
        return _json(live.document(entry), 201 if new else 200)

    def _read(self, document: dict[str, Any], further: Rule) -> TrainingJob:
        control = self._control
        return read_job(document, _called(document), further, control.job_types.specs, control.sizes.specs)

    def absent(self, job: TrainingJob) -> list[Problem]:
        """What the job refers to and is not here."""
        package = job.spec.code.package if job.spec.code is not None else None
        if package is None or self._packages.has(package):
            return self._absent_names(job)
        missing = f"is not stored here; upload it first (weft run does; PUT /v1/packages/{package})"
        return [Problem("spec.code.package", missing, f'"{package}"'), *self._absent_names(job)]

    def _absent_names(self, job: TrainingJob) -> list[Problem]:
        problems = []
        if (queue := job.spec.queue) not in (queues := self._control.queues):
            near = get_close_matches(queue, queues.declared, n=1)
            hint = f"did you mean {near[0]}?" if near else f"the queues are {', '.join(queues)} (weft queues)"
            problems.append(Problem("spec.queue", f"no such queue; {hint}", f'"{queue}"'))
        if (cluster := job.spec.placement.cluster) not in (
            None,
            ANY,
        ) and cluster not in self._control.clusters:
            known = [each.metadata.name or "" for each in self._control.clusters]
            near = get_close_matches(str(cluster), known, n=1)
            hint = f"did you mean {near[0]}?" if near else "add it: weft clusters add NAME --kubeconfig FILE"
            problems.append(Problem("spec.placement.cluster", f"no such cluster; {hint}", f'"{cluster}"'))
        for index, use in enumerate(job.spec.datasets):
            datasets = self._control.datasets
            if not datasets.readable(use.name, job.metadata.project):
                known = [
                    n for d in datasets if datasets.readable(n := d.metadata.name or "", job.metadata.project)
                ]
                near = get_close_matches(use.name, known, n=1)
                hint = f"did you mean {near[0]}?" if near else "declare it: weft data add NAME URL"
                problems.append(
                    Problem(f"spec.datasets[{index}].name", f"no such dataset; {hint}", f'"{use.name}"')
                )
            elif use.version is not None and datasets.version(use.name, use.version) is None:
                cause = f"dataset {use.name} has no such version (weft data show {use.name})"
                problems.append(Problem(f"spec.datasets[{index}].version", cause, f'"{use.version}"'))
        for index, output in enumerate(job.spec.outputs):
            if not self._control.datasets.writable(output.dataset, job.metadata.project):
                cause = "is another project's dataset; choose a name of your own"
                problems.append(Problem(f"spec.outputs[{index}].dataset", cause, f'"{output.dataset}"'))
        for index, wanted in enumerate(
            () if self._control.backend.keeps_secrets_of(job.spec) else job.spec.secrets
        ):
            name, key = wanted.name, wanted.key
            if self._secrets.value(name, key) is None:
                known = self._secrets.keys(name)
                cause = f"secret {name} has no key {key}" if known else f"there is no secret {name}"
                problems.append(Problem(f"spec.secrets[{index}]", f"{cause} (weft secrets set {name} {key})"))
        return problems

    # ── reading ──

    async def list_jobs(self, request: Request, query: Query) -> Response:
        summary = query["view"] == "summary"
        states = query["state"].split(",") if query["state"] else ()
        before = _cursor(query["before"]) if query["before"] else None
        limit: int = query["limit"]
        label = _label(query["label"]) if query["label"] else None
        store = self._control.store
        if label is None:
            page = partial(store.page, KIND, states=states, limit=limit, before=before, summary=summary)
            rows = page() if limit <= SMALL_PAGE else await asyncio.to_thread(page)
            total = sum(n for state, n in store.counts(KIND).items() if not states or state in states)
        else:
            found = await asyncio.to_thread(self._with_label, label, states)
            total = len(found)
            rows = [row for row in found if before is None or (row.created, row.uid) < before][:limit]
        last = rows[-1] if len(rows) == limit else None
        more = to_json(_mark(last.created, last.uid) if last is not None else None)
        if summary:
            items = to_json([summary_of(self._control, row) for row in rows])
        else:
            items = b"[" + b",".join(live.stored_document(row) for row in rows) + b"]"
        return _json(
            b"".join((b'{"items":', items, b',"total":', str(total).encode(), b',"next":', more, b"}"))
        )

    def _with_label(self, label: tuple[str, str], states: Any) -> list[Any]:
        found: list[Any] = []
        key, value = label
        before = None
        while rows := self._control.store.page(KIND, states=states, limit=1000, before=before):
            found += [row for row in rows if json.loads(row.metadata).get("labels", {}).get(key) == value]
            before = (rows[-1].created, rows[-1].uid)
        return found

    async def get_job(self, request: Request, query: Query) -> Response:
        job = self._find(request)
        urls: dict[str, str] = {}
        if not job.status.state.idle:
            urls = await asyncio.to_thread(self._control.backend.urls, job)
        if job.status.state.idle:  # perhaps only since that look
            await self._control.settled(job)
            urls = {}
        return _json(live.document(job, urls, self._control.backend.forwards(job) if urls else {}))

    def _find(self, request: Request) -> LiveJob:
        return self._control.find(request.path_params["name"])

    # ── asking ──

    async def halt_job(self, request: Request, query: Query) -> Response:
        return await self._ask(request, Desire.HALT)

    async def resume_job(self, request: Request, query: Query) -> Response:
        return await self._ask(request, Desire.RUN, query["fromCheckpoint"])

    async def cancel_job(self, request: Request, query: Query) -> Response:
        return await self._ask(request, Desire.CANCEL)

    async def _ask(self, request: Request, desire: Desire, checkpoint: int | None = None) -> Response:
        job = await self._control.ask(request.path_params["name"], desire, self._owner, checkpoint)
        return _json(live.document(job))

    async def scale_job(self, request: Request, query: Query) -> Response:
        name = request.path_params["name"]
        body = await read_body(request, 1 << 16)
        roles = body.get("roles") if isinstance(body, dict) and {*body} == {"roles"} else None
        if not isinstance(roles, dict) or not roles:
            raise Invalid(f"job {name}", [Problem("roles", 'is required: {"roles": {"worker": 2}}')])
        wrong = [
            Problem(f"roles.{role[:80]}", "must be a whole number of tasks", to_json(size).decode()[:80])
            for role, size in roles.items()
            if isinstance(size, bool) or not isinstance(size, int) or not 0 <= size <= MAX_TASKS
        ]
        if wrong:
            raise Invalid(f"job {name}", wrong)
        return _json(live.document(await self._control.scale(name, roles, self._owner)))

    async def delete_job(self, request: Request, query: Query) -> Response:
        job = self._find(request)
        if await self._control.remove(job.name, self._owner):
            return Response(status_code=204)
        return _json(live.document(job), 202)

    # ── events ──

    async def job_events(self, request: Request, query: Query) -> Response:
        job = self._find(request)
        if query["follow"]:
            return stream(self._events(begin(request, query), job.uid))
        return _json(
            to_json(
                {"items": [e.dump() for e in self._control.store.events(uid=job.uid, after=query["after"])]}
            )
        )

    async def all_events(self, request: Request, query: Query) -> Response:
        if query["follow"]:
            return stream(self._events(begin(request, query), None))
        found = self._control.store.events(after=query["after"], limit=query["limit"])
        return _json(to_json({"items": [event.dump() for event in found]}))

    async def _events(self, after: int, uid: str | None) -> AsyncIterator[Message]:
        """First what is stored, then what is committed from now on; a job's stream ends with the job."""
        store = self._control.store
        wake = asyncio.Event()
        unwatch = store.watch(lambda event: wake.set() if uid in (None, event.uid) else None)
        settled = False
        try:
            while True:
                wake.clear()
                found = store.events(uid=uid, after=after)
                for event in found:
                    yield Message("event", event.dump(), str(event.seq))
                    after = event.seq
                if found:
                    continue
                if uid is None or uid in self._control.jobs:
                    settled = False
                    await wake.wait()
                elif settled:
                    yield Message("end", {})
                    return
                else:
                    settled = True
                    await self._control.written()  # its end may not be yet
        finally:
            unwatch()

    # ── metrics, results ──

    async def job_metrics(self, request: Request, query: Query) -> Response:
        job = self._find(request)
        names = query["name"].split(",") if query["name"] else ()
        if query["follow"]:
            return stream(self._metrics(job.uid, names, begin(request, query)))
        points = await asyncio.to_thread(
            self._control.store.metrics, job.uid, names=names, after=query["after"], limit=query["limit"]
        )
        return _json(to_json({"items": points, "next": points[-1]["id"] if points else query["after"]}))

    async def _metrics(self, uid: str, names: Any, after: int) -> AsyncIterator[Message]:
        store, settled = self._control.store, False
        while True:
            idle = uid not in self._control.jobs
            points = store.metrics(uid, names=names, after=after, limit=5000)
            if points:
                after = points[-1]["id"]
                yield Message("points", {"items": points, "next": after}, str(after))
                continue
            if idle and settled:
                yield Message("end", {})
                return
            settled = idle
            await (self._control.written() if idle else asyncio.sleep(METRICS_POLL))

    async def explain_job(self, request: Request, query: Query) -> Response:
        job = self._find(request)
        waits = job.status.state is State.QUEUED
        estimates = await self._control.estimates(job.uid) if waits else {}
        status = job.status  # it may have started meanwhile
        found: dict[str, Any] = {"state": status.state, "reason": status.reason or _plain_reason(job)}
        if status.failure is not None:
            found["failure"] = {"code": status.failure.code, "message": status.failure.message}
        if status.state is State.QUEUED:
            explanation = self._control.explain(job)
            waiting = self._control.waiting()
            position = next((i for i, w in enumerate(waiting) if w.uid == job.uid), 0)
            ahead = waiting[:position] if explanation.ever else []
            found |= {
                "reason": explanation.reason,
                "details": explanation.details,
                "numbers": explanation.numbers,
                "possible": explanation.ever,
                "queue": job.spec.queue,
                "position": position + 1 if explanation.ever else None,
                "ahead": [w.name for w in ahead[:20]],
                "waited": self._control.clock() - (status.queued or 0),
                "estimatedStart": asdict(estimates.get(job.uid, UNKNOWN)),
                "promisedStart": explanation.promised,
            }
            if explanation.closed:
                closed = (node.name for node in self._control.books.cluster.nodes if not node.schedulable)
                found["next"] = f"weft nodes uncordon {next(closed)}"
            elif not explanation.ever:
                found |= self._ask_for_less(job)
        return _json(to_json(found))

    def _ask_for_less(self, job: LiveJob) -> dict[str, str]:
        """Advice, and a command; where declaring can make room for all of the gang, the `weft up` that would: what is
        declared is shared out evenly among the nodes."""
        nodes = [room.node for room in self._control.books.cluster.rooms.values()]
        requests = [task.request for task in job.gang.least]
        on_one = len(requests) if job.gang.within is Within.NODE else ceil(len(requests) / len(nodes))
        flags = [f"--nodes {len(nodes)}"] if len(nodes) > 1 else []
        cpu, memory, gpu = (
            len(nodes) * on_one * max(getattr(request, name) for request in requests)
            for name in ("cpu", "memory", "gpus")
        )
        short = [
            cpu > sum(n.cpu for n in nodes),
            memory > sum(n.memory for n in nodes),
            gpu > sum(len(n.gpus) for n in nodes),
        ]
        if short == [True, False, False]:
            command = f"weft down; weft up {' '.join([*flags, f'--cpu {-(-cpu // 1000)}'])}"
            return {"advice": "ask for less, or let CPUs be shared", "next": command}
        if short == [False, False, True]:
            kind = next((f" --gpu-type {r.gpu_type}" for r in requests if r.gpu_type), "")
            command = f"weft down; weft up {' '.join([*flags, f'--gpus {ceil(gpu)}'])}{kind}"
            return {"advice": "ask for less, or declare virtual GPUs", "next": command}
        return {"advice": "cancel it and ask for less", "next": f"weft cancel {job.name}"}

    async def job_checkpoints(self, request: Request, query: Query) -> Response:
        found = await asyncio.to_thread(checkpoints, self._control, self._find(request))
        return _json(to_json({"items": [asdict(checkpoint) for checkpoint in found]}))

    async def job_results(self, request: Request, query: Query) -> Response:
        job = self._find(request)
        folder = self._control.backend.result_folder(job.uid)
        found = await asyncio.to_thread(results.listing, folder, job.spec.results.include)
        items = [{"path": _printable(f.path), "size": f.size, "modified": f.modified} for f in found]
        return _json(to_json({"items": items, "bytes": sum(item.size for item in found)}))

    async def job_results_tar(self, request: Request, query: Query) -> Response:
        job = self._find(request)
        folder = self._control.backend.result_folder(job.uid)
        found = await asyncio.to_thread(results.listing, folder, job.spec.results.include)
        return tar_stream([(f"{folder}/{item.path}", item.path) for item in found], f"{job.name}-results.tar")


def _json(body: bytes, status: int = 200) -> Response:
    return Response(body, status, media_type="application/json")


async def read_body(request: Request, limit: int = BODY_LIMIT) -> Any:
    """The body as JSON; refused when it is too large or no JSON."""
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > limit:
            raise ApiProblem(413, "Too large", f"a request body holds at most {limit >> 20} MiB")
    try:
        return from_json(bytes(body), allow_inf_nan=False)
    except ValueError as problem:
        raise ApiProblem(400, "Not JSON", f"the body is not JSON: {problem}") from None


async def _read_document(request: Request) -> dict[str, Any]:
    document = await read_body(request)
    if not isinstance(document, dict):
        raise Invalid("the job", [Problem("", "must be a mapping with apiVersion, kind, metadata and spec")])
    document.pop("status", None)
    return document


def _called(document: dict[str, Any]) -> str:
    metadata = document.get("metadata")
    name = metadata.get("name") if isinstance(metadata, dict) else None
    return f"job {name}" if isinstance(name, str) else "the job"


def _objects(job: TrainingJob, fleet: Fleet) -> list[dict[str, Any]]:
    """What the job would be on the cluster that it names, on the server's own, or on any."""
    from weft.backends.kubernetes.dryrun import objects_of
    from weft.backends.kubernetes.settings import Settings

    assert job.metadata.name is not None
    try:
        settings = getattr(fleet.engine(job.spec.placement.cluster), "settings", None) or Settings()
        return objects_of(job.metadata.name, job.spec, settings, job.metadata.project)
    except Permanent as refusal:
        problem = Problem("spec", refusal.failure.message)
        raise ApiProblem(422, "Not for Kubernetes", str(problem), problems=[problem]) from None


def _printable(path: str) -> str:
    """A file's name may be no UTF-8; what cannot be shown becomes a question mark."""
    return path.encode(errors="replace").decode()


def _mark(created: float, uid: str) -> str:
    return base64.urlsafe_b64encode(json.dumps([created, uid]).encode()).decode()


def _cursor(text: str) -> tuple[float, str]:
    try:
        created, uid = json.loads(base64.urlsafe_b64decode(text.encode()))
        return float(created), str(uid)
    except (ValueError, TypeError, RecursionError):
        problem = Problem("query.before", "is not the `next` of an earlier page")
        raise ApiProblem(422, "Not valid", str(problem), problems=[problem]) from None


def _label(text: str) -> tuple[str, str]:
    import re

    key, _, value = text.partition("=")
    if not re.match(LABEL_KEY_PATTERN, key):
        problem = Problem("query.label", "must be key=value")
        raise ApiProblem(422, "Not valid", str(problem), problems=[problem])
    return key, value


def _plain_reason(job: LiveJob) -> str:
    running = sum(task.state.alive for task in job.status.tasks)
    match job.status.state:
        case State.PROCESSING:
            return f"{running} of {places(job)} tasks are running"
        case State.COMPLETED:
            return "all went well"
        case state:
            return f"is {state.value.lower()}"
