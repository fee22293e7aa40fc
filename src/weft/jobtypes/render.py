"""A job type's environment for one task."""

from __future__ import annotations

from collections.abc import Mapping
from string import Template

from weft.jobtypes.catalogue import catalogue


class _Dotted(Template):
    idpattern = r"[A-Za-z_][A-Za-z0-9_.-]*"


def render_env(
    type_name: str, variables: Mapping[str, str], hosts: Mapping[str, list[str]]
) -> dict[str, str]:
    """The type's variables with their templates filled from the gang."""
    job_type = catalogue()[type_name]
    if not job_type.env:
        return {}
    values = {**variables, **{f"hosts.{role}": ",".join(places) for role, places in hosts.items()}}
    return {name: _Dotted(template).substitute(values) for name, template in job_type.env.items()}
