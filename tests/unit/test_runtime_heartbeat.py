"""`weft.heartbeat()`: a sign of life that costs nothing and never fails."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

import weft


@pytest.fixture
def metrics_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "metrics.jsonl"
    monkeypatch.setenv("WEFT_METRICS_FILE", str(path))
    return path


def test_it_moves_the_time_of_the_metrics_file_and_nothing_in_it(metrics_file: Path) -> None:
    metrics_file.write_text('{"step": 1}\n')
    os.utime(metrics_file, (1000, 1000))
    weft.heartbeat()
    assert metrics_file.stat().st_mtime > 1_000_000
    assert metrics_file.read_text() == '{"step": 1}\n'


def test_it_makes_the_file_if_nothing_was_logged_yet(metrics_file: Path) -> None:
    weft.heartbeat()
    assert metrics_file.read_bytes() == b""


def test_it_never_raises(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("WEFT_METRICS_FILE", raising=False)
    weft.heartbeat()
    monkeypatch.setenv("WEFT_METRICS_FILE", str(tmp_path / "no" / "such" / "folder"))
    weft.heartbeat()
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("WEFT_METRICS_FILE", str(tmp_path / "file" / "below"))
    weft.heartbeat()
