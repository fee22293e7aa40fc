"""From what a person wrote to a job with nothing left open."""

from __future__ import annotations

from difflib import get_close_matches

from weft.jobtypes.catalogue import JobType, catalogue
from weft.model import sizes
from weft.model.job import Role, TrainingJob, TrainingJobSpec
from weft.model.problems import Invalid, Problem


def complete(job: TrainingJob, what: str) -> TrainingJob:
    """The job with its type's defaults, sizes and roles filled in; `Invalid` with every problem otherwise."""
    spec = job.spec
    types = catalogue()
    problems: list[Problem] = []
    if spec.type not in types:
        near = get_close_matches(spec.type, types, n=1)
        hint = f"did you mean {near[0]}?" if near else f"the types are {', '.join(types)}"
        problems.append(Problem("spec.type", f"no such job type; {hint}", f'"{spec.type}"'))
    job_type = types.get(spec.type, types["command"])
    roles = {}
    for name, role in _roles(spec, job_type).items():
        field = f"spec.roles.{name}"
        resources, found = sizes.resolve(role.resources, f"{field}.resources")
        problems += found
        problems += _check_role(name, role, spec, resources.gpu or 0, field)
        roles[name] = role.model_copy(
            update={
                "resources": resources,
                "service": bool(role.service),
                "restart": role.restart or spec.restart,
            }
        )
    if spec.code is not None and spec.code.path is not None:
        problems.append(
            Problem(
                "spec.code.path",
                "a folder is packed by the client; submit with `weft run` or send code.package",
            )
        )
    if problems:
        raise Invalid(what, problems)
    return job.model_copy(update={"spec": spec.model_copy(update={"roles": roles})})


def _roles(spec: TrainingJobSpec, job_type: JobType) -> dict[str, Role]:
    """The job's roles in the type's order, each over the type's defaults for it."""
    if not spec.roles:
        return dict(job_type.roles)
    names = [*(n for n in job_type.roles if n in spec.roles or len(job_type.roles) > 1), *spec.roles]
    roles = {}
    for name in dict.fromkeys(names):
        default, own = job_type.roles.get(name, Role()), spec.roles.get(name, Role())
        given = {field: getattr(own, field) for field in own.model_fields_set}
        roles[name] = default.model_copy(update=given)
    return roles


def _check_role(name: str, role: Role, spec: TrainingJobSpec, gpu: int, field: str) -> list[Problem]:
    problems = []
    if role.command is None and spec.command is None:
        problems.append(
            Problem(
                "spec.command", f"is required: what should role {name} run? For example [python, train.py]"
            )
        )
    command = role.command or spec.command
    if command is not None and not command[0]:
        problems.append(Problem("spec.command[0]", "is empty; it is the program to run"))
    if role.resources.gpu_type is not None and not gpu:
        problems.append(
            Problem(
                f"{field}.resources.gpuType",
                "asks for a GPU type but for no GPU; add gpu: 1",
                f'"{role.resources.gpu_type}"',
            )
        )
    return problems
