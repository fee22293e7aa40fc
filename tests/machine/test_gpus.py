"""GPUs from discovery to a task, with a stand-in for nvidia-smi: there is no GPU on the machine of the tests."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from harness import Server, sh

pytestmark = pytest.mark.machine

SMI = """#!/bin/sh
[ "$*" = "--query-gpu=index,memory.total,name,pci.bus_id --format=csv,noheader,nounits" ] || exit 6
printf '0, 16160, Tesla V100-SXM2-16GB, 00000000:3B:00.0\\n3, 16160, Tesla V100-SXM2-16GB, 00000000:D8:00.0\\n'
"""


@pytest.fixture
def server(new_server: Callable[..., Server], tmp_path: Path) -> Server:
    """A machine of two V100s that have the indexes 0 and 3."""
    smi = tmp_path / "bin" / "nvidia-smi"
    smi.parent.mkdir()
    smi.write_text(SMI)
    smi.chmod(0o755)
    return new_server("--cpu", "8", PATH=f"{smi.parent}:{os.environ['PATH']}")


def on_a_gpu(script: str, name: str, **more: object) -> dict:
    return sh(script, name=name, grace=1, roles={"worker": {"resources": {"cpu": 1, "gpu": 1, **more}}})


def test_weft_nodes_shows_them(server: Server):
    printed = subprocess.run(
        [Path(sys.executable).parent / "weft", "nodes"],
        env={**os.environ, "WEFT_HOME": str(server.home)}, capture_output=True, text=True, check=True,
    ).stdout  # fmt: skip
    row = next(line for line in printed.splitlines() if line.startswith("local"))
    assert "2 of 2" in row
    assert "v100" in row


def test_two_jobs_have_a_device_each_and_the_third_waits_for_one(server: Server):
    show = "echo has $CUDA_VISIBLE_DEVICES; exec sleep 1000"
    for name in ("first", "second"):
        server.submit(on_a_gpu(show, name))
        server.printed_line(name, "has")
    had = {name: server.text(name)[0] for name in ("first", "second")}
    assert set(had.values()) == {"has 0", "has 3"}
    third = server.submit(on_a_gpu(show, "third"))
    assert server.status(third)["state"] == "QUEUED"
    server.ask("second", "cancel")
    server.printed_line(third, "has")
    assert server.text(third) == [had["second"]]
    for name in ("first", "third"):
        server.ask(name, "cancel")
        server.wait_for(name)


def test_a_task_that_asked_for_none_sees_none(server: Server):
    server.run(sh("echo [$CUDA_VISIBLE_DEVICES]", name="none"))
    assert server.text("none") == ["[]"]


def test_a_type_that_is_not_here_is_explained(server: Server):
    server.submit(on_a_gpu("true", "wrong", gpuType="a100"))
    reason = server.get("/v1/jobs/wrong/explain").json["reason"]
    assert "a100" in reason
    assert "v100" in reason
    server.ask("wrong", "cancel")
