"""Makes `tests/support` importable and sets how hard hypothesis tries (`HYPOTHESIS_PROFILE=deep`)."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

TESTS = str(Path(__file__).parents[1])
if TESTS not in sys.path:
    sys.path.insert(0, TESTS)

CHECKS = [HealthCheck.too_slow, HealthCheck.function_scoped_fixture, HealthCheck.data_too_large]
settings.register_profile(
    "quick", max_examples=40, deadline=None, suppress_health_check=CHECKS, print_blob=True
)
settings.register_profile(
    "deep", max_examples=3000, deadline=None, suppress_health_check=CHECKS, print_blob=True
)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "quick"))


@pytest.fixture
def fast_folder() -> Iterator[Path]:
    """A folder in memory where there is one, for databases whose durability is not what is tested."""
    memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    with tempfile.TemporaryDirectory(prefix="weft-test-", dir=memory) as folder:
        yield Path(folder)


@pytest.fixture
def on_a_machine(fast_folder: Path) -> Any:
    from support.machine import told_in

    return told_in(fast_folder)


@pytest.fixture
def pod(fast_folder: Path) -> Iterator[Any]:
    from support.pod import Pod

    made = Pod(fast_folder)
    yield made
    made.close()


# ── a node that reads from an origin: its store, a version of 20 samples, the server, the agent ──


@pytest.fixture
def store(fast_folder: Path) -> Any:
    from support.datasets import Store

    return Store(fast_folder / "store")


@pytest.fixture
def version(store: Any) -> str:
    from support.datasets import SAMPLES

    name: str = store.add(SAMPLES)
    return name


@pytest.fixture
def origin(store: Any) -> Iterator[Any]:
    from support.datasets import OriginServer

    with OriginServer(store) as served:
        yield served


@pytest.fixture
def node(fast_folder: Path, origin: Any) -> Iterator[Any]:
    from support.datasets import Here
    from weft.data.agent.origins import Server

    with Here(fast_folder, Server(origin.url)) as made:
        yield made
