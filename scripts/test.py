"""`make test`: every check there is, in the order in which failures are cheapest to find."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
BIN = Path(sys.executable).parent
PYTEST = [str(BIN / "python"), "-m", "pytest", "-n", "2", "--dist", "worksteal"]
WAITING = [str(BIN / "python"), "-m", "pytest", "-n", "3", "--dist", "worksteal"]
"""For tests that wait for processes half of their time."""
IN_FILES = [str(BIN / "python"), "-m", "pytest", "-n", "2", "--dist", "loadfile"]
"""For tests that share what is dear to start."""
FRAMEWORKS, UNIT = "real frameworks for the tests, made meanwhile", "unit tests"
KUBERNETES, ALONE = "tests on a real Kubernetes", "tests alone on it, run meanwhile"
ALONE_FILES = [
    f"tests/kubernetes/test_{name}.py"
    for name in ("chart", "crds", "deploy", "election", "installed", "kill")
]
"""Of the cluster as a whole, and of its own processes: nobody else may be on it meanwhile. They wait most of their time,
so they run beside the unit tests, which never wait, and those that follow."""
PATIENCE = 90.0
TESTBED = ["env", "PYTHONPATH=scripts", str(BIN / "python"), "-m", "testbed"]

STEPS: list[tuple[str, list[str]]] = [
    ("lint", [str(BIN / "ruff"), "check", "."]),
    ("format", [str(BIN / "ruff"), "format", "--check", "."]),
    ("types", [str(BIN / "mypy")]),
    ("rooms", [str(BIN / "lint-imports"), "--no-cache"]),
    (UNIT, ["nice", "-n", "5", *PYTEST, "tests/unit", "--cov=weft", "--cov-report="]),
    ("what unit tests alone cover", [str(BIN / "coverage"), "report", "--sort=cover"]),
    (FRAMEWORKS, ["nice", "-n", "19", str(BIN / "python"), "scripts/frameworks.py"]),
    ("tests on real servers and processes", [*WAITING, "tests/machine", "--durations=5"]),
    ("tests of the page in a browser", [*IN_FILES, "tests/page"]),
    (ALONE, [str(BIN / "python"), "-m", "pytest", *ALONE_FILES, "--durations=5"]),
    (KUBERNETES, [*IN_FILES, "tests/kubernetes", *(f"--ignore={path}" for path in ALONE_FILES)]),
]
COMMANDS = dict(STEPS)


def main() -> int:
    be_interruptible()
    for stale in ROOT.glob(".coverage*"):
        stale.unlink()
    begun = time.monotonic()
    making = Meanwhile(COMMANDS[FRAMEWORKS])
    cluster = Cluster()
    try:
        failed = run_steps(making, cluster)
    finally:
        making.end()
        left = cluster.end()
    if failed or left:
        return failed or left
    print(f"\neverything passed in {time.monotonic() - begun:.0f} s", flush=True)
    if not cluster.stands:
        print(f"NOT RUN: {KUBERNETES}; see above for what this machine lacks", flush=True)
    return 0


def run_steps(making: Meanwhile, cluster: Cluster) -> int:
    """Until one fails."""
    for name, command in STEPS:
        print(f"\n── {name} ──", flush=True)
        started, failed = time.monotonic(), 0
        needs_cluster = name in (ALONE, KUBERNETES)
        if name == UNIT:
            cluster.begin()
            if not cluster.stands and os.environ.get("CI"):
                print(f"{KUBERNETES}: no testbed stands; see above for what this machine lacks")
                return 1
        if name == FRAMEWORKS:
            failed = making.wait()
            if not os.environ.get("CI"):
                failed = 0  # their tests say what is missing
        elif name == ALONE and cluster.alone is not None:
            failed = cluster.alone.wait()
        elif cluster.stands or not needs_cluster:
            failed = begin(command).wait()
        if failed:
            print(f"{name}: failed (repeat it with: {' '.join(command)})", flush=True)
            return failed
        told = "ok" if cluster.stands or not needs_cluster else "not run"
        print(f"{name}: {told}, {time.monotonic() - started:.0f} s", flush=True)
    return 0


class Meanwhile:
    """A command beside the others; what it says is printed when somebody waits for it."""

    def __init__(self, command: list[str]) -> None:
        self._said = tempfile.TemporaryFile("w+")  # noqa: SIM115  (as long as the process)
        self._running = begin(command, stdout=self._said, stderr=self._said)

    def wait(self) -> int:
        failed = self._running.wait()
        self._said.seek(0)
        print(self._said.read(), end="", flush=True)
        return failed

    def end(self) -> None:
        end(self._running)
        self._said.close()


class Cluster:
    """The one that WEFT_TEST_KUBECONFIG names, else a testbed, which is built once and ended afterwards.

    A machine on which no testbed can stand is not a fault of Weft; it is told at the end, for nobody to overlook. In CI one
    must stand.
    """

    def __init__(self) -> None:
        self.stands = bool(os.environ.get("WEFT_TEST_KUBECONFIG"))
        self.alone: Meanwhile | None = None
        self._ours = None if self.stands else begin([*TESTBED, "up", "--nodes", "20"])

    def begin(self) -> None:
        """Once it stands, what nobody else may be beside on it."""
        if self._ours is not None:
            self.stands = self._ours.wait() == 0
        if self.stands:
            self.alone = Meanwhile(COMMANDS[ALONE])

    def end(self) -> int:
        """Whether something of it stays behind, which it says itself."""
        if self.alone is not None:
            self.alone.end()
        if self._ours is None:
            return 0
        end(self._ours)
        return begin([*TESTBED, "down"]).wait()


def begin(command: list[str], **options: Any) -> subprocess.Popen[Any]:
    environ = {**os.environ, "PYTHONUNBUFFERED": "1"}
    return subprocess.Popen(command, cwd=ROOT, env=environ, **options)


def be_interruptible() -> None:
    """Also in the background, where a shell has SIGINT ignored by all that follows."""
    signal.signal(signal.SIGINT, signal.default_int_handler)


def end(running: subprocess.Popen[Any]) -> None:
    """As Ctrl-C would: tests that are under way end what they have started."""
    if running.poll() is None:
        running.send_signal(signal.SIGINT)
        try:
            running.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            running.kill()
            running.wait()


if __name__ == "__main__":
    sys.exit(main())
