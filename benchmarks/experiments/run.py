"""All experiments one after the other, then their part of docs/simulator.md.

    .venv/bin/python benchmarks/experiments/run.py [--page] [--trace philly.csv] [NAME ...]

With names, only these are run. `--page` runs nothing and writes the page from the results that there are. With a
trace, those that can use one are run on it, beside their generated workload.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from lab import HERE, RESULTS

ON_TRACES = ("pack_spread", "policies")
NAMES = ("pack_spread", "gang_deadlock", "light_heavy", "elastic", "policies")
PAGE = HERE.parent.parent / "docs" / "simulator.md"
PICTURES = "../benchmarks/experiments/results"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(NAMES))
    parser.add_argument("--page", action="store_true", help="only write the page")
    parser.add_argument("--trace", type=Path, metavar="FILE")
    chosen = parser.parse_args()
    if unknown := {*chosen.names} - {*NAMES}:
        parser.error(f"no experiment {', '.join(sorted(unknown))}; there are {', '.join(NAMES)}")
    failed = []
    for name in () if chosen.page else chosen.names or NAMES:
        lines = [[]]
        if chosen.trace is not None and name in ON_TRACES:
            lines.append(["--trace", str(chosen.trace)])
        for line in lines:
            print(f"\n── {name} {' '.join(line)}──", flush=True)
            if subprocess.run([sys.executable, str(HERE / f"{name}.py"), *line], check=False).returncode != 0:
                failed.append(name)
    PAGE.write_text(written(PAGE.read_text()))
    print(f"\nwritten: docs/{PAGE.name}")
    if failed:
        raise SystemExit(f"did not run: {', '.join(failed)}")


def written(page: str) -> str:
    """The page with the results of every experiment between its markers."""
    for name in NAMES:
        begin, end = markers(name)
        before, found, rest = page.partition(begin)
        _, closed, after = rest.partition(end)
        if not (found and closed):
            raise SystemExit(f"docs/{PAGE.name} has lost its markers: {begin} and {end}")
        page = f"{before}{begin}\n\n{section(name)}\n{end}{after}"
    return page


def markers(name: str) -> tuple[str, str]:
    return f"<!-- {name}: begin (benchmarks/experiments/run.py writes this part) -->", f"<!-- {name}: end -->"


def section(name: str) -> str:
    """Expected, then what came out of each workload: generated first, then traces."""
    found = [json.loads(path.read_bytes()) for path in RESULTS.glob(f"{name}.*.json")]
    found.sort(key=lambda document: (document["source"] != "generated", document["source"]))
    if not found:
        return f"Not run yet: `.venv/bin/python benchmarks/experiments/{name}.py`.\n"
    lines = [f"**Expected:** {found[0]['expected']}", ""]
    for document in found:
        lines += [*outcome(document), ""]
    return "\n".join(lines)


def outcome(document: dict[str, Any]) -> list[str]:
    stem = f"{document['name']}.{document['source']}"
    where = (
        "a generated workload" if document["source"] == "generated" else f"the trace `{document['source']}`"
    )
    return [
        f"**Came out** on {where} (`{document['repeat']}`): {document['cameOut']}",
        "",
        f"![{document['name']} on {where}]({PICTURES}/{stem}.svg)",
        "",
        *markdown(document["table"]["titles"], document["table"]["rows"]),
        "",
        f"Numbers: [JSON]({PICTURES}/{stem}.json), [CSV]({PICTURES}/{stem}.csv), [PNG]({PICTURES}/{stem}.png).",
    ]


def markdown(titles: list[str], rows: list[list[str]]) -> list[str]:
    def line(cells: list[str]) -> str:
        return f"| {' | '.join(cells)} |"

    return [line(titles), line(["---"] * len(titles)), *map(line, rows)]


if __name__ == "__main__":
    main()
