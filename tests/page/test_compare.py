"""Compare on the page: runs side by side, and the best of them."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
from harness import Server, python
from pages import Reader
from playwright.sync_api import Locator, Page, Route, expect

TRAIN = """
import sys, weft
rate = float(sys.argv[2])
for step in range(20):
    weft.log(step=step, loss=1 / (1 + rate * step), accuracy=rate * step / 20)
"""
RATES = {"slow": "0.1", "fast": "0.9", "middle": "0.5"}


@pytest.fixture(scope="module", autouse=True)
def _runs(server: Server) -> Iterator[None]:
    """Three runs that measured the same."""
    for name, rate in RATES.items():
        document = python(
            TRAIN, name=name, args=["--lr", rate], env={"OPT": "sgd" if name == "fast" else "adam"}
        )
        assert server.run(document)["status"]["state"] == "COMPLETED"
    yield
    for name in RATES:
        server.delete(name)


def best(page: Page) -> Locator:
    return page.locator(".panel", has=page.get_by_role("heading", name="Best")).get_by_role("row")


def parameter(page: Page, name: str) -> Locator:
    return page.locator("table.parameters tbody tr").filter(has=page.get_by_role("rowheader", name=name))


def test_runs_are_picked_and_the_address_keeps_them(reader: Reader) -> None:
    page = reader.go("/compare")
    for name in ("slow", "fast"):
        page.get_by_role("checkbox", name=f"Pick {name}").click()
    page.get_by_role("button", name="Compare 2 runs").click()
    expect(page).to_have_url(re.compile("jobs=slow%2Cfast"))
    expect(best(page)).to_have_count(3)
    page.get_by_label("Add a run").fill("middle")
    expect(best(page)).to_have_count(4)
    page.get_by_role("button", name="Leave out slow").click()
    expect(best(page)).to_have_count(3)
    page.reload()
    expect(best(page)).to_have_count(3)


def test_the_best_by_a_metric_comes_first(reader: Reader) -> None:
    page = reader.go("/compare?jobs=slow,fast,middle")
    expect(best(page).locator("th a")).to_have_text(["fast", "middle", "slow"])
    expect(best(page).nth(1)).to_contain_text("best")
    expect(best(page).nth(1)).to_contain_text(f"{1 / (1 + 0.9 * 19):.5g}")
    page.get_by_role("button", name="Highest").click()
    expect(best(page).nth(1)).to_contain_text("0")  # all begin at 1, at step 0
    expect(page.get_by_role("columnheader", name="Highest loss")).to_be_visible()
    page.get_by_label("Metric").select_option("accuracy")
    expect(
        page.get_by_role("columnheader", name="Highest accuracy")
    ).to_be_visible()  # what is good by itself
    expect(best(page).locator("th a")).to_have_text(["fast", "middle", "slow"])
    expect(best(page).nth(1)).to_contain_text("0.855")


def test_parameters_side_by_side_show_what_differs(reader: Reader) -> None:
    page = reader.go("/compare?jobs=slow,fast,middle")
    expect(parameter(page, "--lr").get_by_role("cell")).to_have_text(["0.1", "0.9", "0.5"])
    expect(parameter(page, "OPT").get_by_role("cell")).to_have_text(["adam", "sgd", "adam"])
    expect(parameter(page, "OPT").locator("td.other")).to_have_text(["sgd"])
    expect(parameter(page, "priority")).to_have_count(0)
    page.get_by_label("also what is the same").check()
    expect(parameter(page, "priority").get_by_role("cell")).to_have_text(["0", "0", "0"])
    expect(page).to_have_url(re.compile("all=1"))


def test_curves_are_overlaid(reader: Reader) -> None:
    page = reader.go("/compare?jobs=slow,fast")
    for metric in ("loss", "accuracy"):
        panel = page.locator(".panel", has=page.get_by_role("heading", name=metric, exact=True))
        expect(panel.get_by_role("img", name=f"{metric} by step")).to_be_visible()
        for name in ("slow", "fast"):
            expect(panel.get_by_role("figure")).to_contain_text(name)


def test_a_run_has_one_colour_wherever_it_is_named(reader: Reader) -> None:
    """Also while another one's curves have not come."""
    held: list[Route] = []
    reader.page.route("**/v1/jobs/slow/curves*", lambda route: held.append(route))
    page = reader.go("/compare?jobs=slow,fast,middle")
    shown = page.locator(".panel", has=page.get_by_role("heading", name="loss", exact=True))

    def colour(place: Locator) -> str:
        return place.evaluate("(found) => getComputedStyle(found).backgroundColor")

    def chip(name: str) -> Locator:
        return shown.locator(".curve-legend > span", has_text=name).locator(".curve-chip")

    def dots(name: str) -> list[Locator]:
        named = page.get_by_role("button", name=f"Leave out {name}").locator(".dot")
        return [named, best(page).filter(has_text=name).locator(".dot")]

    for name in ("fast", "middle"):
        expect(chip(name)).to_be_visible()
        assert {colour(dot) for dot in dots(name)} == {colour(chip(name))}
    before = [colour(chip(name)) for name in ("fast", "middle")]
    for route in held:
        route.continue_()
    expect(chip("slow")).to_be_visible()
    assert {colour(dot) for dot in dots("slow")} == {colour(chip("slow"))}
    assert [colour(chip(name)) for name in ("fast", "middle")] == before
    assert len({colour(chip(name)) for name in RATES}) == 3


def test_a_run_that_is_not_there_is_said(reader: Reader) -> None:
    page = reader.go("/compare?jobs=slow,gone")
    expect(page.get_by_role("alert")).to_have_text("There is no job gone.")
    expect(best(page).locator("th a").first).to_have_text("slow")
