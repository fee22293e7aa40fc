"""What a stranger's job says is text, whatever it looks like."""

from __future__ import annotations

from urllib.parse import quote

import pytest
from harness import Server, job
from pages import Reader
from playwright.sync_api import Page, expect

MARKUP = "<img src=x onerror=window.broken=1><script>window.broken=2</script><b id=hostile>bold</b>"
PROGRAM = r"""
import sys
markup = sys.argv[1]
out = sys.stdout
out.write("\x1b[31mred\x1b[0m \x1b]0;title\x07\x1b[2J\x1b[8mhidden\x1b[0m plain\n")
out.write(markup + "\n")
out.write("\x1b]8;;javascript:window.broken=3\x07click\x1b]8;;\x07\n")
out.write("nul\x00 bell\x07 back\x08space \u202eright-to-left \ud83d\ude00\n".encode("utf-16", "surrogatepass").decode("utf-16"))
out.write("x" * (5 << 20) + "\n")
out.write("the last line\n")
import weft
weft.log(step=1, **{markup: 1})
"""


@pytest.fixture(scope="module")
def hostile(server: Server) -> str:
    document = job("python", "-c", PROGRAM, MARKUP, name="hostile", labels={"note": "x"})
    document["spec"]["env"] = {"MARKUP": MARKUP, "LINK": "javascript:window.broken=4"}
    server.run(document)
    return "hostile"


def harmless(page: Page) -> None:
    assert page.evaluate("window.broken") is None
    assert page.locator("#hostile").count() == 0
    assert page.locator("[href^='javascript:']").count() == 0


def test_a_log_is_text(reader: Reader, hostile: str):
    page = reader.go(f"/jobs/{hostile}/log")
    log = page.get_by_role("log")
    expect(log.get_by_text("the last line")).to_be_visible()
    log.hover()
    page.keyboard.press("Home")
    harmless(page)
    shown = page.evaluate("document.body.innerText")
    assert "\x1b" not in shown
    assert len(shown) < 1 << 20, "a line of 5 MB is not put into the page whole"
    assert page.title() != "title"


def test_a_log_shows_markup_as_it_was_printed(reader: Reader, hostile: str):
    page = reader.go(f"/jobs/{hostile}/log")
    expect(page.get_by_role("log").get_by_text("the last line")).to_be_visible()
    page.mouse.move(640, 500)
    for _ in range(30):
        if page.get_by_text("<b id=hostile>bold</b>", exact=False).count():
            break
        page.mouse.wheel(0, -100_000)
        page.wait_for_timeout(100)
    expect(page.get_by_text("<b id=hostile>bold</b>", exact=False).first).to_be_attached()
    harmless(page)


def test_what_a_job_says_of_itself_is_text(reader: Reader, hostile: str):
    page = reader.go(f"/jobs/{hostile}")
    for tab, sight in (
        ("Summary", ".commandline >> text=<b id=hostile>"),
        ("Curves", f"h2 >> text={MARKUP}"),
        ("Resources", "main"),
        ("Spec", ".spec >> text=javascript:window.broken"),
        ("Events", "text=submitted"),
    ):
        page.get_by_role("link", name=tab, exact=True).click()
        expect(page.get_by_role("link", name=tab, exact=True)).to_have_attribute("aria-current", "page")
        expect(page.locator(sight).first).to_be_visible()
        harmless(page)
    page = reader.go(f"/compare?jobs={hostile}")
    expect(page.get_by_role("heading", name=MARKUP, exact=True)).to_be_visible()
    harmless(page)


def test_why_a_job_failed_is_text(reader: Reader, server: Server):
    server.run(job(MARKUP, name="no-such-command"), "FAILED")
    page = reader.go("/jobs/no-such-command")
    expect(page.locator(".failure")).to_contain_text("<b id=hostile>bold</b>")
    harmless(page)
    page = reader.turn_to("/jobs?q=no-such-command")
    expect(page.get_by_role("row").filter(has_text="<b id=hostile>")).to_be_visible()
    harmless(page)


def test_why_a_node_is_cordoned_is_text(reader: Reader, server: Server):
    node = server.nodes()[0]["name"]
    assert server.post(f"/v1/nodes/{node}/cordon?reason={quote(MARKUP)}").status == 200
    try:
        page = reader.go("/")
        expect(page.locator(".map-closed").filter(has_text="<b id=hostile>bold</b>")).to_be_visible()
        expect(page.locator(".attention").filter(has_text="<b id=hostile>bold</b>")).to_be_visible()
        harmless(page)
    finally:
        server.post(f"/v1/nodes/{node}/uncordon")


def test_a_job_cannot_be_named_so_and_is_told_why_in_text(reader: Reader, server: Server):
    page = reader.go("/new")
    document = f"apiVersion: weft.dev/v1\nkind: TrainingJob\nmetadata: {{name: '{MARKUP}'}}\nspec: {{command: ['true']}}\n"
    page.get_by_role("textbox", name="The job as YAML").fill(document)
    expect(page.get_by_role("textbox", name="name", exact=True)).to_have_value(MARKUP)
    expect(page.get_by_role("alert").filter(has_text="not a name")).to_be_visible()
    page.get_by_role("button", name="Submit").click()
    expect(page.get_by_role("status").filter(has_text="1 problem to mend")).to_contain_text("metadata.name")
    harmless(page)
    assert MARKUP not in [item["name"] for item in server.get("/v1/jobs", view="summary").json["items"]]


def test_a_search_and_an_address_are_text(reader: Reader, server: Server):
    page = reader.go("/jobs?q=" + "%3Cimg%20src%3Dx%20onerror%3Dwindow.broken%3D1%3E%3Cb%20id%3Dhostile%3E")
    expect(page.get_by_role("navigation", name="Views")).to_be_visible()
    harmless(page)
    page = reader.go("/jobs/%3Cb%20id%3Dhostile%3E")
    expect(page.get_by_role("navigation", name="Views")).to_be_visible()
    harmless(page)
