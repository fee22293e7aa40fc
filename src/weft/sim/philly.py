"""Traces of the shape of Microsoft's Philly: one row a job, its GPUs and the virtual cluster it came from."""

from __future__ import annotations

from pathlib import Path

from weft.sim.badfile import BadFile
from weft.sim.rows import rows_of
from weft.sim.workload import Arrival, gang_of_gpus

COLUMNS = ("timestamp", "duration", "num_gpus", "gpu_time", "cluster")


def read_jobs(path: Path, limit: int | None = None) -> list[Arrival]:
    """The jobs in order of arrival (the first `limit` of them), the first at time 0."""
    found: list[tuple[float, int, float, int, str]] = []
    for number, row in enumerate(rows_of(path, COLUMNS)):
        seconds = max(row.number("duration"), 1.0)
        found.append(
            (row.moment("timestamp"), number, seconds, row.whole("num_gpus", least=1), row.text("cluster"))
        )
    if not found:
        raise BadFile(path, "holds no job", 1)
    found.sort()
    begin = found[0][0]
    return [
        Arrival(f"job-{number}", when - begin, seconds, gang_of_gpus(gpus), owner=owner)
        for when, number, seconds, gpus, owner in found[:limit]
    ]
