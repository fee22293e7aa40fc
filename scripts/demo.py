"""The first look: train a small model on this machine and watch it, with the commands anyone would type."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
WEFT = str(Path(sys.executable).parent / "weft")


def main() -> int:
    with tempfile.TemporaryDirectory(prefix="weft-demo-") as folder:
        environment = {**os.environ, "WEFT_HOME": f"{folder}/home"}

        def weft(*arguments: str) -> int:
            say(f"\n$ weft {' '.join(arguments)}")
            return subprocess.run([WEFT, *arguments], env=environment, cwd=ROOT, check=False).returncode

        say(
            "Weft trains a small network on handwritten digits: 1 parameter server and 3 workers, on this machine."
        )
        try:
            if weft("run", "examples/digits/job.yaml") != 0:
                return 1
            weft("show", "digits")
            weft("metrics", "digits", "--plot", "--name", "loss")
            weft("results", "digits", "--get", f"{folder}/out")
            accuracy = json.loads(Path(folder, "out", "metrics.json").read_text())["accuracy"]
            say(f"\nAccuracy on images it never saw: {accuracy:.1%}")
        finally:
            weft("down", "--halt")
    say("\nNext: .venv/bin/weft run train.py (your own script), .venv/bin/weft --help, README.md")
    return 0


def say(text: str) -> None:
    print(text, flush=True)


if __name__ == "__main__":
    sys.exit(main())
