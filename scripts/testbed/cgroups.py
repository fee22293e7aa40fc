"""The testbed's own corner of the cgroups: everything that pods run is in it, and nothing else is."""

from __future__ import annotations

import os
import signal
from pathlib import Path

from .telling import until

NAME = "weft-testbed"
MOUNT = Path("/sys/fs/cgroup")


def roots(mounts: str) -> list[Path]:
    """Our folder in every hierarchy that kubelet uses: one with cgroup v2, one per controller with v1."""
    # Machines with v1 may have a v2 hierarchy without controllers beside it.
    return _folders(mounts, "cgroup") or _folders(mounts, "cgroup2")


def traces(mounts: str) -> list[Path]:
    """Our folder wherever it may be: runc also uses the v2 hierarchy that stands beside v1."""
    return _folders(mounts, "cgroup") + _folders(mounts, "cgroup2")


def _folders(mounts: str, kind: str) -> list[Path]:
    lines = (line.split() for line in mounts.splitlines())
    return [Path(words[1]) / NAME for words in lines if words[2:3] == [kind]]


def make() -> None:
    for root in roots(_mounts()):
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
    left = traces(_mounts())

    def all_gone() -> bool:
        left[:] = [root for root in left if not _gone(root)]
        return not left

    until(all_gone, 10, every=0.05)
    return left


def _mounts() -> str:
    return Path("/proc/mounts").read_text()


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
