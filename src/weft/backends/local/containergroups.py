"""The group below which an engine puts a task's container.

podman and docker remove a container's own group with it, and with the group what it had used. So a supervisor makes one
around it that stays until it has been asked for the most memory, and the CPU time, that were ever used in it.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from subprocess import DEVNULL, SubprocessError, run
from typing import Any

from weft.backends.local.cgroups import ROOT, remove_empty

PATIENCE = 10.0


@dataclass(frozen=True, slots=True)
class ContainerGroups:
    """Groups of one server, below a label of its own at the root: where engines put theirs, too."""

    label: str
    root: Path = ROOT

    def parent(self, name: str) -> str:
        """As an engine is told of it (`--cgroup-parent`)."""
        return f"/{self.label}/{name}"

    def plan(self, name: str) -> dict[str, Any] | None:
        """What a supervisor must make, read and remove for one container; None where it may not."""
        places = [f"{hierarchy}/{self.label}/{name}" for hierarchy in self._hierarchies()]
        if not places or not all(os.access(hierarchy, os.W_OK) for hierarchy in self._hierarchies()):
            return None
        plan: dict[str, Any] = {"folders": places, "limits": [], "joins": []}
        if self._version_2():
            own = places[0]
            return plan | {
                "peak": f"{own}/memory.peak",
                "oom": f"{own}/memory.events",
                "cpu": f"{own}/cpu.stat",
            }
        memory, cpu = (
            f"{self.root}/{controller}/{self.label}/{name}" for controller in ("memory", "cpuacct")
        )
        return plan | {"peak": f"{memory}/memory.max_usage_in_bytes", "cpu": f"{cpu}/cpuacct.usage"}

    def forget(self) -> None:
        """Those that nobody uses, also of supervisors that were killed."""
        for hierarchy in self._hierarchies():
            remove_empty(hierarchy / self.label)

    def _version_2(self) -> bool:
        return (self.root / "cgroup.controllers").exists()

    def _hierarchies(self) -> list[Path]:
        """With version 1 an engine makes its group in every one of them."""
        if self._version_2():
            return [self.root]
        if not (self.root / "memory").is_dir():
            return []
        each = sorted(self.root.iterdir())
        return [path for path in each if not path.is_symlink() and (path / "cgroup.procs").exists()]


@lru_cache
def takes_a_parent(docker: str) -> bool:
    """Whether docker makes groups itself; where systemd does so for it, only systemd's own can be named."""
    try:
        told = run(
            [docker, "info", "--format", "{{.CgroupDriver}}"],
            stdin=DEVNULL, capture_output=True, text=True, timeout=PATIENCE, check=False,
        )  # fmt: skip
    except (OSError, SubprocessError):
        return False
    return told.stdout.strip() == "cgroupfs"
