"""What the processes of a job are doing now: Python stacks by py-spy where it is installed, and what /proc tells."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from weft.backends.api import STALLS
from weft.backends.local import usage

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


def dump(uid: str, roots: Mapping[str, int], head: str, stop: threading.Event) -> str:
    """All processes of these tasks, by task. Takes a while: not for the event loop. `stop` ends it early."""
    end = time.monotonic() + PATIENCE_FOR_ALL
    spy = spy_command()
    found = _processes(uid, roots)
    wanted = [(task, pid) for task, pids in found.items() for pid in pids[:MOST_PROCESSES]]
    with ThreadPoolExecutor(AT_ONCE) as threads:
        told = list(threads.map(lambda item: _tell(item[1], spy, end, stop), wanted))
    parts = [head if spy else f"{head}\n(no Python stacks: py-spy is not installed; pip install py-spy)"]
    before = ""
    for (task, _), text in zip(wanted, told, strict=True):
        if task != before:
            parts.append(f"════ {task} ════")
            before = task
        parts.append(text)
    return "\n\n".join(parts) + "\n"


def keep(results: str, name: str, text: str) -> None:
    """In the folder of stalls among the results. Tasks can write there: no link of theirs is followed."""
    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
    outer = os.open(results, flags)
    try:
        try:
            os.mkdir(STALLS, dir_fd=outer)
        except FileExistsError:
            pass
        inner = os.open(STALLS, flags, dir_fd=outer)
    finally:
        os.close(outer)
    try:
        try:
            os.unlink(name, dir_fd=inner)
        except FileNotFoundError:
            pass
        made = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        with os.fdopen(os.open(name, made, 0o644, dir_fd=inner), "w", errors="replace") as file:
            file.write(text)
    finally:
        os.close(inner)


def spy_command() -> str | None:
    """py-spy in PATH, or beside the interpreter that runs the server."""
    beside = Path(sys.executable).with_name("py-spy")
    return shutil.which("py-spy") or (str(beside) if os.access(beside, os.X_OK) else None)


def _processes(uid: str, roots: Mapping[str, int]) -> dict[str, list[int]]:
    """Each task's processes: those below its first, and those that carry its mark, as in a container."""
    below = usage.descendants(roots.values())
    found = {task: dict.fromkeys((pid, *below[pid])) for task, pid in roots.items()}
    mark = f"WEFT_JOB_UID={uid}".encode()
    for entry in os.scandir("/proc"):
        environ = _read(f"/proc/{entry.name}/environ").split(b"\0") if entry.name.isdigit() else []
        if mark in environ:
            task = next((item[10:].decode() for item in environ if item.startswith(b"WEFT_TASK=")), "")
            if task in found:
                found[task][int(entry.name)] = None
    return {task: list(pids) for task, pids in found.items()}


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
        threads = sorted(int(name) for name in os.listdir(f"/proc/{pid}/task"))  # noqa: PTH208
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
        with open(path, "rb") as file:  # noqa: PTH123
            return file.read()
    except OSError:
        return b""
