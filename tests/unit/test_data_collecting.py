"""A collection beside jobs that come, fetches that run and versions that are deleted."""

from __future__ import annotations

import os
import shutil
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from support.datasets import (
    PATIENCE,
    SAMPLES,
    SIZE,
    Here,
    OriginServer,
    Store,
    bytes_of,
    files_below,
    until,
    whole,
)
from weft.data.agent.origins import FarFolder, Server, StoreFolder
from weft.data.cache.admission import UNLIMITED, Room
from weft.data.cache.books import PART, Books, Claim
from weft.data.cache.leases import Leases
from weft.data.cache.versions import Part


class Gate:
    """Where somebody is held until the test lets him on."""

    def __init__(self) -> None:
        self.reached, self._open = threading.Event(), threading.Event()

    def wait(self) -> None:
        self.reached.set()
        assert self._open.wait(PATIENCE)

    def open(self) -> None:
        self._open.set()


class Gated(FarFolder):
    """A store that answers who collects in the thread `slow`, and who reads, when it is told to."""

    asking: Gate | None = None
    reading: Gate | None = None

    def has(self, digest: str) -> bool:
        if self.asking is not None and threading.current_thread().name == "slow":
            self.asking.wait()
        return super().has(digest)

    def read(self, part: Part, offset: int, length: int) -> Iterator[bytes]:
        if self.reading is not None:
            self.reading.wait()
        return super().read(part, offset, length)


@contextmanager
def slow_collection(node: Here, origin: Gated) -> Iterator[None]:
    """Under way, and not yet told of its first part, while the body runs."""
    gate = origin.asking = Gate()
    thread = threading.Thread(target=node.node.collector.collect, args=(UNLIMITED,), name="slow")
    thread.start()
    assert gate.reached.wait(PATIENCE)
    try:
        yield
    finally:
        gate.open()
        thread.join()


def on_disk(node: Here) -> int:
    return sum(size for _, size in node.node.files.held())


def in_books(node: Here) -> int:
    entries = node.node.books.entries()
    return sum(entry.room.bytes for entry in entries if entry.kind == PART)


# ── a job that comes meanwhile ──


def test_a_collection_leaves_the_files_of_a_job_that_came_meanwhile(
    fast_folder: Path, store: Store, version: str
) -> None:
    other = store.add({f"x{number}": bytes_of(500 + number, SIZE) for number in range(3)})
    origin = Gated(store.folder)
    with Here(fast_folder, origin) as node:
        whole(node.grant(other, "old", "o"), other, 0)
        node.grant(version).tree(version)
        node.control(do="revoke", job="old")
        node.control(do="revoke", job="job-1")
        with slow_collection(node, origin):
            link = node.grant(version, "new", "n")
            files = Path(link.tree(version))
        assert files_below(files) == SAMPLES
        assert node.control(do="holds")["versions"] == {version: 20 * SIZE}
        assert node.node.catalog.path(version).is_dir()


def test_a_collection_leaves_the_parts_of_a_job_that_came_meanwhile(
    fast_folder: Path, store: Store, version: str
) -> None:
    origin = Gated(store.folder)
    with Here(fast_folder, origin) as node:
        link = node.grant(version)
        for part in range(3):
            whole(link, version, part)
        node.control(do="revoke", job="job-1")
        with slow_collection(node, origin):
            node.grant(version, "new", "n")
        assert len(node.held()) == 3
        assert in_books(node) == 3 * SIZE


class Slow(Books):
    """Who looks for grants in the thread `slow` has found them a moment before he says so."""

    found, granted = threading.Event(), threading.Event()

    def ask(self, query: str, *values: Any) -> list[Any]:
        rows = super().ask(query, *values)
        if threading.current_thread().name == "slow":
            self.found.set()
            self.granted.wait(0.2)
        return rows


def test_a_grant_is_known_though_somebody_looked_for_all_of_them_just_then(fast_folder: Path) -> None:
    books = Slow(fast_folder / "books.sqlite")
    leases = Leases(books)
    looking = threading.Thread(target=leases.refresh, name="slow")
    looking.start()
    assert books.found.wait(PATIENCE)
    leases.grant("job-1", "t", {"v": {"dataset": "faces", "bytes": 0}})
    books.granted.set()
    looking.join()
    assert leases.of("job-1") is not None
    books.close()


# ── what is being fetched ──


def test_a_collection_that_comes_late_leaves_the_rows_of_what_is_being_fetched(
    fast_folder: Path, store: Store, version: str
) -> None:
    origin = Gated(store.folder)
    with Here(fast_folder, origin) as node:
        link = node.grant(version)
        for part in range(3):
            whole(link, version, part)
        node.control(do="revoke", job="job-1")
        claims = [Claim(PART, digest, "faces", Room(SIZE)) for digest in store.parts(version)[:3]]
        with slow_collection(node, origin):
            node.node.collector.collect(UNLIMITED)
            assert node.held() == set()
            for claim in claims:
                assert node.node.books.reserve(claim, 0.0)
        assert {key for _, key in node.node.books.unfinished()} == {claim.key for claim in claims}


def test_what_is_warmed_when_its_version_is_forgotten_is_counted_and_goes(
    fast_folder: Path, store: Store, version: str
) -> None:
    origin = Gated(store.folder)
    with Here(fast_folder, origin) as node:
        gate = origin.reading = Gate()
        node.control(do="warm", version=version, dataset="faces")
        assert gate.reached.wait(PATIENCE)
        assert "bytes" in node.control(do="forget", version=version)
        gate.open()
        until(lambda: not node.node.filling._under_way)
        assert node.control(do="status")["warming"][version]["finished"] is True
        assert len(node.held()) < 20
        assert on_disk(node) == in_books(node)
        for _ in range(2):
            node.control(do="collect", all=True)
        assert node.held() == set()
        assert node.control(do="status")["used"] == {"bytes": 0, "inodes": 0}


def test_a_file_without_a_row_is_counted_when_the_agent_starts(
    fast_folder: Path, store: Store, version: str
) -> None:
    with Here(fast_folder, FarFolder(store.folder)) as node:
        whole(node.grant(version), version, 0)
        node.node.books.drop(PART, store.parts(version)[0])
        node.control(do="revoke", job="job-1")
    with Here(fast_folder, FarFolder(store.folder)) as node:
        assert in_books(node) == on_disk(node) == SIZE


# ── versions that were deleted ──


def delete(store: Store, version: str) -> None:
    """As `weft data rm` does: the version, then its parts."""
    parts = store.parts(version)
    shutil.rmtree(store.folder / "versions" / version)
    for part in parts:
        store.path(part).unlink()


ORIGINS: dict[str, Callable[[Store, OriginServer], StoreFolder | Server]] = {
    "folder": lambda store, served: FarFolder(store.folder),
    "server": lambda store, served: Server(served.url),
}


@pytest.mark.parametrize("kind", list(ORIGINS))
def test_what_is_left_of_a_deleted_version_goes_when_room_is_needed(
    fast_folder: Path, store: Store, version: str, origin: OriginServer, kind: str
) -> None:
    with Here(fast_folder, ORIGINS[kind](store, origin), quota=Room(20_000 + 20 * SIZE, 10_000)) as node:
        link = node.grant(version)
        for part in range(20):
            whole(link, version, part)
        node.control(do="revoke", job="job-1")
        delete(store, version)
        newer = store.add({f"x{number}": bytes_of(500 + number, SIZE) for number in range(20)})
        node.node.filling.hope()
        link = node.grant(newer, "job-2", "2")
        assert None not in [whole(link, newer, part) for part in range(20)]
        assert node.control(do="collect", all=True)["kept"] == 0
        assert node.held() == set(store.parts(newer))


def test_what_a_version_still_has_stays_though_another_with_it_was_deleted(
    fast_folder: Path, store: Store, version: str
) -> None:
    newer = store.add({**SAMPLES, "new": b"new"})
    lost, gone = store.parts(version)[0], store.parts(newer)[-1]
    with Here(fast_folder, FarFolder(store.folder)) as node:
        whole(node.grant(version), version, 0)
        link = node.grant(newer, "job-2", "2")
        whole(link, newer, 20)
        node.control(do="revoke", job="job-1")
        node.control(do="revoke", job="job-2")
        shutil.rmtree(store.folder / "versions" / newer)
        for part in (lost, gone):
            store.path(part).unlink()
        assert node.control(do="collect", all=True)["kept"] == 1
        assert node.held() == {lost}


def test_a_store_that_is_not_mounted_says_nothing_about_its_versions(
    fast_folder: Path, store: Store, version: str
) -> None:
    with Here(fast_folder, FarFolder(store.folder)) as node:
        whole(node.grant(version), version, 0)
        node.control(do="revoke", job="job-1")
        os.rename(store.folder, store.folder.with_name("elsewhere"))
        store.folder.mkdir()
        assert node.control(do="collect", all=True)["kept"] == 1
        assert len(node.held()) == 1


def test_who_collects_is_told_of_rows_and_never_of_what_went_twice(node: Here, version: str) -> None:
    whole(node.grant(version), version, 0)
    node.control(do="revoke", job="job-1")
    entries: list[Any] = [entry for entry in node.node.books.entries() if entry.kind == PART]
    assert [node.node.collector._remove(entry) for entry in entries * 2] == [True, None]
