"""Queues on the page: shares, who uses what, and the line with its expected starts."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from harness import Server, sh
from pages import Reader
from playwright.sync_api import Locator, Page, expect


@pytest.fixture(scope="module")
def own_server(new_server: Callable[..., Server]) -> Server:
    return new_server("--nodes", "2", "--cpu", "16", "--gpus", "4")


@pytest.fixture
def server(own_server: Server) -> Iterator[Server]:
    """Four virtual GPUs on two nodes, all free, and no queue but the default."""
    yield own_server
    for job in own_server.get("/v1/jobs").json["items"]:
        own_server.ask(job["metadata"]["name"], "cancel")
        own_server.wait_for(job["metadata"]["name"])
        assert own_server.delete(job["metadata"]["name"]).status == 204
    for queue in reversed(own_server.get("/v1/queues").json["items"][1:]):
        assert own_server.call("DELETE", f"/v1/queues/{queue['metadata']['name']}").status == 204


def declare(server: Server, name: str, **spec: Any) -> None:
    answer = server.call("PUT", f"/v1/queues/{name}", {"kind": "Queue", "spec": spec})
    assert answer.status in (200, 201), answer.body


def on_gpus(name: str, queue: str = "default", gpu: float = 1, **spec: Any) -> dict:
    roles = {"worker": {"resources": {"cpu": 1, "gpu": gpu}}}
    return sh("exec sleep 1000", name=name, queue=queue, grace="2s", roles=roles, **spec)


def share(page: Page, queue: str) -> Locator:
    return page.locator(f'[data-queue="{queue}"]')


def row(page: Page, job: str) -> Locator:
    line = page.get_by_role("table", name="What runs, and what waits")
    return line.get_by_role("row").filter(has=page.get_by_role("link", name=job, exact=True))


def test_a_queue_shows_what_it_uses_is_guaranteed_and_has_borrowed(server: Server, reader: Reader) -> None:
    declare(server, "lab", guarantee={"gpu": 2})
    declare(server, "vision", parent="lab", guarantee={"gpu": 1})
    declare(server, "small", limit={"gpu": 1})
    declare(server, "archive", closed=True)
    for number in range(3):
        server.run(on_gpus(f"v-{number}", "vision"), "PROCESSING")
    page = reader.go("/queues")
    bar = share(page, "lab").get_by_role("img")
    expect(bar).to_have_accessible_name("3 of 4 used, 2 guaranteed, 1 borrowed")
    expect(share(page, "vision").get_by_role("img")).to_have_accessible_name(
        "3 of 4 used, 1 guaranteed, 2 borrowed"
    )
    expect(share(page, "small").get_by_role("img")).to_have_accessible_name("0 of 4 used, limited to 1")
    expect(share(page, "archive")).to_contain_text("closed")
    expect(share(page, "lab")).to_contain_text("3 running")
    names = page.locator("[data-queue]").evaluate_all("rows => rows.map(row => row.dataset.queue)")
    assert names.index("vision") == names.index("lab") + 1  # what is part of a queue is right below it

    page.get_by_role("group", name="Shown by").get_by_role("button", name="CPUs").click()
    expect(bar).to_have_accessible_name("3 of 16 used")
    expect(page).to_have_url(re.compile(r"by=cpu"))
    share(page, "vision").get_by_role("link").click()
    expect(page).to_have_url(re.compile(r"/jobs\?queue=vision"))


def test_the_line_shows_in_which_order_jobs_start_and_when(server: Server, reader: Reader) -> None:
    server.run(on_gpus("runs", gpu=2, deadline="10m"), "PROCESSING")
    server.run(on_gpus("runs-too", gpu=2, deadline="30m"), "PROCESSING")
    server.submit(on_gpus("first", gpu=2))
    server.submit(on_gpus("second", gpu=2))
    server.submit(on_gpus("never", gpu=3))
    page = reader.go("/queues")
    expect(row(page, "first")).to_contain_text(re.compile(r"^1.*in (9|10)m"))
    expect(row(page, "second")).to_contain_text(re.compile(r"^2.*in \d+m"))
    expect(row(page, "never")).to_contain_text("never")
    expect(row(page, "never")).to_contain_text("can never start here: needs 1 cpu, 3 gpu")
    expect(row(page, "runs")).to_contain_text(re.compile(r"should end in (9|10)m"))

    began, ended = (box(row(page, "runs"), n) for n in (0, 1))
    waits = box(row(page, "first"), 0)
    assert abs(began["x"] + began["width"] - ended["x"]) < 12  # what it has had, then what is left
    assert abs(waits["x"] - (ended["x"] + ended["width"])) < 12  # it starts where the other ends
    assert box(row(page, "second"), 0)["x"] > waits["x"]

    server.ask("runs", "cancel")  # and the line moves up, on its own
    expect(row(page, "first")).to_contain_text("runs")
    expect(row(page, "runs")).to_have_count(0)


def box(of: Locator, bar: int) -> Any:
    found = of.locator(".gantt-bar").nth(bar).bounding_box()
    assert found is not None
    return found


def test_who_uses_what(server: Server, reader: Reader) -> None:
    declare(server, "lab", userLimit={"gpu": 2})
    server.run(on_gpus("a", "lab", gpu=2), "PROCESSING")
    server.submit(on_gpus("b", "lab"))
    page = reader.go("/queues")
    owner = server.get("/v1/jobs/a").json["metadata"]["owner"]
    user = page.get_by_role("table", name="Users").get_by_role("row").filter(has_text="lab")
    expect(user.get_by_role("cell")).to_have_text([owner, "lab", "2", "1", "0 B", "1", "1", "2 gpu"])
    expect(row(page, "b")).to_contain_text("1")
    server.ask("b", "cancel")
    expect(user.get_by_role("cell").nth(6)).to_have_text("0")
