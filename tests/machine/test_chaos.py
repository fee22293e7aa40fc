"""A real training whose tasks are killed at random, all the while: it still learns what it learns undisturbed."""

from __future__ import annotations

import json
import os
import random
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
from harness import Server, package, until

pytestmark = pytest.mark.machine
EXAMPLE = Path(__file__).parents[2] / "examples" / "digits" / "train.py"
KILLS = 12
UPDATES = 12_000


def test_a_training_whose_tasks_are_killed_at_random_reaches_its_accuracy(new_server: Callable[..., Server]):
    server = new_server("--cpu", "4")
    digest = server.put_package(package({"train.py": EXAMPLE.read_text()})[1])
    spec = {
        "type": "parameter-server",
        "code": {"package": digest},
        "command": ["python", "train.py"],
        "env": {"UPDATES": str(UPDATES), "OMP_NUM_THREADS": "1"},
        "restart": {"policy": "on-failure", "max": 100, "backoff": "0s"},
        "roles": {
            "ps": {"resources": {"cpu": 0.5}},
            "worker": {"replicas": 3, "resources": {"cpu": 0.5}},
        },
    }
    name = server.submit({"metadata": {"name": "digits"}, "spec": spec})
    server.wait_for(name, "PROCESSING")

    def updates() -> int:
        return max((point["step"] for point in server.metrics(name)), default=0)

    def ended() -> bool:
        return server.status(name)["state"] not in ("PROCESSING", "RESTARTING", "DEPLOYING")

    chance = random.Random(1)
    killed: list[str] = []
    while len(killed) < KILLS and not ended():
        enough = updates() + chance.randint(200, 800)
        until(lambda enough=enough: updates() >= enough or ended(), "some updates")
        running = [
            task for task in server.status(name)["tasks"] if task["state"] == "RUNNING" and task.get("pid")
        ]
        if not running:
            continue
        victim = chance.choice(running)
        try:
            os.killpg(victim["pid"], signal.SIGKILL)
        except ProcessLookupError:
            continue
        killed.append(victim["name"])
    done = server.wait_for(name, "COMPLETED", timeout=120)
    assert len(killed) >= KILLS // 2, "it was over before much had happened to it"
    assert done["status"]["restarts"] == len(killed)
    reached = json.loads((server.folder(name) / "results" / "metrics.json").read_text())
    assert reached["accuracy"] > 0.95, f"after {killed}"
    assert reached["updates"] >= UPDATES
