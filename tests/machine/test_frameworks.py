"""Every job type with its real framework, in an environment of its own (scripts/frameworks.py makes them)."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from harness import Server, package

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "scripts"))

import frameworks  # noqa: E402

New = Callable[..., Server]


def python_of(name: str) -> str:
    """In CI a framework that is not there is a failure; elsewhere its test says what is missing."""
    python = frameworks.python_of(name)
    if python is None:
        told = f"{name} is not installed for the tests: python scripts/frameworks.py {name}"
        pytest.fail(told) if os.environ.get("CI") else pytest.skip(told)
    return str(python)


def trained(
    server: Server, kind: str, environment: str, workers: int = 2, timeout: float = 90, **spec: object
) -> dict:
    """The type's example, run to its end."""
    python = python_of(environment)
    digest = server.put_package(package({"train.py": (ROOT / "examples" / kind / "train.py").read_text()})[1])
    document = {
        "metadata": {"name": kind},
        "spec": {
            "type": kind,
            "code": {"package": digest},
            "command": [python, "train.py"],
            "roles": {"worker": {"replicas": workers, "resources": {"cpu": 0.5}}},
            **spec,
        },
    }
    return server.run(document, "COMPLETED", timeout=timeout)


def series(server: Server, name: str, metric: str) -> list[float]:
    return [point["value"] for point in server.metrics(name) if point["name"] == metric]


def test_pytorch(new_server: New):
    server = new_server()
    trained(server, "pytorch", "torch")
    assert {"rank 0 of 2, from step 0", "rank 1 of 2, from step 0"} <= {*server.text("pytorch")}
    losses = series(server, "pytorch", "loss")
    assert len(losses) == 60
    assert losses[-1] < losses[0] / 3
    assert series(server, "pytorch", "accuracy")[-1] > 0.95


def test_a_pytorch_gang_starts_again_as_a_whole_from_its_checkpoint(new_server: New):
    server = new_server()
    restart = {"policy": "on-failure", "max": 2, "backoff": "0s"}
    done = trained(server, "pytorch", "torch", restart=restart, env={"FAIL_AT": "35"}, grace="2s")
    assert done["status"]["restarts"] >= 1
    assert {"rank 0 of 2, from step 31", "rank 1 of 2, from step 31"} <= {*server.text("pytorch")}
    assert series(server, "pytorch", "accuracy")[-1] > 0.95


def test_jax(new_server: New):
    server = new_server()
    trained(server, "jax", "jax")
    assert {"rank 0 of 2, 2 devices", "rank 1 of 2, 2 devices"} <= {*server.text("jax")}
    assert server.text("jax").count("weights [1.0, -2.0, 3.0, 0.5]") == 2


def test_xgboost(new_server: New):
    server = new_server()
    trained(server, "xgboost", "xgboost")
    assert {"rank 0 of 2", "rank 1 of 2"} <= {*server.text("xgboost")}
    errors = series(server, "xgboost", "error")
    assert errors[-1] < 0.1 < errors[0]


def test_tensorflow(new_server: New):
    server = new_server()
    trained(server, "tensorflow", "tensorflow", timeout=150)
    assert {"worker 0, 2 replicas", "worker 1, 2 replicas"} <= {*server.text("tensorflow")}
    losses = series(server, "tensorflow", "loss")
    assert losses[-1] < 0.01 < losses[0]
