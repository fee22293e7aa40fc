"""The page shows what is, while it happens, and goes on when the server comes back."""

from __future__ import annotations

import re
from collections.abc import Callable

from harness import Server, sh
from jobs import Jobs
from pages import Reader, Visit
from playwright.sync_api import Route, expect


def test_a_server_that_goes_is_told_of_and_one_that_comes_back_is_taken_up_without_a_reload(
    new_server: Callable[..., Server], visit: Visit
):
    server = new_server("--cpu", "8")
    server.submit(sh("sleep 600", name="lives-on"))
    server.wait_for("lives-on", "PROCESSING")
    with visit.signed_in(server, quiet=False) as reader:
        page = reader.go("/jobs")
        reader.sees("lives-on")
        reader.marked()
        server.kill()
        expect(page.get_by_text("The server does not answer")).to_be_visible()
        expect(page.get_by_text("lives-on").first).to_be_visible()
        server.start()
        expect(page.get_by_text("The server does not answer")).not_to_be_visible()
        server.submit(sh("sleep 600", name="came-after"))
        reader.sees("came-after")
        assert reader.still_marked(), "it was loaded anew"
        assert not [said for said in reader.complaints if said.startswith("script")], reader.complaints
    server.ask("lives-on", "cancel")
    server.ask("came-after", "cancel")


def test_a_log_and_curves_come_though_the_server_was_away_when_they_were_asked_for(
    reader: Reader, jobs: Jobs
):
    lost: list[str] = []

    def lose(route: Route) -> None:
        address = route.request.url.partition("?")[0]
        if address in lost:
            route.continue_()
        else:
            lost.append(address)
            route.abort()

    page = reader.go(f"/jobs/{jobs.gang}")
    expect(page.get_by_role("table", name="Tasks")).to_be_visible()
    page.route(re.compile(r"/(logs|curves|usage|events|jobtypes/\w+)(\?|$)"), lose)
    page.get_by_role("link", name="Log", exact=True).click()
    expect(page.get_by_role("log").get_by_text("step").first).to_be_visible()
    page.get_by_role("link", name="Curves", exact=True).click()
    expect(page.locator(".curve canvas").first).to_be_visible()
    page.get_by_role("link", name="Spec", exact=True).click()
    expect(page.get_by_label("Spec as YAML")).to_contain_text("command:")
    page.get_by_role("link", name="Events", exact=True).click()
    expect(page.get_by_role("table", name="Events")).to_contain_text("submitted")
    assert len(lost) == 4


def test_an_answer_that_takes_long_comes_though_much_changes_meanwhile(reader: Reader, jobs: Jobs):
    """Once it was given up and asked for anew at every change; then none came."""

    held: list[Route] = []
    reader.page.route(re.compile(r"/v1/queue$"), lambda route: held.append(route))
    page = reader.go("/queues")
    expect(page.get_by_role("heading", name="Shares")).to_be_visible()
    page.wait_for_timeout(1500)  # while a job goes on that measures twice a second
    assert len(held) == 1
    held[0].continue_()
    expect(page.get_by_role("heading", name="The line")).to_be_visible()
    page.unroute_all()


UNSEEN = """() => {
    Object.defineProperty(document, "visibilityState", {value: "hidden"});
    document.dispatchEvent(new Event("visibilitychange"));
}"""
"""As when a person turns to another tab; without a window to look at, every tab counts as seen."""


def test_many_tabs_of_one_browser_all_work(reader: Reader, jobs: Jobs):
    """A browser opens six connections to one server, for all its tabs: those that nobody looks at let go of theirs."""
    tab = reader.page
    for _ in range(8):
        tab.goto(f"{reader.address}/jobs/{jobs.gang}/log")
        expect(tab.get_by_role("log").get_by_text("step").first).to_be_visible()
        tab.evaluate(UNSEEN)
        tab = reader.page.context.new_page()
