"""`pip install .` gives the page, also where there is no Node."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
MADE = (".git", ".venv", "node_modules", "page", "__pycache__", ".artifacts", ".hypothesis", ".mypy_cache")


@pytest.mark.timeout(400)
def test_a_wheel_made_on_a_machine_without_node_has_the_page(tmp_path: Path) -> None:
    sources, programs, wheels = tmp_path / "weft", tmp_path / "programs", tmp_path / "wheels"
    shutil.copytree(ROOT, sources, ignore=lambda folder, names: {*names} & {*MADE} - kept(folder))
    programs.mkdir()
    for program in Path("/usr/bin").iterdir():
        if program.name not in ("node", "nodejs", "npm", "npx"):
            (programs / program.name).symlink_to(program)
    made = subprocess.run(
        [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", wheels, sources],
        env={**os.environ, "PATH": str(programs)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert made.returncode == 0, made.stderr
    [wheel] = wheels.iterdir()
    names = zipfile.ZipFile(wheel).namelist()
    assert "weft/server/page/index.html" in names
    assert any(name.startswith("weft/server/page/assets/") and name.endswith(".js.gz") for name in names)


def kept(folder: str) -> set[str]:
    """The page of the server is made; a folder of that name elsewhere is not."""
    return set() if Path(folder).name == "server" else {"page"}
