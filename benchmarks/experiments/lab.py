"""What the experiments share: their options, their workload, and how a result is written down."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from weft.sim.generate import Shape, generate
from weft.sim.report import write_csv
from weft.sim.workload import Arrival
from weft.sim.workloadfile import read_workload

HERE = Path(__file__).resolve().parent
RESULTS = HERE / "results"


def options(docstring: str, jobs: int | None = None, *, trace: bool = False) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description=docstring, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seed", type=int, default=1, help="of all that is left to chance")
    if jobs is not None:
        parser.add_argument(
            "--jobs",
            type=int,
            help=f"only so many, for a quick look: written to results/quick ({jobs:,} or the whole trace)",
        )
        parser.set_defaults(default_jobs=jobs)
    if trace:
        parser.add_argument(
            "--trace", type=Path, metavar="FILE", help="a real trace instead of a generated workload"
        )
    return parser


def workload(chosen: argparse.Namespace, shape: Shape) -> list[Arrival]:
    if getattr(chosen, "trace", None) is not None:
        return read_workload(chosen.trace, chosen.jobs)
    return generate(shape, chosen.jobs or chosen.default_jobs, chosen.seed)


def source(chosen: argparse.Namespace) -> str:
    """What the workload was, as it stands in the names of files."""
    trace = getattr(chosen, "trace", None)
    return "generated" if trace is None else str(trace.stem)


def folder(chosen: argparse.Namespace) -> Path:
    return RESULTS / "quick" if getattr(chosen, "jobs", None) else RESULTS


@dataclass(frozen=True)
class Result:
    """One experiment on one workload."""

    name: str
    source: str
    expected: str
    came_out: str
    titles: tuple[str, ...]
    rows: list[tuple[str, ...]]
    """The table for people."""
    data: dict[str, Any]
    series: tuple[tuple[str, ...], list[Sequence[Any]]]
    """What the picture shows: titles and rows of the CSV."""

    @property
    def stem(self) -> str:
        return f"{self.name}.{self.source}"


def publish(result: Result, where: Path, draw: Callable[[Path], None]) -> None:
    """JSON, CSV, SVG and PNG of one name, and what came out on the terminal."""
    where.mkdir(parents=True, exist_ok=True)
    document = {
        "name": result.name,
        "source": result.source,
        "repeat": f".venv/bin/python benchmarks/experiments/{Path(sys.argv[0]).name} {_arguments()}".rstrip(),
        "expected": result.expected,
        "cameOut": result.came_out,
        "table": {"titles": result.titles, "rows": result.rows},
        **result.data,
    }
    (where / f"{result.stem}.json").write_text(json.dumps(document, indent=1, ensure_ascii=False) + "\n")
    write_csv(where / f"{result.stem}.csv", *result.series)
    draw(where / result.stem)
    print_table(result.titles, result.rows)
    print(f"expected: {result.expected}\ncame out: {result.came_out}")
    print(f"written:  {where.relative_to(HERE.parent.parent) / result.stem}.json, .csv, .svg, .png")


def _arguments() -> str:
    """As typed, but without the folders of this machine."""
    return " ".join(Path(text).name if "/" in text else text for text in sys.argv[1:])


def print_table(titles: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    lines = [titles, *rows]
    widths = [max(len(line[i]) for line in lines) for i in range(len(titles))]
    for line in lines:
        print("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip())


def span(seconds: float) -> str:
    """As people say it, in at most two units."""
    from weft.cli.moments import span as shown

    return "0" if seconds == 0 else shown(seconds)


def docstring_part(docstring: str | None, title: str) -> str:
    """The paragraph of a script's docstring that begins so."""
    assert docstring is not None
    for paragraph in docstring.split("\n\n"):
        if paragraph.startswith(f"{title}: "):
            return " ".join(paragraph.removeprefix(f"{title}: ").split())
    raise SystemExit(f"the docstring has no paragraph {title}:")
