"""The job types that come with Weft, one YAML file each."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from importlib import resources
from typing import Any

import yaml

from weft.model.jobtype import JobType, JobTypeSpec

Types = Mapping[str, JobTypeSpec]
_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


@cache
def catalogue() -> dict[str, JobType]:
    """All built-in types by name."""
    found = {}
    for file in sorted(resources.files(__package__).iterdir(), key=lambda f: f.name):
        if file.name.endswith(".yaml"):
            document: Any = yaml.load(file.read_text(), Loader=_LOADER)  # noqa: S506  (a safe one)
            job_type = JobType.model_validate(document)
            assert job_type.metadata.name is not None
            found[job_type.metadata.name] = job_type
    return found


@cache
def built_in() -> Types:
    return {name: job_type.spec for name, job_type in catalogue().items()}
