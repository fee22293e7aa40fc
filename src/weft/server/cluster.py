"""The operations on everything that is not one job: the server itself, nodes, code, secrets."""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from weft.control.control import Control
from weft.control.live import KIND
from weft.model.job import TrainingJob
from weft.model.jobtype import JobType
from weft.model.problems import Invalid, Problem
from weft.model.quantities import plain_cpu
from weft.model.queue import Queue
from weft.model.resource import NAME_PATTERN
from weft.model.sizes import Size
from weft.server import answers
from weft.server.answers import ref
from weft.server.backup import backup_stream
from weft.server.jobs import read_body
from weft.server.operations import Answer, Operation, Param, Query, as_json
from weft.server.packages import Packages
from weft.server.path import path_name
from weft.server.problems import ApiProblem
from weft.server.secrets import KEY_PATTERN, Secrets
from weft.version import __version__

OBJECT = {"type": "object", "additionalProperties": True}
"""A document whose form is told elsewhere: JSON Schema, OpenAPI."""
DIGEST = r"^sha256:[0-9a-f]{64}$"
SECRET_BODY = {
    "type": "object",
    "required": ["data"],
    "additionalProperties": False,
    "properties": {
        "data": {
            "type": "object",
            "minProperties": 1,
            "propertyNames": {"pattern": KEY_PATTERN},
            "additionalProperties": {"type": "string", "pattern": r"^[^\x00]*$"},
        }
    },
}


class ClusterOperations:
    def __init__(
        self,
        control: Control,
        packages: Packages,
        secrets: Secrets,
        home: Path,
        facts: dict[str, Any],
    ):
        self._control = control
        self.further_notes: Callable[[], Iterable[str]] = tuple
        self._packages = packages
        self._secrets = secrets
        self._home = home
        self._facts = facts
        self.document: Callable[[], dict[str, Any]] = dict

    def table(self) -> list[Operation]:
        digest = {"digest": DIGEST}
        name = {"name": NAME_PATTERN}
        return [
            Operation(
                "GET",
                "/healthz",
                "Whether the server lives",
                self.health,
                {200: Answer("It does", ref(answers.Health))},
                public=True,
            ),
            Operation(
                "GET",
                "/openapi.json",
                "This document",
                self.openapi,
                {200: Answer("OpenAPI 3.1", OBJECT)},
                public=True,
            ),
            Operation(
                "GET",
                "/v1/status",
                "The server in numbers",
                self.status,
                {200: Answer("Facts", ref(answers.Status))},
            ),
            Operation(
                "GET",
                "/v1/top",
                "What running tasks use",
                self.top,
                {200: Answer("Tasks", ref(answers.Usages))},
            ),
            Operation(
                "GET",
                "/v1/schemas/TrainingJob",
                "JSON Schema of the job file, for editors",
                self.job_schema,
                {200: Answer("JSON Schema", OBJECT)},
            ),
            Operation(
                "GET",
                "/v1/schemas/Queue",
                "JSON Schema of a queue, for editors",
                self.queue_schema,
                {200: Answer("JSON Schema", OBJECT)},
            ),
            Operation(
                "GET",
                "/v1/schemas/JobType",
                "JSON Schema of a job type, for editors",
                self.jobtype_schema,
                {200: Answer("JSON Schema", OBJECT)},
            ),
            Operation(
                "GET",
                "/v1/schemas/Size",
                "JSON Schema of a size, for editors",
                self.size_schema,
                {200: Answer("JSON Schema", OBJECT)},
            ),
            Operation(
                "HEAD",
                "/v1/packages/{digest}",
                "Whether a code package is stored",
                self.has_package,
                {200: Answer("It is"), 404: Answer("It is not")},
                path_patterns=digest,
            ),
            Operation(
                "PUT",
                "/v1/packages/{digest}",
                "Store a code package (tar.gz) under the digest of its bytes",
                self.put_package,
                {201: Answer("Stored"), 200: Answer("It was stored already")},
                body={"type": "string", "format": "binary"},
                body_media="application/gzip",
                problems=(413, 507),
                path_patterns=digest,
            ),
            Operation(
                "GET",
                "/v1/secrets",
                "Names and keys of the secrets",
                self.list_secrets,
                {200: Answer("Secrets", ref(answers.SecretsKeys))},
            ),
            Operation(
                "PUT",
                "/v1/secrets/{name}",
                "Add or replace keys of a secret",
                self.put_secret,
                {204: Answer("Kept")},
                body=SECRET_BODY,
                problems=(413, 507),
                path_patterns=name,
            ),
            Operation(
                "DELETE",
                "/v1/secrets/{name}",
                "Forget a secret",
                self.delete_secret,
                {204: Answer("Forgotten")},
                problems=(404,),
                path_patterns=name,
            ),
            Operation(
                "GET",
                "/v1/backup",
                "A consistent copy of the server's data",
                self.backup,
                {200: Answer("A tar archive", {"type": "string"}, "application/x-tar")},
                params=(Param("files", "boolean", "With all jobs' files.", False),),
                problems=(507,),
            ),
        ]

    async def health(self, request: Request, query: Query) -> Response:
        return as_json({"status": "ok", "version": __version__})

    async def openapi(self, request: Request, query: Query) -> Response:
        return as_json(self.document())

    async def status(self, request: Request, query: Query) -> Response:
        return as_json(self.state())

    def state(self) -> dict[str, Any]:
        """The server in numbers, as it is now."""
        control = self._control
        notes = [*control.backend.notes(), *self.further_notes(), *control.queues.notes(control.books)]
        if control.store.full:
            notes.insert(0, "the disk is full: nothing new is accepted until there is room")
        return {**self._facts, "jobs": control.store.counts(KIND), "notes": notes}

    async def top(self, request: Request, query: Query) -> Response:
        control = self._control
        racks = {room.node.name: room.node.rack or None for room in control.books.cluster.rooms.values()}
        items = []
        for usage in control.usage():
            job = control.jobs[usage.uid]
            task = job.gang.task(usage.task)
            binding = job.status.task(usage.task).binding
            items.append(
                {
                    "job": job.name,
                    "task": usage.task,
                    "node": binding.node if binding else None,
                    "pid": usage.pid,
                    "cpu": usage.cpu,
                    "cpuLimit": plain_cpu(task.request.cpu),
                    "memory": usage.memory,
                    "memoryLimit": task.request.memory or None,
                    "gpus": binding.gpus if binding else (),
                    "gpuShare": plain_cpu(task.request.gpu_share) or None,
                    "rack": racks.get(binding.node) if binding else None,
                }
            )
        return as_json({"items": items})

    async def job_schema(self, request: Request, query: Query) -> Response:
        return as_json(TrainingJob.model_json_schema())

    async def queue_schema(self, request: Request, query: Query) -> Response:
        return as_json(Queue.model_json_schema())

    async def jobtype_schema(self, request: Request, query: Query) -> Response:
        return as_json(JobType.model_json_schema())

    async def size_schema(self, request: Request, query: Query) -> Response:
        return as_json(Size.model_json_schema())

    # ── code ──

    async def has_package(self, request: Request, query: Query) -> Response:
        return Response(status_code=200 if self._packages.has(_digest(request)) else 404)

    async def put_package(self, request: Request, query: Query) -> Response:
        new = await self._packages.put(_digest(request), request.stream())
        return Response(status_code=201 if new else 200)

    # ── secrets ──

    async def list_secrets(self, request: Request, query: Query) -> Response:
        return as_json(
            {"items": [{"name": name, "keys": keys} for name, keys in self._secrets.names().items()]}
        )

    async def put_secret(self, request: Request, query: Query) -> Response:
        name = path_name(request)
        document = await read_body(request, 1 << 20)
        problems = _secret_problems(document)
        if problems:
            raise Invalid(f"secret {name}", problems)
        self._own(name)
        try:
            await asyncio.to_thread(self._secrets.put, name, document["data"])
        except OSError as problem:
            raise ApiProblem(507, "Disk full", f"cannot keep the secret: {problem.strerror}") from None
        return Response(status_code=204)

    async def delete_secret(self, request: Request, query: Query) -> Response:
        name = path_name(request)
        self._own(name)
        if not self._secrets.remove(name):
            raise ApiProblem(404, "No such secret", f"there is no secret {name}", next_step="weft secrets ls")
        return Response(status_code=204)

    def _own(self, name: str) -> None:
        if self._secrets.mounted(name):
            raise Invalid(f"secret {name}", [Problem("name", "it is mounted; change it where it comes from")])

    # ── backup ──

    async def backup(self, request: Request, query: Query) -> Response:
        return await backup_stream(self._home, self._control.store, query["files"])


def _digest(request: Request) -> str:
    digest: str = request.path_params["digest"]
    if not re.match(DIGEST, digest) or "\n" in digest:
        problem = Problem("path.digest", "must be sha256: and 64 hexadecimal digits", f'"{digest[:80]}"')
        raise ApiProblem(422, "Not valid", str(problem), problems=[problem])
    return digest


def _secret_problems(document: Any) -> list[Problem]:
    """No value is ever repeated in an answer."""
    if not isinstance(document, dict) or not isinstance(document.get("data"), dict) or not document["data"]:
        return [Problem("data", 'is required: {"data": {"key": "value"}}')]
    problems = [Problem(str(key), "unknown field; did you mean data?") for key in document if key != "data"]
    for key, value in document["data"].items():
        if not re.fullmatch(KEY_PATTERN.strip("^$"), key):
            problems.append(Problem(f"data.{key[:80]}", "a key has letters, digits, '.', '_' and '-' only"))
        if not isinstance(value, str) or "\x00" in value:
            problems.append(Problem(f"data.{key[:80]}", "must be text without NUL characters"))
    return problems


def server_facts(
    address: str,
    home: Path,
    database: str,
    backend: str,
    policy: str,
    results_store: Path | None,
    started: float,
    page: bool,
) -> dict[str, Any]:
    return {
        "pid": os.getpid(),
        "address": address,
        "version": __version__,
        "home": str(home),
        "database": database,
        "backend": backend,
        "policy": policy,
        "resultsStore": str(results_store) if results_store is not None else None,
        "started": started,
        "page": page,
    }
