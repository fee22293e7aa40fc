"""Every view in light and dark, on a desk and at 400 pixels: readable by everybody, and photographed."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from zoneinfo import ZoneInfo

import pytest
from harness import Server
from jobs import Jobs
from pages import DESK, PHONE, Reader, Visit
from playwright.sync_api import expect

VIEWS = {
    "overview": ("/", "main a[href^='/jobs/']"),
    "jobs": ("/jobs", "[role=row] a[href^='/jobs/']"),
    "job": ("/jobs/{gang}", ".curve canvas"),
    "job-log": ("/jobs/{gang}/log", "[role=log] >> text=step"),
    "job-curves": ("/jobs/{done}/curves", ".curve canvas"),
    "job-resources": ("/jobs/{gang}/resources", ".curve canvas"),
    "job-spec": ("/jobs/{gang}/spec", ".spec-mark"),
    "job-events": ("/jobs/{gang}/events", "text=submitted"),
    "job-failed": ("/jobs/{failed}", "text=exited with code 1"),
    "job-waits": ("/jobs/{waits}", "text=needs"),
    "job-never": ("/jobs/{never}", "text=never, as things are"),
    "queues": ("/queues", "main >> text=default"),
    "datasets": ("/datasets", "main >> text=faces"),
    "dataset": ("/datasets/faces", "main >> text=faces"),
    "types": ("/types", "main >> text=pytorch"),
    "type": ("/types/pytorch", "main >> text=pytorch"),
    "compare": ("/compare?jobs={done},{gang}", ".curve-legend >> text={gang}"),
    "new": ("/new", "text=Checked by the server"),
    "nowhere": ("/no/such/place", "main"),
}
"""Where it is, and what is there once it is all there."""


@pytest.mark.timeout(300)
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_every_view_can_be_read_by_everybody(server: Server, jobs: Jobs, visit: Visit, scheme: str):
    rules = ("color-contrast",) if scheme == "dark" else ()
    problems = {}
    with visit.signed_in(server, scheme=scheme, size=DESK) as reader:
        reader.go("/jobs")
        for view, (path, sight) in VIEWS.items():
            reader.turn_to(path.format(**vars(jobs)))
            expect(reader.page.locator(sight.format(**vars(jobs))).first).to_be_visible()
            reader.picture(f"{view}-{scheme}")
            if found := reader.accessibility_problems(*rules):
                problems[view] = found
    assert not problems, "\n".join(
        f"{view}: {problem}" for view, found in problems.items() for problem in found
    )


def test_signing_in_can_be_read_by_everybody(server: Server, visit: Visit):
    for scheme in ("light", "dark"):
        with visit.stranger(server, scheme=scheme) as reader:
            page = reader.go("/")
            expect(page.get_by_role("button", name="Sign in")).to_be_visible()
            reader.picture(f"sign-in-{scheme}")
            assert reader.accessibility_problems() == []


def test_at_400_pixels_nothing_sticks_out(server: Server, jobs: Jobs, visit: Visit):
    wide = {}
    with visit.signed_in(server, size=PHONE) as reader:
        reader.go("/jobs")
        for view, (path, sight) in VIEWS.items():
            page = reader.turn_to(path.format(**vars(jobs)))
            expect(page.locator(sight.format(**vars(jobs))).first).to_be_visible()
            reader.picture(f"{view}-narrow")
            if (width := page.evaluate("document.documentElement.scrollWidth")) > PHONE["width"]:
                wide[view] = width
    assert not wide


def test_times_are_in_the_zone_of_who_reads(server: Server, jobs: Jobs, visit: Visit):
    created = datetime.fromtimestamp(server.job(jobs.done)["metadata"]["created"], UTC)
    for zone in ("Asia/Tokyo", "America/St_Johns"):
        with visit.signed_in(server, timezone_id=zone) as reader:
            page = reader.go(f"/jobs/{jobs.done}")
            shown = created.astimezone(ZoneInfo(zone)).strftime("%H:%M:%S")
            expect(page.locator(".panel", has_text="Created").locator("time").first).to_contain_text(shown)


def test_keys_are_listed_and_lead_everywhere(reader: Reader, jobs: Jobs):
    page = reader.go("/jobs")
    expect(page.get_by_role("row").nth(1)).to_be_visible()
    page.keyboard.press("?")
    keys = page.get_by_role("dialog", name="Keys")
    for said in ("search", "these keys"):
        expect(keys).to_contain_text(said)
    page.keyboard.press("Escape")
    expect(keys).to_have_count(0)
    rows = page.get_by_role("row")
    for key, place in (("j", 1), ("j", 2), ("k", 1)):
        page.keyboard.press(key)
        expect(rows.nth(place)).to_have_class(re.compile(r"\bat\b"))
    page.keyboard.press("g")
    page.keyboard.press("q")
    expect(page.get_by_role("heading", name="Queues")).to_be_visible()
