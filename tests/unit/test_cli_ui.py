"""`weft ui`: the page in a browser, or its address where there is none."""

from __future__ import annotations

import webbrowser
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from support.fake_server import FakeServer, Reply, fake_server
from weft.cli.app import dispatch


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[FakeServer]:
    for name in ("DISPLAY", "WAYLAND_DISPLAY", "BROWSER"):
        monkeypatch.delenv(name, raising=False)
    with fake_server() as fake:
        monkeypatch.setenv("WEFT_ADDRESS", fake.address)
        monkeypatch.setenv("WEFT_TOKEN", "the-token")
        fake.on("GET", "/v1/status", Reply({"address": fake.address, "page": True}))
        fake.on("POST", "/v1/session/codes", Reply({"code": "the-code", "expires": 1}, 201))
        yield fake


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What a browser was told to open."""
    found: list[str] = []
    monkeypatch.setattr(webbrowser, "open", lambda address: found.append(address) or True)
    return found


def test_where_there_is_a_display_a_browser_opens(
    server: FakeServer, opened: list[str], monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    monkeypatch.setenv("DISPLAY", ":0")
    assert dispatch(["ui"]) == 0
    assert opened == [f"{server.address}/#login=the-code"]
    assert "the-code" not in capsys.readouterr().out, "it is used already"


@pytest.mark.parametrize("line", [["ui"], ["ui", "--print"]])
def test_elsewhere_and_when_asked_the_address_is_printed(
    server: FakeServer, opened: list[str], monkeypatch: pytest.MonkeyPatch, capsys: Any, line: list[str]
) -> None:
    if "--print" in line:
        monkeypatch.setenv("DISPLAY", ":0")
    assert dispatch(line) == 0
    assert capsys.readouterr().out == f"{server.address}/#login=the-code\n"
    assert opened == []


def test_a_browser_that_does_not_open_leaves_the_address(
    server: FakeServer, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    monkeypatch.setenv("DISPLAY", ":0")
    monkeypatch.setattr(webbrowser, "open", lambda address: False)
    assert dispatch(["ui"]) == 0
    assert capsys.readouterr().out == f"{server.address}/#login=the-code\n"


def test_the_token_is_in_no_address(server: FakeServer, capsys: Any) -> None:
    assert dispatch(["ui", "--print"]) == 0
    assert "the-token" not in capsys.readouterr().out
    assert all("the-token" not in asked.path + str(asked.query) for asked in server.asked)


def test_a_server_without_a_page_is_told_of(server: FakeServer, opened: list[str], capsys: Any) -> None:
    server.on("GET", "/v1/status", Reply({"address": server.address, "page": False}))
    assert dispatch(["ui"]) == 1
    said = capsys.readouterr().err
    assert f"the server at {server.address} has no page" in said
    assert "WEFT_NO_PAGE" in said
    assert opened == []
