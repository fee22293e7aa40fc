"""The job types that there are."""

from __future__ import annotations

from functools import cache
from importlib import resources
from typing import Any

import yaml
from pydantic import Field

from weft.model.job import EnvName, Role
from weft.model.resource import Name, Strict


class JobType(Strict):
    """What jobs of one kind have in common."""

    name: Name
    description: str
    example: str
    roles: dict[Name, Role] = Field(default_factory=dict)
    """Defaults by role; a job may have further roles only where the type lists none or one."""
    env: dict[EnvName, str] = Field(default_factory=dict)
    """Templates: `${hosts.ROLE}` is the role's host:port list, `${NAME}` any variable that Weft sets."""


@cache
def catalogue() -> dict[str, JobType]:
    """All built-in types by name."""
    found = {}
    for file in sorted(resources.files(__package__).iterdir(), key=lambda f: f.name):
        if file.name.endswith(".yaml"):
            document: Any = yaml.safe_load(file.read_text())
            job_type = JobType.model_validate(document)
            found[job_type.name] = job_type
    return found
