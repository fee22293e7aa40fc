"""Reading what an operator declares: a whole resource, put at an address that names it."""

from __future__ import annotations

from typing import TypeVar

from starlette.requests import Request

from weft.model.cluster import Cluster
from weft.model.dataset import Dataset
from weft.model.jobtype import JobType
from weft.model.problems import Invalid, Problem, parse
from weft.model.queue import Queue
from weft.model.sizes import Size
from weft.server.jobs import read_body

LIMIT = 1 << 20
R = TypeVar("R", Queue, JobType, Size, Cluster, Dataset)


async def read_declared(request: Request, model: type[R], name: str, what: str) -> R:
    """The resource in the body; it may leave out its name, which the address says."""
    body = await read_body(request, LIMIT)
    if isinstance(body, dict):
        body.pop("status", None)
    given = parse(model, body, f"{what} {name}", model.__name__)
    if given.metadata.name not in (None, name):
        said = f'"{given.metadata.name}"'
        wrong = Problem("metadata.name", f"must be {name}, as in the address", said)
        raise Invalid(f"{what} {name}", [wrong], model.__name__)
    return given
