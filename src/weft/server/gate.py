"""Who may ask: whoever sends the token, and pages of this server whose reader has signed in.

A browser sends its cookie with whatever any page makes it ask. So what comes without a token must be addressed to this
machine by a name that only this machine has (else a stranger's name could lead here), must not come from a page of
another origin, and to change anything must carry a header that no other origin can send.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Set

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from weft.server.problems import ApiProblem
from weft.server.session import Sessions

MARK = "x-weft"
READING = ("GET", "HEAD")
OURS = ("same-origin", "none")
"""What `Sec-Fetch-Site` says of a page's own requests, and of those that a person typed."""


class Gate:
    def __init__(self, app: ASGIApp, sessions: Sessions, public: Set[tuple[str, str]]):
        self._app = app
        self._sessions = sessions
        self._public = public

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        refusal = self._refusal(scope) if scope["type"] == "http" else None
        await (self._app if refusal is None else refusal.response())(scope, receive, send)

    def _refusal(self, scope: Scope) -> ApiProblem | None:
        headers = Headers(scope=scope)
        if self._sessions.is_token(_bearer(headers)) or self._tells_nothing(scope):
            return None
        host = headers.get("host", "")
        if not _is_loopback(host):
            return ApiProblem(
                403,
                "Another host",
                f'this server is not called "{host[:80]}": use 127.0.0.1, [::1] or localhost, or send the token',
                next_step="weft status",
            )
        if not self._is_public(scope) and not self._sessions.known(self._sessions.of(headers)):
            return ApiProblem(
                401,
                "Token needed",
                "send the server's token: Authorization: Bearer <token> (it is in WEFT_HOME/token)",
                next_step="weft status; for the page: weft ui",
                headers={"WWW-Authenticate": "Bearer"},
            )
        return _foreign(headers, host, scope["method"])

    def _tells_nothing(self, scope: Scope) -> bool:
        """Probes come by whatever name, and are told nothing that is not in the manual."""
        return scope["method"] in READING and (scope["method"], scope["path"]) in self._public

    def _is_public(self, scope: Scope) -> bool:
        """The page holds no secrets; what it shows, it asks for."""
        return (scope["method"], scope["path"]) in self._public or not scope["path"].startswith("/v1/")


def _foreign(headers: Headers, host: str, method: str) -> ApiProblem | None:
    """A refusal of what another origin asks, or might."""
    origin = headers.get("origin")
    if origin is not None and origin.partition("://")[2] != host:
        return ApiProblem(403, "Another origin", f'pages of "{origin[:80]}" may not ask this server')
    if headers.get("sec-fetch-site", OURS[0]) not in OURS and headers.get("sec-fetch-mode") != "navigate":
        return ApiProblem(403, "Another origin", "pages of other origins may not ask this server")
    if method not in READING and headers.get(MARK) is None:
        detail = "without the token, a request that changes something carries the header X-Weft: page"
        return ApiProblem(403, "Header needed", detail)
    return None


def _bearer(headers: Headers) -> str:
    scheme, _, token = headers.get("authorization", "").partition(" ")
    return token.strip() if scheme.lower() == "bearer" else ""


def _is_loopback(host: str) -> bool:
    name = host.rpartition(":")[0] if not host.endswith("]") and ":" in host else host
    if name.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(name.strip("[]")).is_loopback
    except ValueError:
        return False
