"""Curves to draw: what they keep of all points, and that packing changes nothing."""

from __future__ import annotations

import asyncio
import contextlib
import math
import sqlite3
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from weft.store import curves as module
from weft.store.changes import Delete, Happened, Measured, Point
from weft.store.curves import Curves, to_draw
from weft.store.store import Store

floats = st.floats(allow_nan=True, allow_infinity=True)


@given(values=arrays(np.float64, st.integers(0, 400), elements=floats), points=st.integers(2, 60))
def test_what_is_drawn_has_the_ends_and_the_extremes_in_order(values: Any, points: int) -> None:
    places = to_draw(values, points)
    assert len(places) <= max(points, 4)
    assert (np.diff(places) > 0).all()
    if len(values):
        assert places[0] == 0
        assert places[-1] == len(values) - 1
    numbers = values[~np.isnan(values)]
    if len(numbers):
        drawn = values[places]
        assert np.nanmin(drawn) == numbers.min()
        assert np.nanmax(drawn) == numbers.max()


def test_every_spike_of_a_long_curve_is_seen() -> None:
    values = np.zeros(100_000)
    spikes = np.arange(50, 100_000, 5000)
    values[spikes] = 7
    assert {*spikes} <= {*to_draw(values, 500)}


def told(folder: Path, story: Any) -> None:
    """Run a story on a store of its own."""

    async def tell() -> None:
        store = Store(folder / "weft.db")
        try:
            await story(store)
        finally:
            store.close()

    asyncio.run(tell())


async def measured(store: Store, uid: str, values: Any, task: str = "worker-0", name: str = "loss") -> None:
    points = tuple(Point(task, name, step, float(step), value) for step, value in enumerate(values))
    await store.write([Measured(uid, task, len(points), points)])


def files(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.glob("*")) if folder.exists() else []


def test_curves_go_by_name_and_task_and_say_what_json_cannot(fast_folder: Path) -> None:
    async def story(store: Store) -> None:
        await measured(store, "u", [1.0, math.nan, math.inf, -math.inf])
        await measured(store, "u", [5.0], task="ps-0", name="accuracy")
        await store.write([Measured("u", "ps-0", 2, (Point("ps-0", "accuracy", None, 9.0, 6.0),))])
        await measured(store, "other", [8.0])
        found, last = Curves(store, fast_folder / "curves").of("u", 1000)
        assert [(c.name, c.task, c.count) for c in found] == [
            ("accuracy", "ps-0", 2),
            ("loss", "worker-0", 4),
        ]
        assert found[0].points == [(0, 0.0, 5.0), (None, 9.0, 6.0)]
        assert [value for _, _, value in found[1].points] == [1.0, "nan", "inf", "-inf"]
        assert last == 6
        assert [c.name for c in Curves(store, fast_folder / "curves").of("u", 9, ["loss"])[0]] == ["loss"]
        assert Curves(store, fast_folder / "curves").of("nobody", 9) == ([], 0)

    told(fast_folder, story)


def test_packing_changes_nothing_but_the_time_it_takes(
    fast_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "PACK", 100)
    folder = fast_folder / "curves"

    async def story(store: Store) -> None:
        await measured(store, "u", range(60))
        plain = Curves(store, folder).of("u", 1000)
        assert files(folder) == [], "few points are left where they are"
        await measured(store, "u", range(60), task="worker-1")
        both = Curves(store, folder).of("u", 1000)
        assert files(folder) == ["u.json", "u.points"]
        assert both[0][0] == plain[0][0]
        assert Curves(store, folder).of("u", 1000) == both
        await measured(store, "u", range(150), name="late")
        more = Curves(store, folder).of("u", 1000)
        assert [c.count for c in more[0]] == [150, 60, 60]
        assert Curves(store, folder).of("u", 1000) == more

    told(fast_folder, story)


@pytest.mark.parametrize("harm", ["points cut", "points too long", "head broken", "head gone", "points gone"])
def test_a_damaged_pack_is_made_again(fast_folder: Path, monkeypatch: pytest.MonkeyPatch, harm: str) -> None:
    monkeypatch.setattr(module, "PACK", 100)
    folder = fast_folder / "curves"
    points, head = folder / "u.points", folder / "u.json"

    async def story(store: Store) -> None:
        await measured(store, "u", range(120))
        right = Curves(store, folder).of("u", 1000)
        match harm:
            case "points cut":
                points.write_bytes(points.read_bytes()[:-40])
            case "points too long":
                points.write_bytes(points.read_bytes() + b"x" * 50)
            case "head broken":
                head.write_text("{")
            case "head gone":
                head.unlink()
            case "points gone":
                points.unlink()
        assert Curves(store, folder).of("u", 1000) == right
        await measured(store, "u", range(120))
        assert Curves(store, folder).of("u", 1000)[0][0].count == 240

    told(fast_folder, story)


def test_what_runs_is_packed_before_anybody_looks_and_goes_with_its_job(
    fast_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "PACK", 100)
    monkeypatch.setattr(module, "LOOK", 0.001)
    folder = fast_folder / "curves"

    async def story(store: Store) -> None:
        packing = asyncio.ensure_future(Curves(store, folder).run())
        await measured(store, "u", range(120))
        async with asyncio.timeout(20):
            while files(folder) != ["u.json", "u.points"]:
                await asyncio.sleep(0.001)
            await store.write([Delete("u"), Happened(0.0, "u", "job", "deleted")])
            while files(folder):
                await asyncio.sleep(0.001)
        packing.cancel()

    told(fast_folder, story)


def test_points_that_are_not_on_disk_yet_are_packed_once_they_are(
    fast_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "PACK", 100)
    monkeypatch.setattr(module, "LOOK", 0.001)
    folder = fast_folder / "curves"

    async def story(store: Store) -> None:
        packing = asyncio.ensure_future(Curves(store, folder).run())
        with contextlib.closing(sqlite3.connect(fast_folder / "weft.db", isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")
            writing = asyncio.ensure_future(measured(store, "u", range(120)))
            await asyncio.sleep(0.1)
            assert not writing.done()
            other.execute("ROLLBACK")
        async with asyncio.timeout(20):
            await writing
            while files(folder) != ["u.json", "u.points"]:
                await asyncio.sleep(0.001)
        packing.cancel()

    told(fast_folder, story)


def test_a_job_that_is_deleted_while_it_is_packed_leaves_no_file(
    fast_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "PACK", 100)
    folder = fast_folder / "curves"
    entered, go_on = threading.Event(), threading.Event()
    write = Curves._write

    def slowly(self: Curves, *of: Any) -> None:
        entered.set()
        assert go_on.wait(20)
        write(self, *of)

    monkeypatch.setattr(Curves, "_write", slowly)

    async def story(store: Store) -> None:
        curves = Curves(store, folder)
        await measured(store, "u", range(120))
        packing = asyncio.ensure_future(asyncio.to_thread(curves.of, "u", 10))
        await asyncio.to_thread(entered.wait, 20)
        await store.write([Delete("u"), Happened(0.0, "u", "job", "deleted")])
        go_on.set()
        await packing
        async with asyncio.timeout(20):
            while files(folder):
                await asyncio.sleep(0.001)

    told(fast_folder, story)
