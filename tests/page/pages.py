"""What a person sees and does in a browser."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from build_page import machine_node, wheel_node
from harness import Server
from playwright.sync_api import Browser, BrowserContext, ConsoleMessage, Error, Page, Request, expect

ROOT = Path(__file__).resolve().parents[2]
BUILT = ROOT / "src/weft/server/page"
AXE = ROOT / "ui/node_modules/axe-core/axe.min.js"
PICTURES = ROOT / ".artifacts/page"
DESK = {"width": 1280, "height": 800}
PHONE = {"width": 400, "height": 800}
SOON = 20_000
"""Milliseconds; CI is slow."""

expect.set_options(timeout=SOON)

AWAITED = """
(patience) => {
    window.sighted = new Promise((seen) => {
        const look = () => {
            if (!(%s)) return;
            observer.disconnect();
            requestAnimationFrame(() => seen(Date.now() / 1000));
        };
        const observer = new MutationObserver(look);
        observer.observe(document, {subtree: true, childList: true, characterData: true, attributes: true});
        setTimeout(() => seen(null), patience);
        look();
    });
}
"""


def node(tool: str, *arguments: str) -> str:
    """What a tool of the page's own packages, or Node itself, says of its sources; that it fails is an error."""
    script = [str(ROOT / "ui/node_modules" / tool)] if tool else []
    command = [machine_node() or wheel_node(), *script, *arguments]
    ran = subprocess.run(command, cwd=ROOT / "ui", capture_output=True, text=True, timeout=200, check=False)
    assert ran.returncode == 0, ran.stdout[-4000:] + ran.stderr[-4000:]
    return ran.stdout


@dataclass
class Reader:
    """A browser tab with the page of one server in it."""

    page: Page
    address: str
    complaints: list[str] = field(default_factory=list)
    """Errors of scripts, refusals by the policy, requests to elsewhere: there should be none."""
    addresses: list[str] = field(default_factory=list)
    """All that was asked for."""

    def listen(self) -> None:
        self.page.on("pageerror", lambda error: self.complaints.append(f"script: {error}"))
        self.page.on("console", self._console)
        self.page.on("request", self._request)

    def _console(self, message: ConsoleMessage) -> None:
        expected = "Failed to load resource"  # the browser's own words on a refusal or a server that is away
        if message.type == "error" and expected not in message.text:
            self.complaints.append(f"console: {message.text}")

    def _request(self, request: Request) -> None:
        self.addresses.append(request.url)
        if not request.url.startswith((self.address, "data:", "blob:")):
            self.complaints.append(f"asked elsewhere: {request.url}")

    def go(self, path: str) -> Page:
        self.page.goto(f"{self.address}{path}")
        return self.page

    def turn_to(self, path: str) -> Page:
        """As by a link within the page: nothing is loaded anew."""
        self.page.evaluate(
            "(path) => { history.pushState(null, '', path); dispatchEvent(new PopStateEvent('popstate')); }",
            path,
        )
        return self.page

    def sees(self, text: str) -> None:
        expect(self.page.get_by_text(text, exact=False).first).to_be_visible()

    def awaits(self, sight: str) -> Callable[[], float]:
        """Look from inside the browser, at every change of the document, whether this holds; what is returned says, once it
        is drawn, since when."""
        self.page.evaluate(AWAITED % sight, SOON)

        def seen() -> float:
            found = self.page.evaluate("window.sighted")
            assert found is not None, f"never seen: {sight}"
            return float(found)

        return seen

    def marked(self) -> None:
        """Leave a mark that a reload would wipe out."""
        self.page.evaluate("window.marked = true")

    def still_marked(self) -> bool:
        return bool(self.page.evaluate("window.marked === true"))

    def picture(self, name: str) -> Path:
        PICTURES.mkdir(parents=True, exist_ok=True)
        path = PICTURES / f"{re.sub(r'[^a-z0-9-]+', '-', name.lower()).strip('-')}.png"
        self.page.screenshot(path=path)
        return path

    def accessibility_problems(self, *rules: str) -> list[str]:
        """What axe calls serious or critical, by these rules or all. Evaluated, not added as a script: the policy would
        refuse that."""
        if not self.page.evaluate("'axe' in window"):
            self.page.evaluate(AXE.read_text())
        options = {"resultTypes": ["violations"], **({"runOnly": list(rules)} if rules else {})}
        found: list[dict[str, Any]] = self.page.evaluate(
            "async (options) => (await axe.run(document, options)).violations", options
        )
        return [
            f"{problem['id']} ({problem['impact']}): {problem['help']}: "
            + "; ".join(node["html"][:160] for node in problem["nodes"][:3])
            for problem in found
            if problem["impact"] in ("serious", "critical")
        ]


@dataclass
class Visit:
    """Opens the page in fresh contexts of one browser."""

    browser: Browser
    _states: dict[str, Any] = field(default_factory=dict)

    def _signed_in_state(self, server: Server) -> Any:
        """The cookie of a reader who came by `weft ui`; one sign-in serves all tests."""
        address = server.facts()["address"]
        if str(server.home) not in self._states:
            with self.browser.new_context() as context:
                page = context.new_page()
                page.goto(f"{address}/#login={code(server)}")
                expect(page.get_by_role("navigation", name="Views")).to_be_visible()
                self._states[str(server.home)] = context.storage_state()
        return self._states[str(server.home)]

    @contextmanager
    def signed_in(
        self,
        server: Server,
        *,
        scheme: str = "light",
        size: dict[str, int] = DESK,
        quiet: bool = True,
        **options: Any,
    ) -> Iterator[Reader]:
        options["storage_state"] = self._signed_in_state(server)
        with self.stranger(server, scheme=scheme, size=size, quiet=quiet, **options) as reader:
            yield reader

    @contextmanager
    def stranger(
        self,
        server: Server,
        *,
        scheme: str = "light",
        size: dict[str, int] = DESK,
        quiet: bool = True,
        **options: Any,
    ) -> Iterator[Reader]:
        """A tab of somebody who is not signed in. `quiet`: the page must not complain."""
        context: BrowserContext = self.browser.new_context(
            viewport=size, color_scheme=scheme, reduced_motion="reduce", **options
        )
        context.set_default_timeout(SOON)
        reader = Reader(context.new_page(), server.facts()["address"])
        reader.listen()
        try:
            yield reader
        finally:
            try:
                context.close()
            except Error:
                pass
        assert not (quiet and reader.complaints), reader.complaints


def code(server: Server) -> str:
    answer = server.post("/v1/session/codes")
    assert answer.status == 201, answer.body
    found: str = answer.json["code"]
    return found
