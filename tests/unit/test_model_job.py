"""The job file: what is accepted, what it means, and what a person is told about the rest."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import jsonschema_rs
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from support.builders import GIB, a_complete_job, a_job, job_document
from weft.jobtypes.catalogue import catalogue
from weft.jobtypes.complete import read_job
from weft.model.gang import Span, Within, gang_of
from weft.model.job import PRIORITY_CLASSES, RestartPolicy, TrainingJob
from weft.model.problems import Invalid, Problem, parse
from weft.model.resource import NAME_PATTERN, slug
from weft.model.status import Binding, Exit, JobStatus, State, TaskState, TaskStatus

ROOT = Path(__file__).parents[2]
DIGEST = "sha256:" + "a" * 64


def problems(document: dict[str, Any]) -> list[str]:
    with pytest.raises(Invalid) as refusal:
        read_job(document, "job demo")
    return [str(problem) for problem in refusal.value.problems]


def wrong(**spec: Any) -> list[str]:
    return problems(job_document(**spec))


class TestRefusals:
    @pytest.mark.parametrize(
        ("spec", "sentence"),
        [
            ({"replcas": 1}, "spec.replcas: unknown field; the fields here are"),
            ({"comand": ["x"]}, "spec.comand: unknown field; did you mean command?"),
            ({"max_wait_time": "1s"}, "spec.max_wait_time: unknown field; did you mean maxWait?"),
            (
                {"roles": {"w": {"replicsa": 2}}},
                "spec.roles.w.replicsa: unknown field; did you mean replicas?",
            ),
            (
                {"roles": {"w": {"resources": {"gpu_typ": "k80"}}}},
                "spec.roles.w.resources.gpu_typ: unknown field; did you mean gpuType?",
            ),
            (
                {"metrics": [{"source": "log", "nmes": []}]},
                "spec.metrics[0].nmes: unknown field; did you mean names?",
            ),
            ({"command": "python train.py"}, "spec.command: must be a list, one '- item' a line or [a, b]"),
            ({"command": []}, "spec.command: "),
            ({"command": [1]}, "spec.command[0]: must be text; put it in quotes (got 1)"),
            ({"command": ["a\0b"]}, "spec.command[0]: must not contain a NUL character"),
            ({"queue": "My Queue"}, "spec.queue: not a name; use lower-case letters, digits and '-'"),
            ({"grace": "soon"}, "spec.grace: write a duration with a unit"),
            (
                {"priority": "urgent"},
                "spec.priority: write a whole number or one of low, normal, high, production",
            ),
            ({"priority": 1.5}, "spec.priority: write a whole number"),
            ({"isolation": "docker"}, "spec.isolation: must be 'process' or 'sandbox' (got \"docker\")"),
            ({"restart": {"policy": "sometimes"}}, "spec.restart.policy: must be 'never', 'on-failure'"),
            ({"env": {"WEFT_X": "1"}}, "spec.env.WEFT_X: is set by Weft"),
            ({"env": {"A": True}}, 'spec.env.A: write text: "true" or "1" (got true)'),
            ({"env": {"1A": "x"}}, "spec.env.1A: must match"),
            (
                {"roles": {"w": {"replicas": 0}}},
                "spec.roles.w.replicas: input should be greater than or equal to 1",
            ),
            (
                {"roles": {"w": {"resources": {"memory": "512MB"}}}},
                "spec.roles.w.resources.memory: unknown unit 'MB'",
            ),
            (
                {"roles": {"w": {"resources": {"size": "xxl"}}}},
                "spec.roles.w.resources.size: no such size; choose one of small",
            ),
            (
                {"roles": {"w": {"resources": {"gpuType": "k80"}}}},
                "spec.roles.w.resources.gpuType: asks for a GPU type but for no GPU; add gpu: 1",
            ),
            ({"roles": {"a": {"service": True}}}, "every role is a service, so the job could never finish"),
            (
                {"roles": {"a": {"replicas": 6000}, "b": {"replicas": 6000}}},
                "12000 tasks in all, at most 10000",
            ),
            ({"image": "x", "isolation": "sandbox"}, "choose one of `image` and `isolation: sandbox`"),
            ({"code": {}}, "give exactly one of path, package or git (found none)"),
            ({"code": {"path": ".", "package": DIGEST}}, "(found path, package)"),
            ({"code": {"git": "https://x/y"}}, "git needs `commit`"),
            ({"code": {"package": DIGEST, "commit": "abcdef1"}}, "`commit` belongs to `git`"),
            ({"code": {"package": DIGEST, "subdir": "../x"}}, "must be a path inside its folder"),
            ({"code": {"git": "ext::sh -c id", "commit": "abcdef1"}}, "spec.code.git: must match"),
            ({"metrics": [{"source": "regex"}]}, "`pattern` belongs to source: regex, which needs one"),
            ({"metrics": [{"source": "regex", "pattern": "("}]}, "not a regular expression"),
            ({"metrics": [{"source": "regex", "pattern": "x"}]}, "needs named groups"),
            (
                {"roles": {"w": {"resources": {"gpu": 1.5}}}},
                "spec.roles.w.resources.gpu: a task has whole GPUs or a part of one; write 1, 2 or 0.5 (got 1.5)",
            ),
            ({"roles": {"w": {"resources": {"gpu": 0.0005}}}}, "finer than a thousandth of a GPU"),
            ({"roles": {"w": {"resources": {"gpu": 2000}}}}, "more than 1024 GPUs for one task"),
            ({"roles": {"w": {"resources": {"gpu": True}}}}, "write GPUs as a whole number such as 2"),
            (
                {"roles": {"w": {"resources": {"gpuMemory": "16Gi"}}}},
                'gpuMemory: asks for memory of a GPU but for no GPU; add gpu: 1 (got "16Gi")',
            ),
            ({"roles": {"w": {"resources": {"gpuGeneration": 7}}}}, "but for no GPU; add gpu: 1 (got 7)"),
            (
                {"roles": {"w": {"resources": {"devices": {"fpga": 0}}}}},
                "spec.roles.w.resources.devices.fpga: input should be greater than or equal to 1 (got 0)",
            ),
            (
                {"roles": {"w": {"replicas": 2, "minReplicas": 3}}},
                "spec.roles.w.minReplicas: more than replicas, which is 2 (got 3)",
            ),
            (
                {"roles": {"w": {"replicas": 4, "maxReplicas": 3}}},
                "spec.roles.w.maxReplicas: less than replicas, which is 4 (got 3)",
            ),
            (
                {"roles": {"w": {"minReplicas": 0}}},
                "spec.roles.w.minReplicas: must be at least 1: its first task leads the job (got 0)",
            ),
            (
                {"roles": {"ps": {"service": True, "minReplicas": 0}, "worker": {}}},
                "spec.roles.ps.minReplicas: must be at least 1: the others need what it serves (got 0)",
            ),
            (
                {"roles": {"w": {"maxReplicas": 6000}, "v": {"maxReplicas": 6000}}},
                "12000 tasks in all, at most 10000",
            ),
            (
                {"placement": {"nodes": "two"}},
                "spec.placement.nodes: must be 'any', 'one', 'same-rack' or 'same-fabric' (got \"two\")",
            ),
            ({"placement": {"tolerations": "spot"}}, "spec.placement.tolerations: must be a list"),
            ({"type": "comand"}, "spec.type: no such job type; did you mean command?"),
            ({"code": {"path": "."}}, "spec.code.path: a folder is packed by the client"),
        ],
    )
    def test_each_names_the_field_and_what_would_be_right(self, spec: dict[str, Any], sentence: str) -> None:
        found = wrong(**spec)
        assert any(sentence in problem for problem in found), found

    def test_all_problems_are_told_at_once(self) -> None:
        found = wrong(
            comand=["x"], queue="Q", grace="soon", roles={"w": {"replicas": 0, "resources": {"cpu": "x"}}}
        )
        fields = [problem.split(":")[0] for problem in found]
        assert sorted(fields) == [
            "spec.comand",
            "spec.grace",
            "spec.queue",
            "spec.roles.w.replicas",
            "spec.roles.w.resources.cpu",
        ]

    def test_a_job_without_a_command_is_asked_for_one(self) -> None:
        document = job_document()
        del document["spec"]["command"]
        assert problems(document)[0].startswith("spec.command: is required: what should role worker run?")

    def test_a_missing_spec_is_required(self) -> None:
        assert problems({"metadata": {"name": "x"}}) == ["spec: is required"]

    def test_a_document_that_is_no_mapping(self) -> None:
        with pytest.raises(Invalid, match="job x is not valid:\n  must be a mapping of fields"):
            parse(TrainingJob, ["what"], "job x")

    def test_another_kind_or_version_is_not_this_one(self) -> None:
        found = problems({**job_document(), "kind": "TraningJob", "apiVersion": "v1"})
        assert found == [
            "apiVersion: must be 'weft.dev/v1' (got \"v1\")",
            "kind: must be 'TrainingJob' (got \"TraningJob\")",
        ]

    def test_no_secret_is_shown(self) -> None:
        """An env value may be a token pasted in by mistake: the refusal names the field alone."""
        found = wrong(
            env={"TOKEN": ["hunter2"]}, secrets=[{"name": "x", "key": "k", "env": "A", "value": "hunter2"}]
        )
        assert found
        assert not any("hunter2" in problem for problem in found)

    def test_a_long_value_is_cut(self) -> None:
        (found,) = wrong(queue="Q" * 500)
        assert len(found) < 300

    def test_a_problem_reads_as_a_sentence(self) -> None:
        assert str(Problem("spec.queue", "not a name", '"Q"')) == 'spec.queue: not a name (got "Q")'
        assert str(Problem("", "nothing to run")) == "nothing to run"


class TestMeaning:
    def test_names_may_be_snake_or_camel(self) -> None:
        assert a_job(max_wait="5s").spec.max_wait == a_job(maxWait="5s").spec.max_wait == 5

    @pytest.mark.parametrize(("word", "number"), [*PRIORITY_CLASSES.items(), (7, 7)])
    def test_priority_is_a_number_or_a_class(self, word: Any, number: int) -> None:
        assert a_job(priority=word).spec.priority == number

    def test_numbers_in_env_become_text(self) -> None:
        assert a_job(env={"A": 1, "B": 0.5, "C": "x"}).spec.env == {"A": "1", "B": "0.5", "C": "x"}

    def test_a_plain_job_is_one_worker_of_one_cpu(self) -> None:
        (task,) = gang_of(a_complete_job().spec).tasks
        assert (task.name, task.request.cpu, task.request.memory, task.request.gpu) == (
            "worker-0",
            1000,
            0,
            0,
        )
        assert task.chief
        assert task.restart.policy is RestartPolicy.NEVER

    @pytest.mark.parametrize(
        ("size", "cpu", "memory", "gpu"),
        [
            ("k80-1", 4, 24, 1), ("k80-2", 8, 48, 2), ("k80-4", 16, 96, 4), ("p100-1", 8, 24, 1),
            ("p100-2", 16, 48, 2), ("v100-1", 26, 24, 1), ("v100-2", 42, 48, 2),
        ],
    )  # fmt: skip
    def test_sizes_are_those_of_the_table(self, size: str, cpu: int, memory: int, gpu: int) -> None:
        resources = a_complete_job(roles={"w": {"resources": {"size": size}}}).spec.roles["w"].resources
        assert (resources.cpu, resources.memory, resources.gpu) == (cpu * 1000, memory * GIB, gpu)
        assert resources.gpu_type == size.split("-", maxsplit=1)[0]

    def test_what_is_written_overrides_the_size(self) -> None:
        wanted = {"size": "v100-2", "cpu": 4, "gpu": 1}
        resources = a_complete_job(roles={"w": {"resources": wanted}}).spec.roles["w"].resources
        assert (resources.cpu, resources.gpu, resources.memory) == (4000, 1, 48 * GIB)

    def test_parameter_servers_are_services_and_come_first(self) -> None:
        spec = a_complete_job(type="parameter-server", roles={"worker": {"replicas": 2}}).spec
        gang = gang_of(spec)
        assert [(t.name, t.rank, t.service, t.chief) for t in gang.tasks] == [
            ("ps-0", 0, True, False),
            ("worker-0", 1, False, True),
            ("worker-1", 2, False, False),
        ]

    def test_the_chief_is_the_first_of_the_role_that_leads(self) -> None:
        spec = a_complete_job(roles={"worker": {}, "evaluator": {}, "chief": {}}, success="chief").spec
        assert [t.name for t in gang_of(spec).tasks if t.chief] == ["chief-0"]
        assert gang_of(spec).chief_decides

    def test_a_role_has_its_own_restart_or_the_jobs(self) -> None:
        spec = a_complete_job(
            restart={"policy": "always"}, roles={"a": {}, "b": {"restart": {"policy": "never"}}}
        ).spec
        assert [t.restart.policy.value for t in gang_of(spec).tasks] == ["always", "never"]

    @pytest.mark.parametrize(
        "worker", [{"resources": {"size": "small"}}, {"minReplicas": 2, "maxReplicas": 4}, {"maxReplicas": 3}]
    )
    def test_completing_twice_is_completing_once(self, worker: dict[str, Any]) -> None:
        once = a_complete_job(type="parameter-server", roles={"worker": worker})
        again = read_job(once.model_dump(mode="json", by_alias=True, exclude_none=True), "job")
        assert again == once

    @pytest.mark.parametrize(
        ("gpu", "whole", "share"), [(2, 2, 0), (0.25, 0, 250), ("0.5", 0, 500), (1.0, 1, 0)]
    )
    def test_gpus_are_whole_or_a_part_of_one(self, gpu: Any, whole: int, share: int) -> None:
        (task,) = gang_of(a_complete_job(roles={"w": {"resources": {"gpu": gpu}}}).spec).tasks
        assert (task.request.gpu, task.request.gpu_share) == (whole, share)

    def test_what_a_gpu_must_have_and_what_else_is_counted(self) -> None:
        wanted = {"gpu": 1, "gpuMemory": "16Gi", "gpuGeneration": 7, "devices": {"rdma": 1, "fpga": 2}}
        (task,) = gang_of(a_complete_job(roles={"w": {"resources": wanted}}).spec).tasks
        assert (task.request.gpu_memory, task.request.gpu_generation) == (16 * GIB, 7)
        assert task.request.devices == (("fpga", 2), ("rdma", 1))

    def test_where_a_gang_must_be_together_and_what_it_bears(self) -> None:
        gang = gang_of(a_complete_job(placement={"nodes": "same-rack", "tolerations": ["spot", "a"]}).spec)
        assert (gang.within, gang.tolerations) == (Within.RACK, ("a", "spot"))

    def test_an_elastic_role_has_tasks_up_to_its_most(self) -> None:
        roles = {"ps": {"service": True}, "worker": {"replicas": 3, "minReplicas": 2, "maxReplicas": 5}}
        gang = gang_of(a_complete_job(roles=roles).spec)
        assert gang.spans == (Span("worker", 2, 3, 5),)
        assert [len(tasks) for tasks in (gang.least, gang.preferred, gang.tasks)] == [3, 4, 6]

    @pytest.mark.parametrize(
        ("role", "count"),
        [({"minReplicas": 2}, 2), ({"maxReplicas": 4}, 1), ({"minReplicas": 2, "replicas": 3}, 3)],
    )
    def test_a_role_that_says_no_number_asks_for_the_nearest_to_one(
        self, role: dict[str, int], count: int
    ) -> None:
        assert a_complete_job(roles={"worker": role}).spec.roles["worker"].replicas == count

    def test_a_role_of_one_size_is_not_elastic(self) -> None:
        gang = gang_of(a_complete_job(roles={"w": {"replicas": 2, "minReplicas": 2, "maxReplicas": 2}}).spec)
        assert not gang.elastic

    def test_the_document_it_writes_is_the_job_it_read(self) -> None:
        job = a_complete_job(
            grace="1h30m", deadline=5, priority="high", env={"A": 1},
            roles={"w": {"replicas": 2, "maxReplicas": 3, "resources": {
                "cpu": 0.5, "memory": "1.5Gi", "gpu": 0.5, "gpuMemory": "8Gi", "devices": {"fpga": 1}}}},
        )  # fmt: skip
        document = json.loads(job.model_dump_json(by_alias=True, exclude_none=True))
        assert document["spec"]["grace"] == "1h30m"
        assert document["spec"]["roles"]["w"]["resources"]["memory"] == "1536Mi"
        assert parse(TrainingJob, document, "job") == job

    @given(
        gpu=st.one_of(st.integers(1, 1024), st.integers(1, 999).map(lambda milli: milli / 1000)),
        memory=st.integers(0, 2**50),
        devices=st.dictionaries(st.sampled_from(["fpga", "rdma", "x.dev/y"]), st.integers(1, 1024)),
        sizes=st.tuples(*[st.integers(1, 20)] * 3).map(sorted),
        nodes=st.sampled_from([within for within in Within if within is not Within.CLUSTER]),
    )
    def test_any_gang_that_is_written_is_the_one_that_is_read(
        self, gpu: float, memory: int, devices: dict[str, int], sizes: list[int], nodes: Within
    ) -> None:
        least, count, most = sizes
        resources = {"gpu": gpu, "gpuMemory": memory, "devices": devices}
        role = {"replicas": count, "minReplicas": least, "maxReplicas": most, "resources": resources}
        job = a_complete_job(roles={"w": role}, placement={"nodes": nodes.value})
        document = json.loads(job.model_dump_json(by_alias=True, exclude_none=True))
        assert parse(TrainingJob, document, "job") == job
        gang = gang_of(job.spec)
        assert gang_of(parse(TrainingJob, document, "job").spec) == gang
        assert gang.within is nodes
        assert {task.request.gpus for task in gang.tasks} == {gpu}
        assert [len(tasks) for tasks in (gang.least, gang.preferred, gang.tasks)] == sizes

    def test_equal_needs_have_equal_signatures(self) -> None:
        one, two = (gang_of(a_complete_job(name, env={"A": name}).spec) for name in ("a", "b"))
        assert one.signature == two.signature
        assert one.signature != gang_of(a_complete_job(placement={"nodes": "one"}).spec).signature


class TestNames:
    @pytest.mark.parametrize(
        ("text", "name"),
        [("My Model.py", "my-model-py"), ("--x--", "x"), ("", "job"), ("日本", "job"), ("a" * 99, "a" * 48)],
    )
    def test_a_slug_is_the_nearest_name(self, text: str, name: str) -> None:
        assert slug(text) == name

    @given(st.text())
    def test_a_slug_is_always_a_name(self, text: str) -> None:
        import re

        assert re.fullmatch(NAME_PATTERN, slug(text))


@pytest.fixture
def schema() -> Any:
    return jsonschema_rs.validator_for(TrainingJob.model_json_schema(by_alias=True))


class TestTheSchemaForEditors:
    @pytest.mark.parametrize(
        "path", sorted(ROOT.glob("examples/**/*.yaml")), ids=lambda p: os.path.relpath(p, ROOT)
    )
    def test_the_examples_are_valid_by_it_and_by_the_model(self, schema: Any, path: Path) -> None:
        document = yaml.safe_load(path.read_text())
        assert [str(error) for error in schema.iter_errors(document)] == []
        parse(TrainingJob, document, str(path))

    def test_a_complete_job_is_valid_by_it(self, schema: Any) -> None:
        for kind in catalogue():
            job = a_complete_job(
                type=kind, priority="high", deadline="5m", roles={"worker": {"resources": {"size": "k80-1"}}}
            )
            document = json.loads(job.model_dump_json(by_alias=True, exclude_none=True))
            assert [str(error) for error in schema.iter_errors(document)] == []

    @pytest.mark.parametrize(
        "spec",
        [{"comand": ["x"]}, {"roles": {"w": {"resources": {"memory": "512MB"}}}}, {"grace": "soon"}, {"priority": "urgent"},
         {"command": "x"}, {"env": {"A": True}}, {"roles": {"w": {"resources": {"gpu": 1.5}}}}],
    )  # fmt: skip
    def test_what_the_model_refuses_an_editor_marks(self, schema: Any, spec: dict[str, Any]) -> None:
        assert wrong(**spec)
        assert not schema.is_valid(job_document(**spec))


class TestStatus:
    def test_it_comes_back_as_it_was_written(self) -> None:
        task = TaskStatus(
            "worker-0", TaskState.RUNNING, Binding("worker-0", "local", (0, 1), (3,)), 2, 77, 1, started=5.0,
            exit=Exit(code=1, notes=("a",)),
        )  # fmt: skip
        status = JobStatus(State.PROCESSING, (task,), launch=2, started=5.0, log_tail=("x",))
        assert JobStatus.load(status.dump()) == status

    def test_it_is_written_in_camel_case_without_what_is_unknown(self) -> None:
        document = json.loads(JobStatus(State.QUEUED, (), log_tail=("x",)).dump())
        assert document["logTail"] == ["x"]
        assert "failure" not in document


def test_rules_for_the_whole_job_are_told_at_once_each_with_its_field() -> None:
    document = {
        "spec": {
            "command": ["x"],
            "env": {"WEFT_A": "1"},
            "secrets": [{"name": "s", "key": "k", "env": "WEFT_JOB_UID"}],
            "isolation": "sandbox",
            "image": "busybox",
            "roles": {"a": {"service": True, "env": {"WEFT_B": "1"}}},
        }
    }
    assert [found.partition(": ")[0] for found in problems(document)] == [
        "spec.env.WEFT_A",
        "spec.secrets[0].env",
        "spec.isolation",
        "spec.roles",
        "spec.roles.a.env.WEFT_B",
    ]


def test_a_password_in_a_git_url_is_refused() -> None:
    with pytest.raises(Invalid, match="keep passwords out of the URL"):
        parse(
            TrainingJob, {"spec": {"code": {"git": "https://me:pw@host/x", "commit": "1234567"}}}, "the job"
        )


def test_an_unknown_type_does_not_hide_other_problems() -> None:
    document = {"spec": {"type": "comand", "command": ["x"], "roles": {"w": {"resources": {"size": "huge"}}}}}
    with pytest.raises(Invalid) as refused:
        read_job(document, "the job")
    assert [problem.field for problem in refused.value.problems] == [
        "spec.type",
        "spec.roles.w.resources.size",
    ]


# ── mistakes of fields and of meaning in one refusal ──


EVERYTHING_WRONG = """
apiVersion: weft.dev/v1
kind: TrainingJob
metadata: {name: Mnist}
spec:
  type: comand
  prioritty: 1
  code: {git: 'https://host/x', subdir: ../up}
  env: {WEFT_HOME: here, DEBUG: true}
  secrets: [{name: s3, key: token, env: WEFT_TOKEN}, 7]
  isolation: sandbox
  image: busybox
  roles:
    ps: {service: true, resources: {memory: 512MB, gpuType: k80}}
    worker: {service: true, replicas: 20000, resources: {size: huge, cpu: much}}
  grace: soon
  metrics:
    - {source: regex, window: 0}
    - {source: guess}
    - {source: log, pattern: 'x(?P<x>.)'}
"""


def fields(document: dict[str, Any]) -> list[str]:
    with pytest.raises(Invalid) as refused:
        read_job(document, "the job")
    return [problem.field for problem in refused.value.problems]


@pytest.mark.parametrize(
    ("spec", "wrong"),
    [
        ({"comand": ["x"]}, ["spec.comand"]),
        ({"comand": ["x"], "command": [""]}, ["spec.comand", "spec.command[0]"]),
        ({"comand": ["x"], "command": 7}, ["spec.comand", "spec.command"]),
        ({"command": ["x"], "secrets": [{"nme": "s3", "key": "token", "env": "T"}]}, ["spec.secrets[0].nme"]),
    ],
)
def test_what_is_misspelt_is_not_also_missing(spec: dict[str, Any], wrong: list[str]) -> None:
    assert fields({"spec": spec}) == wrong


def test_everything_wrong_is_told_at_once_in_the_order_of_the_file() -> None:
    assert fields(yaml.safe_load(EVERYTHING_WRONG)) == [
        "metadata.name",
        "spec.command",
        "spec.type",
        "spec.prioritty",
        "spec.code.commit",
        "spec.code.subdir",
        "spec.env.WEFT_HOME",
        "spec.env.DEBUG",
        "spec.secrets[0].env",
        "spec.secrets[1]",
        "spec.isolation",
        "spec.roles",
        "spec.roles.ps.resources.memory",
        "spec.roles.ps.resources.gpuType",
        "spec.roles.worker.replicas",
        "spec.roles.worker.resources.size",
        "spec.roles.worker.resources.cpu",
        "spec.grace",
        "spec.metrics[0].pattern",
        "spec.metrics[0].window",
        "spec.metrics[1].source",
        "spec.metrics[2].pattern",
    ]


@pytest.mark.parametrize(
    ("spec", "only"),
    [
        ({"command": "train.py"}, "spec.command"),
        ({"command": [1, ""]}, "spec.command[0]"),
        ({"command": None, "roles": {"w": {"command": 3}}}, "spec.roles.w.command"),
        ({"command": None, "roles": {"w": 3}}, "spec.roles.w"),
        ({"command": None, "roles": {"W": {"command": ["x"]}}}, "spec.roles.W"),
        ({"command": None, "roles": ["w"]}, "spec.roles"),
        ({"roles": {"w": {"resources": {"gpuType": "k80", "gpu": "one"}}}}, "spec.roles.w.resources.gpu"),
        ({"roles": {"w": {"resources": {"gpuType": "k80", "size": "k80-3"}}}}, "spec.roles.w.resources.size"),
        ({"roles": {"w": {"resources": {"gpuType": "k80", "size": 4}}}}, "spec.roles.w.resources.size"),
        ({"roles": {"a": {"service": True}, "b": {"service": "no idea"}}}, "spec.roles.b.service"),
        ({"roles": {"a": {"service": True}, "B": {}}}, "spec.roles.B"),
        ({"code": {"git": "ext::x", "commit": "abcdef1"}}, "spec.code.git"),
        ({"code": {"git": "https://host/x", "commit": "main"}}, "spec.code.commit"),
        ({"code": 3}, "spec.code"),
        ({"metrics": [{"source": "regex", "pattern": "("}]}, "spec.metrics[0].pattern"),
        ({"metrics": [{"source": "guess", "pattern": "(?P<x>.)"}]}, "spec.metrics[0].source"),
        ({"metrics": 3}, "spec.metrics"),
    ],
)
def test_a_mistake_is_told_once_and_not_again_for_what_follows_from_it(
    spec: dict[str, Any], only: str
) -> None:
    assert fields(job_document(**spec)) == [only]


def test_what_is_wrong_inside_of_what_is_wrong_is_told_too() -> None:
    found = fields(job_document(roles={"B!": {"resources": 3, "replicas": 0, "env": [1]}}))
    assert found == ["spec.roles.B!", *(f"spec.roles.B!.{name}" for name in ("resources", "replicas", "env"))]


KEYS = st.sampled_from(
    ["", "x", "[key]", "*", "B!", "spec", "metadata", "name", "roles", "worker", "resources", "gpu_type", "gpuType",
     "size", "command", "env", "WEFT_X", "code", "git", "metrics", "source", "pattern", "secrets", "restart"]
)  # fmt: skip
ANYTHING = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-5, 5)
    | st.sampled_from(["", "x", "regex", "k80-1", "[key]", "*"]),
    lambda inside: st.lists(inside, max_size=3) | st.dictionaries(KEYS, inside, max_size=4),
    max_leaves=12,
)


@given(ANYTHING, ANYTHING, st.dictionaries(KEYS, ANYTHING, max_size=5))
def test_no_document_is_too_strange_to_be_refused_in_words(roles: Any, code: Any, spec: Any) -> None:
    with pytest.raises(Invalid) as refused:
        read_job({"spec": {**spec, "roles": {"worker": roles, "B!": roles}, "code": code}}, "the job")
    assert all(problem.message for problem in refused.value.problems)


def test_a_spec_that_is_no_mapping_is_the_only_problem() -> None:
    assert fields({"spec": 3}) == ["spec"]


Mistake = tuple[str, tuple[str | int, ...], Any]

MISTAKES: list[Mistake] = [
    ("metadata.name", ("metadata", "name"), "Not A Name"),
    ("metadata.lables", ("metadata", "lables"), {}),
    ("spec.type", ("spec", "type"), "comand"),
    ("spec.command", ("spec", "command"), None),
    ("spec.args[1]", ("spec", "args"), ["a", 2]),
    ("spec.prioritty", ("spec", "prioritty"), 1),
    ("spec.priority", ("spec", "priority"), "urgent"),
    ("spec.grace", ("spec", "grace"), "soon"),
    ("spec.env.WEFT_X", ("spec", "env", "WEFT_X"), "1"),
    ("spec.env.A", ("spec", "env", "A"), True),
    ("spec.code", ("spec", "code", "package"), DIGEST),
    ("spec.code.subdir", ("spec", "code", "subdir"), "../x"),
    ("spec.isolation", ("spec", "isolation"), "sandbox"),
    ("spec.restart.policy", ("spec", "restart"), {"policy": "perhaps"}),
    ("spec.roles.ps.replicas", ("spec", "roles", "ps", "replicas"), 0),
    ("spec.roles.ps.resources.memory", ("spec", "roles", "ps", "resources", "memory"), "512MB"),
    ("spec.roles.ps.resources.gpuType", ("spec", "roles", "ps", "resources", "gpuType"), "k80"),
    ("spec.roles.worker.resources.size", ("spec", "roles", "worker", "resources", "size"), "huge"),
    ("spec.roles.worker.resources.cpu", ("spec", "roles", "worker", "resources", "cpu"), "much"),
    ("spec.roles.worker.replcas", ("spec", "roles", "worker", "replcas"), 2),
    ("spec.metrics[0].pattern", ("spec", "metrics", 0, "pattern"), None),
    ("spec.metrics[0].window", ("spec", "metrics", 0, "window"), 0),
    ("spec.metrics[1].source", ("spec", "metrics", 1, "source"), "guess"),
    ("spec.secrets[0].key", ("spec", "secrets", 0, "key"), "/"),
    ("spec.results.include", ("spec", "results", "include"), "**"),
]


def a_rich_document() -> dict[str, Any]:
    return job_document(
        code={"git": "https://host/x", "commit": "abcdef1"},
        image="busybox",
        env={},
        secrets=[{"name": "s3", "key": "token", "env": "TOKEN"}],
        roles={"ps": {"resources": {}, "service": True}, "worker": {"resources": {}}},
        metrics=[{"source": "regex", "pattern": "(?P<x>.)"}, {"source": "log"}],
        results={},
    )


def test_the_document_without_mistakes_is_a_job() -> None:
    read_job(a_rich_document(), "the job")


@given(st.sets(st.integers(0, len(MISTAKES) - 1), min_size=1))
def test_mistakes_that_have_nothing_to_do_with_each_other_are_all_told_and_nothing_else(
    chosen: set[int],
) -> None:
    document = a_rich_document()
    for _, (*way, last), value in (MISTAKES[number] for number in chosen):
        part: Any = document
        for step in way:
            part = part[step]
        part[last] = value
    assert sorted(fields(document)) == sorted(MISTAKES[number][0] for number in chosen)
