"""A job's tasks start together or not at all."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from harness import Server, python, sh, until

pytestmark = pytest.mark.machine

MEET = """
import json, os, socket
hosts = json.loads(os.environ["WEFT_HOSTS"])["worker"]
rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
port = int(hosts[rank].rpartition(":")[2])
if rank == 0:
    with socket.create_server(("127.0.0.1", port)) as door:
        guests = [door.accept()[0] for _ in range(world - 1)]
        print("met", sorted(int(guest.recv(10)) for guest in guests))
else:
    import time
    for _ in range(2000):
        try:
            with socket.create_connection((os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]))) as line:
                line.sendall(str(rank).encode())
            break
        except ConnectionRefusedError:
            time.sleep(0.005)
    else:
        raise SystemExit("nobody there")
"""


def test_four_tasks_start_together_and_find_each_other(server: Server):
    done = server.run(python(MEET, name="four", roles={"worker": {"replicas": 4}}))
    assert done["status"]["state"] == "COMPLETED"
    assert server.text("four") == ["met [1, 2, 3]"]
    assert {task["launch"] for task in done["status"]["tasks"]} == {1}
    starts = [task["started"] for task in done["status"]["tasks"]]
    assert max(starts) - min(starts) < 0.5


def test_a_wide_gang_reads_where_to_meet_from_a_file(server: Server):
    """Wide enough for its launch to be made in several turns of the server's event loop, too."""
    read = "from weft.runtime.hosts import hosts; print(len(set(hosts()['worker'])))"
    script = f'[ -z "$WEFT_HOSTS" ] || exit 3; [ $RANK != 299 ] || exec python -c "{read}"; [ -s "$WEFT_HOSTS_FILE" ]'
    roles = {"worker": {"replicas": 300, "resources": {"cpu": 0}}}
    done = server.run(sh(script, name="wide", roles=roles))
    assert done["status"]["state"] == "COMPLETED", done["status"]["failure"]
    assert server.text("wide") == ["300"]
    assert not (server.folder("wide") / "hosts.json").exists()


def test_a_task_that_cannot_start_takes_all_back_and_leaves_nothing(server: Server, tmp_path):
    roles = {"worker": {"replicas": 3}, "odd": {"command": ["/no/such/program"]}}
    ran = tmp_path / "ran"
    done = server.run(sh(f"sleep 1000; echo $WEFT_TASK >> {ran}", name="broken", roles=roles))
    status = done["status"]
    assert status["state"] == "FAILED"
    assert status["failure"]["code"] == "COMMAND_NOT_FOUND"
    assert status["failure"]["task"] == "odd-0"
    assert "/no/such/program" in status["failure"]["message"]
    assert server.states("broken") == ["PENDING", "QUEUED", "DEPLOYING", "FAILED"]
    assert not ran.exists()
    assert server.task_processes() == []
    assert server.reserved() == []
    assert not (server.home / "jobs" / done["metadata"]["uid"]).exists()


def test_a_task_that_dies_in_exec_takes_all_back_and_leaves_nothing(server: Server, tmp_path):
    """The file is there and executable, but the kernel refuses it: the others have their process already."""
    bad = tmp_path / "not-a-program"
    bad.write_bytes(b"\x7fELF but not really")
    bad.chmod(0o755)
    roles = {"worker": {"replicas": 3}, "zodd": {"command": [str(bad)]}}
    done = server.run(sh("sleep 1000", name="refused", roles=roles))
    assert done["status"]["state"] == "FAILED"
    assert done["status"]["failure"]["code"] == "CANNOT_START"
    assert done["status"]["failure"]["task"] == "zodd-0"
    assert server.task_processes() == []
    assert server.reserved() == []
    assert not (server.home / "jobs" / done["metadata"]["uid"]).exists()


def test_a_gang_waits_whole_and_starts_when_all_of_it_fits(new_server):
    server = new_server("--cpu", "4")
    server.submit(sh("exec sleep 1000", name="first", roles={"worker": {"replicas": 2}}, grace=1))
    server.wait_for("first", "PROCESSING")
    server.submit(sh("true", name="second", roles={"worker": {"replicas": 3}}))
    until(lambda: server.get("/v1/queue").json["items"], "the queue to show it")
    assert server.status("second")["state"] == "QUEUED"
    assert server.nodes()[0]["free"]["cpu"] == 2  # nothing is held back half-way
    server.ask("first", "cancel")
    assert server.wait_for("second")["status"]["state"] == "COMPLETED"


def test_one_failed_task_ends_the_gang_and_its_children(server: Server):
    script = "if [ $RANK = 1 ]; then sleep 0.2; echo broke >&2; exit 9; fi; sleep 1000 & sleep 1000"
    done = server.run(sh(script, name="nine", roles={"worker": {"replicas": 3}}, grace=2))
    assert done["status"]["state"] == "FAILED"
    assert done["status"]["failure"]["message"].startswith("worker-1 exited with code 9")
    assert done["status"]["logTail"] == ["broke"]
    assert [task["state"] for task in done["status"]["tasks"]] == ["STOPPED", "FAILED", "STOPPED"]
    until(lambda: server.task_processes() == [], "all processes to end", 5)
    assert server.reserved() == []


def test_when_the_workers_are_done_the_service_is_stopped(server: Server):
    roles = {"ps": {"service": True, "command": ["sleep", "1000"]}, "worker": {"replicas": 2}}
    done = server.run(sh("true", name="served", roles=roles, grace=5))
    assert done["status"]["state"] == "COMPLETED"
    assert {t["name"]: t["state"] for t in done["status"]["tasks"]} == {
        "worker-0": "SUCCEEDED",
        "worker-1": "SUCCEEDED",
        "ps-0": "STOPPED",
    }


def test_the_chief_alone_may_decide(server: Server):
    script = "[ $RANK = 0 ] && exit 0; exec sleep 1000"
    done = server.run(sh(script, name="chief", roles={"worker": {"replicas": 3}}, success="chief", grace=5))
    assert done["status"]["state"] == "COMPLETED"


def test_a_running_job_is_scaled_by_a_person(new_server: Callable[..., Server]):
    server = new_server("--cpu", "4")
    worker = {"replicas": 3, "minReplicas": 1, "maxReplicas": 3, "resources": {"cpu": 0.5}}
    name = server.submit(sh("exec sleep 60", name="elastic", grace="1s", roles={"worker": worker}))
    server.wait_for(name, "PROCESSING")

    def running() -> set[str]:
        return {task["name"] for task in server.status(name)["tasks"] if task["state"] == "RUNNING"}

    assert running() == {"worker-0", "worker-1", "worker-2"}
    assert server.post(f"/v1/jobs/{name}/scale", {"roles": {"worker": 1}}).status == 200
    until(lambda: running() == {"worker-0"}, "two tasks to go")
    assert len(server.task_processes()) == 1
    assert server.post(f"/v1/jobs/{name}/scale", {"roles": {"worker": 2}}).status == 200
    until(lambda: running() == {"worker-0", "worker-1"}, "one to come back")
    refused = server.post(f"/v1/jobs/{name}/scale", {"roles": {"worker": 7}})
    assert (refused.status, refused.json["detail"]) == (
        409,
        f"job {name}: role worker has 1 to 3 tasks, not 7",
    )
    assert server.post(f"/v1/jobs/{name}/scale", {"roles": {"worker": "many"}}).status == 422
    server.ask(name, "cancel")
    server.wait_for(name, "CANCELLED")
