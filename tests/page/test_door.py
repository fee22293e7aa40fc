"""Who gets in, how, and what no page may do: the token in no address, no script of others, no other origin."""

from __future__ import annotations

import http.server
import re
import threading
from collections.abc import Iterator

import pytest
from harness import Server
from jobs import Jobs
from pages import BUILT, Reader, Visit, code
from playwright.sync_api import expect


@pytest.fixture
def elsewhere() -> Iterator[str]:
    """A page of somebody else on this machine."""

    class Blank(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Type", "text/html")
            self.end_headers()
            self.wfile.write(b"<title>elsewhere</title>")

        def log_message(self, *_: object) -> None:
            pass

    serving = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Blank)
    threading.Thread(target=serving.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{serving.server_port}"
    serving.shutdown()
    serving.server_close()


def test_the_address_of_weft_ui_signs_in_and_leaves_no_trace_of_the_code(server: Server, visit: Visit):
    address = server.weft("ui", "--print").stdout.strip()
    once = address.partition("#login=")[2]
    with visit.stranger(server) as reader:
        reader.page.goto(address)
        expect(reader.page.get_by_role("navigation", name="Views")).to_be_visible()
        assert once
        assert once not in reader.page.url
        assert all(once not in asked.partition("#")[0] for asked in reader.addresses)
        cookies = reader.page.context.cookies(f"{reader.address}/v1/jobs")
        assert [(c["httpOnly"], c["sameSite"]) for c in cookies] == [(True, "Strict")]
        assert "weft" not in reader.page.evaluate("document.cookie")
    with visit.stranger(server) as second:
        second.page.goto(address)
        expect(second.page.get_by_role("button", name="Sign in")).to_be_visible()


def test_the_token_signs_in_and_is_in_no_address_and_no_storage(server: Server, visit: Visit):
    with visit.stranger(server) as reader:
        page = reader.go("/jobs")
        expect(page.get_by_text("weft ui").first).to_be_visible()
        page.get_by_label("token").fill("not-the-token")
        page.get_by_role("button", name="Sign in").click()
        expect(page.get_by_role("alert")).to_contain_text("not this server's token")
        page.get_by_label("token").fill(server.token)
        page.get_by_role("button", name="Sign in").click()
        expect(page.get_by_role("navigation", name="Views")).to_be_visible()
        assert page.url == f"{reader.address}/jobs", "where one was going"
        assert all(server.token not in asked for asked in reader.addresses)
        kept = page.evaluate("JSON.stringify([{...localStorage}, {...sessionStorage}])")
        assert server.token not in kept


def test_who_signs_out_is_out(server: Server, visit: Visit):
    with visit.stranger(server) as reader:
        page = reader.go(f"/#login={code(server)}")
        page.get_by_role("button", name="Sign out").click()
        expect(page.get_by_role("button", name="Sign in")).to_be_visible()
        page.reload()
        expect(page.get_by_role("button", name="Sign in")).to_be_visible()


def test_no_script_stands_in_the_page_and_none_can_be_brought_into_it(reader: Reader):
    page = reader.go("/")
    index = (BUILT / "index.html").read_text()
    assert not re.search(r"<script(?![^>]*\bsrc=)", index)
    assert not re.search(r"\son\w+=|style=", index)
    with page.expect_console_message(lambda said: "Content Security Policy" in said.text):
        page.evaluate(
            """() => {
                const script = document.createElement("script");
                script.textContent = "window.broken = 1";
                document.body.append(script);
                document.body.insertAdjacentHTML("beforeend", "<img src=/x onerror='window.broken = 2'>");
            }"""
        )
    assert page.evaluate("window.broken") is None
    reader.complaints.clear()


def test_a_page_of_another_origin_gets_nothing_with_the_reader_s_own_cookie(
    server: Server, visit: Visit, elsewhere: str, jobs: Jobs
):
    with visit.signed_in(server, quiet=False) as reader:
        page = reader.page
        page.goto(elsewhere)
        tried = page.evaluate(
            """async ([address, job]) => {
                const tries = [
                    [`${address}/v1/jobs`, {credentials: "include"}],
                    [`${address}/v1/jobs`, {credentials: "include", mode: "no-cors"}],
                    [`${address}/v1/jobs/${job}`, {credentials: "include", method: "DELETE", headers: {"X-Weft": "page"}}],
                    [`${address}/v1/jobs/${job}/cancel`, {credentials: "include", method: "POST", mode: "no-cors"}],
                ];
                const seen = [];
                for (const [url, options] of tries) {
                    try {
                        const answer = await fetch(url, options);
                        seen.push(`${answer.type} ${answer.status}`);
                    } catch (error) {
                        seen.push("refused");
                    }
                }
                return seen;
            }""",
            [reader.address, jobs.gang],
        )
        assert tried == ["refused", "opaque 0", "refused", "opaque 0"]
        assert server.status(jobs.gang)["state"] == "PROCESSING"
        framed = page.evaluate(
            """async (address) => {
                const frame = document.createElement("iframe");
                frame.src = address;
                document.body.append(frame);
                await new Promise((done) => { frame.onload = done; });
                try { return frame.contentDocument !== null; } catch { return false; }
            }""",
            reader.address,
        )
        assert framed is False
