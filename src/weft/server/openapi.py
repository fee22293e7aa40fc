"""The OpenAPI document, from the table of operations and the resource models."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from weft.model.cluster import Cluster
from weft.model.dataset import Dataset
from weft.model.job import TrainingJob
from weft.model.jobtype import JobType
from weft.model.queue import Queue
from weft.model.sizes import Size
from weft.server import answers
from weft.server.operations import Operation
from weft.server.problems import PROBLEM_SCHEMA
from weft.server.statuses import STATUSES
from weft.version import __version__

REFUSALS = {
    400: "The request cannot be read",
    401: "The token is missing or wrong",
    403: "It comes from elsewhere: another origin, another host, or no X-Weft header",
    404: "There is no such thing",
    409: "It does not fit the present state",
    413: "The body is too large",
    422: "Something in the request is not valid",
    502: "A source or an engine does not answer as it should",
    507: "There is no room on the disk",
}


def document(operations: Iterable[Operation]) -> dict[str, Any]:
    paths: dict[str, Any] = {}
    for operation in operations:
        paths.setdefault(operation.path, {})[operation.method.lower()] = _operation(operation)
    schemas: dict[str, Any] = {}
    for model in (TrainingJob, Queue, JobType, Size, Cluster, Dataset):
        schema = model.model_json_schema(ref_template="#/components/schemas/{model}")
        schemas |= {**schema.pop("$defs", {}), model.__name__: schema}
    schemas |= answers.schemas(STATUSES)
    schemas["Job"] = _job(schemas["TrainingJob"])
    schemas["Problem"] = PROBLEM_SCHEMA
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Weft",
            "version": __version__,
            "description": "Training jobs on one machine or on Kubernetes. Errors are RFC 9457 problems.",
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "paths": paths,
        "components": {
            "schemas": schemas,
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
        "security": [{"token": []}],
    }


def _job(submitted: dict[str, Any]) -> dict[str, Any]:
    """A job as it is told of: with all that the server adds."""
    properties = {**submitted["properties"], "status": answers.ref("JobStatus")}
    return {**submitted, "title": "Job", "properties": properties, "required": list(properties)}


def _operation(operation: Operation) -> dict[str, Any]:
    parameters = [
        {
            "name": name,
            "in": "path",
            "required": True,
            "schema": {"type": "string", "pattern": pattern},
        }
        for name, pattern in operation.path_patterns.items()
    ]
    for place, params in (("query", operation.params), ("header", operation.headers)):
        parameters += [
            {
                "name": p.name,
                "in": place,
                "required": False,
                "description": p.description,
                "schema": p.schema(),
            }
            for p in params
        ]
    responses: dict[str, Any] = {}
    for status, answer in operation.answers.items():
        responses[str(status)] = {"description": answer.description}
        if answer.schema is not None:
            responses[str(status)]["content"] = {answer.media: {"schema": answer.schema}}
            if status == 200 and operation.stream is not None:
                responses[str(status)]["content"]["text/event-stream"] = {"schema": operation.stream}
    refusals = set(operation.problems) | (set() if operation.public else {401}) | {400, 422}
    for status in sorted(refusals):
        responses[str(status)] = {
            "description": REFUSALS[status],
            "content": {"application/problem+json": {"schema": {"$ref": "#/components/schemas/Problem"}}},
        }
    described: dict[str, Any] = {
        "summary": operation.summary,
        "operationId": operation.handler.__name__,
        "parameters": parameters,
        "responses": responses,
    }
    if operation.body is not None:
        described["requestBody"] = {
            "required": True,
            "content": {operation.body_media: {"schema": operation.body}},
        }
    if operation.public:
        described["security"] = []
    return described
