"""Failures speak: a code for programs, a sentence for people, and the last lines of the log."""

from __future__ import annotations

import os
import resource
from pathlib import Path

import pytest
from harness import Server, digest_of, job, package, python, sh, until

pytestmark = pytest.mark.machine


def failed(server: Server, document: dict) -> dict:
    done = server.run(document)
    assert done["status"]["state"] == "FAILED", server.story(done["metadata"]["name"])
    assert done["status"]["reason"] == done["status"]["failure"]["message"]
    assert server.history(done["metadata"]["name"])[-1]["cause"] == done["status"]["failure"]["message"]
    return done["status"]


def test_an_exit_code(server: Server):
    script = "for i in $(seq 1 30); do echo line $i; done; echo last words >&2; exit 3"
    status = failed(server, sh(script, name="three"))
    assert status["failure"] == {
        "code": "EXIT_CODE",
        "message": "worker-0 exited with code 3",
        "task": "worker-0",
    }
    assert status["logTail"][-2:] == ["line 30", "last words"]
    assert len(status["logTail"]) == 20
    assert status["tasks"][0]["exit"]["code"] == 3


def test_a_signal(server: Server):
    status = failed(server, sh("echo soon; kill -SEGV $$", name="segv"))
    assert status["failure"]["code"] == "SIGNAL"
    assert status["failure"]["message"] == "worker-0 was killed by SIGSEGV"
    assert status["logTail"][0] == "soon"


@pytest.mark.skipif(os.getuid() != 0, reason="memory limits need a cgroup, which only root can make here")
def test_out_of_memory_names_limit_and_peak(server: Server):
    source = "print('eating', flush=True)\nx = []\nwhile True: x.append(bytearray(8 << 20))"
    roles = {"worker": {"resources": {"memory": "64Mi"}}}
    status = failed(server, python(source, name="hungry", roles=roles))
    assert status["failure"]["code"] == "OUT_OF_MEMORY"
    assert "its limit of 64 MiB (peak 6" in status["failure"]["message"]
    peak = status["tasks"][0]["exit"]["peakMemory"]
    assert 60 << 20 < peak <= 65 << 20
    assert status["logTail"] == ["eating"]


@pytest.mark.skipif(os.getuid() != 0, reason="memory limits need a cgroup, which only root can make here")
def test_out_of_memory_in_a_child_is_still_out_of_memory(server: Server):
    source = "python -c 'x = bytearray(256 << 20)' || exit 1"
    roles = {"worker": {"resources": {"memory": "64Mi"}}}
    status = failed(server, sh(source, name="child", roles=roles))
    assert status["failure"]["code"] == "OUT_OF_MEMORY"


def test_a_command_that_is_not_there(server: Server):
    status = failed(server, job("trian.py", name="typo"))
    assert status["failure"]["code"] == "COMMAND_NOT_FOUND"
    assert "trian.py" in status["failure"]["message"]
    status = failed(server, job("./train.sh", name="path"))
    assert status["failure"]["code"] == "COMMAND_NOT_FOUND"


def test_a_deadline(server: Server):
    status = failed(server, sh("echo working; exec sleep 1000", name="late", deadline=0.4, grace=5))
    assert status["failure"] == {"code": "DEADLINE", "message": "ran longer than its deadline of 0.4 s"}
    assert status["tasks"][0]["exit"]["signal"] == 15
    assert status["finished"] - status["started"] < 4


def test_a_deadline_passes_while_there_is_no_server(server: Server):
    server.submit(sh("exec sleep 1000", name="late", deadline=1, grace=5))
    server.wait_for("late", "PROCESSING")
    server.restart()
    assert server.wait_for("late")["status"]["failure"]["code"] == "DEADLINE"


def test_what_can_never_fit_is_explained_with_numbers(server: Server):
    roles = {"worker": {"replicas": 2, "resources": {"cpu": 99, "gpu": 1}}}
    server.submit(sh("true", name="huge", roles=roles))
    found = server.get("/v1/jobs/huge/explain").json
    assert found["state"] == "QUEUED"
    assert found["possible"] is False
    assert "99" in found["reason"] or "1 gpu" in found["reason"]
    assert server.get("/v1/queue").json["items"][0]["reason"] == found["reason"]
    server.ask("huge", "cancel")


def test_a_place_that_does_not_come_in_time(new_server):
    server = new_server("--cpu", "2")
    server.submit(sh("exec sleep 1000", name="holder", roles={"worker": {"resources": {"cpu": 2}}}))
    server.wait_for("holder", "PROCESSING")
    status = failed(server, sh("true", name="waiter", maxWait=0.3))
    assert status["failure"]["code"] == "UNSCHEDULABLE"
    assert "0.3 s" in status["failure"]["message"]
    assert any(digit in status["failure"]["message"].partition(":")[2] for digit in "12")
    server.ask("holder", "cancel")
    server.wait_for("holder")


def test_a_server_that_is_out_of_files_starts_the_rest_later(new_server, tmp_path):
    server = new_server("--cpu", "64")
    everything = {"worker": {"replicas": 1, "resources": {"cpu": 64}}}
    (ended := tmp_path / "ended").mkdir()
    wait = f"until [ -e {tmp_path}/go ]; do sleep 0.05; done"
    server.run(sh(wait, name="first", roles=everything), "PROCESSING")
    small = {"worker": {"replicas": 1, "resources": {"cpu": 1, "memory": "64Mi"}}}
    script = f"sleep 1; touch {ended}/$$"
    names = [server.submit(sh(script, name=f"many-{n}", roles=small)) for n in range(40)]
    limit = len(list(Path(f"/proc/{server.pid}/fd").iterdir())) + 4
    resource.prlimit(server.pid, resource.RLIMIT_NOFILE, (limit, 4096))
    try:
        (tmp_path / "go").touch()
        until(lambda: any(ended.iterdir()), "the first of them to end")
    finally:
        resource.prlimit(server.pid, resource.RLIMIT_NOFILE, (4096, 4096))
    assert {server.wait_for(name)["status"]["state"] for name in names} == {"COMPLETED"}
    causes = [event["cause"] for name in names for event in server.history(name)]
    assert any("Too many open files" in cause for cause in causes)


def test_a_package_that_cannot_be_unpacked(server: Server):
    digest = server.put_package(b"this is no archive")
    status = failed(server, sh("true", name="garbage", code={"package": digest}))
    assert status["failure"]["code"] == "BAD_CODE"
    assert digest in status["failure"]["message"]
    assert server.states("garbage") == ["PENDING", "QUEUED", "DEPLOYING", "DOWNLOADING", "FAILED"]
    assert server.reserved() == []


def test_a_package_cut_short(server: Server):
    import gzip

    digest = server.put_package(gzip.compress(os.urandom(5000))[:2000])
    assert failed(server, sh("true", name="cut", code={"package": digest}))["failure"]["code"] == "BAD_CODE"


def test_a_package_that_reaches_outside(server: Server, tmp_path):
    import io
    import tarfile

    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as tar:
        info = tarfile.TarInfo("../../../../escaped")
        info.size = 4
        tar.addfile(info, io.BytesIO(b"evil"))
    digest = server.put_package(buffer.getvalue())
    assert failed(server, sh("true", name="evil", code={"package": digest}))["failure"]["code"] == "BAD_CODE"
    assert not list(tmp_path.rglob("escaped"))


def test_a_package_nobody_sent_is_refused_at_once(server: Server):
    digest = digest_of(b"never sent")
    answer = server.post("/v1/jobs", sh("true", name="absent", code={"package": digest}))
    assert answer.status in (409, 422)
    assert digest in answer.json["detail"]
    assert server.gone("absent")


def test_a_package_that_vanished_before_its_job_began(new_server):
    server = new_server("--cpu", "1")
    server.submit(sh("exec sleep 1000", name="holder"))
    server.wait_for("holder", "PROCESSING")
    digest = server.put_package(package({"x": "y"})[1])
    server.submit(sh("true", name="later", code={"package": digest}))
    for stored in (server.home / "packages").iterdir():
        stored.unlink()
    server.ask("holder", "cancel")
    failure = server.wait_for("later", "FAILED")["status"]["failure"]
    assert failure["code"] == "BAD_CODE"
    assert digest in failure["message"]


def test_a_commit_that_does_not_exist(server: Server, tmp_path):
    code = {"git": f"file://{tmp_path}/nothing", "commit": "0" * 40}
    assert failed(server, sh("true", name="git", code=code))["failure"]["code"] == "BAD_CODE"


def test_a_secret_removed_while_its_job_waits_and_then_there_again(server: Server):
    def put_secret() -> None:
        assert server.call("PUT", "/v1/secrets/hub", {"data": {"token": "s3cret-value"}}).status == 204

    put_secret()
    server.submit(sh("sleep 600", name="first", roles={"worker": {"resources": {"cpu": 16}}}, grace="1s"))
    server.wait_for("first", "PROCESSING")
    secrets = [{"name": "hub", "key": "token", "env": "HUB_TOKEN"}]
    server.submit(sh("echo ${#HUB_TOKEN}", name="private", secrets=secrets))
    assert server.call("DELETE", "/v1/secrets/hub").status == 204
    server.ask("first", "cancel")
    status = server.wait_for("private", "FAILED")["status"]
    assert status["failure"]["code"] == "SECRET_MISSING"
    assert "hub" in status["failure"]["message"]
    put_secret()
    server.ask("private", "resume")
    server.wait_for("private", "COMPLETED")
    assert server.text("private") == ["12"]
    assert "s3cret-value" not in server.story("private")
    assert "s3cret-value" not in server.get("/v1/secrets").body.decode()
    stored = server.home / "secrets" / "hub.json"
    assert stored.stat().st_mode & 0o777 == 0o600


def test_restart_on_failure_until_the_last_one_counts(server: Server):
    restart = {"policy": "on-failure", "max": 2, "backoff": 0.05}
    status = failed(server, sh("echo try $WEFT_RESTARTS; exit 5", name="stubborn", restart=restart))
    assert status["failure"]["message"] == "worker-0 exited with code 5 after 2 restarts"
    assert server.text("stubborn") == ["try 0", "try 1", "try 2"]
    cycle = ["RESTARTING", "DEPLOYING", "PROCESSING"]
    assert server.states("stubborn") == [
        "PENDING",
        "QUEUED",
        "DEPLOYING",
        "PROCESSING",
        *cycle,
        *cycle,
        "FAILED",
    ]
    times = [e["time"] for e in server.history("stubborn") if e.get("state") in ("RESTARTING", "DEPLOYING")]
    assert times[2] - times[1] >= 0.05
    assert times[4] - times[3] >= 0.1  # the wait doubles


def test_restart_by_exit_code(server: Server):
    restart = {"policy": "exit-code", "max": 5, "backoff": 0.02}
    script = "echo $WEFT_RESTARTS; case $WEFT_RESTARTS in 0) exit 137;; 1) kill -TERM $$;; *) exit 2;; esac"
    status = failed(server, sh(script, name="codes", restart=restart))
    assert status["failure"]["message"].startswith("worker-0 exited with code 2")
    assert server.text("codes") == ["0", "1", "2"]


def test_only_the_failed_task_of_a_gang_restarts(server: Server):
    script = "if [ $RANK = 1 ] && [ $WEFT_RESTARTS = 0 ]; then exit 1; fi; echo $WEFT_TASK; sleep 0.4"
    restart = {"policy": "on-failure", "backoff": 0.05}
    done = server.run(sh(script, name="one", roles={"worker": {"replicas": 3}}, restart=restart))
    assert done["status"]["state"] == "COMPLETED"
    assert [task["restarts"] for task in done["status"]["tasks"]] == [0, 1, 0]
    assert sorted(server.text("one")) == ["worker-0", "worker-1", "worker-2"]


def test_always_restarts_also_after_success(server: Server):
    restart = {"policy": "always", "max": 2, "backoff": 0.02}
    done = server.run(sh("echo $WEFT_RESTARTS", name="always", restart=restart))
    assert server.text("always") == ["0", "1", "2"]
    assert done["status"]["state"] == "COMPLETED"


def test_a_backoff_goes_on_after_a_crash_of_the_server(server: Server):
    restart = {"policy": "on-failure", "max": 1, "backoff": 1}
    server.submit(sh('[ "$WEFT_RESTARTS" = 1 ]', name="patient", restart=restart))
    server.wait_for("patient", "RESTARTING")
    server.restart()
    assert server.wait_for("patient")["status"]["state"] == "COMPLETED"
    assert server.states("patient").count("RESTARTING") == 1


def test_a_job_that_fails_gives_its_room_to_the_next(new_server):
    server = new_server("--cpu", "1")
    server.submit(sh("exit 1", name="first"))
    assert server.run(sh("true", name="second"))["status"]["state"] == "COMPLETED"
    until(lambda: server.reserved() == [], "the room to be free", 5)
