"""What a simulated node does with its pods, told as stories of one pod each."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "scripts"))

from testbed.lives import Kind, Move, next_move, seconds, status, timestamp

NOW = 1_000_000.0


def pod(phase: str = "Pending", deleted: bool = False, **notes: str) -> dict[str, Any]:
    annotations = {f"testbed.weft.dev/{name.replace('_', '-')}": value for name, value in notes.items()}
    metadata: dict[str, Any] = {"name": "p", "uid": "u", "annotations": annotations}
    if deleted:
        metadata["deletionTimestamp"] = timestamp(NOW)
    containers = [{"name": "main", "image": "x"}, {"name": "beside"}]
    return {"metadata": metadata, "spec": {"containers": containers}, "status": {"phase": phase}}


def test_a_bound_pod_runs_at_once() -> None:
    assert next_move(pod(), None, NOW) == Move(Kind.RUN, NOW)


def test_a_running_pod_ends_after_a_second_unless_it_says_otherwise() -> None:
    assert next_move(pod("Running"), NOW - 0.5, NOW) == Move(Kind.END, NOW + 0.5)
    assert next_move(pod("Running", runs_for="30"), NOW - 10, NOW) == Move(Kind.END, NOW + 20)


def test_a_pod_that_runs_forever_is_left_alone_until_it_is_deleted() -> None:
    assert next_move(pod("Running", runs_for="forever"), NOW, NOW) is None
    assert next_move(pod("Running", deleted=True, runs_for="forever"), NOW, NOW) == Move(Kind.REMOVE, NOW)


@pytest.mark.parametrize("phase", ["Succeeded", "Failed"])
def test_a_pod_that_ended_is_only_removed(phase: str) -> None:
    assert next_move(pod(phase), NOW, NOW) is None
    assert next_move(pod(phase, deleted=True), NOW, NOW) == Move(Kind.REMOVE, NOW)


@pytest.mark.parametrize(("code", "phase"), [("0", "Succeeded"), ("3", "Failed")])
def test_the_exit_code_decides_how_it_ended(code: str, phase: str) -> None:
    running = pod("Running", exit_code=code)
    move = next_move(running, NOW, NOW)
    assert move is not None
    after = status(running, move, NOW + 1)
    assert after["phase"] == phase
    assert [each["state"]["terminated"]["exitCode"] for each in after["containerStatuses"]] == [int(code)] * 2
    assert {each["type"]: each["status"] for each in after["conditions"]}["Ready"] == "False"


def test_a_running_pod_is_reported_as_kubelet_would() -> None:
    after = status(pod(), Move(Kind.RUN, NOW), NOW)
    assert after["phase"] == "Running"
    assert after["startTime"] == timestamp(NOW)
    assert [each["name"] for each in after["containerStatuses"]] == ["main", "beside"]
    assert all(each["ready"] and "running" in each["state"] for each in after["containerStatuses"])


def test_an_annotation_that_cannot_be_read_fails_the_pod_and_says_why() -> None:
    strange = pod(runs_for="a while")
    move = next_move(strange, None, NOW)
    assert move is not None
    assert move.kind is Kind.REFUSE
    after = status(strange, move, NOW)
    assert after["phase"] == "Failed"
    assert "a while" in after["message"]


def test_times_are_read_as_they_are_written() -> None:
    assert seconds(timestamp(NOW)) == NOW
