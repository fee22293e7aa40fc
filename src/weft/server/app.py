"""The application: routes from the operations, the page beside them, the gate before them, errors as problems."""

from __future__ import annotations

import logging
import re
from collections.abc import Sequence

from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from weft.control.control import NameTaken
from weft.control.nosuch import NoSuch
from weft.model.lifecycle import Refused
from weft.model.problems import Invalid
from weft.server.gate import Gate
from weft.server.operations import Operation
from weft.server.page import Page
from weft.server.problems import ApiProblem, invalid
from weft.server.session import Sessions
from weft.store.database import StoreError, StoreFull

log = logging.getLogger("weft.server")


def build(operations: Sequence[Operation], sessions: Sessions, page: Page) -> ASGIApp:
    public = {(operation.method, operation.path) for operation in operations if operation.public}
    return Gate(Router(operations, page), sessions, public)


class Router:
    """Finds the operation of a request: one table of fixed paths, one list of paths with a name in them.

    The table of operations says all that a router needs to know; no framework has to be told it again.
    """

    def __init__(self, operations: Sequence[Operation], page: Page | None = None):
        self._page = page
        self._fixed: dict[str, dict[str, Operation]] = {}
        self._named: list[tuple[re.Pattern[str], dict[str, Operation]]] = []
        by_path: dict[str, dict[str, Operation]] = {}
        for operation in operations:
            by_path.setdefault(operation.path, {})[operation.method] = operation
        for path, methods in by_path.items():
            if "{" in path:
                pattern = re.sub(r"\\{(\w+)\\}", r"(?P<\1>[^/]+)", re.escape(path))
                self._named.append((re.compile(pattern), methods))
            else:
                self._fixed[path] = methods

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive)
        response = await self._answer(request)
        await response(scope, receive, send)

    async def _answer(self, request: Request) -> Response:
        methods, scope = self._find(request.scope), request.scope
        if methods is None and self._page is not None and (found := self._page.answer(request)) is not None:
            return found
        if methods is None:
            detail = f"there is nothing at {scope['path']}"
            return ApiProblem(404, "Not found", detail, next_step="see /openapi.json").response()
        operation = methods.get(scope["method"])
        if operation is None:
            allowed = ", ".join(sorted(methods))
            detail = f"{scope['method']} is not possible here; {allowed} is"
            return ApiProblem(405, "Method not allowed", detail, headers={"Allow": allowed}).response()
        try:
            return await operation.handler(request, operation.query(request))
        except Exception as problem:
            return as_problem(problem, request).response()

    def _find(self, scope: Scope) -> dict[str, Operation] | None:
        path = scope["path"]
        if (methods := self._fixed.get(path)) is not None:
            return methods
        for pattern, methods in self._named:
            if (match := pattern.fullmatch(path)) is not None:
                scope["path_params"] = match.groupdict()
                return methods
        return None


def as_problem(problem: Exception, request: Request) -> ApiProblem:
    """What a person is told of any failure."""
    match problem:
        case ApiProblem():
            return problem
        case Invalid():
            return invalid(problem)
        case NoSuch():
            near = f"; did you mean {' or '.join(problem.near)}?" if problem.near else ""
            return ApiProblem(404, f"No such {problem.kind}", f"{problem}{near}", next_step=problem.look)
        case NameTaken():
            return ApiProblem(
                409,
                "Name taken",
                str(problem),
                next_step=f"choose another name, or: weft delete {problem.name}",
            )
        case Refused():
            name = request.path_params.get("name", "JOB")
            kind = request.url.path.split("/")[2]
            look = (
                f"weft {kind}"
                if kind in ("queues", "jobtypes", "sizes", "clusters", "datasets")
                else f"weft show {name}"
            )
            return ApiProblem(409, "Not now", str(problem), next_step=look)
        case StoreFull():
            return ApiProblem(
                507, "Disk full", f"{problem}; nothing was changed", next_step="free some space and try again"
            )
        case StoreError():
            return ApiProblem(507, "No use of the database", str(problem), next_step="weft status")
        case ClientDisconnect():
            return ApiProblem(400, "Gone", "the client went away")
        case _:
            log.exception("%s %s", request.method, request.url.path, exc_info=problem)
            return ApiProblem(
                500,
                "Internal error",
                f"{type(problem).__name__}: {problem}",
                next_step="see server.log (weft status)",
            )
