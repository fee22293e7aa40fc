"""Which process is meant."""

from __future__ import annotations

import subprocess
import sys

import pytest

from weft.runtime import identity
from weft.runtime.identity import Births, start_time


def test_births_are_those_that_the_kernel_tells() -> None:
    births = Births()
    for _ in range(20):
        before = births.now()
        process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
        try:
            assert births.of(process.pid, before) == start_time(process.pid)
        finally:
            process.kill()
            process.communicate()


def test_the_kernel_is_asked_only_when_the_clock_cannot_know(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []
    births = Births()
    clock = iter([100, 100, 100, 101])
    monkeypatch.setattr(births, "now", lambda: next(clock))
    monkeypatch.setattr(identity, "start_time", lambda pid: asked.append(pid) or 100)
    assert births.of(1, 100) == 100, "the first is asked for: do clock and kernel agree?"
    assert births.of(2, 100) == 100
    assert births.of(3, 100) == 100
    assert births.of(4, 100) == 100, "between two ticks"
    assert asked == [1, 4]


def test_a_clock_that_the_kernel_contradicts_is_never_believed(monkeypatch: pytest.MonkeyPatch) -> None:
    births = Births()
    monkeypatch.setattr(births, "now", lambda: 100)
    monkeypatch.setattr(identity, "start_time", lambda pid: 7000 + pid)
    assert [births.of(pid, 100) for pid in (1, 2, 3)] == [7001, 7002, 7003]
