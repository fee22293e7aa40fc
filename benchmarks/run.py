"""`make bench`: every claim measured, one table, results/summary.json and the table in docs/benchmarks.md.

    .venv/bin/python benchmarks/run.py [--quick] [--no-peers | --install-peers] [--trace philly.csv] [NAME ...]

With names, only these are measured anew; the table is made of all result files there are.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from harness import BENCHMARKS, arguments, print_claims, results_folder

NAMES = (
    "throughput",
    "latency",
    "overhead",
    "cli",
    "page",
    "scale",
    "scheduler_speed",
    "simulator",
    "parameter_server",
    "recovery",
    "time_to_accuracy",
    "worker_scaling",
    "chaos",
    "data_read",
    "data_ingest",
    "data_open",
    "data_fuse",
    "kubernetes_binding",
    "kubernetes_start",
    "kubernetes_footprint",
    "kubernetes_failover",
)
ON_A_CLUSTER = tuple(name for name in NAMES if name.startswith("kubernetes_"))
OF_DATA = tuple(name for name in NAMES if name.startswith("data_"))
NEEDED = tuple(name for name in NAMES if name not in ON_A_CLUSTER)
"""Without these there is no page; the others need a testbed of their own."""
TITLES = {
    "time_to_accuracy": "Time to accuracy while workers are killed",
    "worker_scaling": "How many workers a job should have",
    "chaos": "Minutes of chaos",
}
"""Those that have a picture and a section of their own."""
PAGE = BENCHMARKS.parent / "docs" / "benchmarks.md"
BEGIN, END = "<!-- results: begin (benchmarks/run.py writes this part) -->", "<!-- results: end -->"


def main() -> None:
    parser = arguments("Measure every claim.")
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(NAMES))
    parser.add_argument("--no-peers", action="store_true", help="leave Slurm, Ray and MosaicML out")
    parser.add_argument("--install-peers", action="store_true", help="install Slurm and Ray first")
    parser.add_argument("--trace", type=Path, metavar="FILE", help="the Philly trace, for the simulator")
    options = parser.parse_args()
    if unknown := set(options.names) - set(NAMES):
        parser.error(f"no benchmark {', '.join(sorted(unknown))}; there are {', '.join(NAMES)}")
    failed = [name for name in options.names or NAMES if not measure(name, options)]
    kept = [name for name in NAMES if name not in failed]  # what failed now has only an old result
    results = [document for name in kept if (document := result(name, options.quick)) is not None]
    claims = [claim for document in results for claim in document["claims"]]
    summarize(results, claims, options.quick)
    print()
    print_claims(claims)
    if not options.quick and {*NEEDED} <= {document["name"] for document in results}:
        write_page(results, claims)
    if failed:
        raise SystemExit(f"did not run: {', '.join(failed)}")
    if not options.quick and not all(claim["met"] for claim in claims):
        raise SystemExit("not every target is met")


def measure(name: str, options: Any) -> bool:
    command = [sys.executable, str(BENCHMARKS / f"{name}.py")]
    command += ["--quick"] if options.quick else []
    command += ["--trace", str(options.trace)] if name == "simulator" and options.trace else []
    if name in ("throughput", "data_read"):
        command += ["--no-peers"] if options.no_peers else []
    if name == "throughput":
        command += ["--install-peers"] if options.install_peers else []
    print(f"\n── {name} ──", flush=True)
    return subprocess.run(command, check=False).returncode == 0


def result(name: str, quick: bool) -> dict[str, Any] | None:
    path = results_folder(quick) / f"{name}.json"
    return json.loads(path.read_bytes()) if path.exists() else None


def summarize(results: list[dict[str, Any]], claims: list[dict[str, Any]], quick: bool) -> None:
    summary = {
        "repeat": f".venv/bin/python benchmarks/run.py{' --quick' if quick else ''}",
        "machine": results[-1]["machine"] if results else {},
        "measured": {document["name"]: document["measured"] for document in results},
        "claims": claims,
        "met": bool(claims) and all(claim["met"] for claim in claims),
    }
    path = results_folder(quick) / "summary.json"
    path.write_text(json.dumps(summary, indent=1, ensure_ascii=False) + "\n")


# ── the page ─────────────────────────────────────────────────────────────────────────────────────


def write_page(results: list[dict[str, Any]], claims: list[dict[str, Any]]) -> None:
    text = PAGE.read_text()
    before, found, rest = text.partition(BEGIN)
    _, closed, after = rest.partition(END)
    if not (found and closed):
        raise SystemExit(f"docs/{PAGE.name} has lost its markers: {BEGIN} and {END}")
    PAGE.write_text(f"{before}{BEGIN}\n\n{page_tables(results, claims)}\n{END}{after}")
    print(f"\nwritten: docs/{PAGE.name}")


def page_tables(results: list[dict[str, Any]], claims: list[dict[str, Any]]) -> str:
    by_name = {document["name"]: document for document in results}
    machine = by_name["throughput"]["machine"]
    day = max(document["measured"] for document in results)[:10]
    facts = f"{machine['cores']} cores, Linux {machine['kernel']}, Python {machine['python']}, {day}."
    promises = [(c["claim"], c["shown"], c["wanted"], "yes" if c["met"] else "**no**") for c in claims]
    return "\n".join(
        (
            f"A virtual machine with {facts}",
            "",
            *markdown(("Claim", "Measured", "Target", "Met"), promises),
            "",
            f"No-op jobs a second ({by_name['throughput']['jobs']:,} jobs where nothing else is said):",
            "",
            *markdown(("What", "Jobs/s"), rates(by_name["throughput"])),
            "",
            "Beyond the claims:",
            "",
            *markdown(("What", "Median"), beyond(by_name)),
            "",
            *(line for name, title in TITLES.items() for line in section(title, by_name[name])),
            "## Datasets",
            "",
            *(line for name in OF_DATA for line in tables(by_name[name])),
            "## On Kubernetes",
            "",
            "On a testbed on the same machine (testbed.md): a real API server, etcd and kubelet, and simulated nodes.",
            "",
            *(line for name in ON_A_CLUSTER if name in by_name for line in tables(by_name[name])),
            *(f"`{name}` was not measured at full size yet." for name in ON_A_CLUSTER if name not in by_name),
        )
    )


def rates(throughput: dict[str, Any]) -> list[tuple[str, str]]:
    per_second = throughput["perSecond"]
    rows = [
        ("fork, exec and reap `sh -c true`, one after the other", f"{per_second['bare']['median']:.0f}"),
        ("Weft, 16 CPUs declared, 8 connections", f"{per_second['weft']['median']:.0f}"),
        ("Weft, 16 CPUs declared, 1 connection", f"{per_second['weftOneConnection']['median']:.0f}"),
        ("Weft, the machine's own CPUs, 8 connections", f"{per_second['weftOwnCpus']['median']:.0f}"),
    ]
    for peer in throughput["peers"]:
        number = f"{peer['perSecond']:.3g}" if "perSecond" in peer else peer["note"]
        version = f" (version {peer['version']}, {peer['jobs']:,} jobs)" if "version" in peer else ""
        rows.append((peer["what"] + version, number))
    return rows


def beyond(by_name: dict[str, dict[str, Any]]) -> list[tuple[str, str]]:
    latency, cli = by_name["latency"]["milliseconds"], by_name["cli"]["milliseconds"]
    return [
        ("submit to process started; the same, spawned directly",
         f"{latency['weft']['median']:.1f} ms; {latency['bare']['median']:.1f} ms"),
        ("submit to answered, which means committed", f"{latency['answered']['median']:.1f} ms"),
        ("whole training job under Weft against by hand, start and end included",
         f"{by_name['overhead']['ratios']['wall']:.3f}×"),
        ("`python -c pass`; `weft --version`",
         f"{cli['python']['median']:.0f} ms; {cli['version']['median']:.0f} ms"),
        ("`weft ls --all`, 10,000 lines", f"{cli['lsAll']['median'] / 1000:.2f} s"),
        *scheduling(by_name["scheduler_speed"]["beyond"]),
    ]  # fmt: skip


def scheduling(found: dict[str, float]) -> list[tuple[str, str]]:
    return [
        ("scheduler, 1-GPU jobs: decided alone; arriving one by one, a cycle each",
         f"{found['decidedPerSecond']:,.0f}/s; {found['arrivingPerSecond']:,.0f}/s"),
        ("who gives way to 8 × 8 GPUs, asked again: full of 1-GPU jobs; of 8-GPU jobs",
         f"{found['preemptSmallWarmMs']:.1f} ms; {found['preemptLargeWarmMs']:.1f} ms"),
        ("10,000 jobs that do not fit, after an end: of 4 kinds; of 500 kinds",
         f"{found['fewKindsAfterAnEndMs']:.1f} ms; {found['manyKindsAfterAnEndMs']:.0f} ms"),
        ("… the longest cycle while they are ranked anew, once in ten minutes", f"{found['lookingAgainLongestMs']:.0f} ms"),
        ("a request that nobody asked before, 5,000 nodes", f"{found['newKindMs']:.1f} ms"),
    ]  # fmt: skip


def section(title: str, document: dict[str, Any]) -> list[str]:
    """What was expected and what came out, drawn and in numbers."""
    lines = [
        f"## {title}",
        "",
        f"**Expected:** {document['expected']}",
        "",
        f"**How** (`{document['repeat']}`): {document['how']}",
        "",
        f"**Came out:** {document['cameOut']}",
        "",
        f"![{title}](images/{document['picture']})",
        "",
    ]
    return lines + tables(document)


def tables(document: dict[str, Any]) -> list[str]:
    lines: list[str] = []
    for table in document["tables"]:
        lines += [table["caption"], "", *markdown(table["titles"], table["rows"]), ""]
    return lines


def markdown(titles: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    def line(cells: Sequence[str]) -> str:
        return f"| {' | '.join(cells)} |"

    return [line(titles), line(tuple("---" for _ in titles)), *(line(row) for row in rows)]


if __name__ == "__main__":
    main()
