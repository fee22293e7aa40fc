"""How long commands take: `weft --version` against a bare interpreter, `weft ls` with 10,000 finished jobs."""

from __future__ import annotations

import os
import statistics
import subprocess

import history
from harness import (
    PYTHON,
    WEFT,
    Claim,
    Server,
    arguments,
    clean_memory,
    folder_on_disk,
    print_table,
    publish,
    spread,
    timed,
)

FINISHED = 10_000


def main() -> None:
    options = arguments(__doc__ or "").parse_args()
    repeats = 7 if options.quick else 40
    bare: list[float] = []
    version: list[float] = []
    clean_memory()
    for _ in range(repeats):
        bare.append(milliseconds([PYTHON, "-c", "pass"]))
        version.append(milliseconds([WEFT, "--version"]))
    ratio = statistics.median(version) / statistics.median(bare)
    with folder_on_disk() as folder:
        history.fill(folder / "home", FINISHED)
        with Server(folder / "home") as server:
            home = str(server.home)
            shown = lines([WEFT, "ls"], home), lines([WEFT, "ls", "--all"], home)
            if shown[1] < FINISHED:
                raise SystemExit(f"weft ls --all shows {shown[1]} of {FINISHED} jobs")
            listed = [milliseconds([WEFT, "ls"], home) for _ in range(repeats)]
            everything = [milliseconds([WEFT, "ls", "--all"], home) for _ in range(max(repeats // 4, 3))]
    measured = {
        "python -c pass": bare,
        "weft --version": version,
        "weft ls": listed,
        "weft ls --all": everything,
    }
    rows = [
        (what, f"{statistics.median(times):.1f}", f"{spread(times)['p90']:.1f}")
        for what, times in measured.items()
    ]
    print_table((f"command, with {FINISHED} finished jobs", "median ms", "p90 ms"), rows)
    claims = [
        Claim("`weft --version` against `python3 -c pass`", ratio, 4.0, "×"),
        Claim("`weft ls` with 10,000 finished jobs", statistics.median(listed), 300.0, " ms", digits=0),
    ]
    details = {
        "milliseconds": {
            "python": spread(bare, 2),
            "version": spread(version, 2),
            "ls": spread(listed, 2),
            "lsAll": spread(everything, 2),
        },
        "ratio": round(ratio, 3),
        "linesShown": {"ls": shown[0], "lsAll": shown[1]},
    }
    publish("cli", claims, details, options.quick)


def milliseconds(command: list[str], home: str = "") -> float:
    """Of the whole command, its output going down a pipe."""
    return 1000 * timed(lambda: printed(command, home))


def lines(command: list[str], home: str) -> int:
    return printed(command, home).count(b"\n")


def printed(command: list[str], home: str) -> bytes:
    environment = {**os.environ, "WEFT_HOME": home} if home else None
    return subprocess.run(command, env=environment, capture_output=True, check=True).stdout


if __name__ == "__main__":
    main()
