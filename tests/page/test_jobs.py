"""Jobs: found by words and states that the address keeps, and acted on one by one or many at once."""

from __future__ import annotations

import os
import re
import statistics
import subprocess
import sys
from collections.abc import Callable

import pytest
from harness import Server, sh
from jobs import Jobs
from pages import ROOT, Reader, Visit
from playwright.sync_api import Locator, Page, expect

SCROLLED = """
async (table) => {
  const frames = [], rows = [];
  const middle = (box) => [box.left + box.width / 2, box.top + box.height / 2];
  const empty = () => !document.elementFromPoint(...middle(table.getBoundingClientRect()))?.closest("[role=row]");
  let last = performance.now(), blank = 0;
  for (let n = 0; n < 100; n += 1) {
    table.scrollTop += table.scrollHeight / 100;
    await new Promise(requestAnimationFrame);
    const now = performance.now();
    frames.push(now - last);
    rows.push(table.querySelectorAll("[role=row]").length);
    for (let more = 0; more < 30 && empty(); more += 1) await new Promise(requestAnimationFrame);
    blank += empty();
    last = performance.now();
  }
  table.scrollTop = table.scrollHeight;
  return {frames, rows, blank};
}
"""
"""From the first row to the last in a hundred steps: how long each took to draw, how many rows there were, and how often there
was none where one looks, also half a second later."""


@pytest.fixture(autouse=True)
def _there(jobs: Jobs) -> None:
    """Every test here looks at the same jobs."""


def row(page: Page, name: str) -> Locator:
    return page.get_by_role("row").filter(has=page.get_by_role("link", name=name, exact=True))


def state(page: Page, name: str, word: str) -> None:
    expect(row(page, name).locator(f'[data-state="{word}"]')).to_be_visible()


def test_a_row_says_state_reason_progress_owner_and_gpus(reader: Reader, server: Server, jobs: Jobs) -> None:
    page = reader.go("/jobs")
    state(page, jobs.gang, "PROCESSING")
    expect(row(page, jobs.gang)).to_contain_text("%")
    expect(row(page, jobs.gang)).to_contain_text(server.job(jobs.gang)["metadata"]["owner"])
    expect(row(page, jobs.gang).get_by_role("cell").nth(5)).to_have_text("4")
    expect(row(page, jobs.never)).to_contain_text("can never start")
    expect(row(page, jobs.failed)).to_contain_text("exited with code 1")


def test_words_and_states_are_in_the_address(reader: Reader, jobs: Jobs) -> None:
    page = reader.go("/jobs")
    expect(row(page, jobs.failed)).to_be_visible()
    page.keyboard.press("/")
    page.keyboard.type("sweep")
    expect(row(page, jobs.gang)).to_have_count(0)
    assert "q=sweep" in page.url
    page.reload()
    expect(page.get_by_role("searchbox", name="Search jobs")).to_have_value("sweep")
    expect(row(page, jobs.failed)).to_be_visible()
    expect(row(page, jobs.gang)).to_have_count(0)
    page.goto(f"{reader.address}/jobs?state=halted")
    expect(row(page, jobs.halted)).to_be_visible()
    expect(row(page, jobs.failed)).to_have_count(0)
    page.get_by_role("button", name=re.compile("^Failed")).click()
    expect(row(page, jobs.failed)).to_be_visible()
    assert "state=failed" in page.url
    page.goto(f"{reader.address}/jobs?q=no-such-job")
    page.get_by_role("button", name="Show all").click()
    expect(row(page, jobs.gang)).to_be_visible()


def test_the_head_sorts(reader: Reader, jobs: Jobs) -> None:
    page = reader.go("/jobs?q=wants")
    names = page.get_by_role("row").get_by_role("link")
    expect(names).to_have_count(2)
    page.get_by_role("columnheader", name="Name").get_by_role("button").click()
    expect(names).to_have_text([jobs.waits, jobs.never])
    assert "sort=name" in page.url
    expect(page.get_by_role("columnheader", name="Name")).to_have_attribute("aria-sort", "ascending")
    page.get_by_role("columnheader", name="Name").get_by_role("button").click()
    expect(names).to_have_text([jobs.never, jobs.waits])
    assert "sort=-name" in page.url


def test_keys_move_pick_and_open(reader: Reader, jobs: Jobs) -> None:
    page = reader.go(f"/jobs?q={jobs.gang}")
    expect(row(page, jobs.gang)).to_be_visible()
    page.keyboard.press("j")
    page.keyboard.press("x")
    expect(page.get_by_role("toolbar", name="Picked jobs")).to_contain_text("1 job")
    page.keyboard.press("Escape")
    expect(page.get_by_role("toolbar", name="Picked jobs")).to_have_count(0)
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", name=jobs.gang)).to_be_visible()


def test_a_job_comes_and_goes(reader: Reader, server: Server) -> None:
    page = reader.go("/jobs")
    expect(page.get_by_role("row").nth(1)).to_be_visible()
    name = server.submit(sh("sleep 600", name="appears"))
    expect(row(page, name)).to_be_visible()
    server.wait_for(name, "PROCESSING")
    state(page, name, "PROCESSING")
    server.ask(name, "cancel")
    state(page, name, "CANCELLED")
    server.delete(name)
    expect(row(page, name)).to_have_count(0)


def test_halting_can_be_undone(reader: Reader, server: Server) -> None:
    name = server.submit(sh("sleep 600", name="halts"))
    server.wait_for(name, "PROCESSING")
    page = reader.go(f"/jobs?q={name}")
    row(page, name).get_by_role("checkbox").click()
    bar = page.get_by_role("toolbar", name="Picked jobs")
    bar.get_by_role("button", name="Halt").click()
    state(page, name, "HALTED")
    page.get_by_role("button", name="Undo").click()
    state(page, name, "PROCESSING")
    server.ask(name, "cancel")


def test_many_are_cancelled_and_deleted_after_a_question(reader: Reader, server: Server) -> None:
    names = [server.submit(sh("sleep 600", name=f"herd-{n}")) for n in range(3)]
    page = reader.go("/jobs?q=herd-")
    for name in names:
        expect(row(page, name)).to_be_visible()
    page.get_by_role("checkbox", name="Pick all").click()
    bar = page.get_by_role("toolbar", name="Picked jobs")
    expect(bar).to_contain_text("3 jobs")
    bar.get_by_role("button", name="Cancel").click()
    page.get_by_role("dialog").get_by_role("button", name="Keep as it is").click()
    assert all(server.status(name)["state"] != "CANCELLED" for name in names)
    bar.get_by_role("button", name="Cancel").click()
    page.get_by_role("dialog").get_by_role("button", name="Cancel 3 jobs").click()
    for name in names:
        state(page, name, "CANCELLED")
    bar.get_by_role("button", name="Delete").click()
    page.get_by_role("dialog").get_by_role("button", name="Delete").click()
    for name in names:
        expect(row(page, name)).to_have_count(0)
        assert server.gone(name)


def test_many_are_run_again_with_changes(reader: Reader, server: Server) -> None:
    names = [
        server.submit(sh("echo lr is $LR", name=f"again-{n}", env={"LR": "0.1", "N": str(n)}))
        for n in range(2)
    ]
    for name in names:
        server.wait_for(name)
    page = reader.go("/jobs?q=again-")
    expect(row(page, names[1])).to_be_visible()
    page.get_by_role("checkbox", name="Pick all").click()
    page.get_by_role("toolbar", name="Picked jobs").get_by_role("button", name="Re-run").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_role("textbox").first.fill("LR")
    dialog.get_by_role("button", name="Submit").click()
    expect(dialog.get_by_role("alert")).to_contain_text("NAME=VALUE")
    dialog.get_by_role("textbox").first.fill("LR=0.5")
    dialog.get_by_role("button", name="Submit").click()
    expect(page.get_by_role("status").filter(has_text="2 jobs submitted")).to_be_visible()
    made = [
        j["name"]
        for j in server.get("/v1/jobs", view="summary").json["items"]
        if j["name"].startswith("again-")
    ]
    new = sorted(set(made) - set(names))
    assert len(new) == 2
    for name in new:
        server.wait_for(name)
        assert server.text(name) == ["lr is 0.5"]
    assert {server.job(name)["spec"]["env"]["N"] for name in new} == {"0", "1"}


def test_a_refusal_is_told_with_the_next_step(reader: Reader, server: Server) -> None:
    name = server.submit(sh("sleep 600", name="refuses"))
    server.wait_for(name, "PROCESSING")
    page = reader.go(f"/jobs?q={name}")
    row(page, name).get_by_role("checkbox").click()
    bar = page.get_by_role("toolbar", name="Picked jobs")
    expect(bar.get_by_role("button", name="Halt")).to_be_enabled()
    page.route("**/halt", lambda route: (server.delete(name), server.ask(name, "cancel"), route.continue_()))
    bar.get_by_role("button", name="Halt").click()
    told = page.get_by_role("status").filter(has_text=name)
    expect(told).to_be_visible()


@pytest.fixture
def busy_server(new_server: Callable[..., Server]) -> Server:
    """One that has run ten thousand jobs."""
    server = new_server("--cpu", "4")
    server.stop()
    made = "import sys, history; from pathlib import Path; history.fill(Path(sys.argv[1]), 10_000)"
    environ = {**os.environ, "PYTHONPATH": f"{ROOT / 'src'}:{ROOT / 'benchmarks'}"}
    subprocess.run([sys.executable, "-c", made, str(server.home)], check=True, env=environ, timeout=250)
    return server.start()


@pytest.mark.timeout(400)
def test_ten_thousand_rows_are_a_few_in_the_document(busy_server: Server, visit: Visit) -> None:
    with visit.signed_in(busy_server) as reader:
        page = reader.go("/jobs?sort=name")
        expect(page.get_by_role("status").filter(has_text=re.compile("^10,000$"))).to_be_visible()
        expect(row(page, "train-00000")).to_be_visible()
        seen = page.get_by_role("table", name="Jobs").evaluate(SCROLLED)
        expect(row(page, "train-09999")).to_be_visible()
        assert 10 < min(seen["rows"]) <= max(seen["rows"]) < 100, seen["rows"]
        assert seen["blank"] == 0
        assert statistics.median(seen["frames"]) < 150, seen["frames"]  # others use the machine too
        page.get_by_role("searchbox", name="Search jobs").fill("train-07 failed")
        expect(row(page, "train-07003")).to_be_visible()
        expect(page.get_by_role("status").filter(has_text="100 of 10,000")).to_be_visible()
        page.goto(f"{reader.address}/jobs?q=train-00003")  # the address alone finds what is old
        expect(row(page, "train-00003")).to_be_visible()
        expect(page.get_by_role("status").filter(has_text=re.compile("^1 of 10,000$"))).to_be_visible()
