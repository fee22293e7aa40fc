"""The testbed's own corner of the cgroups: everything that pods run is in it, and nothing else is."""

from __future__ import annotations

import os
import signal
from pathlib import Path

from .telling import until

NAME = "weft-testbed"
MOUNT = Path("/sys/fs/cgroup")


def roots(mounts: str) -> list[Path]:
    """Our folder in every hierarchy: one with cgroup v2, one per controller with v1."""
    kinds: dict[str, list[Path]] = {"cgroup": [], "cgroup2": []}
    for line in mounts.splitlines():
        words = line.split()
        if len(words) > 2 and words[2] in kinds:
            kinds[words[2]].append(Path(words[1]) / NAME)
    # Machines with v1 may have an empty v2 hierarchy beside it, which kubelet does not use.
    return kinds["cgroup"] or kinds["cgroup2"]


def make() -> None:
    for root in _here():
        root.mkdir(exist_ok=True)
        for name in (
            "cpuset.cpus",
            "cpuset.mems",
        ):  # v1 starts a cpuset empty, and nothing runs in an empty one
            if (root / name).exists() and root.parent != MOUNT:
                (root / name).write_text((root.parent / name).read_text())
        controllers = root.parent / "cgroup.controllers"
        if controllers.exists():
            wanted = " ".join(f"+{name}" for name in controllers.read_text().split())
            for place in (root.parent, root):
                (place / "cgroup.subtree_control").write_text(wanted)


def remove() -> list[Path]:
    """Ends what still runs inside and takes the folders away; gives back those that would not go."""
    return [root for root in _here() if not until(lambda root=root: _gone(root), 10, every=0.05)]  # type: ignore[misc]


def inside() -> set[int]:
    return {pid for root in _here() for pid in _pids(root)}


def _here() -> list[Path]:
    return roots(Path("/proc/mounts").read_text())


def _pids(root: Path) -> set[int]:
    return {int(word) for path in root.rglob("cgroup.procs") for word in path.read_text().split()}


def _gone(root: Path) -> bool:
    for pid in _pids(root):
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
    for folder, _, _ in os.walk(root, topdown=False):
        try:
            Path(folder).rmdir()
        except OSError:  # still has processes that are ending
            return False
    return not root.exists()
