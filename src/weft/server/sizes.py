"""The operations on sizes, and what would have been enough for a job."""

from __future__ import annotations

from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from weft.control.control import Control
from weft.control.sizes import document
from weft.model.quantities import format_memory, plain_cpu
from weft.model.resource import NAME_PATTERN
from weft.model.sizes import Size
from weft.model.suggestion import HEADROOM, Suggestion, suggest
from weft.server.answers import ref
from weft.server.declared import read_declared
from weft.server.operations import Answer, Operation, Query, as_json
from weft.server.path import path_name
from weft.server.problems import ApiProblem
from weft.server.statuses import Sizes, Suggestions, ToldSize

SIZE = {"$ref": "#/components/schemas/Size"}


class SizeOperations:
    def __init__(self, control: Control, owner: str):
        self._control = control
        self._sizes = control.sizes
        self._owner = owner

    def table(self) -> list[Operation]:
        name = {"name": NAME_PATTERN}
        return [
            Operation("GET", "/v1/sizes", "The sizes", self.list_sizes, {200: Answer("Sizes", ref(Sizes))}),
            Operation(
                "GET",
                "/v1/sizes/{name}",
                "One size",
                self.get_size,
                {200: Answer("The size", ref(ToldSize))},
                problems=(404,),
                path_patterns=name,
            ),
            Operation(
                "PUT",
                "/v1/sizes/{name}",
                "Declare a size or change it, also one that comes with Weft",
                self.put_size,
                {200: Answer("Changed", SIZE), 201: Answer("Declared", SIZE)},
                body=SIZE,
                problems=(413, 507),
                path_patterns=name,
            ),
            Operation(
                "DELETE",
                "/v1/sizes/{name}",
                "Delete a size; one that comes with Weft is as it was again",
                self.delete_size,
                {204: Answer("Gone")},
                problems=(404, 409, 507),
                path_patterns=name,
            ),
            Operation(
                "GET",
                "/v1/jobs/{name}/suggestion",
                "What would have been enough for a job that has ended",
                self.suggestion,
                {200: Answer("By role: asked, used and suggested", ref(Suggestions))},
                problems=(404, 409),
                path_patterns=name,
            ),
        ]

    async def list_sizes(self, request: Request, query: Query) -> Response:
        return as_json({"items": [document(size) for size in self._sizes]})

    async def get_size(self, request: Request, query: Query) -> Response:
        return as_json(document(self._sizes.get(path_name(request))))

    async def put_size(self, request: Request, query: Query) -> Response:
        name = path_name(request)
        given = await read_declared(request, Size, name, "size")
        kept, new = await self._sizes.put(name, given, self._owner)
        return as_json(document(kept), 201 if new else 200)

    async def delete_size(self, request: Request, query: Query) -> Response:
        await self._sizes.remove(path_name(request), self._owner)
        return Response(status_code=204)

    async def suggestion(self, request: Request, query: Query) -> Response:
        job = self._control.find(path_name(request))
        state = job.status.state
        if not state.finished:
            detail = f"job {job.name} is {state}; what it used is known when it has finished"
            raise ApiProblem(409, "Not finished", detail, next_step="weft top")
        found = suggest(job.spec.roles, job.status, self._sizes.specs)
        if not any(one.used for one in found):
            image = job.spec.image or any(role.image for role in job.spec.roles.values())
            why = (
                "of containers no peak is known" if image else "none of its tasks ran to an end that was seen"
            )
            detail = f"job {job.name}: nothing was measured, {why}"
            raise ApiProblem(409, "Nothing measured", detail, next_step=f"weft show {job.name}")
        items = [_shown(one) for one in found]
        return as_json({"job": job.name, "state": state, "memoryHeadroom": HEADROOM, "items": items})


def _shown(one: Suggestion) -> dict[str, Any]:
    """Asked and suggested as a job file has them; what was used as numbers: CPUs, bytes and seconds."""
    used = one.used
    return {
        "role": one.role,
        "tasks": one.tasks,
        "asked": one.asked.model_dump(mode="json", by_alias=True, exclude_none=True, exclude_defaults=True),
        "used": None
        if used is None
        else {
            "measured": used.measured,
            "seconds": round(used.seconds, 3),
            "cpu": round(used.cpu / 1000, 3),
            "memory": used.memory,
        },
        "suggested": None
        if one.cpu is None or one.memory is None
        else {"cpu": plain_cpu(one.cpu), "memory": format_memory(one.memory)},
        "size": one.size,
        "changes": one.changes,
        "notes": one.notes,
    }
