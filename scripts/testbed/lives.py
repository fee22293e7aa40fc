"""What a simulated node does next with a pod: the pod in, one move out; no clock and no I/O.

Annotations say how a pod's life goes: `testbed.weft.dev/runs-for` (seconds, or `forever`; 1 if absent) and
`testbed.weft.dev/exit-code` (0 if absent). Nothing is ever restarted: a container that ends has ended.
"""

from __future__ import annotations

import datetime
import math
from dataclasses import dataclass
from enum import Enum
from typing import Any

RUNS_FOR = "testbed.weft.dev/runs-for"
EXIT_CODE = "testbed.weft.dev/exit-code"
TERMINATED = 143

Pod = dict[str, Any]


class Kind(Enum):
    RUN = "run"
    END = "end"
    REFUSE = "refuse"
    REMOVE = "remove"


@dataclass(frozen=True)
class Move:
    kind: Kind
    at: float
    exit_code: int = 0
    message: str = ""


def next_move(pod: Pod, running_since: float | None, now: float) -> Move | None:
    """None when the pod only has to go on as it is."""
    if pod["metadata"].get("deletionTimestamp"):
        return Move(Kind.REMOVE, now)
    phase = pod.get("status", {}).get("phase", "Pending")
    if phase not in ("Pending", "Running"):
        return None
    notes = pod["metadata"].get("annotations") or {}
    try:
        lasts = math.inf if notes.get(RUNS_FOR) == "forever" else float(notes.get(RUNS_FOR, "1"))
        code = int(notes.get(EXIT_CODE, "0"))
    except ValueError as problem:
        told = f"an annotation cannot be read ({problem}): {RUNS_FOR} is seconds or 'forever', {EXIT_CODE} a number"
        return Move(Kind.REFUSE, now, message=told)
    if phase == "Pending":
        return Move(Kind.RUN, now)
    if math.isinf(lasts):
        return None
    return Move(Kind.END, (now if running_since is None else running_since) + lasts, code)


def status(pod: Pod, move: Move, now: float) -> dict[str, Any]:
    """The pod's status after the move, as kubelet would report it."""
    stamp = timestamp(now)
    before = pod.get("status", {})
    if move.kind is Kind.REFUSE:
        return {"phase": "Failed", "reason": "BadAnnotation", "message": move.message}
    runs = move.kind is Kind.RUN
    began = stamp if runs else before.get("startTime", stamp)
    if runs:
        state: dict[str, Any] = {"running": {"startedAt": stamp}}
    else:
        reason = "Completed" if move.exit_code == 0 else "Error"
        ended = {"exitCode": move.exit_code, "reason": reason, "startedAt": began, "finishedAt": stamp}
        state = {"terminated": ended}
    conditions = {"PodScheduled": True, "Initialized": True, "ContainersReady": runs, "Ready": runs}
    return {
        "phase": "Running" if runs else "Succeeded" if move.exit_code == 0 else "Failed",
        "startTime": began,
        "conditions": [
            {"type": name, "status": str(true), "lastTransitionTime": stamp}
            for name, true in conditions.items()
        ],
        "containerStatuses": [
            {
                "name": container["name"],
                "image": container.get("image", ""),
                "imageID": "",
                "ready": runs,
                "started": runs,
                "restartCount": 0,
                "state": state,
            }
            for container in pod["spec"]["containers"]
        ],
    }


def timestamp(now: float) -> str:
    return datetime.datetime.fromtimestamp(now, datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def seconds(stamp: str) -> float:
    return datetime.datetime.fromisoformat(stamp.replace("Z", "+00:00")).timestamp()
