"""The operation that draws: a job's metrics with as many points as a screen can show."""

from __future__ import annotations

import asyncio
from dataclasses import asdict

from starlette.requests import Request
from starlette.responses import Response

from weft.control.control import Control
from weft.model.resource import NAME_PATTERN
from weft.server import answers
from weft.server.answers import ref
from weft.server.operations import Answer, Operation, Param, Query, as_json
from weft.store.curves import Curves


class CurveOperations:
    def __init__(self, control: Control, curves: Curves):
        self._control = control
        self._curves = curves

    def table(self) -> list[Operation]:
        return [
            Operation(
                "GET",
                "/v1/jobs/{name}/curves",
                "Its metrics with few enough points to draw: the lowest and highest of each stretch, the first and the last",
                self.job_curves,
                {200: Answer("Curves; metrics after `next` follow them", ref(answers.Curves))},
                params=(
                    Param("name", "string", "Only these metrics, separated by commas."),
                    Param("points", "integer", "About so many of each.", 1000, 2, 100_000),
                ),
                problems=(404,),
                path_patterns={"name": NAME_PATTERN},
            )
        ]

    async def job_curves(self, request: Request, query: Query) -> Response:
        job = self._control.find(request.path_params["name"])
        names = query["name"].split(",") if query["name"] else ()
        found, last = await asyncio.to_thread(self._curves.of, job.uid, query["points"], names)
        return as_json({"items": [asdict(curve) for curve in found], "next": last})
