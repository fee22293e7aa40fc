"""Job types: their templates, what they fill in, and what they refuse."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from support.builders import job_document
from weft.backends.api import Assignment, Lent
from weft.backends.tasks import terms_of
from weft.jobtypes.catalogue import built_in, catalogue
from weft.jobtypes.complete import read_job
from weft.jobtypes.render import render_command, render_env
from weft.model.gang import gang_of
from weft.model.job import Scope, TaskTemplate, Template
from weft.model.jobtype import JobType, JobTypeSpec, wrong_with
from weft.model.lifecycle import submitted
from weft.model.problems import Invalid, parse
from weft.model.template import OF_A_ROLE, PLAIN, Facts, RoleFacts, fill, mistakes

DOCS = Path(__file__).parents[2] / "docs"
FACTS = Facts(
    {
        **dict.fromkeys(PLAIN, "x"),
        "rank": "1",
        "role": "worker",
        "index": "0",
        "world": "3",
        "python": "python3",
    },
    {"ps": RoleFacts(["10.0.0.1:1"], 1, 1), "worker": RoleFacts(["10.0.0.2:2", "10.0.0.3:3"], 1, 4)},
    {"WEFT_JOB": "demo"},
)


@pytest.mark.parametrize(
    ("template", "filled"),
    [
        ("plain", "plain"),
        ("${rank} of ${world}", "1 of 3"),
        ("$${rank} costs $$5", "${rank} costs $5"),
        ("${hosts.worker}", "10.0.0.2:2,10.0.0.3:3"),
        ("${names.worker}", "10.0.0.2,10.0.0.3"),
        ("${first.ps}", "10.0.0.1:1"),
        ("${count.worker} ${least.worker}:${most.worker}", "2 1:4"),
        ("${hosts.nobody}${count.nobody}", "0"),
        ("${WEFT_JOB}", "demo"),
    ],
)
def test_places_are_filled(template: str, filled: str) -> None:
    assert not list(mistakes(template, None))
    assert fill(template, FACTS) == filled


def test_role_lists_are_json() -> None:
    config = json.loads(fill(built_in()["tensorflow"].template.env["TF_CONFIG"], FACTS_WITHOUT_JSON))
    assert config == {
        "cluster": {"ps": ["10.0.0.1:1"], "worker": ["10.0.0.2:2", "10.0.0.3:3"]},
        "task": {"type": "worker", "index": 0},
    }


FACTS_WITHOUT_JSON = Facts({k: v for k, v in FACTS.plain.items() if "json" not in k}, FACTS.roles)


@pytest.mark.parametrize(
    ("template", "told"),
    [
        ("${rnak}", "did you mean rank?"),
        ("${hosts.wroker}", "there is no role wroker, did you mean worker?; the roles are ps, worker"),
        ("a $ b", "write $$ for a dollar sign"),
        ("${rank", "does not end"),
        ("${}", "no such place"),
        ("${hosts.}", "no such place"),
    ],
)
def test_mistakes_say_what_would_be_right(template: str, told: str) -> None:
    [found] = mistakes(template, ["ps", "worker"])
    assert told in found


@given(st.text(alphabet="${}ab.rank"))
def test_what_has_no_mistake_can_be_filled(template: str) -> None:
    if not list(mistakes(template, ["worker"])):
        assert isinstance(fill(template, FACTS), str)


@pytest.mark.parametrize("name", list(catalogue()))
def test_the_types_that_come_with_weft_are_right_and_documented(name: str) -> None:
    spec = built_in()[name]
    assert not list(wrong_with(spec))
    assert spec.description
    assert spec.example.startswith("weft run")
    assert f"| `{name}` |" in (DOCS / "job-types.md").read_text()


def test_every_place_is_documented() -> None:
    told = re.findall(r"^\| `\$\{([^}]+)\}`", (DOCS / "job-types.md").read_text(), re.MULTILINE)
    assert {*told} == {*PLAIN, *(f"{what}.ROLE" for what in OF_A_ROLE), "command", "NAME"}


def test_a_command_is_wrapped_and_a_role_has_its_own() -> None:
    template = Template(
        env={"A": "${rank}", "EMPTY": "${hosts.nobody}"},
        command=["run", "${world}", "${command}"],
        roles={"ps": TaskTemplate(env={"A": "ps"}, command=["serve", "${command}", "--end"])},
    )
    assert render_command(template, "worker", ["python", "${rank}"], FACTS) == [
        "run",
        "3",
        "python",
        "${rank}",
    ]
    assert render_command(template, "ps", ["python"], FACTS) == ["serve", "python", "--end"]
    assert render_env(template, "worker", FACTS) == {"A": "1"}
    assert render_env(template, "ps", FACTS) == {"A": "ps"}
    assert render_command(None, "worker", ["true"], FACTS) == ["true"]


# ── what a job takes from its type ──


def test_a_job_has_what_its_type_says_and_it_does_not() -> None:
    job = read_job(job_document(type="pytorch"), "job")
    assert job.spec.template == built_in()["pytorch"].template
    assert gang_of(job.spec).tasks[0].scope is Scope.GANG
    own = read_job(job_document(type="pytorch", restart={"max": 7}, template={"env": {"A": "1"}}), "job")
    assert (own.spec.restart.max, own.spec.restart.scope) == (7, Scope.GANG)


def test_a_jobs_template_is_a_patch_of_its_types() -> None:
    """Single variables, the command, and both for single roles; an empty variable is left out of the task."""
    mpi = built_in()["mpi"].template
    patch = {
        "env": {"A": "1", "WEFT_MPI_PORT": ""},
        "roles": {"launcher": {"command": ["nice", "${command}"]}, "worker": {"env": {"B": "2"}}},
    }
    made = read_job(job_document(type="mpi", template=patch), "job").spec.template
    assert made is not None
    assert made.env == {**mpi.env, "A": "1", "WEFT_MPI_PORT": ""}
    assert made.roles["launcher"].command == ["nice", "${command}"]
    assert made.roles["worker"].command == mpi.roles["worker"].command
    assert made.roles["worker"].env == {"B": "2"}
    assert "WEFT_MPI_PORT" not in render_env(made, "worker", FACTS)
    bare = read_job(job_document(type="pytorch", template={"command": []}), "job").spec.template
    assert bare == Template(env=built_in()["pytorch"].template.env)


@pytest.mark.parametrize("name", built_in())
def test_a_job_that_is_printed_whole_is_the_same_job(name: str) -> None:
    """Each layer can be printed as the next, and that is all that is needed to run it."""
    job = read_job(job_document(type=name), "job")
    printed = job.model_dump(mode="json", by_alias=True, exclude_none=True)
    assert read_job(yaml.safe_load(yaml.safe_dump(printed)), "job").spec == job.spec


@pytest.mark.parametrize("name", built_in())
def test_a_type_that_is_printed_makes_the_same_jobs_under_another_name(name: str) -> None:
    printed = catalogue()[name].model_dump(mode="json", by_alias=True, exclude_none=True)
    mine = parse(JobType, yaml.safe_load(yaml.safe_dump(printed)), "job type", "JobType")
    assert not list(wrong_with(mine.spec))
    made = read_job(job_document(type="mine"), "job", types={**built_in(), "mine": mine.spec})
    assert made.spec.model_copy(update={"type": name}) == read_job(job_document(type=name), "job").spec


def test_a_job_of_a_type_without_roles_has_one_worker() -> None:
    """It used to be a server error: the first role of none was looked for."""
    bare = parse(
        JobType,
        {"apiVersion": "weft.dev/v1", "kind": "JobType", "metadata": {"name": "bare"}, "spec": {}},
        "it",
    )
    job = read_job(job_document(type="bare"), "job", types={**built_in(), "bare": bare.spec})
    assert {name: role.replicas for name, role in job.spec.roles.items()} == {"worker": 1}


def refusals(**spec: Any) -> list[str]:
    with pytest.raises(Invalid) as refused:
        read_job(job_document(**spec), "the job")
    return [str(problem) for problem in refused.value.problems]


def test_a_type_refuses_what_its_framework_cannot_do() -> None:
    assert refusals(type="tensorflow", roles={"chief": {"replicas": 2}, "worker": {}}) == [
        "spec.roles.chief: there is one chief at most: it leads"
    ]
    assert refusals(type="mpi", roles={"worker": {"replicas": 2, "maxReplicas": 4}}) == [
        "spec.roles.worker.maxReplicas: jobs of type mpi cannot change their size; use replicas (got 4)"
    ]


def test_a_type_says_how_what_its_jobs_read_is_cached() -> None:
    """Notebooks and services come back to what they read last; training reads everything once an epoch."""

    def policy(types: Mapping[str, JobTypeSpec] | None = None, **spec: Any) -> str:
        read = read_job(job_document(**spec, datasets=[{"name": "faces"}]), "job", types=types).spec
        assignment = Assignment("u", "job", read, gang_of(read), submitted(gang_of(read)))
        return str(terms_of(assignment, read.datasets[0], Lent("nr", None, {}, {}), ["a"])["policy"])

    assert (policy(), policy(type="notebook"), policy(type="notebook", dataCache="nr")) == ("nr", "lru", "nr")
    service = JobTypeSpec(command=["serve"], data_cache="lru")
    assert policy({**built_in(), "service": service}, type="service") == "lru"


def test_a_type_says_how_its_jobs_are_resized() -> None:
    roles = {"worker": {"replicas": 2, "maxReplicas": 4}}
    assert gang_of(read_job(job_document(type="jax", roles=roles), "job").spec).restart_to_resize
    assert not gang_of(read_job(job_document(type="jax"), "job").spec).restart_to_resize, "it never is"
    own = read_job(job_document(type="jax", roles=roles, resize="live"), "job")
    assert not gang_of(own.spec).restart_to_resize


def test_a_notebook_needs_nothing_said() -> None:
    document = {"metadata": {"name": "lab"}, "spec": {"type": "notebook"}}
    spec = read_job(document, "job").spec
    assert (spec.command, spec.idle_timeout) == (["python", "-m", "jupyterlab"], 3600.0)
    own = {"type": "notebook", "command": ["jupyter", "notebook"], "idleTimeout": 0, "restart": {"max": 1}}
    spec = read_job({"spec": own}, "job").spec
    assert (spec.command, spec.idle_timeout) == (["jupyter", "notebook"], 0.0)
    assert (spec.restart.policy, spec.restart.max) == ("exit-code", 1)
    assert refusals(type="notebook", roles={"worker": {"replicas": 2}}) == [
        "spec.roles.worker: there is one notebook in a job: its worker"
    ]


def test_a_job_may_write_the_template_itself_and_mistakes_are_found() -> None:
    [told] = refusals(template={"env": {"A": "${hosts.ps}"}})
    assert told.startswith("spec.template.env.A: ${hosts.ps}: there is no role ps; the roles are worker")


WRONG = """
metadata: {name: mine}
spec:
  roles: {chief: {}, worker: {}}
  template:
    env: {A: "${hosts.wroker}", B: "$x"}
    command: [run, "${rnak}"]
    roles: {nobody: {env: {C: fine}}}
  checks:
    - {that: worker >= 2, message: too few}
    - {that: replicas.nobody >= 2, message: too few}
"""


def test_every_mistake_of_a_type_is_told_at_once() -> None:
    import yaml

    job_type = parse(JobType, yaml.safe_load(WRONG), "job type mine", "JobType")
    assert [problem.field for problem in wrong_with(job_type.spec)] == [
        "spec.template.env.A",
        "spec.template.env.B",
        "spec.template.command",
        "spec.template.command[1]",
        "spec.template.roles.nobody",
        "spec.checks[0].that",
        "spec.checks[1].that",
    ]
