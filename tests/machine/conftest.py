from __future__ import annotations

import os
import sys
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import TypeVar

import pytest

sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parent))

from harness import QuickServer, Server

Report = TypeVar("Report", pytest.TestReport, pytest.CollectReport)


def present(report: Report) -> Report:
    """Where a test says what it lacks, CI has failed: its machine is one on which everything can be had."""
    if report.skipped and os.environ.get("CI"):
        report.outcome = "failed"
        report.longrepr = f"may not be left out in CI: {report.longrepr}"
    return report


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    return present((yield))


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report() -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    return present((yield))


@pytest.fixture(scope="session", autouse=True)
def _zygote() -> Iterator[None]:
    yield
    QuickServer.close_zygote()


@pytest.fixture
def new_server(tmp_path: Path) -> Iterator[Callable[..., Server]]:
    """Servers of a test's own shape; each is stopped at the end and must leave nothing behind."""
    servers: list[Server] = []

    def make(
        *arguments: str,
        home: str | Path = "home",
        start: bool = True,
        kind: type = QuickServer,
        **environ: str,
    ) -> Server:
        server = kind(tmp_path / home, arguments, environ)
        servers.append(server)
        return server.start() if start else server

    yield make
    problems = []
    for server in servers:
        try:
            server.close()
        except AssertionError as problem:
            problems.append(str(problem))
    assert not problems, problems


@pytest.fixture
def server(new_server: Callable[..., Server]) -> Server:
    """A server with room for many small tasks: 16 CPUs declared, so none is exclusive."""
    return new_server("--cpu", "16")
