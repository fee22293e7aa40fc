"""The group below which an engine puts a task's container.

podman and docker remove a container's own group with it, and with the group what it had used. So a supervisor makes one
around it that stays until it has been asked for the most memory, and the CPU time, that were ever used in it.
"""

from __future__ import annotations

import asyncio
import os
from dataclasses import dataclass, field
from pathlib import Path
from subprocess import DEVNULL, SubprocessError, run
from typing import Any

from weft.backends.local.cgroups import ROOT, Over, remove

PATIENCE = 10.0


class Dockers:
    """Whether dockers make groups themselves; where systemd does so for one, only systemd's own can be named."""

    def __init__(self) -> None:
        self.drivers: dict[str, str] = {}
        """What each has answered; one that gave no answer is asked again."""
        self._asked: dict[str, asyncio.Task[str]] = {}

    def takes_a_parent(self, docker: str) -> bool:
        return self.drivers.get(docker) == "cgroupfs"

    async def ask(self, docker: str) -> None:
        """In a thread, and once for all who wait for it: a docker that hangs takes its time."""
        if docker not in self._asked:
            self._asked[docker] = asyncio.create_task(asyncio.to_thread(_driver, docker))
            self._asked[docker].add_done_callback(lambda _: self._asked.pop(docker))
        if answer := await asyncio.shield(self._asked[docker]):
            self.drivers[docker] = answer


def _driver(docker: str) -> str:
    try:
        told = run(
            [docker, "info", "--format", "{{.CgroupDriver}}"],
            stdin=DEVNULL, capture_output=True, text=True, errors="replace", timeout=PATIENCE, check=True,
        )  # fmt: skip
    except (OSError, SubprocessError):
        return ""
    return told.stdout.strip()


@dataclass(frozen=True, slots=True)
class ContainerGroups:
    """Groups of one server, below a label of its own at the root: where engines put theirs, too."""

    label: str
    root: Path = ROOT
    dockers: Dockers = field(default_factory=Dockers)

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

    def forget(self, over: Over = lambda name: False) -> None:
        """Remove the label's own groups where no container has one, after those of supervisors that were killed."""
        for hierarchy in self._hierarchies():
            remove(hierarchy / self.label, over)

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
