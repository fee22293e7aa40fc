"""Nodes on a real server: cordoned, lost and back, tainted, and shown as they are."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from harness import Server, sh, until

pytestmark = pytest.mark.machine

GOES_ON = "echo at $WEFT_LAUNCH; while [ ! -e $CHECKPOINT_DIR/done ]; do sleep 0.05; done"
"""Runs until it is told that it is done, wherever it runs."""


@pytest.fixture
def server(new_server: Callable[..., Server]) -> Server:
    """Sixteen shared CPUs on two nodes."""
    return new_server("--nodes", "2", "--cpu", "16")


def weft(server: Server, *line: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [Path(sys.executable).parent / "weft", *line],
        env={**os.environ, "WEFT_HOME": str(server.home), "COLUMNS": "250"},
        capture_output=True, text=True, check=False,
    )  # fmt: skip


def gang(name: str, script: str, count: int = 1, cpu: int = 1, **spec: object) -> dict:
    roles = {"worker": {"replicas": count, "resources": {"cpu": cpu}}}
    return sh(script, name=name, grace="1s", roles=roles, **spec)


def nodes_of(server: Server, name: str) -> dict[str, str]:
    return {
        task["name"]: task["binding"]["node"]
        for task in server.status(name)["tasks"]
        if task.get("binding") is not None
    }


def test_a_cordoned_node_gets_nothing_until_it_is_uncordoned(server: Server):
    server.run(gang("before", "exec sleep 1000", cpu=8), "PROCESSING")
    (node,) = nodes_of(server, "before").values()
    (other,) = {"local-0", "local-1"} - {node}
    said = weft(server, "nodes", "cordon", other, "--reason", "new disk")
    assert (said.returncode, said.stdout) == (0, f"node {other} cordoned\n")
    server.submit(gang("after", "true", cpu=8))
    reason = server.get("/v1/jobs/after/explain").json["reason"]
    assert "closed to new tasks" in reason
    assert f"{other}: closed to new tasks" in weft(server, "explain", "after").stdout
    row = next(line for line in weft(server, "nodes").stdout.splitlines() if line.startswith(other))
    assert "cordoned: new disk" in row

    server.restart()
    assert server.status("before")["state"] == "PROCESSING"
    assert server.status("after")["state"] == "QUEUED"
    shown = next(item for item in server.nodes() if item["name"] == other)
    assert not shown["schedulable"]
    assert (shown["cordon"]["reason"], shown["cordon"]["lost"]) == ("new disk", False)
    assert weft(server, "nodes", "uncordon", other).returncode == 0
    server.wait_for("after", "COMPLETED")
    server.ask("before", "cancel")
    server.wait_for("before", "CANCELLED")


def test_a_gang_goes_on_when_one_of_its_nodes_is_lost(server: Server):
    spread = {"strategy": "spread"}
    job = server.run(gang("gang", GOES_ON, 2, placement=spread), "PROCESSING")
    assert nodes_of(server, "gang") == {"worker-0": "local-0", "worker-1": "local-1"}
    pids = {task["name"]: task["pid"] for task in server.status("gang")["tasks"]}
    assert weft(server, "nodes", "lost", "local-1").stdout == "node local-1 lost\n"

    def repaired() -> bool:
        return server.status("gang")["state"] == "PROCESSING" and nodes_of(server, "gang") == {
            "worker-0": "local-0",
            "worker-1": "local-0",
        }

    until(repaired, "worker-1 to run on the other node")
    assert not Path(f"/proc/{pids['worker-1']}").exists()
    now = {task["name"]: task["pid"] for task in server.status("gang")["tasks"]}
    assert now["worker-0"] == pids["worker-0"]
    assert any("worker-1 lost with node local-1" in event["cause"] for event in server.history("gang"))
    (server.home / "jobs" / job["metadata"]["uid"] / "checkpoints" / "done").touch()
    server.wait_for("gang", "COMPLETED")
    assert server.status("gang")["restarts"] == 0
    assert [item["tasks"] for item in server.nodes()] == [[], []]


def test_those_that_go_on_without_a_lost_task_know_who_is_left(server: Server):
    """Elastic, and of a size that the other node has no room for."""
    worker = {"replicas": 2, "minReplicas": 1, "resources": {"cpu": 8}}
    job = server.run(
        sh(GOES_ON, name="elastic", grace="1s", roles={"worker": worker}, resize="live"), "PROCESSING"
    )
    folder = server.home / "jobs" / job["metadata"]["uid"]
    (hosts,) = folder.rglob("hosts.json")
    before = json.loads(hosts.read_text())["worker"]
    assert len(before) == 2
    (kept,) = {"local-0", "local-1"} - {(lost := nodes_of(server, "elastic")["worker-1"])}
    assert weft(server, "nodes", "lost", lost).returncode == 0
    until(lambda: nodes_of(server, "elastic") == {"worker-0": kept}, "worker-1 to be gone")
    until(lambda: json.loads(hosts.read_text())["worker"] == before[:1], "worker-0 to be told")
    assert server.status("elastic")["state"] == "PROCESSING"
    (folder / "checkpoints" / "done").touch()
    server.wait_for("elastic", "COMPLETED")


def test_a_server_that_is_killed_right_after_finishes_what_a_loss_began(server: Server):
    server.run(gang("gang", "trap '' TERM; sleep 1000", 2, placement={"strategy": "spread"}), "PROCESSING")
    pids = {task["name"]: task["pid"] for task in server.status("gang")["tasks"]}
    assert server.post("/v1/nodes/local-1/lost").status == 200
    server.restart()
    until(lambda: nodes_of(server, "gang").get("worker-1") == "local-0", "worker-1 to be replaced")
    assert not Path(f"/proc/{pids['worker-1']}").exists()
    assert server.status("gang")["restarts"] == 0
    server.ask("gang", "cancel")
    server.wait_for("gang", "CANCELLED")


def test_a_node_that_does_not_exist_is_refused_with_those_near(server: Server):
    for verb in ("cordon", "uncordon", "lost"):
        refused = server.post(f"/v1/nodes/locl-1/{verb}")
        assert (refused.status, refused.headers["content-type"]) == (404, "application/problem+json")
        assert refused.json["detail"].startswith("there is no node locl-1; did you mean local-1")
        assert refused.json["next"] == "weft nodes"
    refused = server.post("/v1/nodes/local-1/cordon?reason=%0A")
    assert (refused.status, refused.json["problems"][0]["field"]) == (422, "query.reason")


def test_taints_and_generations_are_declared_kept_and_obeyed(new_server: Callable[..., Server]):
    server = new_server("--nodes", "2", "--cpu", "8", "--gpus", "2", "--gpu-memory", "16Gi",
                        "--gpu-generation", "3", "--taint", "local-1:spot")  # fmt: skip
    server.arguments = ()
    server.restart()
    assert [node["taints"] for node in server.nodes()] == [[], ["spot"]]
    assert {node["capacity"]["gpuGeneration"] for node in server.nodes()} == {3}
    shown = weft(server, "nodes", "-o", "wide").stdout
    assert "GENERATION" in shown
    assert "spot" in shown
    there = {"selector": {"weft.dev/node": "local-1"}}
    server.run(gang("tolerant", "true", cpu=4, placement={**there, "tolerations": ["spot"]}), "COMPLETED")
    server.submit(gang("plain", "true", cpu=4, placement=there))
    assert "tolerance of spot" in server.get("/v1/jobs/plain/explain").json["reason"]
    server.ask("plain", "cancel")
    server.wait_for("plain", "CANCELLED")
