"""From kill -9 of a task to its next training step: a parameter-server worker, and a PyTorch gang.

A worker's clock is its metrics. For the gang, the time until its processes are there again is told apart from what the
framework itself takes to start, which no scheduler can shorten. The gang needs torch (scripts/frameworks.py torch).
"""

from __future__ import annotations

import os
import signal
import statistics
import sys
import time
from itertools import pairwise
from typing import Any

from harness import (
    BENCHMARKS,
    PYTHON,
    Claim,
    Connection,
    Server,
    arguments,
    folder_on_disk,
    job,
    publish,
    spread,
    until,
)

EXAMPLES = BENCHMARKS.parent / "examples"
AT_ONCE = {"policy": "on-failure", "max": 1000, "backoff": "0s"}
sys.path.insert(0, str(BENCHMARKS.parent / "scripts"))

import frameworks  # noqa: E402


def main() -> None:
    options = arguments(__doc__ or "").parse_args()
    kills = 2 if options.quick else 7
    python = frameworks.python_of("torch")
    if python is None:
        raise SystemExit("torch is not there: .venv/bin/python scripts/frameworks.py torch")
    with folder_on_disk() as folder, Server(folder / "home", "--cpu", "8") as server:
        worker, pause = of_a_worker(server, kills)
        resized = while_resized(server)
        gang, start = of_a_gang(server, str(python), max(2, kills // 2))
    claims = [
        Claim(
            "kill -9 of a parameter-server worker to its next update", statistics.median(worker), 1.0, " s"
        ),
        Claim("the longest that the other workers paused meanwhile", max(pause), 1.0, " s"),
        Claim("… and while the job was resized from 2 workers to 4 and to 1", max(resized), 1.0, " s"),
        Claim(
            "kill -9 of a task of a PyTorch gang until all its tasks are started again",
            statistics.median(gang),
            1.0,
            " s",
        ),
    ]
    details = {
        "worker": spread(worker, 3),
        "othersPaused": spread(pause, 3),
        "pausedWhileResized": spread(resized, 3),
        "gang": spread(gang, 3),
        "thenToItsNextStep": spread(start, 3),
    }
    publish("recovery", claims, details, options.quick)


# ── a worker among parameter servers ──


def of_a_worker(server: Server, kills: int) -> tuple[list[float], list[float]]:
    """Seconds until the killed worker has counted again, and the longest silence of the others."""
    back, pauses = [], []
    with Connection(server) as connection:
        connection.submit(digits("digits", replicas=3))
        until(lambda: len({p["task"] for p in points(connection, "digits")}) == 3, "all workers to learn")
        for _ in range(kills):
            time.sleep(1.0)
            killed = kill(connection, "digits", "worker-1")
            until(
                lambda after=killed: bool(since(connection, "digits", after, "worker-1")), "its next update"
            )
            found = points(connection, "digits")
            back.append(
                min(p["time"] for p in found if p["task"] == "worker-1" and p["time"] > killed) - killed
            )
            for other in ("worker-0", "worker-2"):
                times = [p["time"] for p in found if p["task"] == other and p["time"] > killed - 1]
                pauses.append(max((b - a for a, b in pairwise(times)), default=0.0))
        connection.post("/v1/jobs/digits/cancel")
    return back, pauses


def while_resized(server: Server) -> list[float]:
    """The longest silence of the worker that stays, at each of two changes of size."""
    pauses = []
    with Connection(server) as connection:
        connection.submit(digits("elastic", replicas=2, minReplicas=1, maxReplicas=4))
        until(lambda: len({p["task"] for p in points(connection, "elastic")}) == 2, "both workers to learn")
        for size in (4, 1):
            time.sleep(1.0)
            then = time.time()
            connection.post("/v1/jobs/elastic/scale", {"roles": {"worker": size}})
            until(
                lambda size=size, then=then: learning(connection, "elastic", then) == size, f"{size} to learn"
            )
            times = [p["time"] for p in since(connection, "elastic", then - 1, "worker-0")]
            pauses.append(max(b - a for a, b in pairwise(times)))
        connection.post("/v1/jobs/elastic/cancel")
    return pauses


def learning(connection: Connection, name: str, then: float) -> int:
    """How many workers are there, if all of them have counted after the change and just now; else none."""
    tasks = connection.get(f"/v1/jobs/{name}")["status"]["tasks"]
    there = {
        task["name"] for task in tasks if task["state"] == "RUNNING" and task["name"].startswith("worker")
    }
    told = {p["task"] for p in points(connection, name) if p["time"] > max(then, time.time() - 1)}
    return len(there) if there == told else 0


def digits(name: str, **workers: int) -> dict[str, Any]:
    return job(
        name,
        [PYTHON, str(EXAMPLES / "digits" / "train.py")],
        type="parameter-server",
        env={"UPDATES": "100000000", "OMP_NUM_THREADS": "1"},
        restart=AT_ONCE,
        grace="1s",
        roles={"ps": {"resources": {"cpu": 0.5}}, "worker": {**workers, "resources": {"cpu": 0.5}}},
    )


# ── a gang that starts again as a whole ──


def of_a_gang(server: Server, python: str, kills: int) -> tuple[list[float], list[float]]:
    """Seconds from the kill to all processes started again, and from there to the next step."""
    back, starts = [], []
    with Connection(server) as connection:
        for number in range(kills):
            name = f"gang-{number}"
            document = job(
                name,
                [python, str(EXAMPLES / "pytorch" / "train.py")],
                type="pytorch",
                env={"PAUSE": "0.05", "STEPS": "100000"},
                restart=AT_ONCE,
                grace="1s",
                roles={"worker": {"replicas": 2, "resources": {"cpu": 0.5}}},
            )
            connection.submit(document)
            until(lambda name=name: len(points(connection, name)) > 20, "some steps", 120)
            killed = kill(connection, name, "worker-1")
            until(lambda name=name, after=killed: bool(again(connection, name, after)), "its next step", 120)
            launched = [e["time"] for e in events(connection, name) if e.get("state") == "PROCESSING"][-1]
            back.append(launched - killed)
            starts.append(again(connection, name, killed)[0]["time"] - launched)
            connection.post(f"/v1/jobs/{name}/cancel")
            until(lambda name=name: state(connection, name) == "CANCELLED", "its end")
    return back, starts


def again(connection: Connection, name: str, killed: float) -> list[dict[str, Any]]:
    """Steps of the run after the kill: what was already on its way when the others noticed does not count."""
    launched = [e["time"] for e in events(connection, name) if e.get("state") == "PROCESSING"]
    if len(launched) < 2:
        return []
    return [p for p in points(connection, name) if p["time"] > launched[-1] > killed]


# ── asking the server ──


def points(connection: Connection, name: str) -> list[dict[str, Any]]:
    found = connection.get(f"/v1/jobs/{name}/metrics?limit=100000")["items"]
    return [point for point in found if point["name"] == "loss"]


def since(connection: Connection, name: str, then: float, task: str) -> list[dict[str, Any]]:
    return [point for point in points(connection, name) if point["task"] == task and point["time"] > then]


def events(connection: Connection, name: str) -> list[dict[str, Any]]:
    return list(connection.get(f"/v1/jobs/{name}/events")["items"])


def state(connection: Connection, name: str) -> str:
    return str(connection.get(f"/v1/jobs/{name}")["status"]["state"])


def kill(connection: Connection, name: str, task: str) -> float:
    tasks = connection.get(f"/v1/jobs/{name}")["status"]["tasks"]
    pid = next(one["pid"] for one in tasks if one["name"] == task)
    now = time.time()
    os.killpg(pid, signal.SIGKILL)
    return now


if __name__ == "__main__":
    main()
