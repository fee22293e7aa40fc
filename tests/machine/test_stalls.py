"""Real processes that hang: what they were doing is kept, they are killed, and the restart policy applies."""

from __future__ import annotations

import os
import shutil
import threading
import time

import pytest
from harness import Server, python, sh

from weft.backends.local import stacks
from weft.runtime import stacks as processes

pytestmark = pytest.mark.machine

HANGS = """
import os, threading
def stuck_in_the_collective():
    threading.Event().wait()
print("begun", os.environ["WEFT_RESTARTS"], flush=True)
if os.environ["WEFT_RESTARTS"] == "0" and os.environ["RANK"] == "1":
    stuck_in_the_collective()
def working_on():
    import time, weft
    for _ in range(30):
        weft.heartbeat()
        time.sleep(0.1)
working_on()
"""


def kept(server: Server, name: str) -> dict[str, str]:
    """The stacks that are listed among the results."""
    items = server.get(f"/v1/jobs/{name}/results").json["items"]
    paths = [item["path"] for item in items if item["path"].startswith("stalls/")]
    return {path: (server.folder(name) / "results" / path).read_text() for path in paths}


def test_a_task_that_hangs_is_looked_into_and_starts_again(server: Server):
    restart = {"policy": "on-failure", "max": 1, "backoff": 0.05}
    roles = {"worker": {"replicas": 2}}
    options = {"stallTimeout": "2s", "restart": restart, "roles": roles, "results": {"include": ["*.bin"]}}
    done = server.run(python(HANGS, name="hangs", **options))
    assert done["status"]["state"] == "COMPLETED", server.story("hangs")
    assert [task["restarts"] for task in done["status"]["tasks"]] == [0, 1]
    cause = next(event["cause"] for event in server.history("hangs") if event["state"] == "RESTARTING")
    assert cause == (
        "worker-1 has been silent for 2s: no log, metric or heartbeat (stacks of all its tasks: "
        "stalls/worker-1-launch-1.txt in weft results hangs); restart 1 of at most 1"
    )
    found = kept(server, "hangs")
    assert [*found] == ["stalls/worker-1-launch-1.txt"]
    first, _, second = found["stalls/worker-1-launch-1.txt"].partition("════ worker-1 ════")
    assert "════ worker-0 ════" in first
    assert "thread " in second
    assert "state S" in second
    if stacks.spy_command():
        assert "working_on" in first
        assert "stuck_in_the_collective" in second


def test_who_hangs_to_the_end_fails_with_its_code(server: Server):
    status = server.run(sh("echo begun; exec sleep 1000", name="deaf", stallTimeout=0.5))["status"]
    assert status["state"] == "FAILED"
    assert status["failure"]["code"] == "STALLED"
    assert status["failure"]["message"].startswith("worker-0 has been silent for 0.5s: no log")
    assert status["tasks"][0]["exit"]["signal"] == 9
    assert status["logTail"] == ["begun"]
    (text,) = kept(server, "deaf").values()
    assert "sleep 1000" in text


@pytest.mark.skipif(shutil.which("bwrap") is None, reason="needs bubblewrap")
def test_a_sandbox_is_looked_into(server: Server):
    options = {"stallTimeout": 1, "isolation": "sandbox", "env": {"RANK": "1"}}
    status = server.run(python(HANGS, name="boxed", **options))["status"]
    assert status["failure"]["code"] == "STALLED"
    (text,) = kept(server, "boxed").values()
    assert "process " in text
    if stacks.spy_command():
        assert "stuck_in_the_collective" in text


def test_a_log_a_metric_or_a_touch_is_a_sign_of_life(server: Server):
    each = {
        "logs": "echo here",
        "measures": """echo '{"step":1,"time":1,"values":{"x":1}}' >> $WEFT_METRICS_FILE""",
        "touches": "touch $WEFT_METRICS_FILE",
    }
    for name, sign in each.items():
        server.submit(sh(f"for i in $(seq 1 30); do {sign}; sleep 0.1; done", name=name, stallTimeout="1s"))
    for name in each:
        assert server.wait_for(name)["status"]["state"] == "COMPLETED", server.story(name)


def test_a_stall_is_found_by_the_next_server(server: Server):
    server.submit(python(HANGS, name="hangs", stallTimeout="2s", env={"RANK": "1"}))
    server.wait_for("hangs", "PROCESSING")
    server.kill()
    server.start()
    assert server.wait_for("hangs")["status"]["failure"]["code"] == "STALLED"
    assert "worker-0" in kept(server, "hangs")["stalls/worker-0-launch-1.txt"]


def test_a_link_of_the_task_leads_the_stacks_nowhere(server: Server, tmp_path):
    outside = tmp_path / "outside"
    outside.mkdir()
    script = f"ln -s {outside} $RESULT_DIR/stalls; exec sleep 1000"
    status = server.run(sh(script, name="sly", stallTimeout=0.5))["status"]
    assert status["failure"]["message"] == "worker-0 has been silent for 0.5s: no log, metric or heartbeat"
    assert list(outside.iterdir()) == []


def test_without_py_spy_the_kernel_is_asked(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(stacks, "spy_command", lambda: None)
    text = stacks.dump("demo", "no-such-uid", {"worker-0": os.getpid()}, threading.Event())
    assert "\n(no Python stacks: py-spy is not installed; pip install py-spy)\n" in text
    assert f"process {os.getpid()}: " in text
    assert f"thread {os.getpid()} " in text


def test_a_py_spy_that_hangs_is_not_waited_for(monkeypatch: pytest.MonkeyPatch, tmp_path):
    spy = tmp_path / "py-spy"
    spy.write_text("#!/bin/sh\nexec sleep 1000\n")
    spy.chmod(0o755)
    monkeypatch.setattr(stacks, "spy_command", lambda: str(spy))
    monkeypatch.setattr(processes, "PATIENCE", 0.3)
    begun = time.monotonic()
    text = stacks.dump("demo", "no-such-uid", {"worker-0": os.getpid()}, threading.Event())
    assert time.monotonic() - begun < 10
    assert "(py-spy did not answer in time)" in text
