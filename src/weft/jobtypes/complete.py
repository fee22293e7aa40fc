"""From what a person wrote to a job with nothing left open."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from difflib import get_close_matches
from typing import Any

from weft.jobtypes.catalogue import Types, built_in
from weft.model.gang import chief_role
from weft.model.job import MAX_TASKS, Resources, Role, TaskTemplate, Template, TrainingJob, TrainingJobSpec
from weft.model.jobtype import JobTypeSpec, broken_checks, template_problems
from weft.model.problems import Draft, Invalid, Problem, in_order, read
from weft.model.quantities import format_memory
from weft.model.sizes import BUILT_IN, Sizes, resolve

_NO_TEMPLATE = Template()
_NO_TASK = TaskTemplate()
Rule = Callable[[TrainingJob], list[Problem]]


def read_job(
    document: Any,
    what: str,
    further: Rule = lambda job: [],
    types: Types | None = None,
    table: Sizes = BUILT_IN,
) -> TrainingJob:
    """The complete job that a document describes; `Invalid` with all that is wrong with its fields and its meaning.

    `further` are the rules that only the caller knows; `types` and `table` all job types and sizes that there are, else
    the built-in ones.
    """
    draft = read(TrainingJob, document)
    if (job := draft.value) is None:
        raise Invalid(what, draft.problems)
    filled, found = _filled(job, draft, built_in() if types is None else types, table)
    problems = [*draft.problems, *found, *further(job)]
    if problems:
        raise Invalid(what, in_order(problems, document))
    return filled


def _filled(
    job: TrainingJob, draft: Draft[TrainingJob], types: Types, table: Sizes
) -> tuple[TrainingJob, list[Problem]]:
    """The job with its type's defaults, sizes and roles, and what in it makes no sense."""
    spec = job.spec
    problems: list[Problem] = []
    if spec.type not in types:
        near = get_close_matches(spec.type, types, n=1)
        hint = f"did you mean {near[0]}?" if near else f"the types are {', '.join(types)}"
        problems.append(Problem("spec.type", f"no such job type; {hint}", f'"{spec.type}"'))
    job_type = types.get(spec.type, types["command"])
    spec = _as_its_type(spec, job_type)
    problems += _whole_job(spec, draft)
    roles: dict[str, Role] = {}
    for name, role in _roles(spec, job_type).items():
        field = f"spec.roles.{name}"
        resources, found = resolve(role.resources, f"{field}.resources", table)
        problems += found
        if not found and not resources.gpu:
            problems += _no_gpu(resources, f"{field}.resources", draft)
        roles[name] = role.model_copy(
            update={
                "resources": resources,
                "service": bool(role.service),
                "restart": role.restart or spec.restart,
            }
        )
    problems += _sizes(roles, draft)
    problems += _commands(roles, spec, draft)
    problems += _of_the_type(roles, spec, job.spec.template, job_type, draft)
    return job.model_copy(update={"spec": spec.model_copy(update={"roles": roles})}), problems


def _as_its_type(spec: TrainingJobSpec, job_type: JobTypeSpec) -> TrainingJobSpec:
    """What the job leaves open and its type says."""
    said = spec.model_fields_set
    given: dict[str, Any] = {}
    for name in ("command", "success", "resize", "idle_timeout", "data_cache"):
        if (value := getattr(job_type, name)) is not None and name not in said:
            given[name] = value
    if job_type.restart is not None:
        own = {name: getattr(spec.restart, name) for name in spec.restart.model_fields_set}
        given["restart"] = job_type.restart.model_copy(update=own)
    if job_type.metrics and "metrics" not in said:
        given["metrics"] = job_type.metrics
    if job_type.template != _NO_TEMPLATE:
        patch = spec.template
        given["template"] = job_type.template if patch is None else _patched(job_type.template, patch)
    return spec.model_copy(update=given) if given else spec


def _patched(template: Template, own: Template) -> Template:
    """The type's template with what the job says instead: single variables, a command, and both for single roles."""
    roles = {
        name: _patched_task(template.roles.get(name, _NO_TASK), own.roles.get(name, _NO_TASK))
        for name in {**template.roles, **own.roles}
    }
    return Template(**dict(_patched_task(template, own)), roles=roles)


def _patched_task(template: TaskTemplate, own: TaskTemplate) -> TaskTemplate:
    command = own.command if "command" in own.model_fields_set else template.command
    return TaskTemplate(env={**template.env, **own.env}, command=command)


def _of_the_type(
    roles: dict[str, Role],
    spec: TrainingJobSpec,
    own: Template | None,
    job_type: JobTypeSpec,
    draft: Draft[TrainingJob],
) -> Iterator[Problem]:
    """`own` is the template that the job itself says."""
    if draft.knows("spec.type", "spec.roles.*"):
        yield from broken_checks(job_type, roles)
    if not job_type.elastic:
        for name, role in roles.items():
            for field in ("min_replicas", "max_replicas"):
                if getattr(role, field) not in (None, role.replicas):
                    outside = "minReplicas" if field == "min_replicas" else "maxReplicas"
                    cause = f"jobs of type {spec.type} cannot change their size; use replicas"
                    yield Problem(f"spec.roles.{name}.{outside}", cause, str(getattr(role, field)))
    if own is not None and own != job_type.template:
        yield from template_problems(own, list(roles), "spec.template")


def _roles(spec: TrainingJobSpec, job_type: JobTypeSpec) -> dict[str, Role]:
    """The job's roles in the type's order, each over the type's defaults for it."""
    if not spec.roles:
        return dict(job_type.roles) or {"worker": Role()}
    names = [*(n for n in job_type.roles if n in spec.roles or len(job_type.roles) > 1), *spec.roles]
    roles = {}
    for name in dict.fromkeys(names):
        default, own = job_type.roles.get(name, Role()), spec.roles.get(name, Role())
        given = {field: getattr(own, field) for field in own.model_fields_set}
        roles[name] = _sized(default.model_copy(update=given), said="replicas" in given)
    return roles


def _sized(role: Role, said: bool) -> Role:
    """A role that only says how small or large it may be asks for what is nearest to one."""
    if said:
        return role
    least, most = role.min_replicas or role.replicas, role.max_replicas or MAX_TASKS
    return role.model_copy(update={"replicas": min(max(role.replicas, least), most)})


def _whole_job(spec: TrainingJobSpec, draft: Draft[TrainingJob]) -> Iterator[Problem]:
    if spec.code is not None and spec.code.path is not None:
        yield Problem(
            "spec.code.path", "a folder is packed by the client; submit with `weft run` or send code.package"
        )
    if spec.isolation == "sandbox" and (spec.image or any(r.image for r in spec.roles.values())):
        yield Problem(
            "spec.isolation",
            "choose one of `image` and `isolation: sandbox`: a container is isolated already",
            '"sandbox"',
        )
    total = sum(role.max_replicas or role.replicas for role in spec.roles.values())
    if total > MAX_TASKS:
        yield Problem("spec.roles", f"{total} tasks in all, at most {MAX_TASKS}")
    if spec.roles and all(role.service for role in spec.roles.values()) and draft.knows("spec.roles.*"):
        yield Problem(
            "spec.roles", "every role is a service, so the job could never finish; leave `service` out of one"
        )


def _commands(roles: dict[str, Role], spec: TrainingJobSpec, draft: Draft[TrainingJob]) -> Iterator[Problem]:
    idle = [
        name
        for name, role in roles.items()
        if role.command is None and draft.knows(f"spec.roles.{name}.command")
    ]
    if idle and spec.command is None and draft.knows("spec.command", "spec.roles.*"):
        who = f"role{'s' * (len(idle) > 1)} {', '.join(idle)}"
        yield Problem("spec.command", f"is required: what should {who} run? For example [python, train.py]")
    own = {f"spec.roles.{name}.command": role.command for name, role in roles.items()}
    for field, command in {"spec.command": spec.command, **own}.items():
        if command and not command[0]:
            yield Problem(f"{field}[0]", "is empty; it is the program to run", '""')


def _sizes(roles: dict[str, Role], draft: Draft[TrainingJob]) -> Iterator[Problem]:
    """An elastic role is never smaller than its least, nor larger than its most; what leads or serves is there."""
    chief = chief_role(roles)
    for name, role in roles.items():
        field = f"spec.roles.{name}"
        if not draft.knows(f"{field}.replicas", f"{field}.minReplicas", f"{field}.maxReplicas"):
            continue
        count, least, most = role.replicas, role.min_replicas, role.max_replicas
        if least is not None and least > count:
            yield Problem(f"{field}.minReplicas", f"more than replicas, which is {count}", str(least))
        if most is not None and most < count:
            yield Problem(f"{field}.maxReplicas", f"less than replicas, which is {count}", str(most))
        if least == 0 and (role.service or name == chief):
            needs = "the others need what it serves" if role.service else "its first task leads the job"
            yield Problem(f"{field}.minReplicas", f"must be at least 1: {needs}", "0")


def _no_gpu(resources: Resources, field: str, draft: Draft[TrainingJob]) -> Iterator[Problem]:
    if not draft.knows(f"{field}.gpu", f"{field}.size"):
        return
    if (kind := resources.gpu_type) is not None:
        yield Problem(f"{field}.gpuType", "asks for a GPU type but for no GPU; add gpu: 1", f'"{kind}"')
    if (memory := resources.gpu_memory) is not None:
        shown = f'"{format_memory(memory)}"'
        yield Problem(f"{field}.gpuMemory", "asks for memory of a GPU but for no GPU; add gpu: 1", shown)
    if (generation := resources.gpu_generation) is not None:
        cause = "asks for a generation of GPUs but for no GPU; add gpu: 1"
        yield Problem(f"{field}.gpuGeneration", cause, str(generation))
