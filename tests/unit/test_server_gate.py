"""Who may ask the server: whoever has the token, and its own page when somebody has signed in there."""

from __future__ import annotations

import asyncio
import json
import stat
from pathlib import Path
from typing import Any

import pytest

from weft.server.app import build
from weft.server.operations import Answer, Operation, as_json
from weft.server.page import Page
from weft.server.session import CODE_SECONDS, IDLE_SECONDS, NOTED_EVERY, SessionOperations, Sessions

TOKEN = "the-token"
HERE = "127.0.0.1:8470"


class Asked:
    def __init__(self, messages: list[dict[str, Any]]):
        self.status: int = messages[0]["status"]
        self.headers = {name.decode(): value.decode() for name, value in messages[0]["headers"]}
        self.body = b"".join(message.get("body", b"") for message in messages[1:])

    @property
    def json(self) -> Any:
        return json.loads(self.body)


class World:
    """A server with one secret and a page, and a clock that is turned by hand."""

    def __init__(self, folder: Path):
        self.folder = folder
        self.now = 1000.0
        self.page = folder / "page"
        (self.page / "assets").mkdir(parents=True)
        (self.page / "index.html").write_text("<title>Weft</title>")
        (self.page / "assets/a.js").write_text("1")
        self.start()

    def start(self) -> None:
        self.sessions = Sessions(self.folder / "sessions.json", TOKEN, lambda: self.now)

        async def secret(request: Any, query: Any) -> Any:
            return as_json({"secret": 42})

        async def health(request: Any, query: Any) -> Any:
            return as_json({"status": "ok"})

        ok = {200: Answer("ok")}
        operations = [
            Operation("GET", "/v1/secret", "", secret, ok),
            Operation("POST", "/v1/secret", "", secret, ok),
            Operation("GET", "/healthz", "", health, ok, public=True),
            *SessionOperations(self.sessions, "ann").table(),
        ]
        self.app = build(operations, self.sessions, Page(self.page))

    def ask(self, method: str, path: str, body: Any = None, **headers: str) -> Asked:
        """Header names with _ for -."""
        given = {"host": HERE} | {name.replace("_", "-"): value for name, value in headers.items()}
        sent: list[Any] = []

        async def receive() -> dict[str, Any]:
            return {"type": "http.request", "body": json.dumps(body).encode()}

        async def send(message: Any) -> None:
            sent.append(message)

        scope = {
            "type": "http", "method": method, "path": path, "query_string": b"", "scheme": "http", "root_path": "",
            "server": ("127.0.0.1", 8470), "headers": [(n.encode(), v.encode()) for n, v in given.items() if v],
        }  # fmt: skip
        asyncio.run(self.app(scope, receive, send))  # type: ignore[arg-type]
        return Asked(sent)

    def code(self) -> str:
        return str(self.ask("POST", "/v1/session/codes", authorization=f"Bearer {TOKEN}").json["code"])

    def sign_in(self, **credential: str) -> str:
        """The cookie that a browser would send from now on."""
        answer = self.ask("POST", "/v1/session", credential or {"code": self.code()}, x_weft="page")
        assert answer.status == 204, answer.body
        return answer.headers["set-cookie"].partition(";")[0]


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


# ── signing in ──


def test_a_code_signs_in_once_within_a_minute(world: World) -> None:
    code = world.code()
    cookie = world.sign_in(code=code)
    assert world.ask("GET", "/v1/secret", cookie=cookie).json == {"secret": 42}
    again = world.ask("POST", "/v1/session", {"code": code}, x_weft="page")
    assert (again.status, again.json["next"]) == (401, "weft ui")
    late = world.code()
    world.now += CODE_SECONDS
    assert world.ask("POST", "/v1/session", {"code": late}, x_weft="page").status == 401


def test_a_code_is_given_for_the_token_alone(world: World) -> None:
    assert world.ask("POST", "/v1/session/codes", x_weft="page").status == 401


def test_the_token_signs_in_too_and_is_not_repeated(world: World) -> None:
    assert world.ask("GET", "/v1/secret", cookie=world.sign_in(token=TOKEN)).status == 200
    wrong = world.ask("POST", "/v1/session", {"token": "guessed"}, x_weft="page")
    assert wrong.status == 401
    assert b"guessed" not in wrong.body


@pytest.mark.parametrize("body", [None, 1, [], {}, {"code": 1}, {"code": "a", "token": "b"}, {"pass": "a"}])
def test_signing_in_with_something_else_says_how(world: World, body: Any) -> None:
    answer = world.ask("POST", "/v1/session", body, x_weft="page")
    assert (answer.status, answer.json["next"]) == (422, "weft ui")


def test_no_script_sees_the_cookie_and_no_other_site_sends_it(world: World) -> None:
    answer = world.ask("POST", "/v1/session", {"code": world.code()}, x_weft="page")
    assert {*answer.headers["set-cookie"].split("; ")[1:]} == {"Path=/v1", "HttpOnly", "SameSite=Strict"}


def test_the_cookies_of_two_homes_have_two_names(tmp_path: Path) -> None:
    names = {Sessions(tmp_path / home / "sessions.json", TOKEN).cookie for home in "ab"}
    assert len(names) == 2


def test_a_session_lasts_while_it_is_used(world: World) -> None:
    cookie = world.sign_in()
    for _ in range(4):
        world.now += IDLE_SECONDS / 2
        assert world.ask("GET", "/v1/secret", cookie=cookie).status == 200
    world.now += IDLE_SECONDS + 1
    assert world.ask("GET", "/v1/secret", cookie=cookie).status == 401


def test_a_session_goes_on_when_the_server_is_started_again(world: World) -> None:
    cookie = world.sign_in()
    world.now += NOTED_EVERY + 1
    assert world.ask("GET", "/v1/secret", cookie=cookie).status == 200
    world.start()
    world.now += IDLE_SECONDS - 1
    assert world.ask("GET", "/v1/secret", cookie=cookie).status == 200, "its last use is known"


@pytest.mark.parametrize("text", ["", "[]", "{", '{"a": "b"}'])
def test_a_broken_file_of_sessions_signs_everybody_out_and_hurts_nothing(world: World, text: str) -> None:
    cookie = world.sign_in()
    (world.folder / "sessions.json").write_text(text)
    world.start()
    assert world.ask("GET", "/v1/secret", cookie=cookie).status == 401
    assert world.ask("GET", "/v1/secret", cookie=world.sign_in()).status == 200


def test_what_is_kept_signs_nobody_in_and_is_the_owner_s_alone(world: World) -> None:
    session = world.sign_in().partition("=")[2]
    file = world.folder / "sessions.json"
    assert session not in file.read_text()
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    (kept,) = json.loads(file.read_text())
    cookie = f"{world.sessions.cookie}={kept}"
    assert world.ask("GET", "/v1/secret", cookie=cookie).status == 401


def test_signing_out_ends_the_session(world: World) -> None:
    cookie, other = world.sign_in(), world.sign_in()
    assert world.ask("GET", "/v1/session", cookie=cookie).json["owner"] == "ann"
    out = world.ask("DELETE", "/v1/session", cookie=cookie, x_weft="page")
    assert (out.status, "Max-Age=0" in out.headers["set-cookie"]) == (204, True)
    assert world.ask("GET", "/v1/session", cookie=cookie).status == 401
    assert world.ask("GET", "/v1/session", cookie=other).status == 200


# ── who may ask ──


def test_without_token_or_session_only_the_page_and_what_is_public_answers(world: World) -> None:
    assert world.ask("GET", "/healthz").status == 200
    assert world.ask("GET", "/").status == 200
    for cookie in ("", "x", f"{world.sessions.cookie}=", f"{world.sessions.cookie}=guess", "\x01;="):
        refused = world.ask("GET", "/v1/secret", cookie=cookie)
        assert (refused.status, refused.headers["www-authenticate"]) == (401, "Bearer")


def test_a_session_changes_something_only_with_the_header_of_the_page(world: World) -> None:
    cookie = world.sign_in()
    assert world.ask("POST", "/v1/secret", cookie=cookie).status == 403
    assert world.ask("POST", "/v1/secret", cookie=cookie, x_weft="page").status == 200
    assert world.ask("POST", "/v1/secret", authorization=f"Bearer {TOKEN}").status == 200


@pytest.mark.parametrize(
    "origin", ["http://evil.example", "http://127.0.0.1:8888", "http://localhost:8470", "null", ""]
)
@pytest.mark.parametrize("method", ["GET", "POST"])
def test_other_origins_are_refused_whatever_they_send(world: World, origin: str, method: str) -> None:
    cookie = world.sign_in()
    strange = {"origin": origin} if origin else {"sec_fetch_site": "same-site"}
    refused = world.ask(method, "/v1/secret", cookie=cookie, x_weft="page", **strange)
    assert (refused.status, refused.json["title"]) == (403, "Another origin")
    code = world.code()
    assert world.ask("POST", "/v1/session", {"code": code}, x_weft="page", **strange).status == 403
    assert world.sign_in(code=code), "a refused request has not used it up"


def test_the_page_s_own_origin_may_ask(world: World) -> None:
    own = {"origin": f"http://{HERE}", "sec_fetch_site": "same-origin", "x_weft": "page"}
    assert world.ask("POST", "/v1/secret", cookie=world.sign_in(), **own).status == 200


def test_a_link_from_elsewhere_opens_the_page(world: World) -> None:
    link = {"sec_fetch_site": "cross-site", "sec_fetch_mode": "navigate", "accept": "text/html"}
    assert world.ask("GET", "/jobs/mnist", **link).status == 200


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:8470", "127.0.0.1.evil.example", "10.0.0.1", "", "[", "localhost."]
)
@pytest.mark.parametrize("path", ["/", "/v1/secret"])
def test_a_stranger_s_name_for_this_machine_leads_nowhere(world: World, host: str, path: str) -> None:
    cookie = world.sign_in()
    assert world.ask("GET", path, cookie=cookie, host=host).status == 403
    token = world.ask("GET", "/v1/secret", authorization=f"Bearer {TOKEN}", host=host)
    assert token.status == 200, "whoever has the token is no page"
    assert world.ask("GET", "/healthz", host=host).status == 200, "nor is a probe"


@pytest.mark.parametrize(
    "host", ["127.0.0.1", "127.0.0.1:1", "localhost:80", "LOCALHOST", "[::1]", "[::1]:8470"]
)
def test_this_machine_s_own_names_lead_here(world: World, host: str) -> None:
    assert world.ask("GET", "/v1/secret", cookie=world.sign_in(), host=host).status == 200


@pytest.mark.parametrize(
    "given", ["", "bearer", "Bearer", "Basic the-token", "Bearer the-toke", "Bearer ünd"]
)
def test_almost_the_token_is_not_the_token(world: World, given: str) -> None:
    assert world.ask("GET", "/v1/secret", authorization=given).status == 401


# ── the page ──


def test_the_page_is_wherever_a_browser_asks_and_nothing_else_is(world: World) -> None:
    for path in ("/", "/jobs", "/jobs/mnist"):
        assert world.ask("GET", path, accept="text/html,*/*").body == b"<title>Weft</title>"
    assert world.ask("GET", "/assets/gone.js", accept="text/html").status == 404
    assert world.ask("GET", "/v1/nothing", accept="text/html", authorization=f"Bearer {TOKEN}").status == 404
    assert world.ask("GET", "/nowhere", accept="application/json").status == 404
    assert world.ask("POST", "/jobs", x_weft="page").status == 404


def test_nothing_outside_of_the_page_is_served(world: World) -> None:
    world.sign_in()
    for path in (
        "/../sessions.json",
        "/assets/../../sessions.json",
        "//etc/passwd",
        "/assets/",
        "/%2e%2e/sessions.json",
    ):
        assert world.ask("GET", path).status == 404, path


def test_no_script_but_the_page_s_own_runs_and_nobody_frames_it(world: World) -> None:
    headers = world.ask("GET", "/").headers
    policy = headers["content-security-policy"]
    assert "script-src 'self';" in policy
    assert "frame-ancestors 'none'" in policy
    assert "unsafe" not in policy
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["referrer-policy"] == "no-referrer"


def test_files_are_kept_for_ever_by_their_hash_and_the_page_is_asked_for_each_time(world: World) -> None:
    assert "immutable" in world.ask("GET", "/assets/a.js").headers["cache-control"]
    first = world.ask("GET", "/")
    assert first.headers["cache-control"] == "no-cache"
    again = world.ask("GET", "/", if_none_match=first.headers["etag"])
    assert (again.status, again.body) == (304, b"")
    assert again.headers["content-security-policy"]


def test_who_can_unpack_gets_it_packed(world: World) -> None:
    (world.page / "assets/a.js.gz").write_bytes(b"packed")
    packed = world.ask("GET", "/assets/a.js", accept_encoding="gzip, br")
    assert (packed.body, packed.headers["content-encoding"]) == (b"packed", "gzip")
    assert packed.headers["content-type"].startswith("text/javascript")
    assert world.ask("GET", "/assets/a.js").body == b"1"
    assert world.ask("HEAD", "/assets/a.js").body == b""


def test_a_server_without_the_page_says_so(world: World) -> None:
    (world.page / "index.html").unlink()
    answer = world.ask("GET", "/", accept="text/html")
    assert (answer.status, answer.json["title"]) == (404, "No page")
    assert "WEFT_NO_PAGE" in answer.json["detail"]
