"""The page's files, as the build left them beside this module. They are the same for everybody and hold no secret."""

from __future__ import annotations

from hashlib import sha256
from mimetypes import guess_type
from pathlib import Path

from starlette.requests import Request
from starlette.responses import Response

from weft.server.problems import ApiProblem

BUILT = Path(__file__).with_name("page")
INDEX = "index.html"
HASHED = "assets/"
"""Whose names change with their content."""
POLICY = (
    "default-src 'self'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "object-src 'none'; frame-ancestors 'none'; base-uri 'none'; form-action 'self'"
)
HEADERS = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Vary": "Accept-Encoding",
}


class Page:
    def __init__(self, folder: Path = BUILT):
        self._folder = folder

    @property
    def there(self) -> bool:
        """Whether it was built."""
        return (self._folder / INDEX).is_file()

    def answer(self, request: Request) -> Response | None:
        """A file of the page; for a reader's browser, the page itself wherever nothing else is: it knows its places."""
        path = request.url.path.lstrip("/")
        if request.method not in ("GET", "HEAD") or path.startswith("v1/"):
            return None
        if not self.there:
            return _left_out().response() if path == "" else None
        file = self._folder / (path or INDEX)
        if not file.resolve().is_relative_to(self._folder.resolve()) or not file.is_file():
            if path.startswith(HASHED) or "text/html" not in request.headers.get("accept", ""):
                return None
            file = self._folder / INDEX
        return _served(request, file, hashed=path.startswith(HASHED))


def _served(request: Request, file: Path, hashed: bool) -> Response:
    headers = {**HEADERS, "Cache-Control": "public, max-age=31536000, immutable" if hashed else "no-cache"}
    packed = file.with_name(f"{file.name}.gz")
    if "gzip" in request.headers.get("accept-encoding", "") and packed.is_file():
        headers["Content-Encoding"] = "gzip"
        body = packed.read_bytes()
    else:
        body = file.read_bytes()
    headers["ETag"] = f'"{sha256(body).hexdigest()[:32]}"'
    if request.headers.get("if-none-match") == headers["ETag"]:
        return Response(status_code=304, headers=headers)
    kind = guess_type(file.name)[0] or "application/octet-stream"
    head = {**headers, "Content-Length": str(len(body))}
    return Response(b"" if request.method == "HEAD" else body, headers=head, media_type=kind)


def _left_out() -> ApiProblem:
    return ApiProblem(
        404,
        "No page",
        "this Weft was installed without its page (WEFT_NO_PAGE); everything it would show is at /openapi.json",
        next_step="install Weft again without WEFT_NO_PAGE; or: weft ls",
    )
