"""What changes is on the page within a second.

Looked at from inside the browser, at every change of the document, and compared on one clock with the moment at which the
server, or the program itself, says that it happened. Machines that run tests are busy with other things too, so it is the median of
a few changes that counts; once most of them were seen in time, it is known.
"""

from __future__ import annotations

import re
import statistics
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from harness import Server, python, sh, until
from jobs import Jobs
from pages import Reader, Visit
from playwright.sync_api import expect

TRIES = 5
TICKS = """
import itertools, time, weft
held = []
for n in itertools.count():
    print(f"tick {n} at {time.time()}", flush=True)
    weft.log(step=n, ticks=n)
    held.append(b"x" * (2 << 20))
    time.sleep(0.5)
"""
Change = Callable[[int], tuple[str, Callable[[], float]]]
"""The n-th: what is to be seen, and what makes it so and says when that was."""


def within_a_second(reader: Reader, change: Change, tries: int = TRIES) -> None:
    lags: list[float] = []
    while len(lags) < tries and sum(lag < 1.0 for lag in lags) <= tries // 2:
        sight, make = change(len(lags))
        seen = reader.awaits(sight)
        happened = make()
        lags.append(seen() - happened)
        assert lags[-1] > -0.1, f"two clocks, or it was there before: {lags}"
    assert statistics.median(lags) < 1.0, lags


def there(selector: str, text: str = "") -> str:
    return f"[...document.querySelectorAll(`{selector}`)].some((each) => each.textContent.includes(`{text}`))"


def entered(server: Server, name: str, state: str) -> float:
    """When the server says that the job last got into this state."""
    server.wait_for(name, state)
    return [event["time"] for event in server.history(name) if event.get("state") == state][-1]


def deployed(server: Server, name: str) -> float:
    server.wait_for(name, "PROCESSING")
    return next(event["time"] for event in server.history(name) if event.get("state") == "DEPLOYING")


def gone(server: Server, name: str) -> None:
    """Each of these, and nothing of it is left that could still change."""
    for number in range(TRIES):
        if server.ask(f"{name}-{number}", "cancel").status == 200:
            server.wait_for(f"{name}-{number}", "CANCELLED")


@pytest.fixture
def ticking(server: Server) -> Iterator[str]:
    name = server.submit(python(TICKS, name="ticking"))
    server.printed_line(name, "tick 0")
    yield name
    server.ask(name, "cancel")
    server.wait_for(name)
    server.delete(name)


def upcoming(server: Server, name: str) -> int:
    """A tick that is about a second away."""
    return int(server.text(name, tail=1)[0].split()[1]) + 3


def printed(server: Server, name: str, tick: int) -> float:
    """When the program says that it was at this tick."""
    server.printed_line(name, f"tick {tick} at ")
    return next(float(line.split()[3]) for line in server.text(name) if line.startswith(f"tick {tick} at "))


def test_the_state_of_a_job(reader: Reader, server: Server) -> None:
    name = server.submit(sh("sleep 600", name="to-and-fro"))
    server.wait_for(name, "PROCESSING")
    reader.go(f"/jobs/{name}").locator('.view-head [data-state="PROCESSING"]').wait_for()

    def change(number: int) -> tuple[str, Callable[[], float]]:
        verb, state = (("halt", "HALTED"), ("resume", "PROCESSING"))[number % 2]

        def make() -> float:
            assert server.ask(name, verb).status == 200
            return entered(server, name, state)

        return there(f'.view-head [data-state="{state}"]'), make

    within_a_second(reader, change)
    server.ask(name, "cancel")


def test_a_new_job_and_its_end_in_the_list(reader: Reader, server: Server, jobs: Jobs) -> None:
    reader.go("/jobs")
    reader.sees(jobs.gang)

    def comes(number: int) -> tuple[str, Callable[[], float]]:
        name = f"comes-{number}"

        def make() -> float:
            return server.job(server.submit(sh("sleep 600", name=name)))["metadata"]["created"]

        return there("[role=row]", name), make

    def ends(number: int) -> tuple[str, Callable[[], float]]:
        name = f"goes-{number}"
        server.submit(sh("sleep 600", name=name))
        reader.sees(name)

        def make() -> float:
            server.ask(name, "cancel")
            return entered(server, name, "CANCELLED")

        return there(f'[role=row]:has(a[href="/jobs/{name}"]) [data-state="CANCELLED"]'), make

    within_a_second(reader, comes)
    within_a_second(reader, ends)
    gone(server, "comes")


def test_a_job_on_the_map(reader: Reader, server: Server, jobs: Jobs) -> None:
    reader.go("/")
    reader.sees(jobs.gang)

    def change(number: int) -> tuple[str, Callable[[], float]]:
        name = f"lands-{number}"

        def make() -> float:
            server.submit(sh("sleep 600", name=name))
            return deployed(server, name)

        return there(f'.map-bar [data-job="{name}"]'), make

    try:
        within_a_second(reader, change)
    finally:
        gone(server, "lands")


def test_a_line_of_the_log(reader: Reader, server: Server, ticking: str) -> None:
    reader.go(f"/jobs/{ticking}/log")
    reader.sees("tick 0 at")

    def change(number: int) -> tuple[str, Callable[[], float]]:
        tick = upcoming(server, ticking)
        return there(".log-line", f"tick {tick} at "), lambda: printed(server, ticking, tick)

    within_a_second(reader, change)


def test_a_point_of_a_curve(reader: Reader, server: Server, ticking: str) -> None:
    reader.go(f"/jobs/{ticking}/curves").locator(".curve canvas").wait_for()

    def change(number: int) -> tuple[str, Callable[[], float]]:
        tick = upcoming(server, ticking)
        sight = (
            f"[...document.querySelectorAll('[data-y]')].some((each) => Number(each.textContent) >= {tick})"
        )
        return sight, lambda: printed(server, ticking, tick)

    within_a_second(reader, change)


def test_how_far_a_job_is_in_the_list(reader: Reader, server: Server, ticking: str) -> None:
    reader.go(f"/jobs?q={ticking}")
    reader.sees("step")

    def change(number: int) -> tuple[str, Callable[[], float]]:
        tick = upcoming(server, ticking)
        step = "Number(/step (\\d+)/.exec(each.textContent)?.[1] ?? 0)"
        sight = f"[...document.querySelectorAll('[role=row]')].some((each) => {step} >= {tick})"
        return sight, lambda: printed(server, ticking, tick)

    within_a_second(reader, change)


def test_a_node(reader: Reader, server: Server, jobs: Jobs) -> None:
    reader.go("/")
    reader.sees(jobs.gang)
    node = server.get("/v1/nodes").json["items"][-1]["name"]

    def change(number: int) -> tuple[str, Callable[[], float]]:
        def make() -> float:
            server.post(f"/v1/nodes/{node}/uncordon")
            answer = server.post(f"/v1/nodes/{node}/cordon?reason=loud+fan+{number}")
            return answer.json["cordon"]["since"]

        return there(".map-closed", f"loud fan {number}"), make

    try:
        within_a_second(reader, change)
    finally:
        server.post(f"/v1/nodes/{node}/uncordon")


def test_a_queue(reader: Reader, server: Server, jobs: Jobs) -> None:
    reader.go("/queues").locator("[data-queue=default]").wait_for()
    names = [f"line-{number}" for number in range(TRIES)]

    def change(number: int) -> tuple[str, Callable[[], float]]:
        name = names[number]

        def make() -> float:
            before = server.get("/v1/events", limit=100_000).json["items"][-1]["seq"]
            assert server.call("PUT", f"/v1/queues/{name}", {"spec": {"weight": 2}}).status == 201
            events = server.get("/v1/events", after=before).json["items"]
            return next(event["time"] for event in events if (event["type"], event["job"]) == ("queue", name))

        return there(f"[data-queue={name}]"), make

    try:
        within_a_second(reader, change)
    finally:
        for name in names:
            server.call("DELETE", f"/v1/queues/{name}")


def test_a_dataset(reader: Reader, server: Server, jobs: Jobs, tmp_path) -> None:
    (tmp_path / "a.txt").write_text("a")
    reader.go("/datasets")
    reader.sees("faces")
    names = [f"fresh-{number}" for number in range(TRIES)]

    def change(number: int) -> tuple[str, Callable[[], float]]:
        def make() -> float:
            spec = {"source": {"url": tmp_path.as_uri()}}
            answer = server.call("PUT", f"/v1/datasets/{names[number]}", {"spec": spec})
            assert answer.status == 201, answer.body
            return answer.json["metadata"]["created"]

        return there("[role=row]", names[number]), make

    try:
        within_a_second(reader, change)
    finally:
        for name in names:
            server.call("DELETE", f"/v1/datasets/{name}")


def test_how_full_the_cluster_is(reader: Reader, server: Server, jobs: Jobs) -> None:
    """Kept every ten seconds, but told of as soon as it changes."""
    legend = (
        "[...document.querySelectorAll('.curve-legend')].find((each) => each.textContent.includes('running'))"
    )
    running = f"Number({legend}?.querySelector('[data-y]').textContent)"
    shown = reader.go("/").locator(".curve-legend").filter(has_text="running").locator("[data-y]").first
    expect(shown).to_have_text(re.compile(r"^\d+$"))

    def change(number: int) -> tuple[str, Callable[[], float]]:
        before, name = reader.page.evaluate(running), f"fills-{number}"

        def make() -> float:
            server.submit(sh("sleep 600", name=name))
            return deployed(server, name)

        return f"{running} > {before}", make

    try:
        within_a_second(reader, change)
    finally:
        gone(server, "fills")


def test_what_tasks_use(reader: Reader, server: Server, ticking: str) -> None:
    def points() -> list[list[float]]:
        found = server.get(f"/v1/jobs/{ticking}/usage").json["items"]
        return found[0]["points"] if found else []

    page = reader.go(f"/jobs/{ticking}/resources")
    expect(page.get_by_text("Nothing measured yet").or_(page.locator(".curve canvas").first)).to_be_visible()
    memory = "([...document.querySelectorAll('.curve-legend')].at(-1)?.textContent ?? '')"

    def change(number: int) -> tuple[str, Callable[[], float]]:
        known = points()
        until(lambda: not known or time.time() - known[-1][0] > 1.0, "the page to have what is known")
        count, shown = len(known), reader.page.evaluate(memory)

        def make() -> float:
            until(lambda: len(points()) > count, "the next measurement")
            return points()[-1][0]

        return f"{memory} !== `{shown}`", make

    within_a_second(reader, change, tries=3)  # it is measured every five seconds


def test_where_a_dataset_is_cached(caching: Server, visit: Visit, tmp_path: Path) -> None:
    def change(number: int) -> tuple[str, Callable[[], float]]:
        name, folder = f"cold-{number}", tmp_path / str(number)
        folder.mkdir()
        (folder / "a.txt").write_text(f"one of its own: {number}")
        spec = {"source": {"url": folder.as_uri()}}
        assert caching.call("PUT", f"/v1/datasets/{name}", {"spec": spec}).status == 201
        until(lambda: caching.get(f"/v1/datasets/{name}").json["status"]["version"], f"{name} to be read")

        def make() -> float:
            happened = time.time()
            answer = caching.post(f"/v1/datasets/{name}/warm", {"nodes": ["local-1"]})
            assert answer.status == 202, answer.body
            return happened

        return there(f'[role=row]:has(a[href="/datasets/{name}"])', "local-1"), make

    with visit.signed_in(caching) as reader:
        reader.go("/datasets").get_by_role("heading", name="Datasets", exact=True).wait_for()
        within_a_second(reader, change)
