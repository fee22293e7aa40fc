"""Memory and CPU limits by cgroups, version 1 or 2, wherever this process may make one."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from weft.model.gang import Request

PERIOD = 100_000
CONTROLLERS = "+memory +cpu"
ROOT = Path("/sys/fs/cgroup")
OWN = Path("/proc/self/cgroup")
Over = Callable[[str], bool]
"""Whether nobody watches the task any more whose group has this name."""


@dataclass(frozen=True, slots=True)
class Cgroups:
    """Where groups can be made; None where they cannot."""

    version: int = 0
    memory: str | None = None
    cpu: str | None = None

    def notes(self) -> tuple[str, ...]:
        missing = [
            name for name, place in (("memory", self.memory), ("fractional CPU", self.cpu)) if place is None
        ]
        if not missing:
            return ()
        return (
            f"{' and '.join(missing)} limits are not enforced: no writable cgroup (run as root, or delegate one)",
        )

    def task(self, name: str, request: Request) -> tuple[dict[str, Any] | None, tuple[str, ...]]:
        """What a supervisor must make for one task, and what could not be granted.

        A task of whole CPUs without a memory limit needs no group: pinning bounds it already.
        """
        shared = request.cpu > 0 and not request.whole_cpus
        if not request.memory and not shared:
            return None, ()
        notes = []
        if request.memory and self.memory is None:
            notes.append("its memory limit is not enforced: no writable cgroup")
        if shared and self.cpu is None:
            notes.append("its CPU limit is not enforced: no writable cgroup")
        plan = (
            self._plan_v2(name, request, shared)
            if self.version == 2
            else self._plan_v1(name, request, shared)
        )
        return (plan if plan["folders"] else None), tuple(notes)

    def _plan_v1(self, name: str, request: Request, shared: bool) -> dict[str, Any]:
        plan: dict[str, Any] = {"folders": [], "limits": [], "joins": []}
        if request.memory and self.memory is not None:
            folder = f"{self.memory}/{name}"
            plan["folders"].append(folder)
            plan["joins"].append(f"{folder}/cgroup.procs")
            plan["limits"].append([f"{folder}/memory.limit_in_bytes", str(request.memory)])
            if Path(f"{self.memory}/memory.memsw.limit_in_bytes").exists():
                plan["limits"].append([f"{folder}/memory.memsw.limit_in_bytes", str(request.memory)])
            plan["peak"] = f"{folder}/memory.max_usage_in_bytes"
            plan["oom"] = f"{folder}/memory.oom_control"
        if shared and self.cpu is not None:
            folder = f"{self.cpu}/{name}"
            plan["folders"].append(folder)
            plan["joins"].append(f"{folder}/cgroup.procs")
            plan["limits"].append([f"{folder}/cpu.cfs_quota_us", str(_quota(request.cpu))])
            plan["limits"].append([f"{folder}/cpu.shares", str(max(2, request.cpu * 1024 // 1000))])
        return plan

    def _plan_v2(self, name: str, request: Request, shared: bool) -> dict[str, Any]:
        place = self.memory or self.cpu
        if place is None:
            return {"folders": []}
        folder = f"{place}/{name}"
        plan: dict[str, Any] = {"folders": [folder], "limits": [], "joins": [f"{folder}/cgroup.procs"]}
        if request.memory and self.memory is not None:
            plan["limits"].append([f"{folder}/memory.max", str(request.memory)])
            plan["limits"].append([f"{folder}/memory.swap.max", "0"])
            plan["limits"].append([f"{folder}/memory.oom.group", "1"])
            plan["peak"] = f"{folder}/memory.peak"
            plan["oom"] = f"{folder}/memory.events"
        if shared and self.cpu is not None:
            plan["limits"].append([f"{folder}/cpu.max", f"{_quota(request.cpu)} {PERIOD}"])
        return plan


def _quota(cpu: int) -> int:
    return max(1000, cpu * PERIOD // 1000)


def discover(label: str, root: Path = ROOT, membership: Path = OWN) -> Cgroups:
    """Find, by trying, where this process may make groups. Makes `<place>/<label>` in each."""
    paths = _membership(membership)
    if (root / "cgroup.controllers").exists():
        place = _first_v2(root, paths.get("", "/"), label)
        return Cgroups(2, memory=place, cpu=place)
    memory = _first_v1(root / "memory", paths.get("memory", "/"), label, "memory.limit_in_bytes")
    cpu = _first_v1(root / "cpu", paths.get("cpu", "/"), label, "cpu.cfs_quota_us")
    return Cgroups(1, memory=memory, cpu=cpu)


def own_memory_limit(root: Path = ROOT, membership: Path = OWN) -> int | None:
    """The least memory limit of the groups this process is in, or None.

    In a container the path may be that of the host, which is not mounted there: its root is then the own group.
    """
    paths = _membership(membership)
    v2 = (root / "cgroup.controllers").exists()
    mount, own, name = (
        (root, paths.get("", "/"), "memory.max")
        if v2
        else (root / "memory", paths.get("memory", "/"), "memory.limit_in_bytes")
    )
    here = mount / own.lstrip("/")
    limits = [
        int(text)
        for group in (here, *here.parents)
        if group.is_relative_to(mount) and (text := _read(group / name)).isdigit()
    ]
    return min(limits, default=None)


def _read(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""


def _membership(path: Path) -> dict[str, str]:
    found = {}
    try:
        for line in path.read_text().splitlines():
            _, controllers, place = line.split(":", 2)
            for controller in controllers.split(","):
                found[controller] = place
    except (OSError, ValueError):
        pass
    return found


def _first_v1(mount: Path, own: str, label: str, limit: str) -> str | None:
    for base in (mount / own.lstrip("/"), mount):
        folder = base / label
        try:
            folder.mkdir(exist_ok=True)
        except OSError:
            continue
        if os.access(folder / limit, os.W_OK):
            return str(folder)
    return None


def _first_v2(root: Path, own: str, label: str) -> str | None:
    here = root / own.lstrip("/")
    for base in (here, here.parent if here != root else root, root):
        folder = base / label
        try:
            if base == root:
                _hand_down(root)
            folder.mkdir(exist_ok=True)
            (folder / "cgroup.subtree_control").write_text(CONTROLLERS)
            probe = folder / "probe"
            probe.mkdir(exist_ok=True)
            works = (probe / "memory.max").exists() and (probe / "cpu.max").exists()
            probe.rmdir()
        except OSError:
            continue
        if works:
            return str(folder)
    return None


def _hand_down(root: Path) -> None:
    """Let groups below the root have limits: systemd does so at boot, other inits do not."""
    with contextlib.suppress(OSError):  # already so, or not ours to say: the probe will tell
        (root / "cgroup.subtree_control").write_text(CONTROLLERS)


def forget(cgroups: Cgroups, over: Over = lambda name: False) -> None:
    """Remove the server's own groups where no task has one, after those of tasks that are over."""
    for place in {cgroups.memory, cgroups.cpu} - {None}:
        remove(Path(str(place)), over)


def remove(place: Path, over: Over) -> None:
    """An empty group may be one that a supervisor has made for a task that it starts next, or is about to ask what was
    used in it. So only those go that are nobody's any more, with what an engine left below them."""
    for group in [path for path in place.glob("*") if path.is_dir() and over(path.name)]:
        for folder, _, _ in os.walk(group, topdown=False):
            with contextlib.suppress(OSError):
                os.rmdir(folder)  # noqa: PTH106
    with contextlib.suppress(OSError):
        place.rmdir()
