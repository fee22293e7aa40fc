"""`JobType`: what jobs of one kind have in common, as data.

A type says how the tasks of a framework find each other, what starts them, what must start again together when
one fails, and what a job of the type has to look like. Nothing else in Weft knows any framework.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Annotated, Any, Literal

from pydantic import Field, StringConstraints

from weft.model.job import Metric, Restart, Role, TaskTemplate, Template
from weft.model.problems import Problem
from weft.model.quantities import Duration
from weft.model.resource import Metadata, Name, Strict, Text
from weft.model.template import command_mistakes, mistakes

_NO_TEMPLATE = Template()
_OPERATORS: dict[str, Callable[[int, int], bool]] = {
    "==": operator.eq, "!=": operator.ne, "<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge,
}  # fmt: skip
_THAT = re.compile(
    r"(?P<what>replicas|least|most|gpu)\.(?P<role>[a-z0-9-]+) *(?P<how>==|!=|<=|>=|<|>) *(?P<number>\d+)"
)


class Check(Strict):
    """Something that must be so in every job of the type."""

    that: Annotated[str, StringConstraints(max_length=200)]
    """`replicas.ROLE`, `least.ROLE`, `most.ROLE` or `gpu.ROLE`, compared with a number: `replicas.chief <= 1`."""
    message: Annotated[Text, StringConstraints(min_length=1, max_length=500)]
    """What is said to whoever breaks it."""


class JobTypeSpec(Strict):
    description: Text = ""
    example: Text = ""
    """A command line that shows it at work."""
    roles: dict[Name, Role] = Field(default_factory=dict)
    """Defaults by role; a job may have further roles only where the type lists none or one."""
    template: Template = Field(default_factory=lambda: _NO_TEMPLATE)
    command: Annotated[list[Text], Field(min_length=1)] | None = None
    """What jobs run that say nothing about it; `success`, `restart`, `idleTimeout` and `metrics` likewise."""
    success: Literal["chief", "all"] | None = None
    restart: Restart | None = None
    idle_timeout: Duration | None = None
    metrics: list[Metric] = Field(default_factory=list)
    elastic: bool = True
    """Whether jobs may change their size; else minReplicas and maxReplicas are refused."""
    resize: Literal["live", "restart"] | None = None
    """What jobs have that say nothing about it: how they change their size."""
    data_cache: Literal["nr", "lru"] | None = None
    """Likewise: how nodes cache what they read. lru for those that come back to what they read last."""
    checks: Annotated[list[Check], Field(max_length=64)] = Field(default_factory=list)


class JobType(Strict):
    api_version: Literal["weft.dev/v1"] = "weft.dev/v1"
    kind: Literal["JobType"] = "JobType"
    metadata: Metadata = Field(default_factory=Metadata)
    spec: JobTypeSpec = Field(default_factory=JobTypeSpec)
    status: dict[str, Any] | None = None
    """Written by the server; ignored in what is sent."""


def wrong_with(spec: JobTypeSpec) -> Iterator[Problem]:
    """All that makes no sense in a type: its templates and its checks."""
    roles = list(spec.roles) if len(spec.roles) > 1 else None
    yield from template_problems(spec.template, roles, "spec.template")
    for number, check in enumerate(spec.checks):
        found = _THAT.fullmatch(check.that)
        field = f"spec.checks[{number}].that"
        if found is None:
            hint = "write for example: replicas.chief <= 1 (also least, most and gpu)"
            yield Problem(field, f"cannot be understood; {hint}", f'"{check.that}"')
        elif roles is not None and found["role"] not in roles:
            yield Problem(field, f"there is no role {found['role']}; the roles are {', '.join(roles)}")


def template_problems(template: Template, roles: Sequence[str] | None, field: str) -> Iterator[Problem]:
    yield from _task_problems(template, roles, field)
    for name, own in template.roles.items():
        if roles is not None and name not in roles:
            yield Problem(f"{field}.roles.{name}", f"there is no such role; the roles are {', '.join(roles)}")
        yield from _task_problems(own, roles, f"{field}.roles.{name}")


def _task_problems(template: TaskTemplate, roles: Sequence[str] | None, field: str) -> Iterator[Problem]:
    for name, text in template.env.items():
        for wrong in mistakes(text, roles):
            yield Problem(f"{field}.env.{name}", wrong)
    for number, wrong in command_mistakes(template.command, roles):
        yield Problem(f"{field}.command" + ("" if number is None else f"[{number}]"), wrong)


def broken_checks(spec: JobTypeSpec, roles: Mapping[str, Role]) -> Iterator[Problem]:
    """What a job of the type does not keep to."""
    for check in spec.checks:
        found = _THAT.fullmatch(check.that)
        if found is None:
            continue
        role = roles.get(found["role"])
        if not _OPERATORS[found["how"]](_amount(found["what"], role), int(found["number"])):
            yield Problem(f"spec.roles.{found['role']}", check.message)


def _amount(what: str, role: Role | None) -> int:
    if role is None:
        return 0
    match what:
        case "least":
            return role.replicas if role.min_replicas is None else role.min_replicas
        case "most":
            return role.max_replicas or role.replicas
        case "gpu":
            return int(role.resources.gpu or 0)
        case _:
            return role.replicas
