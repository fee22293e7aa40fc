"""A job: its timeline, tasks, curves, use, spec and events, and why it waits; all of it live."""

from __future__ import annotations

import re
import threading
from collections import Counter
from itertools import pairwise

import pytest
from harness import Server, job, python, sh
from jobs import Jobs
from pages import Reader
from playwright.sync_api import Page, Route, expect

from support.web import web


@pytest.fixture(autouse=True)
def _there(jobs: Jobs) -> None:
    """Every test here looks at the same jobs."""


def panel(page: Page, title: str):
    return page.locator(".panel", has=page.get_by_role("heading", name=title, exact=True))


def test_states_are_bars_in_the_order_they_were(reader: Reader, server: Server, jobs: Jobs) -> None:
    told = [event for event in server.history(jobs.done) if event["type"] == "state"]
    stays = [
        (event["state"].lower(), after["time"] - event["time"])
        for event, after in pairwise(told)
        if after["time"] > event["time"]
    ]
    assert [state for state, _ in stays][-4:] == ["deploying", "downloading", "processing", "storing"]
    page = reader.go(f"/jobs/{jobs.done}")
    rows = page.get_by_role("table", name="Stays in each state").get_by_role("row")
    expect(rows.locator(".timeline-state")).to_have_text([state for state, _ in stays])
    bars = rows.locator(".timeline-bars > span")
    expect(bars).to_have_count(len(stays))
    places = bars.evaluate_all("(bars) => bars.map((bar) => [bar.offsetLeft, bar.style.width])")
    assert places == sorted(places, key=lambda place: place[0]), "each begins where the one before it ends"
    whole = sum(seconds for _, seconds in stays)
    for (_, width), (state, seconds) in zip(places, stays, strict=True):
        assert float(width.removesuffix("%")) == pytest.approx(100 * seconds / whole, abs=0.5), state


def test_the_code_and_the_data_are_named_with_their_versions(
    reader: Reader, server: Server, jobs: Jobs
) -> None:
    job = server.job(jobs.done)
    package, (pair,) = job["spec"]["code"]["package"], job["status"]["datasets"]
    page = reader.go(f"/jobs/{jobs.done}")
    about = panel(page, "About")
    code = about.locator("dt", has_text="Code").locator("xpath=following-sibling::dd[1]")
    expect(code).to_have_text(package.removeprefix("sha256:")[:12])
    data = about.locator("dt", has_text="Data").locator("xpath=following-sibling::dd[1]")
    assert pair[0] == "faces"
    expect(data).to_have_text(f"faces {server.get('/v1/datasets/faces').json['status']['version'][:12]}")
    expect(data.get_by_role("link", name="faces")).to_have_attribute("href", "/datasets/faces")


def test_a_restart_is_a_bar_of_its_own(reader: Reader, server: Server, tmp_path) -> None:
    flag = tmp_path / "second"
    script = f"[ -e {flag} ] && exit 0; touch {flag}; exit 1"
    restart = {"policy": "on-failure", "max": 2, "backoff": "1s"}
    server.run(sh(script, name="restarts", restart=restart), "COMPLETED")
    page = reader.go("/jobs/restarts")
    rows = page.get_by_role("table", name="Stays in each state").get_by_role("row")
    expect(rows.filter(has_text="restarting").locator(".timeline-bars > span")).to_have_count(1)
    tasks = page.get_by_role("table", name="Tasks")
    expect(tasks.get_by_role("row").nth(1)).to_contain_text("1")
    page.get_by_role("link", name="Events").click()
    expect(page.get_by_role("table", name="Events")).to_contain_text(
        re.compile("restart|again", re.IGNORECASE)
    )


def test_a_long_command_is_shown_whole_when_asked(reader: Reader, server: Server) -> None:
    server.run(sh("\n".join(f"echo {n}" for n in range(20)), name="long-winded"))
    page = reader.go("/jobs/long-winded")
    command = page.locator(".commandline code")
    expect(command).to_contain_text("sh -c 'echo 0")
    before = command.evaluate("(code) => code.clientHeight")
    page.get_by_role("button", name="Show all").click()
    expect(page.get_by_role("button", name="Show less")).to_be_visible()
    assert command.evaluate("(code) => code.clientHeight") > 2 * before


def test_tasks_are_listed_with_their_nodes_and_gpus(reader: Reader, server: Server, jobs: Jobs) -> None:
    page = reader.go(f"/jobs/{jobs.gang}")
    tasks = page.get_by_role("table", name="Tasks")
    for task in server.status(jobs.gang)["tasks"]:
        row = tasks.get_by_role("row").filter(has_text=task["name"])
        expect(row).to_contain_text(task["binding"]["node"])
        expect(row).to_contain_text(", ".join(map(str, task["binding"]["gpus"])))
        expect(row.locator('[data-state="RUNNING"]')).to_be_visible()


def test_a_job_that_waits_says_why_and_when(reader: Reader, server: Server, jobs: Jobs) -> None:
    page = reader.go(f"/jobs/{jobs.waits}")
    why = panel(page, "Why it waits")
    explained = server.get(f"/v1/jobs/{jobs.waits}/explain").json
    expect(why).to_contain_text(explained["reason"].split(";")[0])
    expect(why).to_contain_text(re.compile("in about|later than can be foreseen"))
    why.get_by_text("Node by node").click()
    expect(why).to_contain_text(explained["details"][0].split(":")[0])
    page.goto(f"{reader.address}/jobs/{jobs.never}")
    expect(why).to_contain_text("never, as things are")
    explained = server.get(f"/v1/jobs/{jobs.never}/explain").json
    expect(why.locator(".command code")).to_have_text(re.compile(r"^weft [a-z-]+[^,]*$"))
    expect(why.locator(".command code")).to_have_text(explained["next"])
    expect(why).to_contain_text(explained["advice"])


def test_a_job_that_waits_for_its_data_shows_how_far_it_is(reader: Reader, server: Server) -> None:
    size, gate, asked = 64 << 10, threading.Event(), Counter[str]()

    def held(path: str) -> int:
        """The sixth file is known of, but does not come."""
        asked[path] += 1
        if path == "/5.bin" and asked[path] > 1:
            gate.wait(60)
        return 200

    with web() as source:
        source.files |= {f"/{number}.bin": bytes([number]) * size for number in range(10)}
        source.files["/SHA256SUMS"] = source.sums()
        source.status = held
        spec = {"source": {"url": f"{source.url}/"}}
        assert server.call("PUT", "/v1/datasets/from-afar", {"spec": spec}).status == 201
        name = server.submit(sh("true", name="fetches", datasets=[{"name": "from-afar"}]))
        try:
            page = reader.go(f"/jobs/{name}")
            bar = page.get_by_role("progressbar", name="reading dataset from-afar")
            expect(bar).to_have_attribute("value", str(5 * size))
            expect(bar).to_have_attribute("max", str(10 * size))
            expect(page.locator(".job-download")).to_contain_text(
                re.compile(r"320 KiB of 640 KiB \(50 %\), [\d.]+ [KM]iB/s, about \S+ left")
            )
            expect(page.locator('.view-head [data-state="DOWNLOADING"]')).to_be_visible()
        finally:
            gate.set()
        expect(page.locator('.view-head [data-state="COMPLETED"]')).to_be_visible()
        expect(bar).to_have_count(0)
    server.delete(name)
    server.call("DELETE", "/v1/datasets/from-afar")


def test_a_failed_job_says_why_with_the_last_it_said(reader: Reader, jobs: Jobs) -> None:
    page = reader.go(f"/jobs/{jobs.failed}")
    failure = page.locator(".failure")
    expect(failure).to_contain_text("exited with code 1")
    expect(failure.locator(".level-error").last).to_contain_text(
        "ValueError: shape (3, 4) does not fit (4, 4)"
    )


def test_state_and_actions_follow_the_job(reader: Reader, server: Server) -> None:
    name = server.submit(sh("sleep 600", name="followed"))
    server.wait_for(name, "PROCESSING")
    page = reader.go(f"/jobs/{name}")
    head = page.locator(".view-head")
    expect(head.locator('[data-state="PROCESSING"]')).to_be_visible()
    server.ask(name, "halt")
    expect(head.locator('[data-state="HALTED"]')).to_be_visible()
    head.get_by_role("button", name="Resume").click()
    expect(head.locator('[data-state="PROCESSING"]')).to_be_visible()
    head.get_by_role("button", name="Cancel").click()
    page.get_by_role("dialog").get_by_role("button", name="Cancel the job").click()
    expect(head.locator('[data-state="CANCELLED"]')).to_be_visible()
    head.get_by_role("button", name="Delete").click()
    page.get_by_role("dialog").get_by_role("button", name="Delete").click()
    expect(page.get_by_role("heading", name="Jobs")).to_be_visible()
    assert server.gone(name)


def test_curves_are_drawn_and_grow_while_it_runs(reader: Reader, jobs: Jobs) -> None:
    page = reader.go(f"/jobs/{jobs.gang}/curves")
    loss = panel(page, "loss")
    expect(loss.locator("canvas")).to_be_visible()
    first = loss.locator("[data-y]").first
    expect(first).to_have_text(re.compile(r"\d"))
    before = first.text_content()
    expect(first).not_to_have_text(before or "")


def test_curves_grow_though_the_list_of_jobs_has_not_come(reader: Reader, jobs: Jobs) -> None:
    held: list[Route] = []
    reader.page.route(re.compile(r"/v1/jobs\?"), lambda route: held.append(route))
    page = reader.go(f"/jobs/{jobs.gang}/curves")
    first = panel(page, "loss").locator("[data-y]").first
    expect(first).to_have_text(re.compile(r"\d"))
    expect(first).not_to_have_text(first.text_content() or "")
    assert held


AT_REST = """
() => performance.now() - Math.max(...performance.getEntriesByType("resource").map((each) => each.responseEnd)) > 1000
"""
"""What the page fetched for its first view came a second ago."""


def test_opening_the_curves_asks_for_them_alone(reader: Reader, jobs: Jobs) -> None:
    """The names for the overlay were asked for, too: ten thousand jobs, before the curve was drawn."""
    page = reader.go(f"/jobs/{jobs.done}")
    page.wait_for_function(AT_REST)
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    page.locator("nav.tabs").get_by_role("link", name="Curves").click()
    expect(panel(page, "loss").locator("canvas")).to_be_visible()
    assert [url for url in asked if "/curves" in url]
    assert not [url for url in asked if "/v1/jobs?" in url]


def test_curves_are_smoothed_scaled_and_overlaid_by_the_address(reader: Reader, jobs: Jobs) -> None:
    page = reader.go(f"/jobs/{jobs.done}/curves?smooth=0.9&log=1&axis=time")
    expect(page.get_by_role("button", name="Time")).to_have_attribute("aria-pressed", "true")
    expect(page.get_by_role("button", name="Log scale")).to_have_attribute("aria-pressed", "true")
    loss = panel(page, "loss")
    expect(loss.get_by_role("img", name="loss by time").locator("canvas")).to_be_visible()
    page.get_by_role("button", name="Step").click()
    expect(loss.get_by_role("img", name="loss by step")).to_be_visible()
    page.get_by_role("combobox", name="Overlay another run").fill(jobs.gang)
    expect(loss.locator(".curve-legend")).to_contain_text(f"{jobs.gang} worker-0")
    assert f"with={jobs.gang}" in page.url
    page.get_by_role("button", name=f"Leave {jobs.gang} out").click()
    expect(loss.locator(".curve-legend")).not_to_contain_text(jobs.gang)


def test_smoothing_draws_the_mean(reader: Reader, server: Server, jobs: Jobs) -> None:
    values = [point["value"] for point in server.metrics(jobs.done) if point["name"] == "loss"]
    mean = share = 0.0
    for value in values:
        mean, share = 0.9 * mean + 0.1 * value, 0.9 * share + 0.1
    page = reader.go(f"/jobs/{jobs.done}/curves")
    value = panel(page, "loss").locator(".curve-legend [data-y]")
    expect(value).to_have_text(re.compile(r"^[\d.-]+$"))
    measured = value.text_content() or ""
    assert float(measured) == pytest.approx(values[-1], rel=1e-3)
    page.get_by_role("slider", name="Smooth").fill("0.9")
    expect(value).not_to_have_text(measured)
    assert float(value.text_content() or "") == pytest.approx(mean / share, rel=1e-3)
    assert "smooth=0.9" in page.url
    page.get_by_role("slider", name="Smooth").fill("0")
    expect(value).to_have_text(measured)


def test_a_job_without_curves_says_how_to_get_some(reader: Reader, jobs: Jobs) -> None:
    page = reader.go(f"/jobs/{jobs.failed}/curves")
    expect(page.get_by_text("weft.log(step=step, loss=loss)")).to_be_visible()


def test_many_runs_that_go_on_are_followed_at_once(reader: Reader, server: Server) -> None:
    """A browser opens six connections to one server: that many streams would leave none for anything else."""
    ticks = (
        "import itertools, time, weft\nfor n in itertools.count(): weft.log(step=n, ticks=n); time.sleep(0.5)"
    )
    names = [server.submit(python(ticks, name=f"runner-{n}")) for n in range(7)]
    for name in names:
        server.wait_for(name, "PROCESSING")
    page = reader.go(f"/jobs/{names[0]}/curves?with={','.join(names[1:])}")
    values = panel(page, "ticks").locator("[data-y]")
    expect(values).to_have_count(len(names))
    before = values.all_text_contents()
    for place, value in enumerate(before):
        expect(values.nth(place)).not_to_have_text(value)
    page.get_by_role("link", name="Events").click()
    expect(page.get_by_role("table", name="Events")).to_contain_text("submitted")
    for name in names:
        server.ask(name, "cancel")


def test_curves_go_on_when_the_job_is_resumed(reader: Reader, server: Server, tmp_path) -> None:
    again = tmp_path / "again"
    script = f"""
import pathlib, time, weft
second = pathlib.Path("{again}").exists()
pathlib.Path("{again}").touch()
weft.log(step=1 + second, turn=1 + second)
time.sleep(600)
"""
    name = server.submit(python(script, name="in-two-turns"))
    server.wait_for(name, "PROCESSING")
    page = reader.go(f"/jobs/{name}/curves")
    turn = panel(page, "turn").locator("[data-y]").first
    expect(turn).to_have_text("1")
    server.ask(name, "halt")
    server.wait_for(name, "HALTED")
    expect(page.locator('.view-head [data-state="HALTED"]')).to_be_visible()
    server.ask(name, "resume")
    expect(turn).to_have_text("2")
    server.ask(name, "cancel")


def test_use_is_drawn_against_the_limit(reader: Reader, jobs: Jobs) -> None:
    page = reader.go(f"/jobs/{jobs.gang}/resources")
    memory = panel(page, "Memory")
    expect(memory.locator(".curve-legend")).to_contain_text("worker-0")
    expect(memory.locator(".curve-legend")).to_contain_text("limit 256 MiB")
    expect(panel(page, "CPUs").locator(".curve-legend")).to_contain_text("limit 2")
    expect(panel(page, "GPUs")).to_contain_text("Not measured: it has 4 GPUs")


def test_defaults_are_marked_in_the_spec(reader: Reader, jobs: Jobs) -> None:
    page = reader.go(f"/jobs/{jobs.gang}/spec")
    lines = page.get_by_label("Spec as YAML").locator("> div")
    expect(lines.filter(has_text="priority: 0").locator(".spec-mark")).to_be_visible()
    expect(lines.filter(has_text="deadline: 2h")).to_be_visible()
    expect(lines.filter(has_text="deadline: 2h").locator(".spec-mark")).to_have_count(0)
    expect(lines.filter(has_text="replicas: 2").locator(".spec-mark")).to_have_count(0)
    expect(lines.filter(has_text="devices: {}").locator(".spec-mark")).to_be_visible()


def test_what_the_type_says_is_marked_as_the_type_s(reader: Reader, server: Server) -> None:
    roles = {"worker": {"resources": {"gpu": 64}}}  # it will wait
    name = server.submit(
        job(name="a-notebook", type="notebook", roles=roles, restart={"policy": "on-failure", "max": 7})
    )
    page = reader.go(f"/jobs/{name}/spec")
    lines = page.get_by_label("Spec as YAML").locator("> div")

    def mark(text: str):
        return lines.filter(has_text=text).last.locator(".spec-mark")

    expect(mark("idleTimeout: 1h")).to_have_text("type notebook")
    expect(mark("- jupyterlab")).to_have_text("type notebook")
    expect(mark("weft.runtime.notebook")).to_have_text("type notebook")
    expect(mark("maxBackoff: 30s")).to_have_text("type notebook")
    expect(mark("grace:")).to_have_text("default")
    expect(mark("cpu: 1")).to_have_text("default")
    expect(lines.filter(has_text="max: 7").first.locator(".spec-mark")).to_have_text("default")  # the role's
    expect(lines.filter(has_text="gpu: 64")).to_be_visible()
    for own in ("type: notebook", "gpu: 64", "max: 7", "policy: on-failure"):
        expect(mark(own)).to_have_count(0)
    server.delete(name)


def test_a_checkpoint_is_listed_and_resumed_from(reader: Reader, server: Server) -> None:
    source = "import time, weft.checkpoint\nfor step in (10, 20): weft.checkpoint.save({'at': step}, step=step)\ntime.sleep(600)"
    name = server.submit(python(source, name="keeps-steps"))
    server.wait_for(name, "PROCESSING")
    page = reader.go(f"/jobs/{name}")
    table = page.get_by_role("table", name="Checkpoints")
    expect(table.get_by_role("row").nth(1).get_by_role("cell").first).to_have_text("20")
    server.ask(name, "halt")
    server.wait_for(name, "HALTED")
    at_ten = table.get_by_role("row").filter(has=page.get_by_role("cell", name="10", exact=True))
    at_ten.get_by_role("button", name="Resume here").click()
    page.get_by_role("dialog").get_by_role("button", name="Resume").click()
    server.wait_for(name, "PROCESSING")
    expect(page.get_by_role("status").filter(has_text="resumed from step 10")).to_be_visible()
    server.ask(name, "cancel")


def test_no_such_job_says_so(reader: Reader) -> None:
    page = reader.go("/jobs/digts")
    expect(page.get_by_role("alert")).to_contain_text("did you mean digits")
