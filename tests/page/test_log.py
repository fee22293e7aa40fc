"""The log of a job: opened at its end however long it is, live, searched in the server, shown as text."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator

import pytest
from harness import Server, python, sh
from pages import Reader
from playwright.sync_api import Page, expect

LONG = """
import sys
out = sys.stdout
for n in range(1_000_000):
    out.write(f"INFO step {n} of a million\\n")
    if n == 400_000:
        out.write("RuntimeError: the one in the middle\\n")
"""


@pytest.fixture(scope="module")
def long(server: Server) -> Iterator[str]:
    name = server.submit(python(LONG, name="long-log"))
    server.wait_for(name)
    yield name
    server.delete(name)


def lines(page: Page):
    return page.get_by_role("log", name="Lines").locator(".log-line")


def test_a_million_lines_open_at_their_end(reader: Reader, server: Server, long: str) -> None:
    page = reader.go(f"/jobs/{long}")
    expect(page.get_by_role("table", name="Tasks")).to_be_visible()
    begin = time.monotonic()
    page.get_by_role("link", name="Log", exact=True).click()
    expect(lines(page).filter(has_text="step 999999 of")).to_be_visible()
    took = time.monotonic() - begin
    assert lines(page).count() < 200
    assert took < 3, took  # benchmarks/page.py measures it alone: under half a second


def test_one_reads_on_from_the_end_to_older_lines(reader: Reader, long: str) -> None:
    page = reader.go(f"/jobs/{long}/log")
    expect(lines(page).filter(has_text="step 999999 of")).to_be_visible()
    log = page.get_by_role("log", name="Lines")
    for _ in range(3):
        log.evaluate("(log) => { log.scrollTop = 0; }")
        expect(page.get_by_role("button", name="End", exact=True)).to_be_visible()
        page.wait_for_function("() => document.querySelector('.log-lines').scrollTop > 0")
    numbers = [int(re.search(r"step (\d+)", text)[1]) for text in lines(page).all_text_contents()]
    assert numbers == list(range(numbers[0], numbers[0] + len(numbers)))
    assert numbers[-1] < 998_500
    page.get_by_role("button", name="End", exact=True).click()
    expect(lines(page).filter(has_text="step 999999 of")).to_be_visible()


def test_words_are_found_far_from_what_is_shown(reader: Reader, long: str) -> None:
    page = reader.go(f"/jobs/{long}/log")
    expect(lines(page).first).to_be_visible()
    page.keyboard.press("/")
    page.keyboard.type("STEP 765432 of")
    page.keyboard.press("Enter")
    expect(page.locator(".log-line.at")).to_contain_text("step 765432 of a million")
    expect(page.locator(".log-line.at mark")).to_have_text("step 765432 of")
    page.get_by_role("searchbox", name="Search the log").fill("not to be found")
    page.keyboard.press("Enter")
    expect(page.get_by_role("status").filter(has_text="Nothing found")).to_be_visible()


def test_jump_to_error(reader: Reader, long: str) -> None:
    page = reader.go(f"/jobs/{long}/log")
    expect(lines(page).first).to_be_visible()
    page.get_by_role("button", name="Jump to error").click()
    at = page.locator(".log-line.at")
    expect(at).to_contain_text("RuntimeError: the one in the middle")
    expect(at.locator(".level-error")).to_be_visible()
    page.keyboard.press("G")
    expect(lines(page).filter(has_text="step 999999 of")).to_be_visible()


def test_lines_appear_as_they_are_printed_by_all_tasks(reader: Reader, server: Server, tmp_path) -> None:
    go = tmp_path / "go"
    script = (
        f"echo first $WEFT_TASK; while [ ! -e {go} ]; do sleep 0.02; done; echo WARNING second $WEFT_TASK"
    )
    name = server.submit(sh(script, name="two-voices", roles={"worker": {"replicas": 2}}))
    page = reader.go(f"/jobs/{name}/log")
    for task in ("worker-0", "worker-1"):
        expect(lines(page).filter(has_text=f"first {task}")).to_be_visible()
    go.touch()
    for task in ("worker-0", "worker-1"):
        expect(lines(page).filter(has_text=f"second {task}").locator(".level-warning")).to_be_visible()
    page.get_by_role("combobox", name="Task").select_option("worker-1")
    expect(lines(page).filter(has_text="worker-0")).to_have_count(0)
    expect(lines(page).filter(has_text="second worker-1")).to_be_visible()
    assert "task=worker-1" in page.url


def test_the_whole_log_is_downloaded(reader: Reader, server: Server) -> None:
    server.run(sh("echo one; echo two", name="to-keep"))
    page = reader.go("/jobs/to-keep/log")
    with page.expect_download() as download:
        page.get_by_role("link", name="Download").click()
    assert download.value.suggested_filename == "to-keep.log"
    assert download.value.path().read_text() == "one\ntwo\n"


def test_a_log_of_nothing_says_so(reader: Reader, server: Server) -> None:
    server.run(sh("true", name="silent"))
    page = reader.go("/jobs/silent/log")
    expect(page.get_by_role("heading", name="Nothing printed yet")).to_be_visible()
