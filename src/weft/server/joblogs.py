"""The operations on what a job's tasks printed."""

from __future__ import annotations

import asyncio
from typing import Any

from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from weft.backends.logsearch import Wanted
from weft.control.control import Control
from weft.control.live import LiveJob
from weft.model.problems import Problem
from weft.server import logs
from weft.server.answers import LogLines, ref
from weft.server.jobs import FOLLOW, NAME
from weft.server.operations import Answer, Operation, Param, Query, as_json
from weft.server.problems import ApiProblem
from weft.server.streams import NOTHING, events_of, stream

TASK = Param("task", "string", "Only this task.")
PLACE_PATTERN = r"^[a-z0-9-]+:[0-9]{1,18}(,[a-z0-9-]+:[0-9]{1,18})*$"
PLACE_RULE = "must be TASK:OFFSET, separated by commas: the `previous` or `next` of an answer"


class LogOperations:
    def __init__(self, control: Control):
        self._control = control

    def table(self) -> list[Operation]:
        return [
            Operation(
                "GET",
                "/v1/jobs/{name}/logs",
                "What its tasks printed, merged by time",
                self.job_logs,
                {200: Answer("Lines", ref(LogLines))},
                params=(
                    TASK,
                    Param("offset", "integer", "Begin at this byte of a task's log.", 0),
                    Param("limit", "integer", "About so many bytes of each task.", 1 << 20, 1, 64 << 20),
                    Param("tail", "integer", "Only the last lines.", None, 0, 1_000_000),
                    Param(
                        "before",
                        "string",
                        "Lines before this place: TASK:OFFSET,… of an answer's `previous`.",
                        pattern=PLACE_PATTERN,
                        rule=PLACE_RULE,
                    ),
                    Param(
                        "after",
                        "string",
                        "Lines from this place on: TASK:OFFSET,… of an answer's `next`.",
                        pattern=PLACE_PATTERN,
                        rule=PLACE_RULE,
                    ),
                    Param(
                        "lines",
                        "integer",
                        "With before, after, find or level: at most so many.",
                        1000,
                        1,
                        100_000,
                    ),
                    Param(
                        "find",
                        "string",
                        "Only lines with this text, in any case: the nearest before or after the place, or before the end.",
                        pattern=r"^.{1,1000}$",
                        rule="must be 1 to 1000 characters on one line",
                    ),
                    Param(
                        "level",
                        "string",
                        "Only lines that tell of an error.",
                        pattern="^error$",
                        rule="must be error",
                    ),
                    FOLLOW,
                ),
                stream=events_of(lines=ref(LogLines), end=NOTHING),
                problems=(404,),
                path_patterns=NAME,
            ),
            Operation(
                "GET",
                "/v1/jobs/{name}/logs.txt",
                "The whole log as a text file",
                self.job_logs_text,
                {200: Answer("Text", {"type": "string"}, "text/plain")},
                params=(TASK,),
                problems=(404,),
                path_patterns=NAME,
            ),
        ]

    async def job_logs(self, request: Request, query: Query) -> Response:
        job, found = self._logs(request, query)
        if query["before"] and query["after"]:
            raise _refuse("before", "cannot be together with after")
        place = _place(query["before"] or query["after"])
        looked_for = query["find"] or query["level"]
        if query["follow"]:
            if looked_for or query["before"]:
                raise _refuse("follow", "cannot be together with before, find or level")
            begin = place or {task: int(query["offset"]) for task in found}
            follower = logs.LogFollower(found, begin, query["tail"], lambda: self._idle(job))
            return stream(follower.messages())
        if looked_for:
            answer: Any = await asyncio.to_thread(
                logs.search,
                found,
                Wanted(query["find"] or "", query["level"] is not None),
                place or logs.ends(found),
                query["lines"],
                backward=not query["after"],
            )
        elif query["before"]:
            answer = await asyncio.to_thread(logs.before, found, place, query["lines"])
        elif query["after"]:
            answer = await asyncio.to_thread(logs.after, found, place, query["lines"], self._idle(job))
        elif query["tail"] is not None:
            answer = await asyncio.to_thread(logs.last, found, query["tail"], self._idle(job))
        else:
            answer = await asyncio.to_thread(
                logs.from_offset, found, query["offset"], query["limit"], self._idle(job)
            )
        return as_json(answer.document())

    async def job_logs_text(self, request: Request, query: Query) -> Response:
        job, found = self._logs(request, query)
        headers = {"Content-Disposition": f'attachment; filename="{job.name}.log"'}
        return StreamingResponse(
            logs.as_text(found, self._idle(job)), media_type="text/plain; charset=utf-8", headers=headers
        )

    def _idle(self, job: LiveJob) -> bool:
        return job.uid not in self._control.jobs

    def _logs(self, request: Request, query: Query) -> tuple[LiveJob, logs.Logs]:
        job = self._control.find(request.path_params["name"])
        tasks = [task.name for task in job.gang.tasks]
        if query["task"] is not None:
            if query["task"] not in tasks:
                raise ApiProblem(
                    404,
                    "No such task",
                    f"job {job.name} has no task {query['task']}; it has {', '.join(tasks[:10])}",
                )
            tasks = [query["task"]]
        return job, {task: self._control.backend.log(job.uid, task) for task in tasks}


def _place(text: str | None) -> logs.Place:
    pairs = (pair.rsplit(":", 1) for pair in (text or "").split(",") if pair)
    return {task: int(offset) for task, offset in pairs}


def _refuse(name: str, cause: str) -> ApiProblem:
    problem = Problem(f"query.{name}", cause)
    return ApiProblem(422, "Not valid", str(problem), problems=[problem])
