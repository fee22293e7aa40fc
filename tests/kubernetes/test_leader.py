"""Two control planes on one home: one leads, the other waits for its turn."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from harness import Server, sh, until

from .conftest import REAL, SHELL_IMAGE, arguments
from .test_jobs import small

pytestmark = [pytest.mark.timeout(240), pytest.mark.usefixtures("testbed_only")]
COUNTS = "i=0; while [ $i -lt 400 ]; do i=$((i+1)); echo $i; sleep 0.02; done"


@pytest.fixture
def candidate(kubeconfig: str, kubectl: Any, tmp_path: Path) -> Iterator[Callable[[], Server]]:
    """Servers that share one home, and that wait to lead."""
    servers: list[Server] = []

    def make() -> Server:
        server = Server(tmp_path / "home", ("--leader", *arguments(kubeconfig, kubectl.namespace)))
        server.begin()
        servers.append(server)
        return server

    yield make
    for server in servers:
        server.stop()


def holder(kubectl: Any) -> str:
    return kubectl("get", "lease", "weft", "-o", "jsonpath={.spec.holderIdentity}", check=False)


def waits(server: Server) -> bool:
    return "leads; waiting" in server.printed() and server.running() and not server.answering()


def test_the_other_one_takes_over_from_a_leader_that_is_killed_and_finishes_its_job(
    candidate: Callable[[], Server], kubectl: Any
) -> None:
    one = candidate()
    one.ready()
    two = candidate()
    until(lambda: waits(two), "the second to wait")
    one.submit(sh(COUNTS, name="count", image=SHELL_IMAGE, roles=small(), placement=REAL))
    one.printed_line("count", "50")
    one.kill()
    two.ready()
    assert holder(kubectl).endswith(f"-{two.pid}")
    ended = two.wait_for("count")
    assert ended["status"]["state"] == "COMPLETED", two.story("count")
    assert ended["status"]["restarts"] == 0
    assert two.text("count", limit=100_000) == [str(n) for n in range(1, 401)]


def test_a_leader_that_is_told_to_end_resigns_at_once(candidate: Callable[[], Server], kubectl: Any) -> None:
    one = candidate()
    one.ready()
    two = candidate()
    until(lambda: waits(two), "the second to wait")
    led = one.pid
    one.stop()
    assert not holder(kubectl).endswith(f"-{led}"), "the lease was not left to run out"
    two.ready()
    assert holder(kubectl).endswith(f"-{two.pid}")


def test_one_that_waits_ends_well_when_it_is_told_to(candidate: Callable[[], Server], kubectl: Any) -> None:
    one = candidate()
    one.ready()
    two = candidate()
    until(lambda: waits(two), "the second to wait")
    two.stop()
    assert holder(kubectl).endswith(f"-{one.pid}")
    assert one.answering()


def test_a_leader_that_was_frozen_steps_back_when_it_wakes(
    candidate: Callable[[], Server], kubectl: Any
) -> None:
    one = candidate()
    one.ready()
    two = candidate()
    until(lambda: waits(two), "the second to wait")
    os.kill(one.pid, signal.SIGSTOP)
    try:
        until(lambda: holder(kubectl).endswith(f"-{two.pid}"), "the second to have the lease", every=0.2)
        assert not two.answering(), "the first may still be writing"
    finally:
        os.kill(one.pid, signal.SIGCONT)
    two.ready()
    again = f"-{two.pid} leads; waiting"
    until(lambda: again in one.printed().partition("may lead")[2], "the first to be a candidate again")
    assert holder(kubectl).endswith(f"-{two.pid}")
