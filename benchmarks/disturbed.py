"""Two trainings of the demo's model that the benchmarks disturb: how they are submitted, watched and killed."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import sys
from pathlib import Path
from typing import Any

import numpy as np
from harness import BENCHMARKS, PYTHON, Connection, Server, job, until

TRAINING = BENCHMARKS / "training"
AT_ONCE = {"policy": "on-failure", "max": 1000, "backoff": "0s"}
ENDED = ("COMPLETED", "FAILED", "CANCELLED")
WORKERS = 3
sys.path[:0] = [str(BENCHMARKS.parent / "scripts"), str(BENCHMARKS.parent / "examples" / "digits")]

import frameworks  # noqa: E402


def torch_python() -> str:
    if (python := frameworks.python_of("torch")) is None:
        raise SystemExit("torch is not there: .venv/bin/python scripts/frameworks.py torch")
    return str(python)


def by_parameter_server(name: str, shared: Path, **settings: object) -> dict[str, Any]:
    shared.mkdir(parents=True)
    return job(
        name,
        [PYTHON, str(TRAINING / "digits_ps.py")],
        type="parameter-server",
        env=_env(shared, settings),
        restart=AT_ONCE,
        grace="1s",
        roles={
            "ps": {"resources": {"cpu": 0.5}},
            "worker": {"replicas": WORKERS, "resources": {"cpu": 0.5}},
        },
    )


def by_ddp(name: str, shared: Path, **settings: object) -> dict[str, Any]:
    import train as digits

    shared.mkdir(parents=True)
    (images, labels), (test_images, test_labels) = digits.load()
    np.savez(
        shared / "digits.npz", images=images, labels=labels, test_images=test_images, test_labels=test_labels
    )
    return job(
        name,
        [torch_python(), str(TRAINING / "digits_ddp.py")],
        type="pytorch",
        env=_env(shared, settings),
        restart={**AT_ONCE, "scope": "gang"},
        grace="1s",
        roles={"worker": {"replicas": WORKERS, "resources": {"cpu": 0.5}}},
    )


def _env(shared: Path, settings: dict[str, object]) -> dict[str, str]:
    return {
        "OMP_NUM_THREADS": "1",
        "SHARED": str(shared),
        **{name: str(value) for name, value in settings.items()},
    }


# ── watching ──


class Watched:
    """One job, asked about over a connection of its own each time: the server may have been killed meanwhile."""

    def __init__(self, server: Server, document: dict[str, Any]):
        self.server = server
        self.name = document["metadata"]["name"]
        with Connection(server) as connection:
            connection.submit(document)

    def get(self, what: str = "") -> Any:
        with Connection(self.server) as connection:
            return connection.get(f"/v1/jobs/{self.name}{what}")

    @property
    def status(self) -> dict[str, Any]:
        return dict(self.get()["status"])

    def points(self, *names: str) -> list[dict[str, Any]]:
        found = self.get(f"/metrics?limit=1000000&name={','.join(names)}")["items"]
        return sorted(found, key=lambda point: float(point["time"]))

    def when(self, state: str) -> float | None:
        """When it was first in a state."""
        return next((float(e["time"]) for e in self.get("/events")["items"] if e.get("state") == state), None)

    def wait(self, timeout: float) -> str:
        until(lambda: self.status["state"] in ENDED, f"the end of {self.name}", timeout, 0.1)
        return str(self.status["state"])

    def cancel(self) -> None:
        with Connection(self.server) as connection:
            connection.post(f"/v1/jobs/{self.name}/cancel")
        self.wait(60)


# ── killing ──


def kill(watched: Watched, chance: random.Random, count: int, role: str | None = None) -> list[str]:
    """kill -9 of all processes of so many running tasks; the names of those that were there."""
    running = [
        task
        for task in watched.status["tasks"]
        if task["state"] == "RUNNING"
        and task.get("pid")
        and (role is None or task["name"].startswith(f"{role}-"))
    ]
    killed = []
    for task in chance.sample(running, min(count, len(running))):
        others = children(task["pid"])  # what torchrun starts has a process group of its own
        with contextlib.suppress(ProcessLookupError):
            os.killpg(task["pid"], signal.SIGKILL)
            killed.append(str(task["name"]))
        for pid in others:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
    return killed


def children(pid: int) -> list[int]:
    found: list[int] = []
    with contextlib.suppress(OSError):
        for thread in Path(f"/proc/{pid}/task").glob("*/children"):
            found += map(int, thread.read_text().split())
    return found
