"""The page's types are made from the server's own description of itself; a change of the one shows in the other."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from harness import Server
from pages import ROOT, node


def test_the_pages_types_are_those_of_this_server(server: Server, tmp_path: Path) -> None:
    (tmp_path / "openapi.json").write_bytes(server.get("/openapi.json").body)
    made = tmp_path / "schema.ts"
    node("openapi-typescript/bin/cli.js", str(tmp_path / "openapi.json"), "-o", str(made))
    kept = (ROOT / "ui/src/api/schema.ts").read_text()
    assert made.read_text() == kept, "the API has changed: cd ui && WEFT_SERVER=http://… npm run api"


def test_every_answer_has_a_form(server: Server) -> None:
    """What is only called an object, the page reads on trust."""
    of_their_own = {"/openapi.json", *(path for path in _paths(server) if path.startswith("/v1/schemas/"))}
    bare = [
        f"{method} {path} {status}"
        for path, methods in _paths(server).items()
        if path not in of_their_own
        for method, operation in methods.items()
        for status, answer in operation["responses"].items()
        for media, said in answer.get("content", {}).items()
        if media == "application/json"
        and not {"$ref", "properties", "anyOf", "oneOf"} & said["schema"].keys()
    ]
    assert bare == []


def _paths(server: Server) -> dict[str, Any]:
    found: dict[str, Any] = server.get("/openapi.json").json["paths"]
    return found
