"""A job's curves, with few enough points to draw.

The tables give a million points in more than a second. So where there are many they are packed, once, into a file of plain
numbers beside the database, and only what came later is read from the tables. The file may go at any time: it is made
again from the tables.
"""

from __future__ import annotations

import asyncio
import json
import math
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sqlalchemy import Row

from weft.store.changes import Happened
from weft.store.store import Store

PACK = 20_000
"""So many points in the tables are packed."""
LOOK = 2.0
POINT = np.dtype([("id", "<i8"), ("series", "<i8"), ("step", "<f8"), ("time", "<f8"), ("value", "<f8")])
Points = NDArray[Any]


@dataclass(frozen=True, slots=True)
class Curve:
    task: str
    name: str
    count: int
    """Points that there are."""
    points: list[tuple[int | None, float, float | str]]
    """Step, time and value of those to draw: first and last, and the lowest and highest of each stretch."""


class Curves:
    def __init__(self, store: Store, folder: Path):
        self._store = store
        self._folder = folder
        self._noted: dict[str, int] = {}
        self._packing = threading.Lock()
        store.watch(self._happened)

    async def run(self) -> None:
        """Pack what runs, so that whoever looks at it does not wait for that."""
        while True:
            await asyncio.sleep(LOOK)
            for uid, count in list(self._store.measured.items()):
                if count - self._noted.get(uid, 0) >= PACK:
                    self._noted[uid] = count
                    await asyncio.to_thread(self._all, uid)

    def of(self, uid: str, points: int, names: Sequence[str] = ()) -> tuple[list[Curve], int]:
        """Every curve of a job, and the id of the last point that counts in them."""
        series, found = self._all(uid)
        curves = []
        values = found.column("value")
        for (task, name), places in zip(series, found.by_series(len(series)), strict=True):
            if not names or name in names:
                drawn = places[to_draw(values[places], points)]
                curves.append(Curve(task, name, len(places), [_plain(point) for point in found.at(drawn)]))
        curves.sort(key=lambda curve: (curve.name, curve.task))
        return curves, found.last

    def _all(self, uid: str) -> tuple[list[tuple[str, str]], Found]:
        """All points, packed ones first; many that were not are packed now."""
        with self._packing:
            series, packed = self._read(uid)
            known = {key: index for index, key in enumerate(series)}
            rows = self._store.points(uid, int(packed["id"][-1]) if len(packed) else 0)
            fresh = np.empty(len(rows), POINT)
            for column, values in zip(
                POINT.names or (), zip(*_numbers(rows, known), strict=True), strict=False
            ):
                fresh[column] = values
            if len(fresh) >= PACK:
                self._write(uid, list(known), len(packed), fresh)
        return list(known), Found(packed, fresh)

    def _files(self, uid: str) -> tuple[Path, Path]:
        return self._folder / f"{uid}.points", self._folder / f"{uid}.json"

    def _read(self, uid: str) -> tuple[list[tuple[str, str]], Points]:
        data, head = self._files(uid)
        try:
            said = json.loads(head.read_text())
            packed = np.memmap(data, POINT, "r", shape=(said["count"],))
            return [(task, name) for task, name in said["series"]], packed
        except (OSError, ValueError, KeyError, TypeError):
            pass
        return [], np.empty(0, POINT)

    def _write(self, uid: str, series: list[tuple[str, str]], count: int, fresh: Points) -> None:
        """The head says how many points count: what follows them was being written when a server died."""
        data, head = self._files(uid)
        try:
            self._folder.mkdir(mode=0o700, exist_ok=True)
            with data.open("r+b" if count else "wb") as file:
                file.truncate(count * POINT.itemsize)
                file.seek(0, 2)
                fresh.tofile(file)
            temporary = head.with_suffix(".new")
            temporary.write_text(json.dumps({"series": series, "count": count + len(fresh)}))
            temporary.replace(head)
        except OSError:
            return

    def _happened(self, event: Happened) -> None:
        if event.type == "deleted":
            self._noted.pop(event.uid, None)
            self._store.measured.pop(event.uid, None)
            asyncio.get_running_loop().run_in_executor(None, self._forget, event.uid)

    def _forget(self, uid: str) -> None:
        """After whoever packs it now; whoever comes later finds nothing to pack."""
        with self._packing:
            for file in self._files(uid):
                file.unlink(missing_ok=True)


class Found:
    """All points of a job. Those that are packed stay in their file until one is asked for."""

    def __init__(self, packed: Points, fresh: Points):
        self._packed = packed
        self._fresh = fresh

    @property
    def last(self) -> int:
        part = self._fresh if len(self._fresh) else self._packed
        return int(part["id"][-1]) if len(part) else 0

    def column(self, name: str) -> NDArray[Any]:
        return np.concatenate((self._packed[name], self._fresh[name]))

    def at(self, places: NDArray[np.intp]) -> Points:
        split = int(np.searchsorted(places, len(self._packed)))
        return np.concatenate((self._packed[places[:split]], self._fresh[places[split:] - len(self._packed)]))

    def by_series(self, count: int) -> list[NDArray[np.intp]]:
        """The places of the points of each, in order."""
        if count == 1:
            return [np.arange(len(self._packed) + len(self._fresh))]
        column = self.column("series")
        if count <= np.iinfo(np.int16).max:
            column = column.astype(np.int16)  # which numpy sorts several times as fast
        order = np.argsort(column, kind="stable")
        ends = np.searchsorted(column[order], np.arange(count + 1))
        return [order[ends[index] : ends[index + 1]] for index in range(count)]


def to_draw(values: NDArray[np.float64], points: int) -> NDArray[np.intp]:
    """The places of about so many values that look like all of them: the lowest and highest of each stretch, the first
    and the last. What is no number is left out where there is one."""
    count = len(values)
    if count <= points:
        return np.arange(count)
    lowest = highest = values
    if np.isnan(values).any():
        lowest, highest = (
            np.where(np.isnan(values), np.inf, values),
            np.where(np.isnan(values), -np.inf, values),
        )
    width = -(-count // max(1, (points - 2) // 2))
    whole = count // width * width
    places = [np.array([0, count - 1])]
    for begin, end, size in ((0, whole, width), (whole, count, count - whole)):
        if begin < end:
            starts = np.arange(begin, end, size)
            places.append(starts + lowest[begin:end].reshape(-1, size).argmin(1))
            places.append(starts + highest[begin:end].reshape(-1, size).argmax(1))
    return np.unique(np.concatenate(places))


def _numbers(rows: Sequence[Row[Any]], known: dict[tuple[str, str], int]) -> Iterator[tuple[Any, ...]]:
    """Rows as points; a series that is not known yet becomes so."""
    for id, task, name, step, time, value, special in map(tuple, rows):
        yield (
            id,
            known.setdefault((task, name), len(known)),
            math.nan if step is None else step,
            time,
            value if special is None else float(special),
        )


def _plain(point: Any) -> tuple[int | None, float, float | str]:
    """Without numbers that JSON does not know, as everywhere."""
    _, _, step, time, value = point.tolist()
    return None if math.isnan(step) else int(step), time, value if math.isfinite(value) else str(value)
