"""Overview: who is where, how full it is, what happened lately, what needs attention; all of it as it changes."""

from __future__ import annotations

import contextlib
import re
import sqlite3
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from harness import Server, sh, until
from jobs import Jobs
from pages import Reader, Visit
from playwright.sync_api import expect


@pytest.fixture(autouse=True)
def _there(jobs: Jobs) -> None:
    """Every test here looks at the same jobs."""


def test_every_node_is_on_the_map_with_its_gpus_coloured_by_job(
    reader: Reader, server: Server, jobs: Jobs
) -> None:
    page = reader.go("/")
    nodes = server.get("/v1/nodes").json["items"]
    for node in nodes:
        card = page.get_by_role("listitem", name=re.compile(f"^Node {node['name']}:"))
        expect(card.locator(".map-gpu")).to_have_count(node["capacity"]["gpu"])
        taken = {gpu for task in node["tasks"] for gpu in task["gpus"]}
        expect(card.locator(".map-gpu.taken")).to_have_count(len(taken))
    expect(page.locator(f'.map-gpu[data-job="{jobs.gang}"]')).to_have_count(4)


def test_a_gang_lights_up_as_one(reader: Reader, jobs: Jobs) -> None:
    page = reader.go("/")
    cells = page.locator(f'.map-gpu[data-job="{jobs.gang}"]')
    cells.first.hover()
    expect(page.locator(".map-gpu.lit")).to_have_count(4)
    page.get_by_role("heading", name="Overview").hover()
    expect(page.locator(".lit")).to_have_count(0)
    page.get_by_role("list", name="Jobs on the cluster").get_by_role("link", name=jobs.gang).focus()
    expect(page.locator(".map-gpu.lit")).to_have_count(4)


def test_a_gpu_leads_to_its_job(reader: Reader, jobs: Jobs) -> None:
    page = reader.go("/")
    page.locator(f'.map-gpu[data-job="{jobs.gang}"]').first.click()
    expect(page.get_by_role("heading", name=jobs.gang)).to_be_visible()
    assert page.url.endswith(f"/jobs/{jobs.gang}")


def test_what_starts_and_ends_is_seen(reader: Reader, server: Server) -> None:
    page = reader.go("/")
    started = page.locator(".panel", has=page.get_by_role("heading", name="Started lately"))
    finished = page.locator(".panel", has=page.get_by_role("heading", name="Finished lately"))
    expect(started.get_by_role("link").first).to_be_visible()
    name = server.submit(sh("sleep 600", name="seen-at-once"))
    server.wait_for(name, "PROCESSING")
    expect(started.get_by_role("link", name=name)).to_be_visible()
    expect(page.locator(f'.map-bar [data-job="{name}"]').first).to_be_visible()
    server.ask(name, "cancel")
    server.wait_for(name, "CANCELLED")
    expect(finished.get_by_role("link", name=name)).to_be_visible()
    expect(page.locator(f'[data-job="{name}"]')).to_have_count(0)


def test_what_needs_attention_is_named_with_its_cause(reader: Reader, server: Server, jobs: Jobs) -> None:
    node = server.get("/v1/nodes").json["items"][-1]["name"]
    page = reader.go("/")
    attention = page.locator(".panel", has=page.get_by_role("heading", name="Needs attention"))
    expect(attention).to_contain_text(f"{jobs.never} can never start")
    expect(attention).to_contain_text(f"{jobs.failed} failed")
    server.post(f"/v1/nodes/{node}/cordon?reason=loud+fan")
    try:
        expect(attention).to_contain_text(f"node {node} cordoned")
        expect(attention).to_contain_text("loud fan")
        card = page.get_by_role("listitem", name=re.compile(f"^Node {node}:.*cordoned"))
        expect(card).to_contain_text("cordoned: loud fan")
        free = [gpu for gpu in state_of(server, node)["gpus"] if gpu["free"] == 1]
        expect(card.locator(".map-gpu.cordoned")).to_have_count(len(free))
        expect(card.locator(".map-gpu.free")).to_have_count(0)
    finally:
        server.post(f"/v1/nodes/{node}/uncordon")
    expect(attention).not_to_contain_text("loud fan")
    expect(page.locator(".map-node .map-gpu.cordoned")).to_have_count(0)


def state_of(server: Server, node: str) -> Any:
    return next(each for each in server.get("/v1/nodes").json["items"] if each["name"] == node)


@pytest.fixture
def promising(new_server: Callable[..., Server]) -> Iterator[Server]:
    """A job waits for CPUs, so long already that a start is promised to it, with two of the five GPUs."""
    server = new_server("--cpu", "8", "--gpus", "5")
    much = {"worker": {"resources": {"cpu": 6, "gpu": 1}}}
    server.run(sh("exec sleep 600", name="runs", deadline="10m", roles=much), "PROCESSING")
    server.submit(sh("true", name="waits", roles={"worker": {"resources": {"cpu": 4, "gpu": 2}}}))
    server.wait_for("waits", "QUEUED")
    server.stop()
    long_ago = (
        "update resources set status = json_set(status, '$.queued', json_extract(status, '$.queued') - 1000)"
    )
    with contextlib.closing(sqlite3.connect(server.home / "weft.db")) as database, database:
        database.execute(f"{long_ago} where name = 'waits'")
    yield server.start()
    for job in ("runs", "waits"):
        server.ask(job, "cancel")


def test_gpus_that_are_kept_for_a_job_are_those_that_were_promised(promising: Server, visit: Visit) -> None:
    until(lambda: promising.nodes()[0]["promised"], "a start to be promised")
    (node,) = promising.nodes()
    (promised,) = node["promised"]
    free = {gpu["index"] for gpu in node["gpus"] if gpu["free"] == 1}
    assert (len(promised["gpus"]), len(free)) == (2, 4)
    with visit.signed_in(promising) as reader:
        card = reader.go("/").get_by_role("listitem", name=re.compile("^Node .*2 GPUs kept for waits"))
        kept = free & {*promised["gpus"]}
        expect(card.locator(".map-gpu.promised")).to_have_count(len(kept))
        expect(card.locator(".map-gpu.free")).to_have_count(len(free - kept))
        expect(card.locator(".map-gpu.taken")).to_have_count(1)
        for index in kept:
            expect(card.get_by_title(f"GPU {index}: free, kept for waits from")).to_have_class(
                "map-gpu promised"
            )
        expect(card).to_contain_text("for waits")


def test_numbers_and_utilization_are_those_of_the_server(reader: Reader, server: Server) -> None:
    page = reader.go("/")
    nodes = server.get("/v1/nodes").json["items"]
    total = sum(node["capacity"]["gpu"] for node in nodes)
    used = total - sum(node["free"]["gpu"] for node in nodes)
    expect(page.locator(".tile", has_text="GPUs")).to_contain_text(f"{used:g} of {total}")
    expect(page.get_by_role("img", name="Share given to jobs").locator("canvas")).to_be_visible()
    expect(page.get_by_role("img", name="Jobs running and waiting").locator("canvas")).to_be_visible()
    page.get_by_role("button", name="24h").click()
    assert page.url.endswith("?span=24h")
