"""Signing in at the page: one-time codes, and the sessions that browsers keep as a cookie.

Both are random and kept as digests only, so nothing that is stored signs anybody in. Sessions are written to the home:
an open page goes on when the server is started again.
"""

from __future__ import annotations

import hmac
import json
import secrets
import time
from collections.abc import Callable
from hashlib import sha256
from http.cookies import CookieError, SimpleCookie
from pathlib import Path
from typing import Any

from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.responses import Response

from weft.server.answers import SessionCode, SignedIn, ref
from weft.server.jobs import read_body
from weft.server.operations import Answer, Operation, Query, as_json
from weft.server.problems import ApiProblem
from weft.version import __version__

CODE_SECONDS = 60.0
IDLE_SECONDS = 12 * 3600.0
NOTED_EVERY = 600.0
"""A session's last use is written this often: reading a page should not write a file each time."""
MOST = 1000
"""Codes and sessions each; the oldest go first."""


WAYS = ("code", "token")
CREDENTIAL = {
    "type": "object",
    "minProperties": 1,
    "maxProperties": 1,
    "additionalProperties": False,
    "properties": {way: {"type": "string"} for way in WAYS},
}


class Sessions:
    """The token, the codes and the sessions of one server."""

    def __init__(self, file: Path, token: str, clock: Callable[[], float] = time.time):
        self._file = file
        self._token = sha256(token.encode()).digest()
        self._clock = clock
        self._codes: dict[str, float] = {}
        self._used: dict[str, float] = _read(file)
        self.cookie = f"weft-{sha256(str(file).encode()).hexdigest()[:8]}"
        """Browsers keep one jar for all ports of a machine: each home has a name of its own."""

    def is_token(self, given: str) -> bool:
        return hmac.compare_digest(sha256(given.encode("utf-8", "surrogatepass")).digest(), self._token)

    def new_code(self) -> tuple[str, float]:
        """A code that opens one session, and until when."""
        code, until = secrets.token_urlsafe(24), self._clock() + CODE_SECONDS
        self._codes = {digest: end for digest, end in self._codes.items() if end > self._clock()}
        self._codes[_digest(code)] = until
        _only_newest(self._codes)
        return code, until

    def redeem(self, code: str) -> str | None:
        """A session for a code that is good; it never is again."""
        given = _digest(code)
        known = [digest for digest in self._codes if hmac.compare_digest(digest, given)]
        if not known or self._codes.pop(known[0]) <= self._clock():
            return None
        return self.open()

    def open(self) -> str:
        session = secrets.token_urlsafe(32)
        self._used[_digest(session)] = self._clock()
        _only_newest(self._used)
        self._write()
        return session

    def known(self, session: str) -> bool:
        """Whether it is signed in; asking keeps it so."""
        digest, now = _digest(session), self._clock()
        used = self._used.get(digest)
        if used is None:
            return False
        if now - used > IDLE_SECONDS:
            self.close(session)
            return False
        if now - used > NOTED_EVERY:
            self._used[digest] = now
            self._write()
        return True

    def close(self, session: str) -> None:
        if self._used.pop(_digest(session), None) is not None:
            self._write()

    def of(self, headers: Headers) -> str:
        """What a request says its session is."""
        try:
            found = SimpleCookie(headers.get("cookie", "")).get(self.cookie)
        except CookieError:
            return ""
        return found.value if found is not None else ""

    def _write(self) -> None:
        """Where the disk is full a session lasts as long as this server."""
        temporary = self._file.with_suffix(".new")
        try:
            temporary.touch(0o600)
            temporary.write_text(json.dumps(self._used))
            temporary.replace(self._file)
        except OSError:
            return


class SessionOperations:
    def __init__(self, sessions: Sessions, owner: str):
        self._sessions = sessions
        self._owner = owner

    def table(self) -> list[Operation]:
        return [
            Operation(
                "POST",
                "/v1/session/codes",
                "A code that signs one page in, within a minute; weft ui asks for it",
                self.new_code,
                {201: Answer("The code", ref(SessionCode))},
            ),
            Operation(
                "POST",
                "/v1/session",
                "Sign a page in with a code or the token: from then on its cookie stands for the token",
                self.sign_in,
                {204: Answer("Signed in: a cookie")},
                body=CREDENTIAL,
                problems=(401, 403, 413),
                public=True,
            ),
            Operation(
                "GET",
                "/v1/session",
                "Who is signed in",
                self.signed_in,
                {200: Answer("Who", ref(SignedIn))},
            ),
            Operation("DELETE", "/v1/session", "Sign out", self.sign_out, {204: Answer("Signed out")}),
        ]

    async def new_code(self, request: Request, query: Query) -> Response:
        code, expires = self._sessions.new_code()
        return as_json({"code": code, "expires": expires}, 201)

    async def sign_in(self, request: Request, query: Query) -> Response:
        way, given = _credential(await read_body(request, 1 << 12))
        if way == "code":
            session = self._sessions.redeem(given)
        else:
            session = self._sessions.open() if self._sessions.is_token(given) else None
        if session is None:
            detail = {
                "code": f"the code is wrong, used, or older than {CODE_SECONDS:.0f} s",
                "token": "that is not this server's token (it is in WEFT_HOME/token)",
            }[way]
            raise ApiProblem(401, "Not signed in", detail, next_step="weft ui")
        return self._with_cookie(session)

    async def signed_in(self, request: Request, query: Query) -> Response:
        return as_json({"owner": self._owner, "version": __version__})

    async def sign_out(self, request: Request, query: Query) -> Response:
        self._sessions.close(self._sessions.of(request.headers))
        return self._with_cookie("", "; Max-Age=0")

    def _with_cookie(self, session: str, further: str = "") -> Response:
        cookie = f"{self._sessions.cookie}={session}; Path=/v1; HttpOnly; SameSite=Strict{further}"
        return Response(status_code=204, headers={"Set-Cookie": cookie, "Cache-Control": "no-store"})


def _credential(document: Any) -> tuple[str, str]:
    """How somebody signs in, and with what; never repeated in an answer."""
    if not isinstance(document, dict) or len(document) != 1 or not {*document} <= {*WAYS}:
        raise ApiProblem(422, "Not valid", 'say {"code": "..."} or {"token": "..."}', next_step="weft ui")
    ((way, given),) = document.items()
    if not isinstance(given, str):
        raise ApiProblem(422, "Not valid", f"the {way} must be text", next_step="weft ui")
    return way, given


def _read(file: Path) -> dict[str, float]:
    try:
        return {str(digest): float(used) for digest, used in json.loads(file.read_text()).items()}
    except (OSError, ValueError, AttributeError, TypeError):
        return {}


def _digest(text: str) -> str:
    return sha256(text.encode()).hexdigest()


def _only_newest(kept: dict[str, float]) -> None:
    for digest in sorted(kept, key=kept.__getitem__)[:-MOST]:
        del kept[digest]
