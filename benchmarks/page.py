"""How fast the page is, in Debian's Chromium against a real server: first view, scrolling, a long log, a long curve, its size,
and what fifty open pages cost the server.

    .venv/bin/python benchmarks/page.py [--quick]

The home holds 10,000 finished jobs (history.py) and 100,000 points of their metrics; one of them has a curve of a million
points, which its first reader has packed, as the server does while a job measures, and one a log of a million lines. First
views are of a browser context that has cached nothing. Each time ends when the thing itself is on the screen: a row of the
table, the last line of the log, the pixels of the curve. Scrolling goes from the first of the jobs to the last in 200 steps, a
step a frame; each frame is one time.
"""

from __future__ import annotations

import asyncio
import json
import math
import os
import shutil
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import history
from harness import (
    BENCHMARKS,
    Claim,
    Connection,
    Server,
    arguments,
    folder_on_disk,
    job,
    publish,
    spread,
    table,
    until,
)

from weft.backends.folders import JobFolder
from weft.runtime.tasklog import TaskLog
from weft.store.changes import Measured, Point
from weft.store.store import Store

BUILT = BENCHMARKS.parent / "src" / "weft" / "server" / "page"
TASK = "worker-0"
PAGES = 50
RUNNING = 100
SECONDS = 20
LOGS_EVERY = 2.0
TRAINS = f"""
import math, time, weft
for step in range(100_000):
    weft.log(step=step, loss=math.exp(-step / 100), progress=min(1.0, step / 1000))
    print("step", step, flush=True)
    time.sleep({LOGS_EVERY})
"""
AT_REST = """
() => performance.now() - Math.max(...performance.getEntriesByType("resource").map((each) => each.responseEnd)) > 500
"""
"""What the page fetched for its first view came half a second ago."""
DRAWN = """
async (title) => {
    const link = [...document.querySelectorAll("nav.tabs a")].find((found) => found.textContent === title);
    const begun = performance.now();
    link.click();
    while (performance.now() - begun < 30_000) {
        await new Promise(requestAnimationFrame);
        const canvas = document.querySelector(".curve canvas");
        if (!canvas || !canvas.width) continue;
        const middle = canvas.getContext("2d").getImageData(canvas.width / 4, 0, canvas.width / 2, canvas.height).data;
        let coloured = 0;
        for (let at = 0; at < middle.length; at += 4) {
            if (middle[at + 3] > 200 && Math.abs(middle[at] - middle[at + 2]) > 60) coloured += 1;
        }
        if (coloured > 100) return performance.now() - begun;
    }
    throw new Error("no curve was drawn");
}
"""
SHOWN = """
async ([title, text]) => {
    const link = [...document.querySelectorAll("nav.tabs a")].find((found) => found.textContent === title);
    const begun = performance.now();
    link.click();
    while (performance.now() - begun < 30_000) {
        await new Promise(requestAnimationFrame);
        const log = document.querySelector("[role=log]");
        if (log && log.textContent.includes(text)) return performance.now() - begun;
    }
    throw new Error(`the log does not show ${text}`);
}
"""
SCROLLED = """
async (table) => {
    const frames = [], steps = 200;
    const far = table.scrollHeight / steps;
    await new Promise(requestAnimationFrame);
    let last = performance.now();
    for (let n = 0; n < steps; n += 1) {
        table.scrollTop += far;
        await new Promise(requestAnimationFrame);
        const now = performance.now();
        frames.push(now - last);
        last = now;
    }
    return frames;
}
"""


def main() -> None:
    options = arguments(__doc__ or "").parse_args()
    quick = options.quick
    sizes = {
        "jobs": 1000 if quick else 10_000,
        "points": 10_000 if quick else 100_000,
        "curve": 100_000 if quick else 1_000_000,
        "lines": 100_000 if quick else 1_000_000,
    }
    rounds = 3 if quick else 7
    with folder_on_disk() as folder:
        home = folder / "home"
        curve, log = fill(home, sizes)
        with Server(home, "--cpu", "400") as server, browsing() as browser:
            with Connection(server) as connection:
                connection.get(f"/v1/jobs/{curve}/curves")
            state = signed_in(browser, server)
            first = {
                name: [first_view(browser, server, state, path, sees) for _ in range(rounds)]
                for name, path, sees in (
                    ("overview", "/", "main a[href^='/jobs/']"),
                    ("jobs", "/jobs", "[role=row] a[href^='/jobs/train-']"),
                )
            }
            frames = [time for _ in range(rounds) for time in scrolled(browser, server, state, sizes["jobs"])]
            drawn = [in_page(browser, server, state, curve, DRAWN, "Curves") for _ in range(rounds)]
            last = f"line {sizes['lines'] - 1}"
            opened = [in_page(browser, server, state, log, SHOWN, ["Log", last]) for _ in range(rounds)]
            alone, watched = cost_of_pages(browser, server, state, 5 if quick else SECONDS)
    packed = sum(file.stat().st_size for file in BUILT.rglob("*.gz"))
    report(quick, sizes, first, frames, drawn, opened, (alone, watched), packed)


def report(
    quick: bool,
    sizes: dict[str, int],
    first: dict[str, list[float]],
    frames: list[float],
    drawn: list[float],
    opened: list[float],
    cpu: tuple[float, float],
    packed: int,
) -> None:
    alone, watched = cpu
    slowest = max(statistics.median(samples) for samples in first.values())
    claims = [
        Claim(
            f"The page: first view, nothing cached, {sizes['jobs']:,} jobs and {sizes['points']:,} metric points",
            slowest, 1.0, " s",
        ),
        Claim(
            f"… {sizes['jobs']:,} jobs scrolled through, 95 of 100 frames drawn within",
            statistics.quantiles(frames, n=20)[-1], 50, " ms", digits=0,
        ),
        Claim("… its size, gzipped", packed / 1024, 350, " KB", digits=0),
        Claim(f"… a log of {sizes['lines']:,} lines, opened at its end", statistics.median(opened), 500, " ms", digits=0),
        Claim(f"… a curve of {sizes['curve']:,} points, drawn", statistics.median(drawn), 200, " ms", digits=0),
        Claim(f"… {PAGES} open pages while {RUNNING} jobs run, of a core of the server", watched - alone, 0.2),
    ]  # fmt: skip
    rows = [
        ("overview, nothing cached", f"{statistics.median(first['overview']):.2f} s"),
        ("10,000 jobs as a table, nothing cached", f"{statistics.median(first['jobs']):.2f} s"),
        ("a frame of that table while it is scrolled", f"{statistics.median(frames):.0f} ms"),
        (f"server, {RUNNING} jobs that measure every {LOGS_EVERY:g} s, no page", f"{alone:.3f} of a core"),
        (f"… with {PAGES} pages", f"{watched:.3f} of a core"),
    ]
    details = {
        "sizes": sizes,
        "seconds": {name: spread(samples) for name, samples in first.items()},
        "milliseconds": {"frame": spread(frames), "curve": spread(drawn), "log": spread(opened)},
        "cores": {"alone": round(alone, 4), "watched": round(watched, 4)},
        "bytes": packed,
        "tables": [table("The page, medians:", ("What", "Measured"), rows)],
    }
    publish("page", claims, details, quick)


# ── what there is to see ──


def fill(home: Path, sizes: dict[str, int]) -> tuple[str, str]:
    """The names of the job with the long curve and of the one with the long log."""
    history.fill(home, sizes["jobs"])
    asyncio.run(_measure(home, sizes))
    name = f"train-{sizes['jobs'] - 2:05d}"
    uid = _uids(home)[name]
    writer = TaskLog(JobFolder(str(home / "jobs"), uid).task(TASK), 64 << 20, 8)
    for begin in range(0, sizes["lines"], 1000):
        lines = (f"2026-01-01 12:00:00 INFO line {number}\n" for number in range(begin, begin + 1000))
        writer.write("".join(lines).encode(), now=1.7e9 + begin)
    writer.close()
    return f"train-{sizes['jobs'] - 1:05d}", name


async def _measure(home: Path, sizes: dict[str, int]) -> None:
    uids = _uids(home)
    names = sorted(uids)
    store = Store(home / "weft.db")
    each = sizes["points"] // 100
    for name in names[:100]:
        points = [Point(TASK, "loss", step, 1.7e9 + step, math.exp(-step / 300)) for step in range(each)]
        await store.write([Measured(uids[name], TASK, each, tuple(points))])
    long = uids[f"train-{sizes['jobs'] - 1:05d}"]
    for begin in range(0, sizes["curve"], 10_000):
        points = [
            Point(TASK, "loss", step, 1.7e9 + step, math.exp(-step / 2e5) + 0.1 * math.sin(step / 50))
            for step in range(begin, begin + 10_000)
        ]
        await store.write([Measured(long, TASK, begin, tuple(points))])
    store.close()


def _uids(home: Path) -> dict[str, str]:
    import sqlite3

    with sqlite3.connect(home / "weft.db") as connection:
        return dict(connection.execute("select name, uid from resources where kind = 'TrainingJob'"))


# ── the browser ──


@contextmanager
def browsing() -> Iterator[Any]:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        found = shutil.which("chromium")
        if found is None:
            raise SystemExit("no chromium here: apt-get install chromium")
        browser = playwright.chromium.launch(executable_path=found, args=["--no-sandbox"])
        yield browser
        browser.close()


def address(server: Server) -> str:
    return f"http://127.0.0.1:{server.port}"


def signed_in(browser: Any, server: Server) -> Any:
    with Connection(server) as connection:
        _, answer = connection.exchange(server.request("POST", "/v1/session/codes"))
    with browser.new_context() as context:
        page = context.new_page()
        page.goto(f"{address(server)}/#login={json.loads(answer)['code']}")
        page.get_by_role("navigation", name="Views").wait_for()
        return context.storage_state()


def first_view(browser: Any, server: Server, state: Any, path: str, sees: str) -> float:
    """Seconds from the address being asked for to the thing being there, in a context without a cache."""
    with browser.new_context(storage_state=state) as context:
        page = context.new_page()
        begun = time.perf_counter()
        page.goto(f"{address(server)}{path}", wait_until="commit")
        page.locator(sees).first.wait_for()
        return time.perf_counter() - begun


def scrolled(browser: Any, server: Server, state: Any, jobs: int) -> list[float]:
    """Milliseconds that each frame took, from the first row of the table to the last."""
    with browser.new_context(storage_state=state) as context:
        page = context.new_page()
        page.goto(f"{address(server)}/jobs?sort=name")
        page.get_by_role("link", name="train-00000", exact=True).wait_for()
        page.get_by_role("status").filter(has_text=f"{jobs:,}").filter(has_not_text="reading").wait_for()
        found: list[float] = page.get_by_role("table", name="Jobs").evaluate(SCROLLED)
        page.get_by_role("link", name=f"train-{jobs - 1:05d}", exact=True).wait_for()
        return found


def in_page(browser: Any, server: Server, state: Any, name: str, script: str, argument: Any) -> float:
    """Milliseconds from a click in an open page, which has come to rest, to what it brings."""
    with browser.new_context(storage_state=state) as context:
        page = context.new_page()
        page.goto(f"{address(server)}/jobs/{name}")
        page.locator("nav.tabs a").first.wait_for()
        page.wait_for_function(AT_REST)
        found: float = page.evaluate(script, argument)
        return found


def cost_of_pages(browser: Any, server: Server, state: Any, seconds: float) -> tuple[float, float]:
    """Cores that the server uses while jobs run: without a page, and with many."""
    names = [f"runs-{number:03d}" for number in range(RUNNING)]
    with Connection(server) as connection:
        for name in names:
            connection.submit(job(name, ["python", "-c", TRAINS]))
    running(server, RUNNING)
    settled(lambda: cpu_seconds(server.pid))
    alone = used(server, seconds)
    with ExitStack() as opened:
        for number in range(PAGES):
            context = opened.enter_context(browser.new_context(storage_state=state))
            page = context.new_page()
            page.goto(f"{address(server)}{('/', '/jobs', f'/jobs/{names[number]}')[number % 3]}")
            page.locator("main").wait_for()
        settled(lambda: cpu_seconds(server.pid))
        watched = used(server, seconds)
    with Connection(server) as connection:
        for name in names:
            connection.post(f"/v1/jobs/{name}/cancel")
    running(server, 0)
    return alone, watched


def running(server: Server, count: int) -> None:
    """Wait until so many jobs run."""

    def so_many() -> bool:
        with Connection(server) as connection:
            return bool(connection.get("/v1/status")["jobs"].get("PROCESSING", 0) == count)

    until(so_many, f"{count} jobs to run", 300, 0.5)


def used(server: Server, seconds: float) -> float:
    begun, before = time.perf_counter(), cpu_seconds(server.pid)
    time.sleep(seconds)
    return (cpu_seconds(server.pid) - before) / (time.perf_counter() - begun)


def settled(cpu: Callable[[], float], within: float = 30.0) -> None:
    """Until two seconds cost about as much as the two before: what was begun is done."""
    deadline = time.monotonic() + within
    last, before = math.inf, cpu()
    while time.monotonic() < deadline:
        time.sleep(2.0)
        now = cpu()
        if abs((now - before) - last) < 0.1:
            return
        last, before = now - before, now


def cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


if __name__ == "__main__":
    main()
