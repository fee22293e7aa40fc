"""What the command line shows of queues, of the line and of elastic jobs, and how queues are declared with it."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import pytest

from support.fake_server import Asked, FakeServer, Reply, fake_server
from weft.cli import moments
from weft.cli.app import dispatch
from weft.cli.commands.queues import amounts, starts
from weft.cli.commands.serve import PolicyName
from weft.cli.commands.show import explanation, notes_part, sizes
from weft.client.jobspec import BadOption, JobOptions, job_document
from weft.scheduler.policy import NAMED

Captured = pytest.CaptureFixture[str]
MIN = 60.0


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeServer]:
    monkeypatch.setenv("COLUMNS", "200")
    with fake_server() as fake:
        monkeypatch.setenv("WEFT_ADDRESS", fake.address)
        yield fake


def a_queue(name: str, spec: dict[str, Any] | None = None, **status: Any) -> dict[str, Any]:
    shown = {"used": {"gpu": 0}, "guaranteed": {}, "limit": {}, "borrowed": {}, "running": 0, "waiting": 0}
    return {
        "kind": "Queue",
        "metadata": {"name": name},
        "spec": {"weight": 1.0, **(spec or {})},
        "status": {**shown, "share": 0.0, "notes": [], **status},
    }


def test_queues_are_a_tree_with_what_they_use(server: FakeServer, capsys: Captured) -> None:
    lab = a_queue(
        "lab",
        used={"gpu": 3, "cpu": 1.5, "memory": 2**30},
        guaranteed={"gpu": 2},
        limit={"gpu": 8},
        borrowed={"gpu": 1},
        running=2,
        waiting=5,
        notes=["queues are guaranteed too much"],
    )
    vision = a_queue("vision", {"parent": "lab", "closed": True})
    server.on("GET", "/v1/queues", Reply({"items": [lab, vision]}))
    assert dispatch(["queues"]) == 0
    said = capsys.readouterr()
    _, first, second = said.out.splitlines()
    assert first.split("  ")[0] == "lab"
    assert "3 gpu, 1.5 cpu, 1 GiB  2 gpu       8 gpu  1 gpu" in first
    assert second.startswith("  vision")
    assert second.endswith("closed")
    assert "note: queues are guaranteed too much" in said.err


def test_no_amount_is_a_dash_and_none_of_it_a_nought() -> None:
    assert [amounts({}), amounts({"gpu": 0}), amounts({"gpu": 0.5, "cpu": 0})] == ["-", "0", "0.5 gpu"]


def test_the_line_says_when_each_should_start(server: FakeServer, capsys: Captured) -> None:
    now = time.time()
    items = [
        {
            "position": 1,
            "name": "a",
            "queue": "lab",
            "owner": "ann",
            "priority": 0,
            "waited": 65.0,
            "needs": "1 gpu",
            "reason": "no room",
            "estimatedStart": {
                "earliest": now + 8 * MIN + 1,
                "likely": now + 12 * MIN + 1,
                "latest": now + 40 * MIN,
            },
            "promisedStart": None,
        }
    ]
    server.on("GET", "/v1/queue", Reply({"items": items}))
    assert dispatch(["queue"]) == 0
    assert "a    lab           0    1m5s  ≈ 12m   1 gpu" in capsys.readouterr().out
    assert dispatch(["queue", "-o", "wide"]) == 0
    assert "ann    ≈ 12m (8m–40m)  -         1 gpu" in capsys.readouterr().out


def test_what_can_never_start_has_no_place_in_the_line(server: FakeServer, capsys: Captured) -> None:
    item = {
        "position": None,
        "possible": False,
        "name": "huge",
        "reason": "can never start here: needs 9 gpu",
    }
    server.on("GET", "/v1/queue", Reply({"items": [item]}))
    assert dispatch(["queue"]) == 0
    _, row = capsys.readouterr().out.splitlines()
    assert row.split()[:2] == ["-", "huge"]
    assert row.endswith("can never start here: needs 9 gpu")


@pytest.mark.parametrize(
    ("estimate", "text"),
    [
        ({"earliest": None, "likely": None, "latest": None}, "-"),
        ({"earliest": 0.0, "likely": 0.0, "latest": 0.0}, "≈ now (now–now)"),
        ({"earliest": 30.0, "likely": 4000.0, "latest": None}, "≈ 1h10m (30s–?)"),
        ({"earliest": 7200.0, "likely": None, "latest": None}, "> 2h (2h–?)"),
    ],
)
def test_what_cannot_be_foreseen_is_not_made_up(estimate: dict[str, Any], text: str) -> None:
    assert starts(estimate, 0.0, wide=True) == text


def explained(**more: Any) -> str:
    return explanation({"state": "QUEUED", "reason": "no room", "position": 3, "ahead": ["x", "y"], **more})


def test_explain_says_the_likely_start_its_range_and_what_is_promised(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(time, "time", lambda: 1000.0)
    estimate = {"earliest": 1000 + 8 * MIN, "likely": 1000 + 12 * MIN, "latest": 1000 + 40 * MIN}
    assert explained(estimatedStart=estimate, promisedStart=2000.0).splitlines() == [
        "no room",
        "place in the queue: 3 (ahead: x, y)",
        "should start in about 12 min (between 8 min and 40 min)",
        f"promised to start by {moments.clock(2000.0)}; nothing behind it may delay that",
    ]
    estimate |= {"latest": None}
    assert "(between 8 min and longer than can be foreseen)" in explained(estimatedStart=estimate)
    unknown = dict.fromkeys(estimate)
    assert "cannot be foreseen" in explained(estimatedStart=unknown)
    assert "should start" not in explained(estimatedStart=estimate, possible=False)


def test_show_says_how_large_an_elastic_job_is_and_that_it_gave_way(
    server: FakeServer, capsys: Captured
) -> None:
    tasks = [
        {"name": f"worker-{n}", "state": "RUNNING", **({"binding": {"node": "x"}} if n < 3 else {})}
        for n in range(8)
    ]
    job = {
        "metadata": {"name": "a", "uid": "u", "created": 1.0},
        "spec": {
            "type": "command",
            "command": ["x"],
            "roles": {
                "worker": {
                    "replicas": 4,
                    "minReplicas": 2,
                    "maxReplicas": 8,
                    "resources": {"cpu": 1, "gpu": 0.5, "gpuMemory": "16Gi", "devices": {"fpga": 1}},
                }
            },
        },
        "status": {"state": "PROCESSING", "tasks": tasks, "preemptions": 2},
    }
    event = {"seq": 1, "time": 1.0, "type": "state", "state": "PREEMPTED", "cause": "gave way to urgent"}
    server.on("GET", "/v1/jobs/a", Reply(job))
    server.on("GET", "/v1/jobs/a/events", Reply({"items": [event]}))
    assert dispatch(["show", "a"]) == 0
    said = capsys.readouterr().out
    assert "  size     worker 3 of 2–8\n  gave way 2 times\n" in said
    assert "4 × worker (2–8): 1 cpu, 0.5 gpu with 16Gi, 1 fpga" in said
    assert "gave way to urgent" in said
    assert sizes(job["spec"]["roles"], []) == ""


# ── declaring ──

QUEUES = """
kind: Queue
metadata: {name: vision}
spec: {parent: lab}
---
kind: TrainingJob
metadata: {name: a}
spec: {command: [x], queue: vision}
---
kind: Queue
metadata: {name: lab}
"""


def test_apply_puts_parents_before_children_and_jobs_last(
    server: FakeServer, capsys: Captured, tmp_path: Path
) -> None:
    (tmp_path / "all.yaml").write_text(QUEUES)

    def put(asked: Asked) -> Reply:
        said = asked.json()
        return Reply(a_queue(said["metadata"]["name"], said.get("spec")))

    server.on("GET", "/v1/queues", Reply({"items": [a_queue("lab")]}))
    for name in ("lab", "vision"):
        server.on("PUT", f"/v1/queues/{name}", put)
    server.on("POST", "/v1/jobs", lambda asked: Reply({**asked.json(), "status": {}}))
    assert dispatch(["apply", "-f", str(tmp_path)]) == 0
    assert capsys.readouterr().out == "queue/lab unchanged\nqueue/vision created\na created\n"
    assert [line for line in server.lines() if not line.startswith("GET")] == [
        "PUT /v1/queues/lab",
        "PUT /v1/queues/vision",
        "POST /v1/jobs",
        "POST /v1/jobs",
    ]


def test_a_refused_queue_names_its_file(server: FakeServer, capsys: Captured, tmp_path: Path) -> None:
    file = tmp_path / "queue.yaml"
    file.write_text("kind: Queue\nmetadata: {name: lab}\nspec: {parent: up}\n")
    problem = {"field": "spec.parent", "message": "no such queue", "value": '"up"'}
    answer = {"title": "Not valid", "detail": "x", "problems": [problem], "next": "weft schema Queue"}
    server.on("GET", "/v1/queues", Reply({"items": []}))
    server.on("PUT", "/v1/queues/lab", Reply(answer, 422))
    assert dispatch(["apply", "-f", str(file)]) == 1
    said = capsys.readouterr().err
    assert f'{file}:3:8: spec.parent: no such queue (got "up")' in said
    assert "next: weft schema Queue" in said


def test_a_queue_is_deleted_by_kind_and_name(server: FakeServer, capsys: Captured) -> None:
    server.on("DELETE", "/v1/queues/lab", Reply(status=204))
    server.on("DELETE", "/v1/jobs/a", Reply(status=204))
    assert dispatch(["delete", "queue/lab", "a", "--yes"]) == 0
    assert capsys.readouterr().out == "queue/lab deleted\na deleted\n"


def test_a_job_type_is_deleted_by_kind_and_name_and_a_size_by_its_own_command(
    server: FakeServer, capsys: Captured
) -> None:
    server.on("DELETE", "/v1/jobtypes/mine", Reply(status=204))
    assert dispatch(["delete", "jobtype/mine"]) == 0
    assert capsys.readouterr().out == "jobtype/mine deleted\n"
    assert dispatch(["delete", "a", "size/big"]) == 2
    assert "weft sizes rm big" in capsys.readouterr().err
    assert server.lines() == ["DELETE /v1/jobtypes/mine"]


# ── options ──


def test_the_policies_that_can_be_chosen_are_all_that_there_are() -> None:
    assert set(get_args(PolicyName)) == {*NAMED}


def test_the_options_of_a_run_are_fields_of_its_job() -> None:
    options = JobOptions(replicas=4, min_replicas=2, max_replicas=8, gpu=0.5, same_rack=True)
    spec = job_document(["x"], options)["spec"]
    assert spec["roles"]["worker"] == {
        "replicas": 4,
        "minReplicas": 2,
        "maxReplicas": 8,
        "resources": {"gpu": 0.5},
    }
    assert spec["placement"] == {"nodes": "same-rack"}
    with pytest.raises(BadOption, match="--one-node and --same-rack"):
        job_document(["x"], JobOptions(one_node=True, same_rack=True))


@pytest.mark.parametrize(
    ("seconds", "short", "long"),
    [
        (0, "now", "0 s"),
        (42.3, "42s", "42 s"),
        (725, "12m", "12 min"),
        (4300, "1h10m", "72 min"),
        (3 * 3600 + 200, "3h", "3 h"),
        (50 * 3600, "2d2h", "2 days"),
    ],
)
def test_what_nobody_knows_exactly_is_not_said_exactly(seconds: float, short: str, long: str) -> None:
    assert (moments.rough(seconds), moments.about(seconds)) == (short, long)


def test_what_could_not_be_done_for_tasks_is_told_once_with_their_names() -> None:
    lost = "4096 bytes of log lost: no room on the disk"
    tasks = [{"name": f"worker-{n}", "exit": {"code": 0, "notes": [lost]}} for n in range(5)]
    tasks.append({"name": "ps-0", "exit": None})
    assert notes_part(tasks) == f"notes\n  worker-0, worker-1, worker-2 and 2 more: {lost}"
    assert notes_part(tasks[-1:]) == ""
