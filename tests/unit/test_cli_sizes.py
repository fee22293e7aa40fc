"""`weft sizes`: the table, changing it, and what would have been enough for a job."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from support.fake_server import FakeServer, Reply, fake_server
from weft.cli.app import dispatch

Captured = pytest.CaptureFixture[str]
GIB = 2**30


def a_size(name: str, built_in: bool = True, overrides: bool = False, **spec: Any) -> dict[str, Any]:
    own = {} if built_in else {"owner": "ann", "uid": "u", "created": 0.0}
    status = {"builtIn": built_in, "overrides": overrides}
    return {"kind": "Size", "metadata": {"name": name, **own}, "spec": spec, "status": status}


SMALL = a_size("small", cpu=1, memory="2Gi", description="")
A100 = a_size("a100", False, cpu=12, memory="96Gi", gpuType="a100", perGpu=True, description="the new ones")


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[FakeServer]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("WEFT_HOME", str(tmp_path))
    with fake_server() as fake:
        monkeypatch.setenv("WEFT_ADDRESS", fake.address)
        fake.on("GET", "/v1/sizes", Reply({"items": [SMALL, A100]}))
        fake.on("PUT", "/v1/sizes/small", lambda asked: Reply(asked.json()))
        fake.on("PUT", "/v1/sizes/a100", lambda asked: Reply(asked.json()))
        fake.on("PUT", "/v1/sizes/new", lambda asked: Reply(asked.json(), 201))
        yield fake


def test_the_table_says_where_each_is_from(server: FakeServer, capsys: Captured) -> None:
    changed = a_size("large", False, True, cpu=32, gpu=0.5)
    server.on("GET", "/v1/sizes", Reply({"items": [SMALL, changed, A100]}))
    assert dispatch(["sizes"]) == 0
    head, *rows = (line.split(maxsplit=5) for line in capsys.readouterr().out.splitlines())
    assert head[:4] == ["SIZE", "CPU", "MEMORY", "GPU"]
    assert rows == [
        ["small", "1", "2Gi", "-", "-", "Weft"],
        ["large", "32", "-", "0.5", "-", "ann (in place of Weft's)"],
        ["a100-N", "12", "96Gi", "N", "a100", "ann"],
    ]
    assert dispatch(["sizes", "-o", "wide"]) == 0
    assert "the new ones" in capsys.readouterr().out
    assert dispatch(["sizes", "-o", "json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"items": [SMALL, changed, A100]}


@pytest.mark.parametrize(
    ("line", "spec", "said"),
    [
        ("small --memory 4Gi", {"cpu": 1, "memory": "4Gi", "description": ""}, "size/small changed"),
        ("new --cpu 2 --gpu 1 --gpu-type v100",
         {"cpu": "2", "gpu": "1", "gpuType": "v100", "perGpu": False}, "size/new declared"),
        ("new --cpu 2 --per-gpu", {"cpu": "2", "perGpu": True}, "size/new declared"),
        ("a100 --gpu 4", {**A100["spec"], "gpu": "4", "perGpu": False}, "size/a100 changed"),
    ],
)  # fmt: skip
def test_set_changes_what_is_said_and_leaves_the_rest(
    server: FakeServer, capsys: Captured, line: str, spec: Any, said: str
) -> None:
    assert dispatch(["sizes", "set", *line.split()]) == 0
    name = line.split(maxsplit=1)[0]
    assert capsys.readouterr().out == f"{said}\n"
    sent = server.asked[-1].json()
    assert (sent["kind"], sent["metadata"]) == ("Size", {"name": name})
    assert sent["spec"] == spec


def test_set_without_numbers_is_a_mistake(server: FakeServer, capsys: Captured) -> None:
    assert dispatch(["sizes", "set", "small"]) == 2
    assert "say what the size stands for" in capsys.readouterr().err
    assert dispatch(["sizes", "rm"]) == 2
    assert server.asked == []


def test_rm_deletes(server: FakeServer, capsys: Captured) -> None:
    server.on("DELETE", "/v1/sizes/a100", Reply(status=204))
    assert dispatch(["sizes", "rm", "a100"]) == 0
    assert capsys.readouterr().out == "size/a100 deleted\n"


def test_sizes_are_applied_from_files(server: FakeServer, capsys: Captured) -> None:
    Path("sizes.yaml").write_text(
        yaml.safe_dump_all(
            [
                {"kind": "Size", "metadata": {"name": "new"}, "spec": {"cpu": 2}},
                {"kind": "Size", "metadata": {"name": "small"}, "spec": SMALL["spec"]},
                {"kind": "Size", "metadata": {"name": "a100"}, "spec": {"cpu": 1}},
            ]
        )
    )
    assert dispatch(["apply", "-f", "sizes.yaml"]) == 0
    said = capsys.readouterr()
    assert said.out == "size/new created\nsize/small unchanged\nsize/a100 changed\n"
    assert said.err == "next: weft sizes\n"


def test_the_schema_of_a_size_needs_no_server(
    capsys: Captured, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("WEFT_HOME", str(tmp_path))
    monkeypatch.delenv("WEFT_ADDRESS", raising=False)
    assert dispatch(["schema", "Size"]) == 0
    assert "perGpu" in capsys.readouterr().out


# ── suggest ──


def a_role(role: str = "worker", changes: bool = True, **more: Any) -> dict[str, Any]:
    return {
        "role": role,
        "tasks": 2,
        "asked": {"cpu": 16, "gpu": 0, "size": "large"},
        "used": {"measured": 2, "seconds": 100.0, "cpu": 2.5, "memory": 5 * GIB},
        "suggested": {"cpu": 3, "memory": "6656Mi"},
        "size": "medium",
        "changes": changes,
        "notes": [],
        **more,
    }


def suggestion(server: FakeServer, *items: dict[str, Any]) -> None:
    found = {"job": "demo", "state": "COMPLETED", "memoryHeadroom": 1.25, "items": items}
    server.on("GET", "/v1/jobs/demo/suggestion", Reply(found))


def test_suggest_prints_numbers_and_the_lines_to_change(server: FakeServer, capsys: Captured) -> None:
    unseen = a_role("ps", False, used=None, suggested=None, size=None, asked={"cpu": 1, "memory": "1Gi"})
    suggestion(server, a_role(notes=["little was seen"]), unseen)
    assert dispatch(["sizes", "suggest", "demo"]) == 0
    said = capsys.readouterr()
    table, _, change = said.out.partition("\n\n")
    _, worker, ps = table.splitlines()
    assert worker.split() == (
        ["worker", "2", "1m40s", "2.50", "16", "5", "GiB", "no", "limit", "3", "cpu,", "6656Mi", "medium"]
    )
    assert "not measured" in ps
    assert change == (
        "spec:\n  roles:\n    worker:\n      resources:\n"
        "        cpu: 3  # was 16\n        memory: 6656Mi  # was no limit\n        # or: size: medium\n"
    )
    assert yaml.safe_load(change) == {
        "spec": {"roles": {"worker": {"resources": {"cpu": 3, "memory": "6656Mi"}}}}
    }
    assert said.err.splitlines() == [
        "note: worker: little was seen",
        "memory is the peak × 1.25, CPU the average rounded up",
        "next: weft show demo -o yaml   weft sizes",
    ]


def test_suggest_says_when_all_is_well(server: FakeServer, capsys: Captured) -> None:
    suggestion(server, a_role(changes=False))
    assert dispatch(["sizes", "suggest", "demo"]) == 0
    said = capsys.readouterr()
    assert "spec:" not in said.out
    assert "what it asked for is what it needs" in said.err


def test_the_beginning_of_a_name_is_enough(server: FakeServer, capsys: Captured) -> None:
    missing = {"title": "No such job", "detail": "there is no job dem", "status": 404, "next": "weft ls"}
    server.on("GET", "/v1/jobs/dem/suggestion", Reply(missing, 404))
    server.on(
        "GET",
        "/v1/jobs",
        Reply({"items": [{"name": "demo", "state": "COMPLETED"}], "total": 1, "next": None}),
    )
    suggestion(server, a_role())
    assert dispatch(["sizes", "suggest", "dem", "-o", "json"]) == 0
    assert json.loads(capsys.readouterr().out)["job"] == "demo"


def test_a_refusal_is_told_with_what_to_do(server: FakeServer, capsys: Captured) -> None:
    problem = {
        "title": "Not finished",
        "detail": "job demo is PROCESSING; wait",
        "status": 409,
        "next": "weft top",
    }
    server.on("GET", "/v1/jobs/demo/suggestion", Reply(problem, 409))
    assert dispatch(["sizes", "suggest", "demo"]) == 1
    said = capsys.readouterr().err
    assert "job demo is PROCESSING; wait" in said
    assert said.endswith("next: weft top\n")
