"""How a task is, as its files say."""

from __future__ import annotations

import os

from weft.runtime.announce import announced
from weft.runtime.regularfile import open_to_read

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from weft.runtime.agent.desk import Desk
    from weft.runtime.agent.gate import Gate
    from weft.runtime.agent.settings import Settings


class Exit:
    """What the start script wrote when the command had ended."""

    def __init__(self, code: int | None, kills: int, killed: bool):
        self.code = code
        self.kills = kills
        self.killed = killed


def exited(settings: Settings) -> Exit | None:
    """None as long as there is no whole line."""
    try:
        with open_to_read(settings.task("exit")) as file:
            line = file.read(100)
    except OSError:
        return None
    if not line.endswith(b"\n"):
        return None
    code, _, kills = line.decode("ascii", "replace").strip().partition(" ")
    return Exit(_number(code), _number(kills) or 0, code == "killed")


def describe(settings: Settings, gate: Gate, notes: list[str], desk: Desk, all_sent: bool) -> dict[str, Any]:
    """What is told at every change. That a task has exited is told when nothing else is left to tell."""
    begun = changed(settings.task("begun")) or None
    end = exited(settings) if all_sent else None
    state = "exited" if end else "running" if begun else "waiting"
    why = gate.why() or ("waiting for its container" if gate.open else None) if state == "waiting" else None
    return {
        "state": state,
        "why": why,
        "problem": gate.problem,
        "begun": begun,
        "ended": changed(settings.task("exit")) if end else None,
        "code": end.code if end else None,
        "oom": bool(end and end.kills > 0),
        **(_used(settings) if end else {}),
        "killed": bool(end and end.killed),
        "notes": notes,
        "url": announced(settings.task("url")),
        "desk": desk.serves_others,
    }


def vital(settings: Settings) -> dict[str, Any]:
    """What changes all the time and is told now and then."""
    return {
        "heard": max(changed(settings.task("output")), changed(settings.task("metrics.jsonl"))),
        "active": changed(settings.task("active")),
    }


def changed(path: str) -> float:
    """When a file last changed; 0 if there is none."""
    try:
        return os.stat(path, follow_symlinks=False).st_mtime
    except OSError:
        return 0.0


def _used(settings: Settings) -> dict[str, Any]:
    """What its container used of memory and processors, as far as the start script could see."""
    try:
        with open_to_read(settings.task("used")) as file:
            peak, cpu = (int(number) for number in file.read(100).split())
    except (OSError, ValueError):
        return {}
    return {"peak": peak or None, "seconds": cpu / 1e6 if cpu else None}


def _number(text: str) -> int | None:
    return int(text) if text.isascii() and text.isdigit() and len(text) < 10 else None
