"""What a supervisor does for one task, with the real processes of this machine."""

from __future__ import annotations

import asyncio
import os
import select
import sys
from pathlib import Path
from typing import Any

import pytest

from weft.backends.local.supervisors import KEEP_IDLE, LEAST_SPARE, Pool
from weft.runtime.taskprocess import TaskProcess


def ended(folder: Path, argv: list[str], **more: Any) -> dict[str, Any]:
    """Start a task, wait for its end, and give what its supervisor says of it."""
    task = TaskProcess(
        {
            "name": "worker-0",
            "argv": argv,
            "env": {"PATH": os.environ["PATH"]},
            "cwd": str(folder),
            "dir": str(folder),
            "cpus": [],
            "log": {"segment": 1 << 20, "keep": 2, "rate": 1 << 20},
            "metrics": [],
            **more,
        }
    )
    task.prepare()
    with open(os.devnull, "rb+") as devnull:
        task.start(devnull.fileno())
    select.select([task.pidfd], [], [])
    return task.reap()


def groups(*joins: Path) -> dict[str, Any]:
    return {"folders": [], "limits": [], "joins": [str(path) for path in joins]}


class TestJoiningGroups:
    def test_a_group_that_refuses_a_task_is_named_and_the_task_never_runs(self, tmp_path: Path) -> None:
        ran, good, bad = tmp_path / "ran", tmp_path / "procs", tmp_path / "missing" / "cgroup.procs"
        said = ended(tmp_path, ["touch", str(ran)], cgroups=groups(good, bad))
        assert (said["code"], said["unjoined"]) == (125, str(bad))
        assert good.read_text().strip().isdigit()
        assert not ran.exists()

    def test_a_refusal_is_not_remembered_for_the_next_start(self, tmp_path: Path) -> None:
        ended(tmp_path, ["true"], cgroups=groups(tmp_path / "missing" / "cgroup.procs"))
        said = ended(tmp_path, ["sh", "-c", "exit 125"], cgroups=groups(tmp_path / "procs"))
        assert (said["code"], said["unjoined"]) == (125, None)

    def test_a_task_without_groups_may_exit_as_it_likes(self, tmp_path: Path) -> None:
        said = ended(tmp_path, [sys.executable, "-c", "raise SystemExit(125)"])
        assert (said["code"], said["unjoined"]) == (125, None)


@pytest.mark.parametrize(("cpus", "ready"), [(0, LEAST_SPARE), (6, 6), (1000, KEEP_IDLE)])
def test_a_supervisor_is_ready_for_each_cpu_within_reason(cpus: int, ready: int) -> None:
    async def story() -> None:
        pool = Pool()
        pool.start(cpus)
        assert len(pool.idle) == ready
        pool.close()

    asyncio.run(story())
