"""What a person can ask of a job: halt, resume, cancel, delete; and jobs that go by themselves."""

from __future__ import annotations

import time

import pytest
from harness import Server, alive, python, sh, until

pytestmark = pytest.mark.machine

TRAIN = """
import os, signal, sys, time
kept = os.environ["CHECKPOINT_DIR"] + "/step"
step = int(open(kept).read()) if os.path.exists(kept) else 0
def save(*_):
    open(kept, "w").write(str(step))
    print("saved", step)
    sys.exit(0)
signal.signal(signal.SIGTERM, save)
print("begin", step)
while step < 3:
    step += 1
    print("step", step)
    if step == 2 and os.environ["WEFT_LAUNCH"] == "1":
        print("waiting")
        signal.pause()
"""


def test_halt_lets_a_job_save_itself_and_resume_goes_on_from_there(server: Server):
    name = server.submit(python(TRAIN, name="train"))
    server.printed_line(name, "waiting")
    assert server.ask(name, "halt").status == 200
    halted = server.wait_for(name, "HALTED")
    assert server.reserved() == []
    assert server.task_processes() == []
    assert halted["status"]["tasks"][0]["exit"]["code"] == 0
    assert server.ask(name, "halt").status == 200  # asked twice is asked once
    assert server.ask(name, "resume").status == 200
    done = server.wait_for(name, "COMPLETED")
    assert done["status"]["launch"] == 2
    assert done["metadata"]["uid"] == halted["metadata"]["uid"]
    first = ["begin 0", "step 1", "step 2", "waiting", "saved 2"]
    assert server.text(name) == [*first, "begin 2", "step 3"]
    assert server.states(name) == [
        *("PENDING", "QUEUED", "DEPLOYING", "PROCESSING", "HALTED"),
        *("QUEUED", "DEPLOYING", "PROCESSING", "STORING", "COMPLETED"),
    ]
    actors = {e["cause"]: e["actor"] for e in server.history(name)}
    assert actors["resumed"] != "weft"


def test_a_halted_job_outlives_the_server_and_is_resumed_by_the_next(server: Server):
    name = server.submit(python(TRAIN, name="train"))
    server.printed_line(name, "waiting")
    server.ask(name, "halt")
    server.wait_for(name, "HALTED")
    server.restart()
    assert server.status(name)["state"] == "HALTED"
    server.ask(name, "resume")
    server.wait_for(name, "COMPLETED")
    assert server.text(name)[-2:] == ["begin 2", "step 3"]


DEAF = "trap '' TERM; (trap '' TERM; sleep 1000 & echo child $!; wait) & echo shell $!; echo deaf; while :; do wait; done"


def test_whoever_ignores_sigterm_is_killed_after_the_grace_with_its_grandchildren(server: Server):
    name = server.submit(sh(DEAF, name="deaf", grace=0.5))
    server.printed_line(name, "child")
    server.printed_line(name, "deaf")
    pids = [server.pid_of(name), *(int(line.split()[1]) for line in server.text(name) if " " in line)]
    assert len(pids) == 3
    before = time.monotonic()
    server.ask(name, "halt")
    halted = server.wait_for(name, "HALTED")
    assert 0.45 < time.monotonic() - before < 5
    assert halted["status"]["tasks"][0]["exit"]["signal"] == 9
    until(lambda: not any(map(alive, pids)), "every process to be gone", 5)


def test_the_grace_is_kept_across_a_crash_of_the_server(server: Server):
    name = server.submit(sh(DEAF, name="deaf", grace=1))
    server.printed_line(name, "deaf")
    server.ask(name, "halt")
    server.restart()
    server.wait_for(name, "HALTED", timeout=90)
    until(lambda: server.task_processes() == [], "every process to be gone", 5)


def test_cancel_ends_a_running_job_for_good(server: Server):
    name = server.submit(sh("echo on; exec sleep 1000", name="long"))
    server.printed_line(name, "on")
    assert server.ask(name, "cancel").status == 200
    assert server.wait_for(name)["status"]["state"] == "CANCELLED"
    assert server.reserved() == []
    for verb in ("resume", "cancel", "halt"):
        refused = server.ask(name, verb)
        assert (refused.status, refused.headers["content-type"]) == (409, "application/problem+json")
        assert "CANCELLED" in refused.json["detail"]


def test_a_queued_job_is_halted_resumed_and_cancelled_without_ever_running(new_server):
    server = new_server("--cpu", "1")
    server.submit(sh("exec sleep 1000", name="holder"))
    server.wait_for("holder", "PROCESSING")
    server.submit(sh("true", name="waiter"))
    server.ask("waiter", "halt")
    assert server.status("waiter")["state"] == "HALTED"
    server.ask("waiter", "resume")
    assert server.status("waiter")["state"] == "QUEUED"
    server.ask("waiter", "cancel")
    assert server.status("waiter")["state"] == "CANCELLED"
    assert server.get("/v1/queue").json["items"] == []
    server.ask("holder", "cancel")
    server.wait_for("holder")


def test_delete_of_a_running_job_stops_it_and_removes_its_files(server: Server):
    name = server.submit(sh("touch $RESULT_DIR/x; echo on; exec sleep 1000", name="run"))
    server.printed_line(name, "on")
    folder = server.folder(name)
    assert folder.exists()
    assert server.delete(name).status in (202, 204)
    until(lambda: server.gone(name), "the job to be gone")
    until(lambda: not folder.exists(), "its folder to be gone", 5)
    assert server.reserved() == []
    assert server.run(sh("true", name="run"))["status"]["state"] == "COMPLETED"  # the name is free again


def test_delete_of_a_finished_job_removes_everything_of_it(server: Server):
    name = "done"
    server.run(sh("echo 1; echo x > $RESULT_DIR/x", name=name))
    folder = server.folder(name)
    assert server.delete(name).status == 204
    assert server.gone(name)
    until(lambda: not folder.exists(), "its folder to be gone", 5)
    assert server.delete(name).status == 404
    for what in ("logs", "metrics", "events", "results", "results.tar", "explain"):
        assert server.get(f"/v1/jobs/{name}/{what}").status == 404


def test_delete_is_finished_by_the_next_server(server: Server):
    """The row is gone, the folder is not: the server was killed in between."""
    server.run(sh("true", name="here"))
    orphan = server.home / "jobs" / "0123456789abcdef01234"
    server.kill()
    (orphan / "results").mkdir(parents=True)
    server.start()
    until(lambda: not orphan.exists(), "the orphaned folder to be gone", 5)
    assert server.folder("here").exists()


def test_a_job_with_a_time_to_live_goes_by_itself(server: Server):
    name = server.submit(sh("true", name="brief", ttlAfterFinished="500ms"))
    server.wait_for(name, "COMPLETED")
    folder = server.folder(name)
    until(lambda: server.gone(name), "its time to live to be over", 10)
    until(lambda: not folder.exists(), "its folder to be gone", 5)


def test_a_time_to_live_runs_while_the_server_does_not(server: Server):
    server.run(sh("true", name="brief", ttlAfterFinished=1))
    finished = server.status("brief")["finished"]
    server.kill()
    until(lambda: time.time() > finished + 1, "the time to pass")
    server.start()
    until(lambda: server.gone("brief"), "the job to be gone", 5)


def test_a_failed_job_can_be_resumed(server: Server):
    script = "[ -e $CHECKPOINT_DIR/seen ] || { touch $CHECKPOINT_DIR/seen; exit 4; }"
    server.run(sh(script, name="oops"))
    assert server.status("oops")["state"] == "FAILED"
    server.ask("oops", "resume")
    done = server.wait_for("oops", "COMPLETED")
    assert "failure" not in done["status"]


COUNTS = """
import time, weft
step = weft.checkpoint.load(default=0)
print("from", step, flush=True)
while step < 40:
    step += 1
    if step % 10 == 0:
        weft.checkpoint.save(step, step=step, keep=9)
    if step == 35:
        time.sleep(60)
"""


def test_a_job_is_resumed_from_the_checkpoint_that_was_asked_for(server: Server):
    name = server.submit(python(COUNTS, name="counts", grace="1s"))
    until(lambda: "from 0" in server.text(name), "its start")
    until(lambda: len(list((server.folder(name) / "checkpoints").glob("step-*"))) == 3, "three checkpoints")
    server.ask(name, "halt")
    server.wait_for(name, "HALTED")
    refused = server.post(f"/v1/jobs/{name}/resume?fromCheckpoint=15")
    assert refused.status == 409
    assert "has no checkpoint 15; there are 10, 20, 30" in refused.json["detail"]
    assert server.post(f"/v1/jobs/{name}/resume?fromCheckpoint=10").status == 200
    until(lambda: "from 10" in server.text(name), "its second start")
    server.ask(name, "cancel")
    server.wait_for(name, "CANCELLED")
