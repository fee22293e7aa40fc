"""WEFT_HOME: where a server of this machine keeps its data, and how to find and recognise that server."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from weft.client.errors import NoServer


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Where a server answers, and the token that it wants to see."""

    address: str
    token: str | None = None


def home_folder(home: str | os.PathLike[str] | None = None) -> Path:
    """The given folder, else WEFT_HOME, else ~/.weft; always absolute."""
    chosen = home or os.environ.get("WEFT_HOME") or Path.home() / ".weft"
    return Path(chosen).expanduser().absolute()


def is_home(folder: Path) -> bool:
    """Whether a server keeps its data here, whichever it is: such a folder holds a token and secrets."""
    kept = ("weft.db", "database.json")  # the second names one that is elsewhere
    return (folder / "server.lock").exists() and any((folder / name).exists() for name in kept)


def server_document(home: Path) -> dict[str, Any] | None:
    """What the last server of this home wrote about itself, whether or not it still runs."""
    try:
        document: dict[str, Any] = json.loads((home / "server.json").read_bytes())
    except (OSError, ValueError):
        return None
    return document if isinstance(document, dict) and "address" in document else None


def read_token(home: Path) -> str | None:
    try:
        return (home / "token").read_text().strip() or None
    except OSError:
        return None


def find_endpoint(home: Path) -> Endpoint:
    """The server to talk to: WEFT_ADDRESS (with WEFT_TOKEN) if set, else the one of this home."""
    if address := os.environ.get("WEFT_ADDRESS"):
        return Endpoint(address, os.environ.get("WEFT_TOKEN"))
    document = server_document(home)
    if document is None:
        raise NoServer("no server runs", f"there is no server of {home}", "weft up")
    return Endpoint(document["address"], read_token(home))


def running_server(home: Path) -> dict[str, Any] | None:
    """The server.json of a server of this home that answers now, or None."""
    from weft.client.errors import WeftError
    from weft.client.transport import Transport

    document = server_document(home)
    if document is None:
        return None
    transport = Transport(lambda: Endpoint(document["address"]), timeout=5.0)
    try:
        health = transport.request("GET", "/healthz")
    except WeftError:
        return None
    finally:
        transport.close()
    return document if isinstance(health, dict) and health.get("status") == "ok" else None
