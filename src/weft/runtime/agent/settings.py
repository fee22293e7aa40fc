"""What an agent is told when it starts, and where everything lies in its pod."""

from __future__ import annotations

import json
import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

FOLDERS = (
    "code",
    "results",
    "checkpoints",
    "logs",
    "data",
    "home",
    "task",
    "lib",
    "lib/weft",
    "lib/weft/data",
)


class Settings:
    """The variable WEFT_AGENT, and folders that only tests have elsewhere."""

    def __init__(self, environ: Mapping[str, str]):
        told: dict[str, Any] = json.loads(environ.get("WEFT_AGENT") or "{}")
        self.name = str(told.get("task", ""))
        self.port = int(told.get("port", 8470))
        self.desk = str(told.get("desk") or f"127.0.0.1:{self.port}")
        self.awaited = [str(host) for host in told.get("await", ())]
        self.pushes = [str(folder) for folder in told.get("pushes", ())]
        self.metrics: list[dict[str, Any]] = list(told.get("metrics", ()))
        output = told.get("output", {})
        self.kept = int(output.get("kept", 64 << 20))
        self.rate = float(output.get("rate", 4 << 20))
        self.root = environ.get("WEFT_ROOT", "/weft")
        self.archive = os.path.join(told.get("code", "/weft-code"), "code.tar.gz")
        self.token = os.path.join(told.get("token", "/weft-token"), "token")

    def folder(self, name: str) -> str:
        return f"{self.root}/{name}"

    def task(self, name: str) -> str:
        """A file between the agent and the task."""
        return f"{self.root}/task/{name}"
