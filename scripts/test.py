"""`make test`: every check there is, in the order in which failures are cheapest to find."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
BIN = Path(sys.executable).parent
PYTEST = [str(BIN / "python"), "-m", "pytest", "-n", "2", "--dist", "worksteal"]
COVERAGE = ["--cov=weft", "--cov-append", "--cov-report="]

FRAMEWORKS = "real frameworks for the tests, made meanwhile"

STEPS: list[tuple[str, list[str]]] = [
    ("lint", [str(BIN / "ruff"), "check", "."]),
    ("format", [str(BIN / "ruff"), "format", "--check", "."]),
    ("types", [str(BIN / "mypy")]),
    ("rooms", [str(BIN / "lint-imports"), "--no-cache"]),
    ("unit tests", [*PYTEST, "tests/unit", *COVERAGE]),
    (FRAMEWORKS, [str(BIN / "python"), "scripts/frameworks.py"]),
    ("tests on real servers and processes", [*PYTEST, "tests/machine", *COVERAGE, "--durations=5"]),
    ("coverage", [str(BIN / "coverage"), "report", "--sort=cover"]),
]


def main() -> int:
    for stale in ROOT.glob(".coverage*"):
        stale.unlink()
    begun = time.monotonic()
    quietly = [
        "nice",
        "-n",
        "19",
        str(BIN / "python"),
        "scripts/frameworks.py",
    ]  # the tests beside it come first
    making = begin(quietly, stdout=subprocess.PIPE, text=True)
    for name, command in STEPS:
        print(f"\n── {name} ──", flush=True)
        started = time.monotonic()
        if name == FRAMEWORKS:
            print(making.communicate()[0], end="", flush=True)
            failed = (
                making.returncode if os.environ.get("CI") else 0
            )  # elsewhere their tests say what is missing
        else:
            failed = begin(command).wait()
        if failed:
            print(f"{name}: failed (repeat it with: {' '.join(command)})", flush=True)
            making.terminate()
            return failed
        print(f"{name}: ok, {time.monotonic() - started:.0f} s", flush=True)
    print(f"\neverything passed in {time.monotonic() - begun:.0f} s", flush=True)
    return 0


def begin(command: list[str], **options: Any) -> subprocess.Popen[Any]:
    return subprocess.Popen(command, cwd=ROOT, env={**os.environ, "PYTHONUNBUFFERED": "1"}, **options)


if __name__ == "__main__":
    sys.exit(main())
