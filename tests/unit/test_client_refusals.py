"""What is refused is found again in the file: every field at the line and column where it stands."""

from __future__ import annotations

import copy
import io
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from support.fake_server import FakeServer, Reply, fake_server
from weft.cli.app import dispatch
from weft.client.documents import Document, load_documents
from weft.client.errors import ApiError
from weft.client.refusals import place_of, refused
from weft.jobtypes.complete import read_job
from weft.model.jobtype import JobType, wrong_with
from weft.model.problems import Invalid, parse


def loaded(text: str, tmp_path: Path, name: str = "job.yaml") -> list[Document]:
    (tmp_path / name).write_text(text)
    return [replace(document, file=name, source=name) for document in load_documents(str(tmp_path / name))]


def place(text: str, field: str, tmp_path: Path, name: str = "job.yaml") -> str:
    (document,) = loaded(text, tmp_path, name)
    return place_of(document, field)


JOB = """\
# a job
metadata:
  name: a
spec:
  command: [python,
            train.py]
  env:
    a.b: x
    yes: 1
  roles:
    worker: {replicas: 2,
      resources: {cpu: 1}}
  secrets:
  - name: s3
    key: token
  -
    name: s4
"""


@pytest.mark.parametrize(
    ("field", "line", "column"),
    [
        ("metadata.name", 3, 3),
        ("spec.command[1]", 6, 13),
        ("spec.env.a.b", 8, 5),
        ("spec.env.true", 9, 5),
        ("spec.roles.worker.replicas", 11, 14),
        ("spec.roles.worker.resources.cpu", 12, 19),
        ("spec.secrets[0].key", 15, 5),
        ("spec.secrets[1].name", 17, 5),
        ("spec.secrets[1].env", 17, 5),  # missing: the item that lacks it
        ("spec.roles.worker.resources.gpu", 12, 7),
        ("spec.secrets[7].env", 13, 3),
        ("spec.queue", 4, 1),
        ("", 2, 1),
        ("apiVersion", 2, 1),
    ],
)
def test_a_field_is_found_or_the_part_that_lacks_it(
    field: str, line: int, column: int, tmp_path: Path
) -> None:
    assert place(JOB, field, tmp_path) == f"job.yaml:{line}:{column}"


def test_what_an_anchor_holds_stands_where_it_is_written(tmp_path: Path) -> None:
    text = "base: &b\n  cpu: 1\n  gpu: 2\nspec:\n  x: *b\n  y:\n    <<: *b\n    cpu: 3\n"
    assert place(text, "spec.x", tmp_path) == "job.yaml:5:3"
    assert place(text, "spec.x.gpu", tmp_path) == "job.yaml:3:3"
    assert place(text, "spec.y.cpu", tmp_path) == "job.yaml:8:5"
    assert place(text, "spec.y.gpu", tmp_path) == "job.yaml:3:3"


def test_several_documents_in_a_file(tmp_path: Path) -> None:
    first, second = loaded("---\nspec: {a: 1}\n---\n# nothing\n---\nspec:\n  b: 2\n", tmp_path)
    assert place_of(first, "spec.a") == "job.yaml:2:8"
    assert place_of(second, "spec.b") == "job.yaml:7:3"


def test_json_with_all_that_yaml_does_not_know(tmp_path: Path) -> None:
    text = '{\n\t"note": "\\ud83d\\ude00 \\/",\n\t"spec":{"cpu":1}\n}'
    assert place(text, "spec.cpu", tmp_path, "job.json") == "job.json:3:10"


def test_what_an_option_says_has_no_line(tmp_path: Path) -> None:
    (document,) = loaded("spec:\n  queue: a\n", tmp_path)
    changed = replace(document, value={"spec": {"queue": "b", "deadline": "x"}})
    assert place_of(changed, "spec.queue") == "job.yaml"
    assert place_of(changed, "spec.deadline") == "job.yaml"
    assert place_of(changed, "spec.priority") == "job.yaml"


PROBLEMS = [
    {"field": "spec.cpus", "message": "unknown field; did you mean cpu?"},
    {"field": "spec.deadline", "message": "write a duration", "value": '"x"'},
]


def refusal(*problems: dict[str, str]) -> ApiError:
    return ApiError(422, {"title": "Not valid", "detail": "…", "problems": list(problems)}, "/v1/jobs")


def test_every_problem_is_named_with_its_place(tmp_path: Path) -> None:
    (document,) = loaded("spec:\n  cpus: 1\n  deadline: x\n", tmp_path)
    assert str(refused(document, refusal(*PROBLEMS))).splitlines() == [
        "job.yaml:",
        "  job.yaml:2:3: spec.cpus: unknown field; did you mean cpu?",
        '  job.yaml:3:3: spec.deadline: write a duration (got "x")',
    ]
    assert str(refused(document, refusal(PROBLEMS[0]))) == (
        "job.yaml:2:3: spec.cpus: unknown field; did you mean cpu?"
    )


def test_a_document_without_a_file_has_fields_only() -> None:
    text = str(refused(Document({}, "standard input", Path()), refusal(PROBLEMS[0])))
    assert text == "standard input: spec.cpus: unknown field; did you mean cpu?"


# ── a mistake anywhere in a valid file ──

MARK = "zzmistake"
VALID: dict[str, Any] = {
    "apiVersion": "weft.dev/v1",
    "kind": "TrainingJob",
    "metadata": {"name": "a", "labels": {"weft.dev/team": "x.y"}},
    "spec": {
        "type": "parameter-server",
        "command": ["python", "train.py"],
        "env": {"A": "1", "B": "2"},
        "secrets": [{"name": "s3", "key": "k", "env": "S"}, {"name": "s4", "key": "k", "env": "T"}],
        "roles": {
            "ps": {"replicas": 1, "resources": {"cpu": 1, "memory": "1Gi"}},
            "worker": {"replicas": 2, "minReplicas": 1, "restart": {"policy": "never", "max": 2}},
        },
        "placement": {"strategy": "pack", "nodes": "any"},
        "restart": {"policy": "on-failure", "backoff": "1s"},
        "metrics": [{"source": "log", "names": ["loss"]}, {"source": "file", "path": "m.jsonl"}],
        "template": {
            "env": {"X": "${rank}"},
            "command": ["env", "${command}"],
            "roles": {"ps": {"env": {"Y": "${role}"}}},
        },
    },
}
TYPE: dict[str, Any] = {
    "apiVersion": "weft.dev/v1",
    "kind": "JobType",
    "metadata": {"name": "mine"},
    "spec": {
        "description": "For tests.\nIn two lines.",
        "roles": {"chief": {}, "worker": {"replicas": 2, "resources": {"cpu": 1}}},
        "template": {
            "env": {"CLUSTER": "${json.roles}", "ME": "${role}:${index}"},
            "command": ["launch", "--master", "${first.chief}", "${command}"],
            "roles": {"worker": {"env": {"W": "${index}"}, "command": ["w", "${rank}", "${command}"]}},
        },
        "restart": {"policy": "never", "max": 3},
        "checks": [
            {"that": "replicas.chief == 1", "message": "one chief"},
            {"that": "replicas.worker >= 1", "message": "some"},
        ],
    },
}
FREE = ("labels", "env", "roles")
"""Mappings with keys of the writer's own."""
WRONG = {
    "replicas",
    "minReplicas",
    "cpu",
    "memory",
    "policy",
    "max",
    "strategy",
    "nodes",
    "backoff",
    "source",
}
WRONG |= {"that", "kind", "apiVersion", "type"}


def spoilt(document: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """The document with one mistake, in every place where one can be made: an unknown field, a wrong value, or a
    place in a template that does not exist."""

    def places(part: Any, way: tuple[Any, ...]) -> Iterator[tuple[tuple[Any, ...], Any]]:
        inside = part.items() if isinstance(part, dict) else enumerate(part) if isinstance(part, list) else ()
        if isinstance(part, dict) and (not way or way[-1] not in FREE):
            yield (*way, MARK), 1
        for key, value in inside:
            if key in WRONG:
                yield (*way, key), MARK
            elif isinstance(value, str) and "template" in way and value != "${command}":
                yield (*way, key), f"${{{MARK}}}"
            yield from places(value, (*way, key))

    for (*way, last), value in places(document, ()):
        made = copy.deepcopy(document)
        here: Any = made
        for step in way:
            here = here[step]
        here[last] = value
        yield made


MISTAKES = [*spoilt(VALID), *spoilt(TYPE)]


def checked(document: Any) -> None:
    """As the server checks it."""
    if document.get("kind") == "JobType" or "checks" in document["spec"]:
        if problems := list(wrong_with(parse(JobType, document, "job type mine", "JobType").spec)):
            raise Invalid("job type mine", problems, "JobType")
    else:
        read_job(document, "job")


def test_what_is_spoilt_was_right() -> None:
    checked(VALID)
    checked(TYPE)
    assert len(MISTAKES) > 60


@given(
    mistake=st.sampled_from(MISTAKES),
    before=st.lists(st.sampled_from([VALID, TYPE, None]), max_size=2),
    after=st.lists(st.sampled_from([VALID, TYPE]), max_size=1),
    flow=st.sampled_from([False, None, True, "json"]),
    indent=st.integers(2, 6),
    width=st.sampled_from([20, 80, 1000]),
)
def test_a_mistake_anywhere_is_named_with_its_line(
    mistake: dict[str, Any],
    before: list[Any],
    after: list[Any],
    flow: Any,
    indent: int,
    width: int,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    if flow == "json":
        name, before, after = "job.json", [], []
        text = json.dumps(mistake, indent="\t" if indent % 2 else indent)
    else:
        name = "job.yaml"
        everything = [*before, mistake, *after]
        text = yaml.safe_dump_all(
            everything,
            sort_keys=False,
            default_flow_style=flow,
            indent=indent,
            width=width,
            explicit_start=True,
        )
    there = next(number for number, line in enumerate(text.splitlines(), 1) if MARK in line)
    documents = loaded(text, tmp_path_factory.mktemp("files"), name)
    document = documents[len([one for one in before if one is not None])]
    with pytest.raises(Invalid) as refusal:
        checked(copy.deepcopy(document.value))
    lines = {place_of(document, problem.field).split(":")[1] for problem in refusal.value.problems}
    assert lines == {str(there)}


# ── commands ──


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[FakeServer]:
    with fake_server() as fake:
        monkeypatch.setenv("WEFT_ADDRESS", fake.address)
        monkeypatch.setenv("WEFT_TOKEN", "t")
        monkeypatch.chdir(tmp_path)
        yield fake


def problem(*problems: dict[str, str]) -> Reply:
    return Reply({"title": "Not valid", "detail": "…", "problems": list(problems)}, 422)


@pytest.mark.parametrize(
    "command", [["run", "job.yaml"], ["submit", "job.yaml"], ["run", "job.yaml", "--gpu", "1"]]
)
def test_a_refused_job_file_is_named_with_the_line(
    command: list[str], server: FakeServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "job.yaml").write_text("spec:\n  command: [x]\n  cpus: 1\n")
    server.on("POST", "/v1/jobs", problem(PROBLEMS[0]))
    assert dispatch(command) == 1
    assert capsys.readouterr().err.splitlines()[0] == (
        "weft: job.yaml:3:3: spec.cpus: unknown field; did you mean cpu?"
    )


@pytest.mark.parametrize("command", [["run", "-"], ["submit", "-"], ["apply", "-f", "-"]])
def test_standard_input_is_a_file_too(
    command: list[str],
    server: FakeServer,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("metadata: {name: a}\nspec:\n  cpus: 1\n"))
    server.on("POST", "/v1/jobs", problem(PROBLEMS[0]))
    assert dispatch(command) == 1
    said = "weft: standard input:3:3: spec.cpus: unknown field; did you mean cpu?"
    assert capsys.readouterr().err.splitlines()[0] == said


def test_every_refused_type_of_a_folder_is_named(
    server: FakeServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "types").mkdir()
    for name in ("a", "b"):
        text = (
            f"kind: JobType\nmetadata: {{name: {name}}}\nspec:\n  template:\n    env:\n      ME: ${{rnk}}\n"
        )
        (tmp_path / "types" / f"{name}.yaml").write_text(text)
        wrong = {"field": "spec.template.env.ME", "message": "${rnk}: no such place"}
        server.on("PUT", f"/v1/jobtypes/{name}", problem(wrong))
    server.on("GET", "/v1/jobtypes", Reply({"items": []}))
    assert dispatch(["apply", "-f", "types"]) == 1
    assert capsys.readouterr().err.splitlines() == [
        "weft: 2 of 2 jobtypes are refused:",
        "  types/a.yaml:6:7: spec.template.env.ME: ${rnk}: no such place",
        "  types/b.yaml:6:7: spec.template.env.ME: ${rnk}: no such place",
    ]


def test_a_misspelt_kind_is_named_before_anything_is_asked(
    server: FakeServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "a.yaml").write_text("metadata: {name: a}\nkind: JobTyp\n")
    assert dispatch(["apply", "-f", "a.yaml"]) == 1
    said = (
        "weft: a.yaml:2:1: kind: must be TrainingJob, Queue, JobType, Size, Cluster or Dataset (got 'JobTyp')"
    )
    assert capsys.readouterr().err.splitlines()[0] == said
