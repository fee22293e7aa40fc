"""What a task used is remembered from its beginning in few points, in memory and beside its log."""

from __future__ import annotations

import asyncio
import math
import tempfile
from pathlib import Path
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from support.machine import Machine, Tell
from support.simulated import FOREVER
from weft.backends.api import TaskUsage
from weft.control import usage as module
from weft.control.usage import KEPT, RECORD, Measured, Point, Usage
from weft.model.status import Desire, State


def at(moment: int) -> Point:
    return (float(moment), 1.0, 1024.0 * moment)


@given(st.integers(1, 5 * KEPT), st.integers(0, 5 * KEPT))
def test_a_life_is_few_points_whoever_measured_it(count: int, restart: int) -> None:
    """`restart`: when another server goes on from what the file says."""
    with tempfile.TemporaryDirectory(prefix="weft-test-") as folder:
        file = Path(folder, "usage.bin")
        measured = Measured(str(file))
        for moment in range(count):
            if moment == restart:
                measured = Measured(str(file))
            measured.add(at(moment))
        assert Measured(str(file)).points == measured.points
        assert len(measured.points) <= KEPT
        assert file.stat().st_size <= (KEPT + 1) * RECORD.size
        times = [time for time, _, _ in measured.points]
        assert times[0] == 0
        assert times == sorted(times)
        assert count - 1 - times[-1] <= 16
        assert {folder.name for folder in Path(folder).iterdir()} == {"usage.bin"}


def test_half_a_record_and_what_is_no_number_are_left_out(tmp_path: Path) -> None:
    file = tmp_path / "usage.bin"
    measured = Measured(str(file))
    measured.add(at(1))
    with file.open("ab") as more:
        more.write(RECORD.pack(math.nan, 1, 1) + RECORD.pack(2, math.inf, 1) + RECORD.pack(*at(3)) + b"half")
    again = Measured(str(file))
    again.add(at(4))
    assert Measured(str(file)).points == again.points == [at(1), at(3), at(4)]


def test_a_file_that_the_task_made_huge_or_into_a_link_is_not_trusted(tmp_path: Path) -> None:
    huge = tmp_path / "usage.bin"
    huge.write_bytes(RECORD.pack(*at(1)) * 100_000)
    assert len(Measured(str(huge)).points) <= KEPT + 1
    elsewhere = tmp_path / "elsewhere"
    elsewhere.write_bytes(b"kept")
    (tmp_path / "link").symlink_to(elsewhere)
    linked = Measured(str(tmp_path / "link"))
    linked.add(at(1))
    assert linked.points == [at(1)]
    assert elsewhere.read_bytes() == b"kept"


def test_a_folder_that_is_gone_costs_only_the_file(tmp_path: Path) -> None:
    measured = Measured(str(tmp_path / "gone" / "usage.bin"))
    measured.add(at(1))
    assert measured.points == [at(1)]


def test_use_outlives_the_server_and_the_job(on_a_machine: Tell, monkeypatch: Any) -> None:
    async def story(m: Machine) -> None:
        m.world.script("train", "worker-0", FOREVER)
        job = await m.submit("train")
        await m.until("train", State.PROCESSING)
        Path(m.backend.usage_file(job.uid, "worker-0")).parent.mkdir(parents=True, exist_ok=True)
        monkeypatch.setattr(m.control, "usage", lambda: [TaskUsage(job.uid, "worker-0", 1, 0.5, 4096)])
        usage = Usage(m.control)
        measuring = asyncio.ensure_future(usage.run())
        await m.passes(2 * module.INTERVAL + 1)
        measuring.cancel()
        found = usage.of(job)
        assert [point[1:] for point in found["worker-0"]] == [(0.5, 4096)] * 3
        await m.ask("train", Desire.CANCEL)
        await m.until("train", State.CANCELLED)
        assert Usage(m.control).of(m.control.find("train")) == found

    on_a_machine(story)


def test_memory_holds_the_newest_jobs_and_files_all(
    tmp_path: Path, on_a_machine: Tell, monkeypatch: Any
) -> None:
    monkeypatch.setattr(module, "JOBS", 2)

    async def story(m: Machine) -> None:
        monkeypatch.setattr(
            m.control.backend, "usage_file", lambda uid, task: str(tmp_path / f"{uid}.{task}")
        )
        usage = Usage(m.control)
        for uid in ("a", "b", "c"):
            usage._take(1.0, [TaskUsage(uid, "worker-0", 1, 1.0, 1)])
        assert [*usage._held] == ["b", "c"]
        usage._take(2.0, [TaskUsage("a", "worker-0", 1, 1.0, 1)])
        assert usage._held["a"]["worker-0"].points == [(1.0, 1.0, 1.0), (2.0, 1.0, 1)]

    on_a_machine(story)
