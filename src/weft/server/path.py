"""Names in the path of a request."""

from __future__ import annotations

import re

from starlette.requests import Request

from weft.model.problems import Problem
from weft.model.resource import NAME_HELP, NAME_PATTERN
from weft.server.problems import ApiProblem


def path_name(request: Request) -> str:
    """The name in the path, refused where it is none."""
    name: str = request.path_params["name"]
    if not re.fullmatch(NAME_PATTERN.strip("^$"), name):
        problem = Problem("path.name", f"not a name; use {NAME_HELP}", f'"{name[:80]}"')
        raise ApiProblem(422, "Not valid", str(problem), problems=[problem])
    return name
