"""What processes are doing now: Python stacks by py-spy where it is installed, and what /proc tells."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

AT_ONCE = 4
PATIENCE = 5.0
"""Seconds for one process."""
PATIENCE_FOR_ALL = 30.0
"""Then the rest is told by /proc alone: a gang of thousands must not wait for its stacks."""
NAP = 0.2
MOST_PROCESSES = 64
"""Of one task."""
MOST_THREADS = 64
LONGEST_COMMAND = 500
NO_STACKS = "no Python stacks: py-spy is not installed; pip install py-spy"


def tell(pids: Sequence[int], spy: str | None, stop: threading.Event) -> list[str]:
    """Of each of these processes. Takes a while; `stop` ends it early."""
    end = time.monotonic() + PATIENCE_FOR_ALL
    with ThreadPoolExecutor(AT_ONCE) as threads:
        return list(threads.map(lambda pid: _tell(pid, spy, end, stop), pids))


def spy_command() -> str | None:
    """py-spy in PATH, or beside the interpreter that runs this."""
    beside = Path(sys.executable).with_name("py-spy")
    return shutil.which("py-spy") or (str(beside) if os.access(beside, os.X_OK) else None)


def _tell(pid: int, spy: str | None, end: float, stop: threading.Event) -> str:
    parts = [_kernel(pid)]
    if spy is not None and _is_python(pid):
        text = _run([spy, "dump", "--pid", str(pid)], end, stop)
        if "Thread " not in text:  # a stopped process cannot be paused
            text = _run([spy, "dump", "--nonblocking", "--pid", str(pid)], end, stop) or text
        parts.append(text or "(py-spy did not answer in time)")
    return "\n".join(part.rstrip() for part in parts)


def _is_python(pid: int) -> bool:
    try:
        name = Path(f"/proc/{pid}/exe").readlink().name
    except OSError:
        return False
    return "python" in name or b"libpython" in _read(f"/proc/{pid}/maps")


def _run(argv: list[str], end: float, stop: threading.Event) -> str:
    """What it prints; nothing if it takes too long."""
    end = min(end, time.monotonic() + PATIENCE)
    if stop.is_set() or time.monotonic() >= end:
        return ""
    try:
        process = subprocess.Popen(
            argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
        )
    except OSError as problem:
        return f"({argv[0]}: {problem})"
    with process:
        while True:
            try:
                return process.communicate(timeout=NAP)[0].decode("utf-8", "replace")
            except subprocess.TimeoutExpired:
                if stop.is_set() or time.monotonic() >= end:
                    process.kill()
                    return ""


def _kernel(pid: int) -> str:
    """The command, and of each thread its state and what it waits for in the kernel."""
    command = _read(f"/proc/{pid}/cmdline").replace(b"\0", b" ").decode("utf-8", "replace").split()
    lines = [f"process {pid}: {' '.join(command)[:LONGEST_COMMAND]}"]
    try:
        threads = sorted(int(name) for name in os.listdir(f"/proc/{pid}/task"))
    except OSError:
        return f"{lines[0]} (has ended)"
    for thread in threads[:MOST_THREADS]:
        folder = f"/proc/{pid}/task/{thread}"
        state = _read(f"{folder}/stat").rpartition(b")")[2].split()[:1]
        name = _read(f"{folder}/comm").decode("utf-8", "replace").strip()
        place = _read(f"{folder}/wchan").decode("utf-8", "replace").strip("0\n")
        waits = f", waits in {place}" if place else ""
        lines.append(f"  thread {thread} {name}: state {b''.join(state).decode() or '?'}{waits}")
    if len(threads) > MOST_THREADS:
        lines.append(f"  and {len(threads) - MOST_THREADS} more threads")
    return "\n".join(lines)


def _read(path: str) -> bytes:
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError:
        return b""
