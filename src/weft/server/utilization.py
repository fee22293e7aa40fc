"""The operations on what was used over time: of the cluster, and by the tasks of a job."""

from __future__ import annotations

import asyncio

from starlette.requests import Request
from starlette.responses import Response

from weft.control.control import Control
from weft.control.usage import Usage
from weft.control.utilization import INTERVAL, Utilization
from weft.model.quantities import plain_cpu
from weft.model.resource import NAME_PATTERN
from weft.server import answers
from weft.server.answers import ref
from weft.server.operations import Answer, Operation, Param, Query, as_json


class UtilizationOperations:
    def __init__(self, control: Control, utilization: Utilization, usage: Usage):
        self._control = control
        self._utilization = utilization
        self._usage = usage

    def table(self) -> list[Operation]:
        return [
            Operation(
                "GET",
                "/v1/utilization",
                "How much of the cluster was given to jobs over the last day and is now, and how many ran and waited",
                self.cluster,
                {200: Answer("Moments, oldest first", ref(answers.Samples))},
                params=(
                    Param("since", "integer", "Only the last so many seconds.", 86_400, 1, 86_400),
                    Param(
                        "points",
                        "integer",
                        "At most so many before now: neighbours become their mean.",
                        1000,
                        1,
                        10_000,
                    ),
                ),
            ),
            Operation(
                "GET",
                "/v1/jobs/{name}/usage",
                "What its tasks used over time, also after they have ended",
                self.job,
                {200: Answer("Tasks", ref(answers.UsagesOverTime))},
                problems=(404,),
                path_patterns={"name": NAME_PATTERN},
            ),
        ]

    async def cluster(self, request: Request, query: Query) -> Response:
        since = self._control.clock() - query["since"]
        found = [*self._utilization.since(since, query["points"]), self._utilization.now()]
        return as_json({"items": [sample.document() for sample in found], "interval": INTERVAL})

    async def job(self, request: Request, query: Query) -> Response:
        job = self._control.find(request.path_params["name"])
        measured = await asyncio.to_thread(self._usage.of, job)
        items = [
            {
                "task": task,
                "cpuLimit": plain_cpu(job.gang.task(task).request.cpu),
                "memoryLimit": job.gang.task(task).request.memory or None,
                "points": points,
            }
            for task, points in measured.items()
        ]
        return as_json({"items": items})
