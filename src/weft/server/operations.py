"""An operation of the API: its route, its parameters, what it answers. Routes and OpenAPI come from it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import Any

from pydantic_core import to_json
from starlette.requests import Request
from starlette.responses import Response

from weft.model.problems import Problem
from weft.server.problems import ApiProblem

Query = Mapping[str, Any]
Handler = Callable[[Request, Query], Awaitable[Response]]

MAX_INTEGER = 2**62


@dataclass(frozen=True, slots=True)
class Param:
    """A query parameter. Values are checked before the handler sees them."""

    name: str
    kind: str
    """string, integer, boolean"""
    description: str
    default: Any = None
    least: int = 0
    most: int = MAX_INTEGER
    pattern: str | None = None
    rule: str | None = None
    """The pattern in words."""

    def schema(self) -> dict[str, Any]:
        schema: dict[str, Any] = {"type": self.kind}
        if self.kind == "integer":
            schema |= {"minimum": self.least, "maximum": self.most}
        if self.pattern is not None:
            schema["pattern"] = self.pattern
        if self.default is not None:
            schema["default"] = self.default
        return schema

    def parse(self, text: str) -> Any:
        """The value, or a ValueError that says what would be right."""
        if self.kind == "boolean":
            if text not in ("true", "false"):
                raise ValueError("must be true or false")
            return text == "true"
        if self.kind == "integer":
            if not (text.removeprefix("-").isascii() and text.removeprefix("-").isdigit() and len(text) < 20):
                raise ValueError("must be a whole number")
            if not self.least <= int(text) <= self.most:
                raise ValueError(f"must be between {self.least} and {self.most}")
            return int(text)
        if self.pattern is not None:
            import re

            if not re.search(self.pattern, text):
                raise ValueError(self.rule or f"must match {self.pattern}")
        return text


@dataclass(frozen=True, slots=True)
class Answer:
    description: str
    schema: dict[str, Any] | None = None
    media: str = "application/json"


@dataclass(frozen=True, slots=True)
class Operation:
    method: str
    path: str
    summary: str
    handler: Handler
    answers: dict[int, Answer]
    params: tuple[Param, ...] = ()
    stream: dict[str, Any] | None = None
    """The schema of what `follow` brings."""
    body: dict[str, Any] | None = None
    body_media: str = "application/json"
    headers: tuple[Param, ...] = ()
    problems: tuple[int, ...] = ()
    """Which refusals it may give besides 401 and 422."""
    public: bool = False
    path_patterns: dict[str, str] = field(default_factory=dict)

    def query(self, request: Request) -> dict[str, Any]:
        """The checked parameters, defaults filled in; all mistakes at once."""
        values = {param.name: param.default for param in self.params}
        if not request.scope["query_string"]:
            return values
        known = {param.name: param for param in self.params}
        problems = []
        for name, text in request.query_params.multi_items():
            param = known.get(name)
            if param is None:
                near = get_close_matches(name, known, n=1)
                hint = f"did you mean {near[0]}?" if near else f"there are: {', '.join(known) or 'none'}"
                problems.append(Problem(f"query.{name}", f"unknown parameter; {hint}"))
                continue
            try:
                values[name] = param.parse(text)
            except ValueError as error:
                problems.append(Problem(f"query.{name}", str(error), f'"{text[:80]}"'))
        if problems:
            raise ApiProblem(
                422,
                "Not valid",
                "; ".join(map(str, problems)),
                problems=problems,
                next_step="see /openapi.json",
            )
        return values


def as_json(body: Any, status: int = 200) -> Response:
    return Response(to_json(body), status, media_type="application/json")
