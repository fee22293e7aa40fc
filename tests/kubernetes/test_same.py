"""What a job does on one machine it does on a cluster: job types, sizes, priorities, restarts, deadlines."""

from __future__ import annotations

import urllib.error
import urllib.request
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from harness import python, sh, until
from testbed.controlplane import free_ports

from .conftest import REAL, SHELL_IMAGE, Town
from .test_jobs import SMALL, simulated, small

pytestmark = [pytest.mark.timeout(240), pytest.mark.usefixtures("images")]
LEARNS = """
import os
import numpy as np
from weft import ps

if os.environ["WEFT_ROLE"] == "ps":
    ps.serve({"w": np.ones(4, np.float32)}, optimizer=ps.SGD(lr=0.1))
else:
    with ps.Client() as server:
        p, version = server.pull()
        while version < 60:
            server.push({"w": p["w"].copy()})
            p, version = server.pull()
    print("learned", bool(abs(p["w"]).max() < 0.1))
"""


def test_workers_learn_around_a_parameter_server(town: Town) -> None:
    server = town.server
    roles = {"ps": {"resources": SMALL}, "worker": {"replicas": 2, "resources": SMALL}}
    ended = server.run(python(LEARNS, name="learns", type="parameter-server", roles=roles, placement=REAL))
    assert ended["status"]["state"] == "COMPLETED", server.story("learns")
    assert server.text("learns", task="worker-0") == ["learned True"]
    assert server.text("learns", task="worker-1") == ["learned True"]
    until(lambda: town.nothing_left("learns"), "everything of it to be gone from the cluster")


def test_a_person_makes_a_job_larger_and_smaller_while_it_runs(town: Town) -> None:
    """What stays runs on, and hears of who came."""
    server = town.server
    elastic = small(1, minReplicas=1, maxReplicas=2)
    script = "echo up; trap 'exit 0' TERM; while true; do sleep 0.1; done"
    server.submit(sh(script, name="sized", image=SHELL_IMAGE, roles=elastic, placement=REAL, grace="1s"))
    server.printed_line("sized", "up")
    [before] = pods(town, "sized")
    server.weft("scale", "sized", "worker=2")
    until(lambda: server.text("sized", task="worker-1") == ["up"], "the second to run", every=0.1)
    assert before in pods(town, "sized"), "the first ran on"
    server.weft("scale", "sized", "worker=1")
    until(lambda: pods(town, "sized") == [before], "the second to leave", every=0.1)
    assert server.status("sized")["state"] == "PROCESSING", server.story("sized")
    assert server.text("sized", task="worker-0") == ["up"]
    server.delete("sized")


def pods(town: Town, job: str) -> list[str]:
    return [pod["metadata"]["uid"] for pod in town.kubectl.get("pods", "-l", f"weft.dev/job={job}")["items"]]


@pytest.mark.usefixtures("testbed_only")
def test_who_is_more_important_has_the_room_and_the_other_one_waits_for_it(town: Town) -> None:
    server = town.server
    here = {"selector": {"kubernetes.io/hostname": "sim-0016"}}

    def wants(name: str, lives: str, **spec: Any) -> dict[str, Any]:
        return sh("true", name=name, roles=simulated(gpu=8, lives=lives), placement=here, grace="1s", **spec)

    server.run(wants("patient", "forever", priority="low"), "PROCESSING")
    server.submit(wants("urgent", "0.5", priority="high"))
    assert server.wait_for("urgent")["status"]["state"] == "COMPLETED", server.story("urgent")
    gave_way = [each for each in server.history("patient") if each.get("state") == "PREEMPTED"]
    assert [(each["code"], each["cause"]) for each in gave_way] == [("PREEMPTED", "gave way to urgent")]
    again = server.wait_for("patient", "PROCESSING")["status"]
    assert (again["preemptions"], again["restarts"]) == (1, 0), server.story("patient")
    server.delete("patient")


def test_a_task_that_fails_is_started_again_and_finds_its_checkpoint(town: Town) -> None:
    server = town.server
    script = "cat $CHECKPOINT_DIR/far 2>/dev/null && exit 0; echo half > $CHECKPOINT_DIR/far; exit 3"
    restart = {"policy": "on-failure", "max": 2, "backoff": "100ms"}
    job = sh(script, name="again", image=SHELL_IMAGE, roles=small(), placement=REAL, restart=restart)
    ended = server.run(job)["status"]
    assert (ended["state"], ended["restarts"]) == ("COMPLETED", 1), server.story("again")
    assert server.text("again") == ["half"]
    assert "EXIT_CODE" in [event.get("code") for event in server.history("again")]


def test_a_job_that_runs_for_too_long_is_ended(town: Town) -> None:
    server = town.server
    job = sh(
        "sleep 1000", name="late", image=SHELL_IMAGE, roles=small(), placement=REAL, deadline="1s", grace="1s"
    )
    ended = server.run(job)["status"]
    assert (ended["state"], ended["failure"]["code"]) == ("FAILED", "DEADLINE"), server.story("late")
    until(lambda: town.nothing_left("late"), "everything of it to be gone from the cluster")


SERVES = """
import http.server, os
port = int(os.environ["MASTER_PORT"])
server = http.server.HTTPServer(("127.0.0.1", port), http.server.BaseHTTPRequestHandler)
with open(os.environ["WEFT_URL_FILE"], "w") as file:
    file.write(f"http://127.0.0.1:{port}/?token=x")
server.serve_forever()
"""


def test_what_a_task_serves_on_its_loopback_is_reached_as_it_is_told(town: Town, tmp_path: Path) -> None:
    """As a notebook does: the line that is shown makes its URL good on this machine."""
    server = town.server
    server.submit(python(SERVES, name="serves", roles=small(), placement=REAL, grace="1s"))
    status = until(lambda: (now := server.status("serves")).get("forwards") and now, "its URL", every=0.1)
    url, told = status["urls"]["worker-0"], status["forwards"]["worker-0"].split()
    assert told[:2] == ["kubectl", "-n"], told
    shown = server.weft("show", "serves").stdout
    assert url in shown
    assert " ".join(told) in shown
    port = urlsplit(url).port
    assert told[-1] == str(port)
    own = free_ports(1)[0]  # another test may have the port
    with (tmp_path / "forward").open("w") as output:
        forwarding = town.kubectl.begin(*told[3:-1], f"{own}:{port}", output=output)
    try:
        until(lambda: "Forwarding" in (tmp_path / "forward").read_text(), "it to be forwarded", every=0.1)
        with pytest.raises(urllib.error.HTTPError, match="501"):  # it answers, and knows no GET
            urllib.request.urlopen(f"http://127.0.0.1:{own}/", timeout=10)
    finally:
        forwarding.terminate()
        forwarding.wait(30)
        server.delete("serves")
