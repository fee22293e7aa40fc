"""Benchmarks are run by hand, so a script that no longer loads would be noticed late."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

FOLDER = Path(__file__).parents[2] / "benchmarks"
SCRIPTS = {path.stem: path.read_text() for path in sorted(FOLDER.glob("*.py"))}


def test_all_of_them_load() -> None:
    command = [sys.executable, "-c", f"import {', '.join(SCRIPTS)}"]
    done = subprocess.run(command, cwd=FOLDER, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_every_claim_is_measured_by_make_bench() -> None:
    names = re.search(r"^NAMES = \((.*?)\)$", SCRIPTS["run"], re.MULTILINE | re.DOTALL)
    assert names is not None
    publishing = [name for name, text in SCRIPTS.items() if f'publish("{name}"' in text]
    assert sorted(re.findall(r'"(\w+)"', names[1])) == publishing
