"""The store and a dictionary, told the same: whatever is written, refused, deleted and opened again, both hold the same."""

from __future__ import annotations

from collections.abc import Awaitable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hypothesis import strategies as st

from weft.store.changes import Create, Delete, Happened, Measured, Point, Update
from weft.store.store import Store
from weft.store.writer import Conflict

KIND = "TrainingJob"
NAMES = st.sampled_from(["one", "two", "three"])
STEP = st.one_of(
    st.tuples(st.just("create"), NAMES, st.none()),
    st.tuples(st.just("update"), NAMES, st.sampled_from(["QUEUED", "PROCESSING", "COMPLETED"])),
    st.tuples(st.just("measure"), NAMES, st.integers(1, 3)),
    st.tuples(st.just("delete"), NAMES, st.none()),
    st.tuples(st.just("settle"), st.none(), st.none()),
    st.tuples(st.just("reopen"), st.none(), st.none()),
)


@dataclass
class Kept:
    """What should be there of one resource."""

    uid: str
    state: str = "QUEUED"
    causes: list[str] = field(default_factory=list)
    points: int = 0
    offset: int = 0


class Pair:
    """The store and the dictionary, told the same."""

    def __init__(self, place: Path | str):
        self.place = place
        self.store = Store(place)
        self.kept: dict[str, Kept] = {}
        """By name."""
        self.told = 0
        self._writing: list[tuple[Awaitable[None], bool]] = []

    def do(self, step: str, name: str, value: Any) -> None:
        self.told += 1
        if step == "create":
            self._create(f"uid-{self.told}", name)
        elif (kept := self.kept.get(name)) is None:
            return
        elif step == "update":
            kept.state = value
            kept.causes.append(f"event {self.told}")
            self._write(Update(kept.uid, lambda: {"state": value}), self._event(kept.uid))
        elif step == "measure":
            points = tuple(Point("worker-0", "loss", n, 1.0, 0.5) for n in range(value))
            kept.points += value
            kept.offset += 10 * value
            self._write(Measured(kept.uid, "worker-0", kept.offset, points))
        elif step == "delete":
            del self.kept[name]
            self._write(Delete(kept.uid))

    def _create(self, uid: str, name: str) -> None:
        clashes = name in self.kept
        if not clashes:
            self.kept[name] = Kept(uid, causes=[f"event {self.told}"])
        values = dict.fromkeys(("owner", "metadata", "spec", "status"), "{}")
        numbers = {"priority": 0, "tasks": 1, "restarts": 0, "created": 1.0}
        fixed = {"kind": KIND, "state": "QUEUED", "type": "command", "queue": "default"}
        row = {**values, **numbers, **fixed, "uid": uid, "name": name}
        self._writing.append((self.store.write([Create(row), self._event(uid)], refusable=True), clashes))

    def _event(self, uid: str) -> Happened:
        return Happened(1.0, uid, uid, "state", f"event {self.told}", "weft", "QUEUED")

    def _write(self, *changes: Any) -> None:
        self._writing.append((self.store.write(changes), False))

    async def settle(self) -> None:
        for written, clashes in self._writing:
            try:
                await written
            except Conflict:
                assert clashes
            else:
                assert not clashes
        self._writing = []
        self.agree()

    def agree(self) -> None:
        found = {row.name: (row.uid, row.state) for row in self.store.page(KIND)}
        assert found == {name: (kept.uid, kept.state) for name, kept in self.kept.items()}
        for kept in self.kept.values():
            assert [event.cause for event in self.store.events(uid=kept.uid)] == kept.causes
            assert len(self.store.metrics(kept.uid)) == kept.points
            assert self.store.metric_offsets(kept.uid) == ({"worker-0": kept.offset} if kept.points else {})
        assert {event.uid for event in self.store.events()} <= {kept.uid for kept in self.kept.values()}

    async def reopen(self) -> None:
        await self.settle()
        self.store.close()
        self.store = Store(self.place)
        self.agree()

    async def follow(self, steps: list[Any]) -> None:
        for step, name, value in steps:
            if step == "settle":
                await self.settle()
            elif step == "reopen":
                await self.reopen()
            else:
                self.do(step, name, value)
        await self.reopen()
        self.store.close()


STEPS = st.lists(STEP, max_size=30)
