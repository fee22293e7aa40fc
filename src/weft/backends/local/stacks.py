"""The processes of a job's tasks, for what they are doing when it hangs."""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping

from weft.backends.local import usage
from weft.backends.stalls import page
from weft.runtime.stacks import MOST_PROCESSES, NO_STACKS, spy_command, tell


def dump(job: str, uid: str, roots: Mapping[str, int], stop: threading.Event) -> str:
    """All processes of these tasks, by task. Takes a while: not for the event loop. `stop` ends it early."""
    spy = spy_command()
    found = {task: pids[:MOST_PROCESSES] for task, pids in _processes(uid, roots).items()}
    told = iter(tell([pid for pids in found.values() for pid in pids], spy, stop))
    return page(
        job, "" if spy else NO_STACKS, {task: [next(told) for _ in pids] for task, pids in found.items()}
    )


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


def _read(path: str) -> bytes:
    try:
        with open(path, "rb") as file:  # noqa: PTH123
            return file.read()
    except OSError:
        return b""
