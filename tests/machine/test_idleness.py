"""Tasks that say where they can be reached and whether anyone uses them, in no framework at all."""

from __future__ import annotations

import pytest
from harness import Server, sh, until

pytestmark = pytest.mark.machine

SERVES = "echo http://127.0.0.1:9/?launch=$WEFT_LAUNCH > $WEFT_URL_FILE; echo up; exec sleep 1000"


def urls(server: Server) -> dict[str, str]:
    return server.status("demo").get("urls", {})


def test_a_task_is_shown_where_it_says_also_by_the_next_server_and_only_while_it_runs(server: Server):
    restart = {"policy": "on-failure", "backoff": 0}
    server.submit(sh(SERVES, name="demo", restart=restart))
    until(lambda: urls(server) == {"worker-0": "http://127.0.0.1:9/?launch=1"}, "its URL")
    server.restart()
    assert urls(server) == {"worker-0": "http://127.0.0.1:9/?launch=1"}
    assert "urls" not in server.get("/v1/jobs").json["items"][0]["status"]
    server.ask("demo", "halt")
    assert "urls" not in server.wait_for("demo", "HALTED")["status"]
    server.ask("demo", "resume")
    until(lambda: urls(server) == {"worker-0": "http://127.0.0.1:9/?launch=2"}, "its new URL")
    server.ask("demo", "cancel")
    assert "urls" not in server.wait_for("demo", "CANCELLED")["status"]


def test_what_is_no_url_is_not_shown(server: Server):
    server.submit(sh("echo 'javascript:alert(1)' > $WEFT_URL_FILE; echo up; exec sleep 1000", name="demo"))
    server.printed_line("demo", "up")
    assert urls(server) == {}
    server.ask("demo", "cancel")
    server.wait_for("demo", "CANCELLED")


def test_who_is_active_runs_on_and_who_is_idle_is_halted(server: Server):
    script = (
        "for i in $(seq 1 70); do touch $WEFT_ACTIVITY_FILE; sleep 0.1; done; echo at rest; exec sleep 1000"
    )
    server.submit(sh(script, name="demo", idleTimeout="5s"))
    server.printed_line("demo", "at rest")
    assert server.status("demo")["state"] == "PROCESSING"
    halted = server.wait_for("demo", "HALTED")["status"]
    assert halted["reason"] == "halted: nothing was done in it for 5s (idleTimeout); checkpoints are kept"
    assert server.reserved() == []
