"""The groups of tasks, on this machine's real kernel: they stay while a supervisor needs them, and go when it is dead."""

from __future__ import annotations

import os
import select
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from harness import Server, sh, until

from weft.backends.local import cgroups
from weft.backends.local.cgroups import Cgroups
from weft.backends.local.containergroups import ContainerGroups
from weft.model.gang import Request
from weft.runtime.taskprocess import TaskProcess

pytestmark = [
    pytest.mark.machine,
    pytest.mark.skipif(os.getuid() != 0, reason="only root can make a cgroup here"),
]
LIMITED = {"worker": {"resources": {"memory": "64Mi"}}}


@pytest.fixture
def found() -> Iterator[Cgroups]:
    made = cgroups.discover(f"weft-test-groups-{os.getpid()}")
    yield made
    cgroups.forget(made)
    assert not any(Path(place).exists() for place in (made.memory, made.cpu) if place is not None)


def test_a_group_that_is_still_empty_is_its_supervisors(found: Cgroups, tmp_path: Path) -> None:
    """A supervisor makes the groups of all tasks of a launch before it starts the first, whether or not a server is there."""
    groups, _ = found.task("u1-worker-0-1", Request(cpu=500, memory=64 << 20))
    assert groups is not None
    task = TaskProcess(
        {
            "name": "worker-0", "argv": ["true"], "env": {"PATH": os.environ["PATH"]}, "cwd": str(tmp_path),
            "dir": str(tmp_path), "cpus": [], "cgroups": groups, "metrics": [],
            "log": {"segment": 1 << 20, "keep": 2, "rate": 1 << 20},
        }
    )  # fmt: skip
    task.prepare()
    cgroups.forget(found)
    with open(os.devnull, "rb+") as devnull:
        task.start(devnull.fileno())
    select.select([task.pidfd], [], [])
    cgroups.forget(found)  # before it was asked for the most memory that was used
    said = task.reap()
    assert (said["code"], said["unjoined"], said["grouped"]) == (0, None, True)


def groups_of(server: Server) -> dict[str, list[Path]]:
    """By name, in every hierarchy."""
    found: dict[str, list[Path]] = {}
    for label in server.cgroups():
        for group in label.iterdir():
            if group.is_dir():
                found.setdefault(group.name, []).append(group)
    return found


def test_a_server_that_stops_leaves_the_groups_of_supervisors_that_live(
    server: Server, tmp_path: Path
) -> None:
    go = tmp_path / "go"
    script = f"echo on; while ! [ -e {go} ]; do sleep 0.02; done"
    name = server.submit(sh(script, name="limited", roles=LIMITED))
    server.printed_line(name, "on")
    ((own, places),) = groups_of(server).items()
    next_one = own.replace("worker-0", "worker-1")
    container = ContainerGroups(places[0].parent.name).plan(f"weft-{next_one}")
    assert container is not None
    for place in places:
        place.with_name(next_one).mkdir()
    for folder in container["folders"]:
        Path(folder, "left-by-its-engine").mkdir(parents=True)
    server.stop()
    assert {own, next_one, f"weft-{next_one}"} == groups_of(server).keys()
    server.start()
    go.touch()
    assert server.wait_for(name)["status"]["state"] == "COMPLETED"
    assert own not in groups_of(server)
    until(lambda: not server.supervisors(), "its supervisor to end")
    server.stop()
    assert groups_of(server) == {}


def test_what_a_killed_supervisor_left_goes_with_the_server(server: Server) -> None:
    name = server.submit(sh("echo on; exec sleep 1000", name="orphan", roles=LIMITED))
    server.printed_line(name, "on")
    (own,) = groups_of(server)
    os.kill(server.supervisors()[0], signal.SIGKILL)
    assert server.wait_for(name)["status"]["failure"]["code"] == "SUPERVISOR_LOST"
    until(lambda: server.task_processes() == [], "the orphan to be gone", 5)
    assert own in groups_of(server)
    server.stop()
    assert server.cgroups() == []
