"""`weft.announce()` and `weft.active()`: what a task says of itself to those who use it."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

import weft
from weft.runtime.announce import LONGEST, announced


@pytest.fixture
def url_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "url-1"
    monkeypatch.setenv("WEFT_URL_FILE", str(path))
    return path


def test_what_is_announced_is_read_and_a_later_one_replaces_it(url_file: Path) -> None:
    assert announced(str(url_file)) is None
    weft.announce("http://127.0.0.1:1/?token=a")
    weft.announce("https://127.0.0.1:2/?token=b")
    assert announced(str(url_file)) == "https://127.0.0.1:2/?token=b"


def test_only_its_user_can_read_it(url_file: Path) -> None:
    weft.announce("http://127.0.0.1:1/?token=a")
    assert stat.S_IMODE(url_file.stat().st_mode) == 0o600
    assert os.listdir(url_file.parent) == ["url-1"]


@pytest.mark.parametrize(
    "url", ["ftp://a", "127.0.0.1:80", "http://a b", "http://a\n", "http://ä", "", "http://" + "a" * LONGEST]
)
def test_what_is_no_url_is_refused_and_never_shown(url_file: Path, url: str) -> None:
    with pytest.raises(ValueError, match="begins with http:// or https://"):
        weft.announce(url)
    url_file.write_text(f"x {url}")
    assert announced(str(url_file)) is None


def test_a_shell_may_write_the_line(url_file: Path) -> None:
    url_file.write_text("http://127.0.0.1:1/\n")
    assert announced(str(url_file)) == "http://127.0.0.1:1/"


def test_a_task_can_show_no_file_of_others_and_hang_nobody(url_file: Path, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("http://of.another/")
    url_file.symlink_to(secret)
    assert announced(str(url_file)) is None
    url_file.unlink()
    os.mkfifo(url_file)
    assert announced(str(url_file)) is None


def test_activity_is_the_time_of_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "active"
    monkeypatch.setenv("WEFT_ACTIVITY_FILE", str(path))
    weft.active(1000.0)
    assert path.stat().st_mtime == 1000.0
    weft.active(2000.0)
    assert path.stat().st_mtime == 2000.0
    weft.active()
    assert path.stat().st_mtime > 1_000_000


def test_outside_of_a_job_nothing_happens(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("WEFT_URL_FILE", raising=False)
    monkeypatch.delenv("WEFT_ACTIVITY_FILE", raising=False)
    weft.announce("http://127.0.0.1:1/")
    weft.active()
