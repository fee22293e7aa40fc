"""What the store promises to those who write: one writer, few commits, and nothing acknowledged is lost."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from weft.control.metrics import parse_line
from weft.store import store as store_module
from weft.store import writer as writer_module
from weft.store.changes import Create, Delete, Happened, Measured, Point, Update
from weft.store.database import StoreError, StoreFull, Superseded
from weft.store.store import Store
from weft.store.writer import Conflict

KIND = "TrainingJob"


def row(uid: str, name: str | None = None, **columns: Any) -> dict[str, Any]:
    values = dict.fromkeys(("owner", "metadata", "spec", "status"), "{}")
    numbers = {"priority": 0, "tasks": 1, "restarts": 0, "created": 1.0}
    fixed = {
        "uid": uid,
        "kind": KIND,
        "name": name or uid,
        "state": "QUEUED",
        "type": "command",
        "queue": "default",
    }
    return {**values, **numbers, **fixed, **columns}


def new(uid: str, name: str | None = None, **columns: Any) -> Create:
    return Create(row(uid, name, **columns))


def updated(uid: str, **columns: Any) -> Update:
    return Update(uid, lambda: columns)


def event(uid: str, state: str = "QUEUED", cause: str = "") -> Happened:
    return Happened(1.0, uid, uid, "state", cause, "weft", state)


Story = Callable[[Store], Coroutine[Any, Any, None]]


@pytest.fixture
def with_store(fast_folder: Path) -> Callable[[Story], None]:
    def tell(story: Story) -> None:
        async def whole() -> None:
            store = Store(fast_folder / "weft.db")
            try:
                await story(store)
            finally:
                store.close()

        asyncio.run(whole())

    return tell


def hold_writer(store: Store) -> Callable[[], None]:
    """Keep the writer from beginning, so that what is queued meanwhile is one batch; returns the release."""
    other = sqlite3.connect(store.place, isolation_level=None, check_same_thread=False)
    other.execute("BEGIN IMMEDIATE")

    def release() -> None:
        other.execute("ROLLBACK")
        other.close()

    return release


def count_commits(store: Store, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    sizes: list[int] = []
    commit = store._writer._commit

    def counted(connection: Any, batch: Any) -> None:
        sizes.append(len(batch))
        commit(connection, batch)

    monkeypatch.setattr(store._writer, "_commit", counted)
    return sizes


class TestGroupCommit:
    def test_every_commit_is_forced_to_disk_before_it_is_acknowledged(
        self, with_store: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Asked of the writer's own connection at the very commit: a pragma holds for one connection only."""
        found: list[tuple[int, str]] = []

        async def story(store: Store) -> None:
            commit = store._writer._commit

            def looked(connection: sqlite3.Connection, batch: Any) -> None:
                (synchronous,) = connection.execute("PRAGMA synchronous").fetchone()
                (journal,) = connection.execute("PRAGMA journal_mode").fetchone()
                found.append((synchronous, journal))
                commit(connection, batch)

            monkeypatch.setattr(store._writer, "_commit", looked)
            await asyncio.gather(*(store.write([new(f"job-{i}")], refusable=True) for i in range(20)))
            await store.write([event("job-1")])

        with_store(story)
        full = 2
        assert set(found) == {(full, "wal")}

    def test_many_writers_share_few_commits(self, with_store: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        async def story(store: Store) -> None:
            sizes = count_commits(store, monkeypatch)
            release = hold_writer(store)
            first = store.write([new("first")], refusable=True)
            await asyncio.sleep(0)
            others = [store.write([new(f"job-{i}")], refusable=True) for i in range(500)]
            release()
            await asyncio.gather(first, *others)
            assert sum(sizes) == 501
            assert len(sizes) <= 2
            assert len(store.uids()) == 501

        with_store(story)

    def test_one_turn_of_the_loop_is_one_transaction(
        self, with_store: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        async def story(store: Store) -> None:
            await store.write([new("a"), new("b")], refusable=True)
            sizes = count_commits(store, monkeypatch)
            futures = [
                store.write([updated(uid, state=state), event(uid, state)])
                for uid in "ab"
                for state in ("X", "Y")
            ]
            await asyncio.gather(*futures)
            assert sizes == [1]
            assert {r.uid: r.state for r in store.page(KIND)} == {"a": "Y", "b": "Y"}
            assert [e.state for e in store.events(uid="a")] == ["X", "Y"]

        with_store(story)

    def test_a_reply_means_that_others_can_read_it(self, with_store: Any) -> None:
        async def story(store: Store) -> None:
            await store.write([new("a"), event("a")], refusable=True)
            with sqlite3.connect(f"file:{store.place}?mode=ro", uri=True) as other:
                assert other.execute("select count(*) from resources").fetchone() == (1,)
                assert other.execute("select count(*) from events").fetchone() == (1,)
            other.close()

        with_store(story)

    def test_an_empty_write_waits_for_those_before_it(self, with_store: Any) -> None:
        async def story(store: Store) -> None:
            store.write([new("a")], refusable=True)
            await store.write(())
            assert store.uids() == {"a"}

        with_store(story)

    def test_closing_writes_what_is_queued(self, fast_folder: Path) -> None:
        async def story() -> None:
            store = Store(fast_folder / "weft.db")
            for i in range(50):
                store.write([new(f"job-{i}")])
            store.close()
            again = Store(fast_folder / "weft.db")
            assert len(again.uids()) == 50
            again.close()

        asyncio.run(story())


class TestOrder:
    def test_the_last_of_many_updates_wins(self, with_store: Any) -> None:
        async def story(store: Store) -> None:
            store.write([new("a")], refusable=True)
            for i in range(200):
                written = store.write([updated("a", restarts=i), event("a", cause=str(i))])
                if i % 7 == 0:
                    await asyncio.sleep(0)
            await written
            found = store.resource(KIND, "a")
            assert found is not None
            assert found.restarts == 199
            events = store.events(uid="a")
            assert [e.cause for e in events] == [str(i) for i in range(200)]
            assert [e.seq for e in events] == sorted(e.seq for e in events)

        with_store(story)

    def test_watchers_hear_every_event_once_in_order_and_only_when_kept(self, with_store: Any) -> None:
        async def story(store: Store) -> None:
            heard: list[tuple[int, bool]] = []

            def watcher(happened: Happened) -> None:
                heard.append((happened.seq, bool(store.events(after=happened.seq - 1, limit=1))))

            stop = store.watch(watcher)
            for i in range(20):
                written = store.write([event("a", cause=str(i))])
                await asyncio.sleep(0)
            await written
            assert heard == [(i + 1, True) for i in range(20)]
            stop()
            await store.write([event("a")])
            assert len(heard) == 20

        with_store(story)

    def test_numbers_go_on_after_a_restart(self, fast_folder: Path) -> None:
        async def story() -> None:
            for number in (1, 2, 3):
                store = Store(fast_folder / "weft.db")
                assert store.last_seq == number - 1
                await store.write([event("a")])
                store.close()

        asyncio.run(story())


class TestConflicts:
    def test_only_the_clashing_write_of_a_batch_fails(self, with_store: Any) -> None:
        async def story(store: Store) -> None:
            await store.write([new("old", "taken")], refusable=True)
            release = hold_writer(store)
            futures = [
                store.write([new(uid, name), event(uid)], refusable=True)
                for uid, name in (("a", "a"), ("b", "taken"), ("c", "c"), ("d", "c"), ("e", "e"))
            ]
            release()
            results = await asyncio.gather(*futures, return_exceptions=True)
            assert [type(r) for r in results] == [type(None), Conflict, type(None), Conflict, type(None)]
            assert store.uids() == {"old", "a", "c", "e"}
            assert {e.uid for e in store.events()} == {"a", "c", "e"}

        with_store(story)

    def test_a_submit_key_is_used_once(self, with_store: Any) -> None:
        async def story(store: Store) -> None:
            await store.write([new("a", submit_key="k")], refusable=True)
            with pytest.raises(Conflict):
                await store.write([new("b", submit_key="k")], refusable=True)
            found = store.by_submit_key(KIND, "k")
            assert found is not None
            assert found.uid == "a"

        with_store(story)

    def test_a_deletion_frees_the_name_for_the_next_in_the_same_batch(self, with_store: Any) -> None:
        async def story(store: Store) -> None:
            await store.write([new("old", "name"), event("old")], refusable=True)
            release = hold_writer(store)
            gone = store.write([Delete("old")])
            made = store.write([new("new", "name")], refusable=True)
            release()
            await asyncio.gather(gone, made)
            assert store.uids() == {"new"}
            assert store.events(uid="old") == []

        with_store(story)

    def test_a_deletion_takes_events_metrics_and_offsets_with_it(self, with_store: Any) -> None:
        async def story(store: Store) -> None:
            for uid in ("a", "b"):
                await store.write([new(uid), event(uid)], refusable=True)
                await store.write([Measured(uid, "worker-0", 9, (Point("worker-0", "loss", 1, 1.0, 0.5),))])
            await store.write([Delete("a")])
            assert (store.uids(), store.events(uid="a"), store.metrics("a"), store.metric_offsets("a")) == (
                {"b"},
                [],
                [],
                {},
            )
            assert len(store.metrics("b")) == 1

        with_store(story)


class TestAPoisonedWrite:
    """What no database can hold, such as half of a surrogate pair in a metric's name."""

    def test_it_fails_alone_and_everything_else_is_kept(self, with_store: Any) -> None:
        """It used to be tried again for ever, and no other write ever got past it."""

        async def story(store: Store) -> None:
            await store.write([new("a")], refusable=True)
            bad = Point("worker-0", "\ud800", 1, 1.0, 0.5)
            written = store.write(
                [updated("a", state="PROCESSING"), event("a"), Measured("a", "worker-0", 5, (bad,))]
            )
            refused = store.write([new("\udfff")], refusable=True)
            await asyncio.wait_for(written, 5)
            with pytest.raises(StoreError, match="refused a write"):
                await refused
            found = store.resource(KIND, "a")
            assert found is not None
            assert found.state == "PROCESSING"
            assert len(store.events(uid="a")) == 1
            assert store.metrics("a") == []

        with_store(story)

    def test_metrics_with_such_names_are_kept_readable(self) -> None:
        line = b'{"time": 1, "values": {"a\\ud800b": 2}}'
        assert [p.name for p in parse_line(line, "worker-0")] == ["a?b"]


class TestNoRoom:
    @pytest.fixture(autouse=True)
    def impatient(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(writer_module, "RETRY_SECONDS", 0.01)

    def limit(self, store: Store, monkeypatch: pytest.MonkeyPatch) -> dict[str, int]:
        """SQLite's own limit on pages, set in the writer's thread before each commit."""
        pages = {"most": 1 << 30}
        commit = store._writer._commit

        def limited(connection: Any, batch: Any) -> None:
            connection.execute(f"PRAGMA max_page_count={pages['most']}")
            commit(connection, batch)

        monkeypatch.setattr(store._writer, "_commit", limited)
        return pages

    def test_who_can_be_refused_is_and_the_rest_is_tried_until_it_fits(
        self, with_store: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        async def story(store: Store) -> None:
            await store.write([new("a")], refusable=True)
            pages = self.limit(store, monkeypatch)
            pages["most"] = 1  # SQLite makes it what the file has now
            must = store.write([updated("a", reason="x" * 200_000), event("a", "PROCESSING")])
            with pytest.raises(StoreFull, match="no room"):
                await store.write([new("b", spec="y" * 200_000)], refusable=True)
            assert store.full
            assert not must.done()
            later = store.write([updated("a", reason="short"), event("a", "STORING")])
            pages["most"] = 1 << 30
            await asyncio.wait_for(asyncio.gather(must, later), 5)
            assert not store.full
            found = store.resource(KIND, "a")
            assert found is not None
            assert found.reason == "short"
            assert [e.state for e in store.events(uid="a")] == ["PROCESSING", "STORING"]
            assert store.uids() == {"a"}

        with_store(story)

    def test_order_is_kept_when_a_clash_and_a_full_disk_meet(
        self, with_store: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Retried one by one, the older of two updates used to come last and win."""

        async def story(store: Store) -> None:
            await store.write([new("a"), new("b", "taken")], refusable=True)
            pages = self.limit(store, monkeypatch)
            release = hold_writer(store)
            first = store.write([updated("a", reason="x" * 200_000)])
            clash = store.write([new("c", "taken")], refusable=True)
            second = store.write([updated("a", reason="newest")])
            await asyncio.sleep(0)
            pages["most"] = 1
            release()
            with pytest.raises((Conflict, StoreFull)):
                await clash
            pages["most"] = 1 << 30
            await asyncio.wait_for(asyncio.gather(first, second), 5)
            found = store.resource(KIND, "a")
            assert found is not None
            assert found.reason == "newest"

        with_store(story)


class TestTheWriterGoesOn:
    """Whatever fails in a turn, those who wait are answered and the next turn comes."""

    @pytest.mark.parametrize("place", ["_commit", "_kept", "_separate"])
    def test_after_a_turn_that_fails_in_no_known_way(
        self, with_store: Any, monkeypatch: pytest.MonkeyPatch, place: str
    ) -> None:
        async def story(store: Store) -> None:
            await store.write([new("a")], refusable=True)

            def broken(*_: Any) -> None:
                monkeypatch.undo()
                raise RuntimeError("a mistake")

            monkeypatch.setattr(store._writer, place, broken)
            change = new("b", "a") if place == "_separate" else event("a")
            with pytest.raises(StoreError, match="the writer failed: RuntimeError: a mistake"):
                await asyncio.wait_for(store.write([change]), 5)
            await asyncio.wait_for(store.write([new("c")], refusable=True), 5)
            assert store.uids() == {"a", "c"}

        with_store(story)

    def test_after_a_watcher_that_fails(self, with_store: Any) -> None:
        async def story(store: Store) -> None:
            def broken(happened: Happened) -> None:
                raise RuntimeError("a mistake")

            store.watch(broken)
            await asyncio.wait_for(store.write([event("a")]), 5)

        with_store(story)


class TestSuperseded:
    def test_who_listens_late_is_told_at_once(self, with_store: Any) -> None:
        async def story(store: Store) -> None:
            told: list[Superseded] = []
            store.when_superseded(told.append)
            store._writer._give_up(Superseded("another server uses it"))
            await asyncio.sleep(0)
            store.when_superseded(told.append)
            assert [str(problem) for problem in told] == ["another server uses it"] * 2

        with_store(story)


class TestOpening:
    def test_the_loop_goes_on_while_a_store_is_opened(
        self, fast_folder: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A new leader has to renew its lease meanwhile."""
        went_on = threading.Event()
        really = store_module.open_database

        def slow(*place: Any, **more: Any) -> Any:
            assert went_on.wait(5)
            return really(*place, **more)

        monkeypatch.setattr(store_module, "open_database", slow)

        async def story() -> None:
            asyncio.get_running_loop().call_soon(went_on.set)
            store = await Store.opened(fast_folder / "weft.db")
            await store.write([new("a")], refusable=True)
            assert store.uids() == {"a"}
            store.close()

        asyncio.run(story())


class TestMetrics:
    @pytest.mark.parametrize(
        ("value", "shown"),
        [
            (0.1, 0.1),
            (float("nan"), "nan"),
            (float("inf"), "inf"),
            (float("-inf"), "-inf"),
            (1e308, 1e308),
            (0.0, 0.0),
        ],
    )
    def test_every_number_comes_back(self, with_store: Any, value: float, shown: Any) -> None:
        async def story(store: Store) -> None:
            await store.write([Measured("a", "w-0", 1, (Point("w-0", "loss", None, 1.0, value),))])
            assert [m["value"] for m in store.metrics("a")] == [shown]

        with_store(story)

    def test_points_and_their_offset_are_one(self, with_store: Any) -> None:
        async def story(store: Store) -> None:
            for i in range(5):
                points = (Point("w-0", "loss", i, 1.0, float(i)),)
                await store.write([Measured("a", "w-0", 10 * (i + 1), points)])
            assert store.metric_offsets("a") == {"w-0": 50}
            assert [m["step"] for m in store.metrics("a", names=["loss"], after=2)] == [2, 3, 4]

        with_store(story)

    @given(st.binary(max_size=200))
    @settings(max_examples=200)
    def test_any_line_gives_points_or_nothing(self, line: bytes) -> None:
        assert all(point.task == "w-0" for point in parse_line(line, "w-0"))


class TestReading:
    def test_pages_go_on_where_the_last_one_ended(self, with_store: Any) -> None:
        async def story(store: Store) -> None:
            for i in range(10):
                await store.write([new(f"job-{i}", created=float(i // 3))], refusable=True)
            seen: list[str] = []
            before = None
            while found := store.page(KIND, limit=3, before=before):
                seen += [r.uid for r in found]
                before = (found[-1].created, found[-1].uid)
            assert seen == [f"job-{i}" for i in reversed(range(10))]

        with_store(story)

    def test_readers_never_find_the_database_locked(self, with_store: Any) -> None:
        async def story(store: Store) -> None:
            store._database.close()
            stop = asyncio.Event()
            counts = [0, 0]

            def read(who: int) -> None:
                while not stop.is_set():
                    seen = len(store.uids())
                    assert seen >= counts[who]
                    counts[who] = seen

            readers = [asyncio.create_task(asyncio.to_thread(read, who)) for who in (0, 1)]
            for i in range(150):
                await store.write([new(f"job-{i}"), event(f"job-{i}")], refusable=True)
            stop.set()
            await asyncio.gather(*readers)
            assert len(store.uids()) == 150

        with_store(story)

    def test_states_are_counted_and_filtered(self, with_store: Any) -> None:
        async def story(store: Store) -> None:
            for uid, state in (("a", "QUEUED"), ("b", "FAILED"), ("c", "FAILED")):
                await store.write([new(uid, state=state)], refusable=True)
            assert store.counts(KIND) == {"QUEUED": 1, "FAILED": 2}
            assert [r.uid for r in store.with_states(KIND, ["FAILED"])] == ["b", "c"]
            assert [r.uid for r in store.page(KIND, states=["FAILED"], summary=True)] == ["c", "b"]

        with_store(story)

    def test_expiry_is_the_earliest_that_is_set(self, with_store: Any) -> None:
        async def story(store: Store) -> None:
            assert store.next_expiry() is None
            await store.write([new("a", expires=20.0), new("b", expires=10.0), new("c")], refusable=True)
            assert store.next_expiry() == 10.0
            assert [r.uid for r in store.expired(10.0)] == ["b"]

        with_store(story)


@pytest.mark.parametrize(
    "count", [1, 2, 7, writer_module.ROWS, writer_module.ROWS + 1, 3 * writer_module.ROWS]
)
def test_any_number_of_rows_is_written_with_few_statements(
    with_store: Callable[[Story], None], count: int
) -> None:
    async def story(store: Store) -> None:
        uids = [f"{number:03d}" for number in range(count)]
        await store.write([change for uid in uids for change in (new(uid), event(uid))])
        await store.write(
            [change for uid in uids for change in (updated(uid, reason=uid), event(uid, "DEPLOYING"))]
        )
        assert {found.uid: found.reason for found in store.page(KIND, limit=1000)} == {
            uid: uid for uid in uids
        }
        assert store.last_seq == 2 * count

    with_store(story)
