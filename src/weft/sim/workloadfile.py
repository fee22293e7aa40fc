"""Which reader a workload file needs, told by its columns."""

from __future__ import annotations

from pathlib import Path

from weft.sim import alibaba, philly
from weft.sim.badfile import BadFile
from weft.sim.rows import header_of
from weft.sim.workload import Arrival


def read_workload(path: Path, limit: int | None = None) -> list[Arrival]:
    names = header_of(path)
    if {*philly.COLUMNS} <= {*names}:
        return philly.read_jobs(path, limit)
    if {*alibaba.POD_COLUMNS} <= {*names}:
        return alibaba.read_jobs(path, limit)
    known = f"{','.join(philly.COLUMNS)} or {','.join(alibaba.POD_COLUMNS)}"
    raise BadFile(path, f"no known shape: its columns are {','.join(names) or 'none'}, expected {known}", 1)
