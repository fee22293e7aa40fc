"""`weft nodes` and what an operator can say of a node; `weft up` and what it declares."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from support.fake_server import FakeServer, Reply, fake_server
from weft.cli.app import dispatch
from weft.cli.commands import serve

Captured = pytest.CaptureFixture[str]


def a_node(name: str = "local-0", **more: Any) -> dict[str, Any]:
    return {
        "name": name,
        "labels": {"weft.dev/node": name},
        "taints": [],
        "schedulable": True,
        "cordon": None,
        "numa": [],
        "capacity": {"cpu": 4, "memory": 2**30, "gpu": 2, "gpuType": "v100", "gpuMemory": 2**34, "gpuGeneration": 3},
        "free": {"cpu": 4, "memory": 2**30, "gpu": 2},
        "tasks": [],
        "notes": [],
        **more,
    }  # fmt: skip


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[FakeServer]:
    monkeypatch.setenv("WEFT_HOME", str(tmp_path))
    monkeypatch.setenv("COLUMNS", "300")
    with fake_server() as fake:
        monkeypatch.setenv("WEFT_ADDRESS", fake.address)
        yield fake


def shown(server: FakeServer, capsys: Captured, node: dict[str, Any], *options: str) -> dict[str, str]:
    """The row of this node by column."""
    server.on("GET", "/v1/nodes", Reply({"items": [node]}))
    assert dispatch(["nodes", *options]) == 0
    head, row = capsys.readouterr().out.splitlines()
    starts = [head.index(name) for name in COLUMNS if name in head]
    names = [name for name in COLUMNS if name in head]
    ends = [*starts[1:], None]
    return {name: row[a:b].strip() for name, a, b in zip(names, starts, ends, strict=True)}


COLUMNS = ("NODE", "GPU MEMORY", "GENERATION", "NUMA", "RACK", "TAINTS", "LABELS", "RUNNING", "NOTES")


def test_wide_tells_what_jobs_can_ask_for(server: FakeServer, capsys: Captured) -> None:
    row = shown(server, capsys, a_node(taints=["noisy", "spot"], numa=[[0, 1, 2, 8], [3]]), "-o", "wide")
    assert (row["GPU MEMORY"], row["GENERATION"], row["NUMA"]) == ("16 GiB", "3", "0-2,8 3")
    assert row["TAINTS"] == "noisy,spot"


@pytest.mark.parametrize(
    ("node", "notes"),
    [
        (a_node(), ""),
        (a_node(taints=["spot"], notes=["CPUs are shared"]), "only for jobs that tolerate spot; CPUs are shared"),
        (a_node(schedulable=False, cordon={"reason": "new disk", "lost": False}), "cordoned: new disk"),
        (a_node(schedulable=False, cordon={"reason": None, "lost": True}), "lost"),
        (a_node(schedulable=False), "not schedulable"),
    ],
)  # fmt: skip
def test_notes_say_who_may_come(
    server: FakeServer, capsys: Captured, node: dict[str, Any], notes: str
) -> None:
    assert shown(server, capsys, node)["NOTES"] == notes


def test_a_reason_goes_with_a_cordon(server: FakeServer, capsys: Captured) -> None:
    reasons: list[Any] = []

    def cordoned(asked: Any) -> Reply:
        reasons.append(asked.query)
        return Reply(a_node(tasks=[{"job": "a", "task": "worker-0"}]))

    server.on("POST", "/v1/nodes/local-0/cordon", cordoned)
    assert dispatch(["nodes", "cordon", "local-0", "--reason", "new disk"]) == 0
    assert dispatch(["nodes", "cordon", "local-0"]) == 0
    assert reasons == [{"reason": "new disk"}, {}]
    said = capsys.readouterr()
    assert said.out == "node local-0 cordoned\n" * 2
    assert "1 task there goes on" in said.err


def test_a_typing_mistake_leads_to_the_help_of_nodes(capsys: Captured) -> None:
    assert dispatch(["nodes", "cordn", "local-0"]) == 2
    assert "next: weft nodes --help" in capsys.readouterr().err


def test_up_hands_on_what_is_declared(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("WEFT_HOME", str(tmp_path))
    handed: list[str] = []

    def started(home: Path, options: list[str]) -> tuple[dict[str, Any], bool]:
        handed.extend(options)
        return {"address": "http://x", "pid": 1}, True

    monkeypatch.setattr(serve, "ensure_server", started)
    assert dispatch(["up", "--taint", "spot", "--taint", "local-1:noisy", "--gpu-generation", "3"]) == 0
    assert handed == ["--gpu-generation", "3", "--taint", "spot", "--taint", "local-1:noisy"]


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("nodes cordom local-0", "weft nodes: cordom is not understood; did you mean weft nodes cordon?"),
        ("nodes xyz", "weft nodes: xyz is not understood"),
        ("ls a b", "weft ls: a is not understood"),
    ],
)
def test_what_is_too_much_is_named(capsys: pytest.CaptureFixture[str], line: str, told: str) -> None:
    assert dispatch(line.split()) == 2
    assert capsys.readouterr().err.splitlines()[0] == f"weft: {told}"
