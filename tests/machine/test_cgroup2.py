"""Limits by cgroup version 2, on a real kernel: in a virtual machine, since this one's kernel may have version 1."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.machine

CHECK = Path(__file__).parents[2] / "scripts" / "cgroup2-check.py"
SKIP = 77


@pytest.fixture(scope="module")
def checked() -> dict[str, Any]:
    done = subprocess.run([sys.executable, CHECK], capture_output=True, text=True, check=False)
    if done.returncode == SKIP:
        pytest.skip(done.stdout.strip())
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_limits_by_cgroup_version_2(checked: dict[str, Any]):
    assert checked["notes"] == [], "groups can be made, though no systemd has prepared the root"
    hungry, busy, pinned, stray = (checked[task] for task in ("hungry", "busy", "pinned", "stray"))
    limit = 32 << 20
    assert (hungry["signal"], hungry["oom"]) == (9, True)
    assert limit * 0.9 < hungry["peak"] <= limit
    assert float(busy["printed"][0]) < 0.3, "a fifth of a CPU, measured over 2 s"
    assert not busy["oom"]
    assert pinned["printed"] == ["[1]"]
    assert stray["code"] == 0
    assert all(task["notes"] == [] for task in (hungry, busy, pinned, stray)), "every limit was set"
    assert checked["left"] == [], "each group is gone with its task, and so are the processes in it"
    assert checked["forgotten"]


def test_a_container_by_cgroup_version_2_tells_its_peak(checked: dict[str, Any]):
    told, limit = checked["container"], 16 << 20
    assert (told["code"], told["oom"], told["grouped"]) == (137, True, True), told
    assert limit * 0.9 < told["peak"] < limit * 1.01
    assert told["cpu"] > 0
    assert not told["left"]
