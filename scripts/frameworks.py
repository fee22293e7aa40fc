"""Environments of real frameworks for the tests, one each, made once and kept in the user's cache.

python scripts/frameworks.py            # make what is missing, and say where each is
python scripts/frameworks.py torch jax  # only these
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

REQUIREMENTS: dict[str, list[str]] = {
    "torch": ["torch==2.13.0", "numpy"],
    "tensorflow": ["tensorflow-cpu==2.21.0"],
    "jax": ["jax==0.10.2", "numpy"],
    "xgboost": ["xgboost-cpu==3.2.0", "numpy"],
    "mpi": ["mpi4py==4.1.2", "numpy"],
    "jupyter": ["jupyterlab==4.6.6", "ipykernel==7.4.0"],
}
PACKAGES = {"mpi": ("mpirun", ["openmpi-bin", "libopenmpi-dev", "gcc"])}
"""What pip cannot bring: a program to look for, and the packages that have it."""


def cache() -> Path:
    base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(base) / "weft" / "frameworks"


def folder(name: str) -> Path:
    """Another one for other requirements or another interpreter."""
    said = json.dumps([REQUIREMENTS[name], sys.version_info[:3], sys.base_prefix])
    return cache() / f"{name}-{hashlib.sha256(said.encode()).hexdigest()[:12]}"


def python_of(name: str) -> Path | None:
    """The interpreter of an environment that is whole; None if there is none yet."""
    path = folder(name)
    return path / "bin" / "python" if (path / ".whole").exists() else None


def make(name: str) -> str | None:
    """Make an environment if it is missing; says why it could not be."""
    if python_of(name) is not None:
        return None
    program, packages = PACKAGES.get(name, ("", []))
    if program and shutil.which(program) is None and (problem := _system(packages)) is not None:
        return problem
    path = folder(name)
    shutil.rmtree(path, ignore_errors=True)
    begun = time.monotonic()
    print(f"making an environment with {', '.join(REQUIREMENTS[name])}", flush=True)
    install = [str(path / "bin" / "python"), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    for command in ([sys.executable, "-m", "venv", str(path)], [*install, *REQUIREMENTS[name]]):
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            return f"{' '.join(command)}: {done.stderr.strip()[-500:]}"
    (path / ".whole").touch()
    print(f"{name}: {time.monotonic() - begun:.0f} s", flush=True)
    return None


def _system(packages: list[str]) -> str | None:
    if os.geteuid() != 0 or shutil.which("apt-get") is None:
        return f"needs {', '.join(packages)}, which only root can install"
    env = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    for command in (["update", "-qq"], ["install", "-qq", "-y", "--no-install-recommends", *packages]):
        done = subprocess.run(["apt-get", *command], env=env, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            return f"apt-get {command[0]}: {done.stderr.strip()[-500:]}"
    return None


def main() -> int:
    names = sys.argv[1:] or list(REQUIREMENTS)
    if unknown := [name for name in names if name not in REQUIREMENTS]:
        print(f"no framework {', '.join(unknown)}; there are {', '.join(REQUIREMENTS)}", file=sys.stderr)
        return 2
    problems = {name: problem for name in names if (problem := make(name)) is not None}
    for name in names:
        print(f"{name:12} {problems.get(name) or python_of(name)}")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
