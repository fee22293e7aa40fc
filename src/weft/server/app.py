"""The application: routes from the operations, the token check, and errors as problems."""

from __future__ import annotations

import hmac
import logging
import re
from collections.abc import Sequence
from hashlib import sha256

from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from weft.control.control import NameTaken
from weft.control.nosuch import NoSuch
from weft.model.lifecycle import Refused
from weft.model.problems import Invalid
from weft.server.operations import Operation
from weft.server.problems import ApiProblem, invalid
from weft.store.database import StoreError, StoreFull

log = logging.getLogger("weft.server")


def build(operations: Sequence[Operation], token: str) -> ASGIApp:
    return TokenCheck(
        Router(operations), token, {operation.path for operation in operations if operation.public}
    )


class Router:
    """Finds the operation of a request: one table of fixed paths, one list of paths with a name in them.

    The table of operations says all that a router needs to know; no framework has to be told it again.
    """

    def __init__(self, operations: Sequence[Operation]):
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
            look = f"weft {kind}" if kind in ("queues", "jobtypes", "sizes") else f"weft show {name}"
            return ApiProblem(409, "Not now", str(problem), next_step=look)
        case StoreFull():
            return ApiProblem(
                507, "Disk full", f"{problem}; nothing was changed", next_step="free some space and try again"
            )
        case StoreError():
            return ApiProblem(507, "Cannot store", str(problem), next_step="weft status")
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


class TokenCheck:
    """Every request but the public ones carries the token; compared in constant time."""

    def __init__(self, app: ASGIApp, token: str, public: set[str]):
        self._app = app
        self._digest = sha256(token.encode()).digest()
        self._public = public

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"] in self._public or self._granted(scope):
            await self._app(scope, receive, send)
            return
        refusal = ApiProblem(
            401,
            "Token needed",
            "send the server's token: Authorization: Bearer <token> (it is in WEFT_HOME/token)",
            next_step="weft status",
            headers={"WWW-Authenticate": "Bearer"},
        )
        await refusal.response()(scope, receive, send)

    def _granted(self, scope: Scope) -> bool:
        for name, value in scope["headers"]:
            if name == b"authorization":
                scheme, _, token = value.partition(b" ")
                return scheme.lower() == b"bearer" and hmac.compare_digest(
                    sha256(token.strip()).digest(), self._digest
                )
        return False
