"""Draw the pictures of the README from what the commands really print: `python scripts/pictures.py`."""

from __future__ import annotations

import io
import os
import pty
import re
import subprocess
import sys
import tempfile
from pathlib import Path

from rich.console import Console
from rich.text import Text

ROOT = Path(__file__).resolve().parent.parent
WEFT = str(Path(sys.executable).parent / "weft")
WIDTH = 96


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="weft-pictures-") as folder:
        environment = {
            **os.environ,
            "WEFT_HOME": f"{folder}/home",
            "TERM": "xterm-256color",
            "COLUMNS": str(WIDTH),
        }
        subprocess.run([WEFT, "up"], env=environment, cwd=ROOT, check=True, capture_output=True)
        try:
            run = in_terminal(environment, "run", "examples/digits/job.yaml")
            lines = run.splitlines()
            shown = [*lines[:12], "\x1b[2m      ⋮\x1b[0m", *lines[-7:]]
            plot = in_terminal(environment, "metrics", "digits", "--plot", "--name", "loss")
            draw(
                "run",
                [
                    ("weft run examples/digits/job.yaml", "\n".join(shown)),
                    ("weft metrics digits --plot", plot),
                ],
            )
            draw("show", [("weft show digits", in_terminal(environment, "show", "digits"))])
        finally:
            subprocess.run([WEFT, "down", "--halt"], env=environment, check=True, capture_output=True)


def in_terminal(environment: dict[str, str], *arguments: str) -> str:
    """What a command prints to a person."""
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [WEFT, *arguments], stdin=theirs, stdout=theirs, stderr=theirs, env=environment, cwd=ROOT
    )
    os.close(theirs)
    output = b""
    while True:
        try:
            piece = os.read(ours, 1 << 16)
        except OSError:
            break
        if not piece:
            break
        output += piece
    process.wait()
    os.close(ours)
    return output.decode().replace("\r\n", "\n").rstrip()


def draw(name: str, parts: list[tuple[str, str]]) -> None:
    console = Console(record=True, width=WIDTH, file=io.StringIO(), force_terminal=True)
    for command, output in parts:
        console.print(Text(f"$ {command}", style="bold"))
        console.print(Text.from_ansi(output.replace(str(ROOT), "~/weft")))
        console.print()
    target = ROOT / "docs" / "images" / f"{name}.svg"
    picture = console.export_svg(title="weft")
    target.write_text(re.sub(r"@font-face \{.*?\}\s*", "", picture, flags=re.DOTALL))  # no outside font
    print(f"drew {target.relative_to(ROOT)}")


if __name__ == "__main__":
    main()
