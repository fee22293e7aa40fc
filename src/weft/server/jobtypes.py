"""The operations on job types."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from weft.control.control import Control
from weft.control.jobtypes import document
from weft.model.jobtype import JobType
from weft.model.resource import NAME_PATTERN
from weft.server.answers import ref
from weft.server.declared import read_declared
from weft.server.operations import Answer, Operation, Query, as_json
from weft.server.path import path_name
from weft.server.statuses import JobTypes, ToldJobType

TYPE = {"$ref": "#/components/schemas/JobType"}


class JobTypeOperations:
    def __init__(self, control: Control, owner: str):
        self._types = control.job_types
        self._owner = owner

    def table(self) -> list[Operation]:
        name = {"name": NAME_PATTERN}
        return [
            Operation(
                "GET",
                "/v1/jobtypes",
                "The job types",
                self.list_types,
                {200: Answer("Job types", ref(JobTypes))},
            ),
            Operation(
                "GET",
                "/v1/jobtypes/{name}",
                "One job type",
                self.get_type,
                {200: Answer("The job type", ref(ToldJobType))},
                problems=(404,),
                path_patterns=name,
            ),
            Operation(
                "PUT",
                "/v1/jobtypes/{name}",
                "Keep a job type or change it",
                self.put_type,
                {200: Answer("Changed", TYPE), 201: Answer("Kept", TYPE)},
                body=TYPE,
                problems=(409, 413, 507),
                path_patterns=name,
            ),
            Operation(
                "DELETE",
                "/v1/jobtypes/{name}",
                "Delete a job type; jobs of it go on",
                self.delete_type,
                {204: Answer("Gone")},
                problems=(404, 409, 507),
                path_patterns=name,
            ),
        ]

    async def list_types(self, request: Request, query: Query) -> Response:
        return as_json({"items": [document(job_type) for job_type in self._types]})

    async def get_type(self, request: Request, query: Query) -> Response:
        return as_json(document(self._types.get(path_name(request))))

    async def put_type(self, request: Request, query: Query) -> Response:
        name = path_name(request)
        given = await read_declared(request, JobType, name, "job type")
        kept, new = await self._types.put(name, given, self._owner)
        return as_json(document(kept), 201 if new else 200)

    async def delete_type(self, request: Request, query: Query) -> Response:
        await self._types.remove(path_name(request), self._owner)
        return Response(status_code=204)
