"""A training of two processes under Weft, against the same two started by hand on the same CPUs.

Rounds run by hand, Weft, Weft, by hand: a machine that grows slower during a round slows both alike.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import time
from dataclasses import dataclass, field
from typing import Any

from harness import (
    BENCHMARKS,
    PYTHON,
    Claim,
    Connection,
    Server,
    arguments,
    clean_memory,
    folder_on_disk,
    job,
    print_table,
    publish,
    spread,
)

WORK = str(BENCHMARKS / "fixed_work.py")
TASKS = 2
LIMIT = 1.01


@dataclass
class Times:
    inside: list[float] = field(default_factory=list)
    """Of each process, from its first step to its last."""
    cpu: list[float] = field(default_factory=list)
    wall: list[float] = field(default_factory=list)
    """Of each run, from the first start to the last end."""

    def add(self, lines: list[str], wall: float) -> None:
        measured = [json.loads(line) for line in lines]
        self.inside += [one["seconds"] for one in measured]
        self.cpu += [one["cpu"] for one in measured]
        self.wall.append(wall)

    def dump(self) -> dict[str, Any]:
        return {name: spread(getattr(self, name), 4) for name in ("inside", "cpu", "wall")}


def main() -> None:
    parser = arguments(__doc__ or "")
    parser.add_argument("--seconds", type=float, default=None, help="of one run, about")
    options = parser.parse_args()
    rounds = 1 if options.quick else 6
    cpus = sorted(os.sched_getaffinity(0))[:TASKS]
    if len(cpus) < TASKS:
        raise SystemExit(f"needs {TASKS} CPUs")
    clean_memory()
    steps = steps_for(options.seconds or (1.5 if options.quick else 5.0), cpus)
    by_hand, under_weft = Times(), Times()
    with folder_on_disk() as folder, Server(folder / "home") as server:
        for number in range(rounds):
            run_by_hand(steps, cpus, by_hand)
            run_under_weft(server, f"train-{number}-a", steps, under_weft)
            run_under_weft(server, f"train-{number}-b", steps, under_weft)
            run_by_hand(steps, cpus, by_hand)
    ratios = {
        name: statistics.median(getattr(under_weft, name)) / statistics.median(getattr(by_hand, name))
        for name in ("inside", "cpu", "wall")
    }
    rows = [
        (
            what,
            *(f"{statistics.median(getattr(times, name)):.3f}" for times in (by_hand, under_weft)),
            f"{ratios[name]:.4f}",
        )
        for name, what in (
            ("inside", "first step to last step"),
            ("cpu", "CPU time of these steps"),
            ("wall", "submitted or spawned, to all ended"),
        )
    ]
    print_table((f"{TASKS} processes of {steps} steps, seconds", "by hand", "Weft", "ratio"), rows)
    claim = Claim(
        "Training under Weft against the same processes started by hand",
        ratios["inside"],
        LIMIT,
        "×",
        digits=4,
    )
    details = {
        "steps": steps,
        "seconds": {"byHand": by_hand.dump(), "weft": under_weft.dump()},
        "ratios": {name: round(ratio, 4) for name, ratio in ratios.items()},
    }
    publish("overhead", [claim], details, options.quick)


def steps_for(seconds: float, cpus: list[int]) -> int:
    """How many steps take about so long here, with every CPU in use; the same number for every run."""
    probe, trial = Times(), 400
    run_by_hand(trial, cpus, probe)
    return max(100, round(trial * seconds / statistics.median(probe.inside)))


def run_by_hand(steps: int, cpus: list[int], times: Times) -> None:
    begin = time.perf_counter()
    processes = [
        subprocess.Popen(
            ["taskset", "-c", str(cpu), PYTHON, WORK, str(steps)], stdout=subprocess.PIPE, text=True
        )
        for cpu in cpus
    ]
    printed = [process.communicate()[0] for process in processes]
    wall = time.perf_counter() - begin
    if any(process.returncode for process in processes):
        raise SystemExit("a training started by hand failed")
    times.add([text.splitlines()[-1] for text in printed], wall)


def run_under_weft(server: Server, name: str, steps: int, times: Times) -> None:
    """One job of two tasks with a CPU each, which Weft pins as the other way does by hand."""
    roles = {"worker": {"replicas": TASKS, "resources": {"cpu": 1}}}
    document = job(name, [PYTHON, WORK, str(steps)], roles=roles)
    with Connection(server) as waiting, Connection(server) as connection:
        begin = time.perf_counter()
        connection.submit(document)
        waiting.ended(name)
        wall = time.perf_counter() - begin
        status = connection.get(f"/v1/jobs/{name}")["status"]
        if status["state"] != "COMPLETED":
            raise SystemExit(f"{name} is {status['state']}: {status.get('reason')}")
        logs = [connection.get(f"/v1/jobs/{name}/logs?task=worker-{n}&tail=1") for n in range(TASKS)]
    times.add([log["items"][-1]["text"] for log in logs], wall)


if __name__ == "__main__":
    main()
