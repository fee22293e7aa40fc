"""What the operator decides, writes and shows, without a cluster."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from support.builders import a_complete_job
from weft.control.live import live_job
from weft.model.failures import Code, Failure
from weft.model.job import TrainingJob
from weft.model.status import Desire, JobStatus, State, TaskState, TaskStatus
from weft.operator.decide import Decision, Newcomer, Turn, decide, of_a_newcomer
from weft.operator.resource import SOURCE, canonical, digest, job_file, mirror_of, second_name
from weft.operator.status import SPEC_IGNORED, difference, event, job_status

SIDES = st.sampled_from([None, "a", "b", "c"])


@pytest.mark.parametrize(
    ("agreed", "weft", "cluster", "turn"),
    [
        (None, None, None, Turn.NOTHING),
        (None, "a", None, Turn.NOTHING),
        (None, None, "a", Turn.DECLARE),
        (None, "a", "a", Turn.REMEMBER),
        ("a", "a", "a", Turn.NOTHING),
        ("a", "b", "a", Turn.WRITE),
        ("a", "a", "b", Turn.DECLARE),
        ("a", "b", "b", Turn.REMEMBER),
        ("a", None, "a", Turn.DELETE),
        ("a", "a", None, Turn.WITHDRAW),
        ("a", None, None, Turn.FORGET),
    ],
)
def test_the_side_that_changed_is_followed(
    agreed: str | None, weft: str | None, cluster: str | None, turn: Turn
) -> None:
    assert decide(agreed, weft, cluster) == Decision(turn)


@pytest.mark.parametrize(
    ("agreed", "weft", "cluster", "turn"),
    [
        (None, "a", "b", Turn.DECLARE),
        ("a", "b", "c", Turn.DECLARE),
        ("a", None, "b", Turn.DECLARE),
        ("a", "b", None, Turn.WITHDRAW),
    ],
)
def test_if_both_changed_the_cluster_wins_and_that_is_said(
    agreed: str | None, weft: str | None, cluster: str | None, turn: Turn
) -> None:
    assert decide(agreed, weft, cluster) == Decision(turn, both=True)


@given(SIDES, SIDES, SIDES)
def test_what_is_decided_ends_the_difference(
    agreed: str | None, weft: str | None, cluster: str | None
) -> None:
    """Carried out once, nothing is left to do, unless Weft alone has it."""
    match decide(agreed, weft, cluster).turn:
        case Turn.DECLARE | Turn.REMEMBER:
            agreed = weft = cluster
        case Turn.WITHDRAW:
            agreed = weft = None
        case Turn.WRITE:
            agreed = cluster = weft
        case Turn.DELETE | Turn.FORGET:
            agreed = cluster = None
    assert decide(agreed, weft, cluster).turn is Turn.NOTHING
    assert weft == cluster or (agreed is None and cluster is None)


def test_a_resource_is_claimed_before_anything_else() -> None:
    assert of_a_newcomer(claimed=False, made_for_job=True, had_a_job=True) is Newcomer.CLAIM


def test_a_job_that_is_not_known_here_is_not_run_again() -> None:
    assert of_a_newcomer(claimed=True, made_for_job=False, had_a_job=True) is Newcomer.LEAVE


JSON = st.recursive(
    st.integers() | st.text(max_size=3) | st.booleans(),
    lambda inside: st.dictionaries(st.sampled_from("abc"), inside, max_size=3) | st.lists(inside, max_size=2),
    max_leaves=6,
)
DOCUMENTS = st.dictionaries(st.sampled_from("abcd"), JSON, max_size=4)


def patched(document: Any, patch: Any) -> Any:
    """As RFC 7386 has it."""
    if not isinstance(patch, dict):
        return patch
    after = dict(document) if isinstance(document, dict) else {}
    for name, value in patch.items():
        if value is None:
            after.pop(name, None)
        else:
            after[name] = patched(after.get(name), value)
    return after


@given(DOCUMENTS, DOCUMENTS)
@example({"a": {"b": False}}, {"a": {"b": 0}})
def test_the_difference_as_a_merge_patch_makes_one_of_the_other(
    wanted: dict[str, Any], seen: dict[str, Any]
) -> None:
    patch = difference(wanted, seen)
    assert canonical(patched(seen, patch)) == canonical(wanted)
    assert (patch == {}) == (canonical(wanted) == canonical(seen))


def tasks(*states: TaskState) -> tuple[TaskStatus, ...]:
    return tuple(TaskStatus(f"worker-{number}", state) for number, state in enumerate(states))


def test_a_running_job_is_shown_with_what_of_it_runs() -> None:
    status = JobStatus(
        State.PROCESSING,
        tasks(TaskState.RUNNING, TaskState.SUCCEEDED, TaskState.LOST, TaskState.WAITING),
        queued=1.0,
        started=2.0,
        restarts=1,
    )
    assert job_status("demo", "u", status, 4, None, 3) == {
        "state": "PROCESSING",
        "desire": "run",
        "queued": "1970-01-01T00:00:01Z",
        "started": "1970-01-01T00:00:02Z",
        "restarts": 1,
        "preemptions": 0,
        "tasks": "2/4",
        "conditions": [],
        "observedGeneration": 3,
        "job": "demo",
        "jobUid": "u",
    }


def test_an_end_is_a_condition_and_a_failure_says_what_failed() -> None:
    failed = JobStatus(
        State.FAILED, (), Desire.RUN, "it failed", Failure(Code.EXIT_CODE, "exit code 3", "w-0"), finished=5.0
    )
    told = job_status("demo", "u", replace(failed, reason_code=Code.EXIT_CODE), 1, failed.reason, 1)
    assert told["reasonCode"] == "EXIT_CODE"
    assert told["failure"] == {"code": "EXIT_CODE", "message": "exit code 3", "task": "w-0"}
    assert told["conditions"] == [
        {"type": "Failed", "status": "True", "lastTransitionTime": "1970-01-01T00:00:05Z"}
    ]


def test_a_code_is_told_with_its_own_sentence_alone() -> None:
    status = JobStatus(State.RESTARTING, (), reason="lost with node n", reason_code=Code.NODE_LOST)
    assert job_status("demo", "u", status, 1, status.reason, 1)["reasonCode"] == "NODE_LOST"
    assert "reasonCode" not in job_status("demo", "u", status, 1, "something else", 1)


def test_a_changed_spec_is_a_condition_and_the_reason_if_there_is_no_other() -> None:
    status = JobStatus(State.PROCESSING, ())
    told = job_status("demo", "u", status, 1, None, 2, ignored=True)
    assert (told["reason"], told["conditions"][0]["type"]) == (SPEC_IGNORED, "SpecIgnored")
    assert job_status("demo", "u", status, 1, "waits", 2, ignored=True)["reason"] == "waits"


def test_an_event_is_no_longer_than_kubernetes_takes() -> None:
    made = event({"kind": "Queue", "name": "q", "uid": "u"}, "q.1", "Refused", "x" * 5000, 0.0, warning=True)
    assert len(made["message"]) <= 1024
    assert made["metadata"]["namespace"] == "default"
    assert made["type"] == "Warning"


def test_a_resource_as_a_job_file_has_a_persons_words_alone() -> None:
    document = {
        "apiVersion": "weft.dev/v1",
        "kind": "TrainingJob",
        "metadata": {
            "name": "a",
            "namespace": "vision",
            "uid": "r1",
            "labels": {"team": "x", "weft.dev/instance": "i", "app.kubernetes.io/managed-by": "weft"},
            "annotations": {"kubectl.kubernetes.io/last-applied-configuration": "{}", "mine": "1"},
        },
        "spec": {"command": ["true"]},
    }
    metadata = TrainingJob.model_validate(job_file(document, "crd", "demo")).metadata
    assert metadata.project == "vision"
    assert metadata.labels == {"team": "x"}
    assert metadata.annotations == {"mine": "1", SOURCE: "crd/r1"}


def test_a_job_as_a_resource_keeps_labels_that_kubernetes_would_not_take() -> None:
    job = a_complete_job("a", command=["true"])
    words = {"labels": {"team": "vision", "why": "because of this & that"}, "uid": "u1"}
    kept = live_job(job.model_copy(update={"metadata": job.metadata.model_copy(update=words)}))
    made = mirror_of(kept, "i", "weft")
    assert made["metadata"]["labels"]["team"] == "vision"
    assert made["metadata"]["annotations"]["why"] == "because of this & that"
    assert made["metadata"]["annotations"]["weft.dev/mirrored"] == "true"
    assert made["spec"]["command"] == ["true"]


def test_the_order_of_fields_means_nothing() -> None:
    assert digest({"a": 1, "b": {"c": 2, "d": 3}}) == digest({"b": {"d": 3, "c": 2}, "a": 1})


@pytest.mark.parametrize(
    ("name", "namespace", "second"),
    [("mnist", "team-b", "mnist-team-b"), ("m" * 40, "n" * 30, f"{'m' * 40}-{'n' * 13}-b6a9b2a8")],
)
def test_a_second_name_says_the_namespace_and_is_no_longer_than_names_may_be(
    name: str, namespace: str, second: str
) -> None:
    found = second_name({"metadata": {"name": name, "namespace": namespace}})
    assert found.rpartition("-")[0] == second.rpartition("-")[0]
    assert len(found) <= 63
    TrainingJob.model_validate(
        {"kind": "TrainingJob", "metadata": {"name": found}, "spec": {"command": ["true"]}}
    )
