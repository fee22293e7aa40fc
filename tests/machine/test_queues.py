"""Queues on a real server: what is lent comes back, limits hold, and everybody is told why and until when."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from harness import Server, sh, until

pytestmark = pytest.mark.machine

SAVING = (  # saves on SIGTERM, and says where it goes on from
    'echo from $(cat $CHECKPOINT_DIR/step 2>/dev/null || echo 0); trap "echo 7 > $CHECKPOINT_DIR/step; exit 143" TERM; '
    "sleep 1000 & wait"
)


@pytest.fixture
def server(new_server: Callable[..., Server]) -> Server:
    """Four virtual GPUs on two nodes in two racks."""
    return new_server("--nodes", "2", "--cpu", "16", "--gpus", "4", "--racks", "2")


def weft(server: Server, *line: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [Path(sys.executable).parent / "weft", *line],
        env={**os.environ, "WEFT_HOME": str(server.home), "COLUMNS": "250"},
        capture_output=True, text=True, check=False,
    )  # fmt: skip


def declare(server: Server, name: str, **spec: object) -> None:
    answer = server.call("PUT", f"/v1/queues/{name}", {"kind": "Queue", "spec": spec})
    assert answer.status in (200, 201), answer.body


def on_a_gpu(name: str, queue: str = "default", script: str = "exec sleep 1000", gpu: float = 1) -> dict:
    return sh(
        script, name=name, queue=queue, grace="2s", roles={"worker": {"resources": {"cpu": 1, "gpu": gpu}}}
    )


def used(server: Server, name: str) -> dict:
    return next(q["status"] for q in server.get("/v1/queues").json["items"] if q["metadata"]["name"] == name)


def cancel(server: Server, *names: str) -> None:
    for name in names:
        server.ask(name, "cancel")
    for name in names:
        server.wait_for(name, "CANCELLED", "COMPLETED")


def test_an_idle_share_is_lent_and_comes_back_when_it_is_wanted(server: Server):
    declare(server, "vision", guarantee={"gpu": 2})
    declare(server, "speech", guarantee={"gpu": 2})
    for number in range(4):
        server.submit(on_a_gpu(f"speech-{number}", "speech", SAVING))
        server.printed_line(f"speech-{number}", "from 0")
    assert used(server, "speech")["borrowed"] == {"gpu": 2}
    for number in range(2):
        server.run(on_a_gpu(f"vision-{number}", "vision"), "PROCESSING")
    assert used(server, "vision")["used"]["gpu"] == 2
    assert used(server, "speech")["borrowed"] == {"gpu": 0}
    gave = [f"speech-{n}" for n in range(4) if server.status(f"speech-{n}")["preemptions"]]
    assert len(gave) == 2
    first = gave[0]
    assert server.states(first)[-2:] == ["PREEMPTED", "QUEUED"]
    assert any(event["cause"].startswith("gave way to vision-") for event in server.history(first))
    assert "gave way once" in weft(server, "show", first).stdout

    explained = server.get(f"/v1/jobs/{first}/explain").json
    estimate = explained["estimatedStart"]
    assert estimate["earliest"] <= estimate["likely"] <= estimate["latest"]
    assert "should start in about" in weft(server, "explain", first).stdout
    row = next(line for line in weft(server, "queue").stdout.splitlines() if first in line)
    assert "speech" in row
    assert "≈ " in row

    server.restart()  # queues and books come back as they were
    assert used(server, "speech")["guaranteed"] == {"gpu": 2}
    cancel(server, "vision-0", "vision-1")
    for name in gave:
        server.wait_for(name, "PROCESSING")
        until(lambda name=name: "from 7" in server.text(name), f"{name} to go on from its checkpoint")
    cancel(server, *(f"speech-{n}" for n in range(4)))


def test_queues_say_who_uses_what_and_the_line_what_runs_until_when(server: Server):
    declare(server, "lab", guarantee={"gpu": 2})
    declare(server, "vision", parent="lab")
    started = server.run(on_a_gpu("runs", "vision", gpu=2), "PROCESSING")["status"]["started"]
    server.run(on_a_gpu("runs-too", "lab", gpu=1), "PROCESSING")
    server.submit(on_a_gpu("waits", "vision", gpu=2))
    line = until(lambda: (found := server.get("/v1/queue").json)["items"] and found, "the line")

    answer = server.get("/v1/queues").json
    assert answer["capacity"]["gpu"] == 4
    (user,) = used(server, "lab")["users"]
    assert user["owner"]
    assert (user["used"]["cpu"], user["used"]["gpu"]) == (2, 3)
    assert (user["running"], user["waiting"]) == (2, 1)
    (below,) = used(server, "vision")["users"]
    assert (below["used"]["gpu"], below["running"], below["waiting"]) == (2, 1, 1)
    assert used(server, "default")["users"] == []

    (waits,) = line["items"]
    assert (waits["name"], waits["cpu"], waits["gpu"]) == ("waits", 1, 2)
    assert waits["likelyDuration"] > 0
    assert {job["name"]: (job["queue"], job["gpu"]) for job in line["running"]} == {
        "runs": ("vision", 2),
        "runs-too": ("lab", 1),
    }
    ends = [job["likelyEnd"] for job in line["running"]]
    assert ends == sorted(ends)
    assert ends[0] > started
    cancel(server, "waits", "runs", "runs-too")


def test_limits_of_a_queue_and_of_a_user_hold(server: Server):
    declare(server, "small", limit={"gpu": 1.5})
    declare(server, "shared", userLimit={"gpu": 1})
    for queue in ("small", "shared"):
        server.run(on_a_gpu(f"{queue}-0", queue), "PROCESSING")
        server.submit(on_a_gpu(f"{queue}-1", queue))
    reasons = {item["name"]: item["reason"] for item in server.get("/v1/queue").json["items"]}
    assert reasons == {
        "small-1": "queue small is limited to 1.5 gpu: 1 gpu in use, 1 gpu asked",
        "shared-1": "each user of queue shared is limited to 1 gpu: 1 gpu in use, 1 gpu asked",
    }
    server.run(on_a_gpu("half", "small", gpu=0.5), "PROCESSING")
    assert sum(node["free"]["gpu"] for node in server.nodes()) == 1.5
    declare(server, "small", limit={"gpu": 3})
    server.wait_for("small-1", "PROCESSING")
    declare(server, "shared")
    assert server.status("shared-1")["state"] == "QUEUED"  # allowed now, but there is no whole GPU left
    cancel(server, "shared-0")
    server.wait_for("shared-1", "PROCESSING")
    cancel(server, "small-0", "small-1", "half", "shared-1")


def test_what_is_wrong_with_queues_is_refused_with_what_would_be_right(server: Server):
    refused = server.post("/v1/jobs", on_a_gpu("a", "visoin"))
    assert (refused.status, refused.json["problems"]) == (
        422,
        [
            {
                "field": "spec.queue",
                "message": "no such queue; the queues are default (weft queues)",
                "value": '"visoin"',
            }
        ],
    )
    declare(server, "lab", guarantee={"gpu": 2})
    for name, spec, field in (
        ("lab", {"parent": "lab"}, "spec.parent"),
        ("x", {"parent": "absent"}, "spec.parent"),
        ("x", {"guarantee": {"gpu": 2}, "limit": {"gpu": 1}}, "spec.guarantee.gpu"),
        ("x", {"parent": "lab", "guarantee": {"gpu": 3}}, "spec.guarantee.gpu"),
        ("x", {"wieght": 2}, "spec.wieght"),
    ):
        answer = server.call("PUT", f"/v1/queues/{name}", {"spec": spec})
        assert (answer.status, answer.headers["content-type"]) == (422, "application/problem+json")
        assert [problem["field"] for problem in answer.json["problems"]] == [field]
        assert answer.json["next"] == "weft schema Queue"
    other = server.call("PUT", "/v1/queues/x", {"metadata": {"name": "y"}})
    assert other.json["problems"][0]["message"] == "must be x, as in the address"
    for name, status in (("default", 409), ("absent", 404), ("lab", 204), ("lab", 404)):
        assert server.call("DELETE", f"/v1/queues/{name}").status == status


def test_files_declare_queues_and_jobs_together(server: Server, tmp_path: Path):
    files = tmp_path / "files"
    files.mkdir()
    (files / "all.yaml").write_text(
        "kind: Queue\nmetadata: {name: vision}\nspec: {parent: lab, guarantee: {gpu: 9}}\n---\n"
        "kind: Queue\nmetadata: {name: lab}\nspec: {guarantee: {gpu: 9}}\n---\n"
        "kind: TrainingJob\nmetadata: {name: a}\nspec: {command: ['true'], queue: vision}\n"
    )
    applied = weft(server, "apply", "-f", str(files))
    assert applied.stdout == "queue/lab created\nqueue/vision created\na created\n"
    assert "queues are guaranteed 9 gpu together, all nodes have 4" in applied.stderr
    assert "queues are guaranteed 9 gpu together" in weft(server, "status").stderr
    server.wait_for("a")
    again = weft(server, "apply", "-f", str(files))
    assert again.stdout == "queue/lab unchanged\nqueue/vision unchanged\na unchanged\n"
    listed = weft(server, "queues", "-o", "wide").stdout
    assert "  vision" in listed
    assert "has queues in it (vision)" in weft(server, "delete", "queue/lab").stderr
    assert (
        weft(server, "delete", "queue/vision", "queue/lab").stdout
        == "queue/vision deleted\nqueue/lab deleted\n"
    )


def test_the_policy_and_the_topology_stay_over_restarts(new_server: Callable[..., Server]):
    server = new_server("--nodes", "4", "--cpu", "8", "--gpus", "4", "--gpu-memory", "16Gi", "--racks", "2",
                        "--fabrics", "1", "--devices", "fpga=2,rdma=1", "--policy", "fair")  # fmt: skip
    server.arguments = ()
    server.restart()
    assert server.get("/v1/status").json["policy"] == "fair"
    assert [node["rack"] for node in server.nodes()] == ["rack-0", "rack-0", "rack-1", "rack-1"]
    node = server.nodes()[0]
    assert (node["fabric"], node["capacity"]["gpuMemory"]) == ("fabric-0", 16 * 2**30)
    assert node["free"]["devices"] == {"fpga": 2, "rdma": 1}
    resources = {"cpu": 1, "gpu": 1, "gpuMemory": "10Gi", "devices": {"fpga": 2}}
    together = sh("exec sleep 1000", name="rack", grace="1s", placement={"nodes": "same-rack"},
                  roles={"worker": {"replicas": 2, "resources": resources}})  # fmt: skip
    found = server.run(together, "PROCESSING")
    racks = {node["name"]: node["rack"] for node in server.nodes()}
    assert len({racks[task["binding"]["node"]] for task in found["status"]["tasks"]}) == 1
    assert sorted(node["free"]["devices"]["fpga"] for node in server.nodes()) == [0, 0, 2, 2]
    server.submit({**together, "metadata": {"name": "wide"}, "spec": {**together["spec"], "roles": {
        "worker": {"replicas": 3, "resources": resources}}}})  # fmt: skip
    explained = server.get("/v1/jobs/wide/explain").json
    assert "in one rack" in explained["reason"]
    assert not explained["possible"]
    cancel(server, "rack", "wide")
