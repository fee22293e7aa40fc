"""The digits example, run as Weft runs it: four processes and their environment."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "digits"
TASKS = [("ps", 0), ("worker", 0), ("worker", 1), ("worker", 2)]


def free_ports(count: int) -> list[int]:
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [sock.getsockname()[1] for sock in sockets]
    for sock in sockets:
        sock.close()
    return ports


def start(folder: Path, updates: int) -> dict[str, subprocess.Popen[str]]:
    addresses = [f"127.0.0.1:{port}" for port in free_ports(len(TASKS))]
    shared = {
        **os.environ,
        "PYTHONPATH": str(ROOT / "src"),
        "WEFT_JOB": "digits",
        "WEFT_JOB_UID": "0123",
        "WEFT_LAUNCH": "1",
        "WEFT_WORLD_SIZE": "4",
        "WEFT_HOSTS": json.dumps({"ps": addresses[:1], "worker": addresses[1:]}),
        "OMP_NUM_THREADS": "1",
        "UPDATES": str(updates),
        "RESULT_DIR": str(folder),
        "CHECKPOINT_DIR": str(folder / "checkpoints"),
    }
    processes = {}
    for rank, (role, index) in enumerate(TASKS):
        name = f"{role}-{index}"
        own = {
            "WEFT_TASK": name,
            "WEFT_ROLE": role,
            "WEFT_INDEX": str(index),
            "WEFT_RANK": str(rank),
            "WEFT_METRICS_FILE": str(folder / f"{name}.jsonl"),
        }
        processes[name] = subprocess.Popen(
            [sys.executable, "train.py"],
            cwd=EXAMPLE,
            env={**shared, **own},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
    return processes


@pytest.mark.slow
def test_three_workers_and_a_server_learn_digits(tmp_path: Path) -> None:
    processes = start(tmp_path, updates=3000)
    try:
        said = {name: process.communicate(timeout=100)[0] for name, process in processes.items()}
    finally:
        for process in processes.values():
            process.kill()
    assert {name: process.returncode for name, process in processes.items()} == dict.fromkeys(processes, 0), (
        said
    )

    result = json.loads((tmp_path / "metrics.json").read_text())
    assert result["accuracy"] >= 0.9
    assert f"accuracy {result['accuracy']:.3f}\n" in said["worker-0"]
    with np.load(tmp_path / "model.npz") as model:
        assert model["w2"].shape == (64, 10)
    assert (tmp_path / "checkpoints" / "ps-0.snapshot").stat().st_size > 4 * (64 * 64 + 64 + 64 * 10 + 10)
    points = [json.loads(line) for file in tmp_path.glob("*.jsonl") for line in file.read_text().splitlines()]
    assert min(point["values"].get("loss", 9) for point in points) < 0.5
    assert {"step": result["updates"], "values": {"accuracy": result["accuracy"]}} in [
        {"step": point["step"], "values": point["values"]} for point in points
    ]
