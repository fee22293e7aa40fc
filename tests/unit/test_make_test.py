"""`make test`: a machine without a testbed is told of, and in CI it is a failure."""

from __future__ import annotations

import importlib.util
import signal
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> ModuleType:
    """Without lint, tests and coverage; a testbed cannot stand here."""
    path = Path(__file__).parents[2] / "scripts" / "test.py"
    spec = importlib.util.spec_from_file_location("weft_make_test", path)
    assert spec is not None
    assert spec.loader is not None
    made = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(made)

    made.really_begin = made.begin

    def begin(command: list[str], **options: Any) -> subprocess.Popen[Any]:
        ends = 1 if command[-3:-1] == ["up", "--nodes"] else 0
        return subprocess.Popen([sys.executable, "-c", f"raise SystemExit({ends})"], **options)

    monkeypatch.setattr(made, "begin", begin)
    monkeypatch.setattr(made, "ROOT", tmp_path)  # whose coverage it begins anew
    monkeypatch.delenv("WEFT_TEST_KUBECONFIG", raising=False)
    return made


def test_without_a_testbed_it_says_what_was_not_run(
    script: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("CI", raising=False)
    assert script.main() == 0
    assert "NOT RUN: tests on a real Kubernetes" in capsys.readouterr().out


def test_in_ci_a_testbed_must_stand(
    script: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("CI", "1")
    assert script.main() == 1
    assert "no testbed stands" in capsys.readouterr().out


@pytest.mark.parametrize("how", [signal.SIG_DFL, signal.SIG_IGN])
def test_tests_that_are_under_way_end_what_they_have_started(
    script: ModuleType, tmp_path: Path, how: signal.Handlers
) -> None:
    """Also where a shell has started all of it in the background, and told it to ignore SIGINT."""
    tidied, begun = tmp_path / "tidied", tmp_path / "begun"
    test = (
        "import pathlib, sys, time\n"
        "try:\n pathlib.Path(sys.argv[1]).touch(); time.sleep(600)\n"
        "finally: pathlib.Path(sys.argv[2]).touch()"
    )
    before = signal.signal(signal.SIGINT, how)
    try:
        script.be_interruptible()
        running = script.really_begin(
            [sys.executable, "-c", test, str(begun), str(tidied)], stderr=subprocess.DEVNULL
        )
    finally:
        signal.signal(signal.SIGINT, before)
    while not begun.exists():
        assert running.poll() is None
    script.end(running)
    assert tidied.exists()
