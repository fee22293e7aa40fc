"""Tasks that put traps where the server reads and writes: the server goes on, and nobody else is touched."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from pathlib import Path

import pytest
from harness import Server, python, sh, until

pytestmark = pytest.mark.machine


@pytest.mark.parametrize(
    "trap",
    [
        pytest.param("mkfifo $F", id="a pipe nobody writes to"),
        pytest.param("mkdir $F", id="a folder"),
        pytest.param("ln -s /etc/passwd $F", id="a link to a file of the system"),
    ],
)
def test_something_else_in_the_place_of_a_log_neither_blocks_nor_leaks(server: Server, trap: str):
    task = '$(dirname "$WEFT_METRICS_FILE")'
    script = (
        f'F={task}/log.000000000000000; echo first; sleep 0.2; rm -f "$F" "$F.index" {task}/metrics.jsonl; {trap}; '
        + (trap.replace("$F", f"{task}/metrics.jsonl") + "; exit 1")
    )
    server.submit(sh(script, name="trap"))
    document = server.wait_for("trap", "FAILED")
    assert document["status"]["failure"]["code"] == "EXIT_CODE"
    assert "root:" not in str(server.logs("trap")) + str(document["status"].get("logTail"))
    assert server.run(sh("echo alive", name="after"))["status"]["state"] == "COMPLETED"


@pytest.mark.skipif(
    shutil.which("bwrap") is None, reason="bubblewrap is not installed (apt-get install bubblewrap)"
)
def test_a_sandboxed_task_cannot_have_its_output_written_elsewhere(server: Server, tmp_path: Path):
    target = tmp_path / "of-the-host"
    target.write_text("untouched")
    script = (
        'T=$(dirname "$WEFT_METRICS_FILE"); L="$T/log.000000000000000"; echo first; sleep 0.2; '
        f'rm -f "$L"; ln -s {target} "$L"; mv "$T" "$T.moved" 2>/dev/null && echo moved; exit 1'
    )
    restart = {"policy": "on-failure", "max": 1, "backoff": "10ms"}
    server.submit(sh(script, name="escape", isolation="sandbox", restart=restart))
    server.wait_for("escape", "FAILED")
    assert target.read_text() == "untouched"
    folder = Path(server.home) / "jobs" / server.get("/v1/jobs/escape").json["metadata"]["uid"]
    assert not list(folder.glob("*.moved")), "the folder that the server writes to stays where it is"


def test_git_variables_of_whoever_started_the_server_do_not_reach_the_fetch(new_server, tmp_path: Path):
    def git(folder: Path, *arguments: str) -> str:
        clean = {k: v for k, v in os.environ.items() if not k.startswith("GIT_")}
        command = ["git", "-c", "user.name=t", "-c", "user.email=t@t", "-C", str(folder), *arguments]
        return subprocess.run(command, check=True, capture_output=True, text=True, env=clean).stdout.strip()

    repos = {}
    for name in ("mine", "theirs"):
        folder = tmp_path / name
        folder.mkdir()
        git(folder, "init", "-q")
        (folder / "file").write_text(name)
        git(folder, "add", ".")
        git(folder, "commit", "-qm", name)
        repos[name] = folder, git(folder, "rev-parse", "HEAD")
    mine, head = repos["mine"]
    server = new_server("--cpu", "4", GIT_DIR=str(mine / ".git"), GIT_WORK_TREE=str(mine))
    code = {"git": f"file://{repos['theirs'][0]}", "commit": repos["theirs"][1]}
    done = server.run(sh("cat file", name="g", code=code))
    assert done["status"]["state"] == "COMPLETED"
    assert server.text("g") == ["theirs"]
    assert (mine / "file").read_text() == "mine"
    assert git(mine, "rev-parse", "HEAD") == head


def test_a_flood_of_metrics_neither_stalls_the_server_nor_loses_a_point(server: Server):
    source = """
import os
line = b'{"step": 1, "time": 1.0, "values": {"loss": 0.5}}\\n'
with open(os.environ["WEFT_METRICS_FILE"], "ab") as file:
    file.write(line * 60000)
"""
    server.submit(python(source, name="flood"))
    slowest = 0.0
    while server.get("/v1/jobs/flood").json["status"]["state"] != "COMPLETED":
        begun = time.monotonic()
        assert server.get("/healthz").status == 200
        slowest = max(slowest, time.monotonic() - begun)
    assert slowest < 1.0
    points = server.get("/v1/jobs/flood/metrics", limit=100_000).json["items"]
    assert len(points) == 60_000


def test_a_fetch_that_hangs_is_ended_by_cancel(server: Server, tmp_path: Path):
    import socket

    with socket.create_server(("127.0.0.1", 0)) as deaf:  # takes connections and never says a word
        code = {"git": f"git://127.0.0.1:{deaf.getsockname()[1]}/x", "commit": "1234567"}
        server.submit(sh("true", name="hang", code=code))
        until(
            lambda: server.get("/v1/jobs/hang").json["status"]["state"] == "DOWNLOADING", "the fetch to begin"
        )
        server.post("/v1/jobs/hang/cancel")
        server.wait_for("hang", "CANCELLED")
    assert server.get("/healthz").status == 200


def test_results_may_come_and_go_while_they_are_listed(server: Server):
    source = """
import os, time
folder = os.environ["RESULT_DIR"]
end = time.time() + 2
while time.time() < end:
    for i in range(50):
        open(f"{folder}/part", "w").write("x")
        os.rename(f"{folder}/part", f"{folder}/ready-{i % 5}")
open(os.fsencode(folder) + b"/caf\\xe9", "w").write("x")
"""
    server.submit(python(source, name="busy"))
    until(lambda: server.get("/v1/jobs/busy").json["status"]["state"] == "PROCESSING", "the job to run")
    while server.get("/v1/jobs/busy").json["status"]["state"] == "PROCESSING":
        assert server.get("/v1/jobs/busy/results").status == 200
    done = server.wait_for("busy", "COMPLETED")
    assert done["status"]["results"]["files"] == 6
    assert "caf?" in {item["path"] for item in server.get("/v1/jobs/busy/results").json["items"]}


def test_a_result_folder_replaced_by_a_link_shows_nothing_of_its_target(server: Server):
    script = 'rmdir "$RESULT_DIR"; ln -s /etc "$RESULT_DIR"'
    server.run(sh(script, name="link"))
    assert server.get("/v1/jobs/link/results").json["items"] == []


def test_a_gang_of_more_tasks_than_the_usual_limit_of_files(new_server):
    server = new_server("--cpu", "4")
    roles = {"worker": {"replicas": 600, "resources": {"cpu": 0}}}
    document = server.run(sh("true", name="wide", roles=roles), timeout=60)
    assert document["status"]["state"] == "COMPLETED", document["status"].get("failure")
