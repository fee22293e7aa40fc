"""Errors as RFC 9457 problems: what, why, and what to do next."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from starlette.responses import Response

from weft.model.problems import Invalid, Problem


class ApiProblem(Exception):
    """An answer other than success."""

    def __init__(
        self,
        status: int,
        title: str,
        detail: str,
        *,
        next_step: str | None = None,
        problems: Sequence[Problem] = (),
        headers: dict[str, str] | None = None,
    ):
        super().__init__(detail)
        self.status = status
        self.title = title
        self.detail = detail
        self.next_step = next_step
        self.problems = problems
        self.headers = headers

    def response(self) -> Response:
        from pydantic_core import to_json

        body: dict[str, Any] = {
            "type": "about:blank",
            "title": self.title,
            "status": self.status,
            "detail": self.detail,
        }
        if self.problems:
            body["problems"] = [
                {
                    "field": p.field,
                    "message": p.message,
                    **({"value": p.value} if p.value is not None else {}),
                }
                for p in self.problems
            ]
        if self.next_step:
            body["next"] = self.next_step
        return Response(to_json(body), self.status, self.headers, media_type="application/problem+json")


def invalid(error: Invalid) -> ApiProblem:
    count = len(error.problems)
    return ApiProblem(
        422,
        "Not valid",
        f"{error.what} has {count} problem{'s' * (count != 1)}: {'; '.join(map(str, error.problems))}",
        problems=error.problems,
        next_step=f"weft schema {error.kind}",
    )


PROBLEM_SCHEMA: dict[str, Any] = {
    "type": "object",
    "required": ["type", "title", "status", "detail"],
    "properties": {
        "type": {"type": "string"},
        "title": {"type": "string"},
        "status": {"type": "integer"},
        "detail": {"type": "string"},
        "next": {"type": "string", "description": "A command to try."},
        "problems": {
            "type": "array",
            "items": {
                "type": "object",
                "required": ["field", "message"],
                "properties": {
                    "field": {"type": "string"},
                    "message": {"type": "string"},
                    "value": {"type": "string"},
                },
            },
        },
    },
}
