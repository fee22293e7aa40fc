"""Single, chosen crashes: of the server, of a supervisor, of the launcher, of everything at once."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from pathlib import Path

import pytest
from harness import Server, alive, sh, until

pytestmark = pytest.mark.machine

COUNT = "i=0; while [ ! -e {go} ]; do i=$((i+1)); echo tick $i; sleep 0.05; done; echo end; exit {code}"


def test_a_long_task_does_not_notice_that_its_server_died(server: Server, tmp_path: Path):
    go = tmp_path / "go"
    name = server.submit(sh(COUNT.format(go=go, code=7), name="long"))
    server.printed_line(name, "tick 2")
    pid = server.pid_of(name)
    server.kill()
    seen = _log_size(server)
    until(lambda: _log_size(server) > seen, "the task to go on printing without a server")
    server.start()
    assert server.status(name)["state"] == "PROCESSING"
    assert server.pid_of(name) == pid
    assert alive(pid)
    go.touch()
    done = server.wait_for(name)
    assert done["status"]["failure"]["message"] == "worker-0 exited with code 7"
    lines = server.text(name)
    ticks = lines[:-1]
    assert ticks == [f"tick {i}" for i in range(1, len(ticks) + 1)]
    assert lines[-1] == "end"
    assert done["status"]["launch"] == 1


def _log_size(server: Server) -> int:
    return sum(file.stat().st_size for file in server.home.glob("jobs/*/task-*/log.*[0-9]"))


def test_a_task_that_ends_without_a_server_is_not_forgotten(server: Server, tmp_path: Path):
    go = tmp_path / "go"
    server.submit(sh(COUNT.format(go=go, code=0), name="good"))
    server.submit(sh(COUNT.format(go=go, code=9), name="bad"))
    for name in ("good", "bad"):
        server.printed_line(name, "tick 1")
    server.kill()
    go.touch()
    until(lambda: server.processes() == {}, "everything to end without a server")
    server.start()
    assert server.wait_for("good")["status"]["state"] == "COMPLETED"
    assert server.wait_for("bad")["status"]["failure"]["code"] == "EXIT_CODE"
    assert server.text("good")[-1] == "end"


def test_a_clean_stop_leaves_tasks_running_for_the_next_server(server: Server, tmp_path: Path):
    go = tmp_path / "go"
    name = server.submit(sh(COUNT.format(go=go, code=0), name="stay"))
    server.printed_line(name, "tick 1")
    pid = server.pid_of(name)
    server.stop()
    assert alive(pid)
    server.start()
    assert server.pid_of(name) == pid
    go.touch()
    assert server.wait_for(name)["status"]["state"] == "COMPLETED"


def test_a_killed_supervisor_is_reported_and_its_orphans_are_ended(server: Server):
    name = server.submit(sh("sleep 1000 & echo on; sleep 1000", name="orphans"))
    server.printed_line(name, "on")
    (supervisor,) = server.supervisors()
    os.kill(supervisor, signal.SIGKILL)
    done = server.wait_for(name)
    assert done["status"]["failure"]["code"] == "SUPERVISOR_LOST"
    assert done["status"]["logTail"] == ["on"]
    until(lambda: server.task_processes() == [], "the orphans to be gone", 5)
    assert server.reserved() == []


def test_orphans_that_hide_their_environment_are_ended_too(server: Server):
    name = server.submit(sh("echo on; exec env -i sleep 1000", name="hidden"))
    server.printed_line(name, "on")
    pid = server.pid_of(name)
    until(lambda: b"sleep" in Path(f"/proc/{pid}/cmdline").read_bytes(), "the exec")
    supervisor = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    os.kill(supervisor, signal.SIGKILL)
    assert server.wait_for(name)["status"]["failure"]["code"] == "SUPERVISOR_LOST"
    until(lambda: not alive(pid), "the orphan to be gone", 5)


def test_a_lost_supervisor_counts_for_the_restart_policy(server: Server):
    restart = {"policy": "on-failure", "max": 1, "backoff": 0.05}
    script = 'echo run $WEFT_RESTARTS; [ "$WEFT_RESTARTS" = 1 ] || exec sleep 1000'
    name = server.submit(sh(script, name="retry", restart=restart))
    server.printed_line(name, "run 0")
    os.kill(server.supervisors()[0], signal.SIGKILL)
    done = server.wait_for(name)
    assert done["status"]["state"] == "COMPLETED"
    assert server.text(name) == ["run 0", "run 1"]


def test_a_supervisor_killed_while_there_is_no_server_is_found_out(server: Server):
    name = server.submit(sh("sleep 1000 & echo on; sleep 1000", name="orphans"))
    server.printed_line(name, "on")
    supervisors = server.supervisors()
    server.kill()
    for pid in supervisors:
        os.kill(pid, signal.SIGKILL)
    server.start()
    assert server.wait_for(name)["status"]["failure"]["code"] == "SUPERVISOR_LOST"
    until(lambda: server.task_processes() == [], "the orphans to be gone", 5)


def test_jobs_run_on_after_the_launcher_was_killed(server: Server):
    os.kill(server.launcher(), signal.SIGKILL)
    names = [
        server.submit(sh("sleep 0.2", name=f"after-{i}")) for i in range(12)
    ]  # more than there are spares
    assert {server.wait_for(name)["status"]["state"] for name in names} == {"COMPLETED"}


def test_idle_supervisors_that_were_killed_are_not_used(server: Server):
    for pid, line in server.others().items():
        if "launcher.py" in line and pid != server.launcher():
            with contextlib.suppress(ProcessLookupError):  # a child may end with its parent
                os.kill(pid, signal.SIGKILL)
    names = [server.submit(sh("true", name=f"after-{i}")) for i in range(6)]
    assert {server.wait_for(name)["status"]["state"] for name in names} == {"COMPLETED"}


def test_everything_killed_at_once_the_next_server_reports_sanely(server: Server):
    single = server.submit(sh("echo on; sleep 1000", name="single"))
    gang = server.submit(sh("echo on; sleep 1000", name="gang", roles={"worker": {"replicas": 3}}))
    again = server.submit(
        sh(
            'echo run $WEFT_RESTARTS; [ "$WEFT_RESTARTS" = 1 ] || sleep 1000',
            name="again",
            restart={"policy": "on-failure", "backoff": 0.05},
        )
    )
    for name in (single, gang, again):
        server.wait_for(name, "PROCESSING")
        server.printed_line(name, "n")
    everything = {pid: line for pid, line in server.processes().items() if "sleep" not in line}
    for pid in everything:
        os.kill(pid, signal.SIGKILL)
    server.kill()
    server.start()
    for name in (single, gang):
        assert server.wait_for(name)["status"]["failure"]["code"] == "SUPERVISOR_LOST"
    assert server.wait_for(again)["status"]["state"] == "COMPLETED"
    until(lambda: server.task_processes() == [], "every process to be gone", 5)
    assert server.reserved() == []


def test_a_reboot_is_recognised(server: Server):
    """Other processes may have the old ids after a reboot: none of them may be taken for a task."""
    name = server.submit(sh("echo on; exec sleep 1000", name="rebooted"))
    server.printed_line(name, "on")
    uid = server.uid(name)
    server.kill()
    for pid in server.processes():
        with contextlib.suppress(ProcessLookupError):  # some end with the server
            os.kill(pid, signal.SIGKILL)
    until(lambda: server.processes() == {}, "the machine to be down")
    journal = server.home / "jobs" / uid / "launch-1.journal"
    bystander = os.fork()
    if bystander == 0:
        time.sleep(1000)
        os._exit(0)
    try:
        import json

        lines = [json.loads(line) for line in journal.read_text().splitlines()]
        lines[0] |= {"boot": "00000000-0000-0000-0000-000000000000", "pid": bystander}
        lines[1]["pids"]["worker-0"][0] = bystander
        journal.write_text("".join(json.dumps(line) + "\n" for line in lines))
        server.start()
        assert server.wait_for(name)["status"]["failure"]["code"] == "SUPERVISOR_LOST"
        assert alive(bystander)
    finally:
        os.kill(bystander, signal.SIGKILL)
        os.waitpid(bystander, 0)
