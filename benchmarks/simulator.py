"""The whole Philly workload, 82,247 jobs on 2,504 GPUs, through `weft sim`: how long, and in how much memory.

    .venv/bin/python benchmarks/simulator.py [--trace philly.csv]

Without the trace a generated workload of as many jobs and the same distributions stands in for it.
"""

from __future__ import annotations

import json
import os
import subprocess
import time
from pathlib import Path
from typing import Any

from harness import MEGABYTE, WEFT, Claim, arguments, publish

JOBS, NODES = 82_247, 313
"""313 nodes of 8 GPUs are the first number with 2,500 or more."""


def main() -> None:
    parser = arguments(__doc__ or "")
    parser.add_argument("--trace", type=Path, metavar="FILE", help="the real trace")
    options = parser.parse_args()
    jobs = 2_000 if options.quick else JOBS
    simulated = simulate(jobs, options.trace)
    claims = [
        Claim(f"{jobs:,} jobs of the Philly workload on 2,500 GPUs simulated", simulated["seconds"], 240.0, " s", digits=0),
        Claim("… in how much memory", simulated["megabytes"], 1024.0, " MB", digits=0),
    ]  # fmt: skip
    details = {
        "workload": options.trace.stem if options.trace else "generated",
        "jobs": jobs,
        "nodes": NODES,
        **simulated,
    }
    publish("simulator", claims, details, options.quick)


def simulate(jobs: int, trace: Path | None) -> dict[str, Any]:
    command = [WEFT, "sim", "--policy", "default", "--nodes", str(NODES), "--jobs", str(jobs), "-o", "json"]
    command += ["--workload", str(trace)] if trace is not None else []
    begin = time.perf_counter()
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    assert process.stdout is not None
    told = process.stdout.read()
    _, status, usage = os.wait4(process.pid, 0)
    seconds = time.perf_counter() - begin
    if status:
        raise SystemExit(f"{' '.join(command)} ended with {os.waitstatus_to_exitcode(status)}")
    policy = json.loads(told)["policies"]["default"]
    if policy["jobs"] != jobs or policy["unfinished"]:
        raise SystemExit(
            f"{policy['jobs']} of {jobs} jobs simulated, {policy['unfinished']} of them unfinished"
        )
    return {"seconds": round(seconds, 2), "megabytes": round(usage.ru_maxrss * 1024 / MEGABYTE, 1)}


if __name__ == "__main__":
    main()
