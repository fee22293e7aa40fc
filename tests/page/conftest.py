"""One server, one browser and one set of jobs for all tests of the page; each test has a browser context of its own."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "scripts"))
sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parents[1] / "machine"))
sys.path.insert(0, str(Path(__file__).parent))

from harness import QuickServer, Server
from jobs import Jobs, fill
from pages import AXE, BUILT, Reader, Visit
from playwright.sync_api import Browser, sync_playwright


def lacking() -> str | None:
    """What these tests need and this machine has not."""
    if shutil.which("chromium") is None:
        return "no chromium: apt-get install chromium (make system-test-packages)"
    if not (BUILT / "index.html").exists() or not AXE.exists():
        return "the page is not built: make install (without WEFT_NO_PAGE)"
    return None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    cause = lacking()
    assert not (cause and os.environ.get("CI")), cause
    for item in items:
        item.add_marker(pytest.mark.machine)
        if cause:
            item.add_marker(pytest.mark.skip(cause))


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(
            executable_path=shutil.which("chromium"), args=["--no-sandbox", "--disable-dev-shm-usage"]
        )
        yield chromium
        chromium.close()


@pytest.fixture(scope="session")
def new_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., Server]]:
    servers: list[Server] = []

    def make(*arguments: str) -> Server:
        server = QuickServer(tmp_path_factory.mktemp("page") / "home", arguments, {})
        servers.append(server)
        return server.start()

    yield make
    for server in servers:
        for name in [item["metadata"]["name"] for item in server.get("/v1/jobs", limit=1000).json["items"]]:
            server.ask(name, "cancel")
        server.close()
    QuickServer.close_zygote()


@pytest.fixture(scope="session")
def server(new_server: Callable[..., Server]) -> Server:
    """Four nodes with eight GPUs."""
    return new_server(
        "--nodes", "4", "--cpu", "32", "--gpus", "8", "--gpu-type", "a100", "--gpu-memory", "80Gi"
    )


@pytest.fixture(scope="session")
def caching(new_server: Callable[..., Server]) -> Server:
    """Two nodes, each with a cache of its own for data."""
    return new_server("--nodes", "2", "--cpu", "8", "--cache", "64Mi")


@pytest.fixture(scope="session")
def jobs(server: Server) -> Jobs:
    """Jobs in every kind of state, real ones."""
    return fill(server)


@pytest.fixture(scope="session")
def visit(browser: Browser) -> Visit:
    return Visit(browser)


@pytest.fixture
def reader(server: Server, visit: Visit) -> Iterator[Reader]:
    """Somebody who is signed in, on a desk. At the end the page must have had nothing to complain about."""
    with visit.signed_in(server) as found:
        yield found
