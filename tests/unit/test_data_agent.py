"""The agent: what a reader gets, also when the cache is too small or the origin fails."""

from __future__ import annotations

import asyncio
import os
import stat
import threading
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest

from support.datasets import (
    META,
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
from weft.data.agent.ahead import FARTHEST
from weft.data.agent.filling import Begun
from weft.data.agent.origins import Server, StoreFolder
from weft.data.cache.admission import Room
from weft.data.cache.books import Claim
from weft.data.cache.versions import Part
from weft.data.errors import Changed
from weft.runtime.data.link import DataError

# ── reading ──


def test_open_gives_the_index_as_open_files(node: Here, store: Store, version: str) -> None:
    folder, files = node.grant(version).open(version)
    assert list(files) == ["samples.idx", "names.idx", "names.txt", "version.json"]
    for name, fd in files.items():
        with os.fdopen(fd, "rb") as file:
            assert file.read() == (store.folder / "versions" / version / name).read_bytes()
            assert (Path(folder) / name).exists()


def test_a_part_comes_as_a_file_that_nobody_can_write_to(node: Here, version: str) -> None:
    fd = node.grant(version).part(version, 3)
    assert fd is not None
    assert os.pread(fd, SIZE, 0) == SAMPLES["003"]
    assert not os.get_inheritable(fd)
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.write(fd, b"x")
    assert stat.S_IMODE(os.fstat(fd).st_mode) == 0o444
    os.close(fd)


def test_counts_say_what_was_there_what_came_and_how_long_it_took(
    node: Here, origin: OriginServer, version: str
) -> None:
    link = node.grant(version)
    for part in (0, 1, 0, 0):
        assert whole(link, version, part) == SAMPLES[f"{part:03}"]
    counted = link.counts()
    assert counted.pop("stallSeconds") > 0
    own = {"found": 2, "lacked": 2, "givenBytes": 4 * SIZE, "remoteBytes": 2 * SIZE, "peerBytes": 0}
    readers = dict.fromkeys(("hits", "misses", "hitBytes", "missBytes"), 0)
    assert counted == {**own, **readers, "turn": -1}  # what it reads of a file, only a reader can tell
    shown = node.control(do="status")["counts"]
    assert [(line["job"], line["dataset"], line["ratio"]) for line in shown] == [("job-1", "faces", None)]


def test_a_part_is_fetched_once_however_many_ask(node: Here, origin: OriginServer, version: str) -> None:
    origin.delay = 0.2
    links = [node.grant(version) for _ in range(12)]
    got: list[Any] = []
    threads = [
        threading.Thread(target=lambda link=link: got.append(whole(link, version, 7))) for link in links
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert got == [SAMPLES["007"]] * 12
    assert len(origin.asked) == 1


def test_any_number_of_readers_that_wait_for_one_part_leave_the_others_alone(
    node: Here, origin: OriginServer, store: Store, version: str
) -> None:
    slow, released = store.parts(version)[7], threading.Event()
    links = [node.grant(version) for _ in range(12)]
    links[0].counts()
    until(lambda: node.node.catalog.get(version))
    origin.fault = lambda path, piece: None if slow not in path or released.wait(60) else 500
    threads = [threading.Thread(target=whole, args=(link, version, 7)) for link in links]
    for thread in threads:
        thread.start()
    try:
        until(lambda: slow in origin.asked)
        assert whole(node.grant(version), version, 8) == SAMPLES["008"]
    finally:
        released.set()
        for thread in threads:
            thread.join(60)
    assert origin.asked.count(slow) == 1


def test_two_jobs_share_what_one_of_them_fetched(node: Here, origin: OriginServer, version: str) -> None:
    one, two = node.grant(version), node.grant(version, "job-2", "other")
    assert whole(one, version, 0) == whole(two, version, 0) == SAMPLES["000"]
    assert (one.counts()["remoteBytes"], two.counts()["remoteBytes"]) == (SIZE, 0)
    assert two.counts()["found"] == 1


def test_a_store_on_this_machine_hands_out_its_own_files(
    fast_folder: Path, store: Store, version: str
) -> None:
    with Here(fast_folder, StoreFolder(store.folder)) as node:
        link = node.grant(version)
        fd = link.part(version, 5)
        assert fd is not None
        assert os.path.samestat(os.fstat(fd), store.path(store.parts(version)[5]).stat())
        os.close(fd)
        link.ahead(version, range(20))
        node.control(do="warm", version=version)
        until(lambda: not node.ahead._plans)
        assert node.held() == set()
        assert (link.counts()["found"], link.counts()["remoteBytes"]) == (1, 0)
        assert node.control(do="holds")["versions"] == {version: 20 * SIZE}
        store.path(store.parts(version)[6]).unlink()
        with pytest.raises(DataError, match="is not in the store") as found:
            link.part(version, 6)
        assert found.value.code == "missing"


def test_who_does_not_wait_is_told_that_it_is_coming(node: Here, origin: OriginServer, version: str) -> None:
    link = node.grant(version)
    assert link.part(version, 0, wait=False) is None
    fd = until(lambda: link.part(version, 0, wait=False))
    os.close(fd)
    assert len(origin.asked) == 1


# ── a cache that is too small ──


def full(fast_folder: Path, origin: OriginServer, parts: int, **more: Any) -> Here:
    return Here(fast_folder, Server(origin.url), quota=Room(META + parts * SIZE, 100), **more)


def test_without_replacement_the_hit_ratio_is_the_part_that_fits(
    fast_folder: Path, origin: OriginServer, version: str
) -> None:
    chance = Random(3)
    with Here(fast_folder, Server(origin.url)) as node:
        link = node.grant(version, quota=13 * SIZE)
        before = link.counts()
        for epoch in range(4):
            order = chance.sample(range(20), 20)
            for part in order:
                data = whole(link, version, part) or link.read(version, part, 0, SIZE)
                assert data == SAMPLES[f"{part:03}"]
            after = link.counts()
            if epoch:
                assert after["found"] - before["found"] == 13
                assert after["remoteBytes"] - before["remoteBytes"] == 7 * SIZE
            before = after


def test_lru_keeps_what_was_read_last(fast_folder: Path, origin: OriginServer, version: str) -> None:
    with Here(fast_folder, Server(origin.url)) as node:
        link = node.grant(version, policy="lru", quota=3 * SIZE)
        for part in (0, 1, 2, 0, 3):
            assert whole(link, version, part) == SAMPLES[f"{part:03}"]
        hits = link.counts()["found"]
        assert [whole(link, version, part) is not None for part in (2, 0, 3)] == [True] * 3
        assert link.counts()["found"] == hits + 3
        assert whole(link, version, 1) == SAMPLES["001"]
        assert link.counts()["found"] == hits + 3


def test_lru_takes_nothing_from_a_job_that_counts_on_it(
    fast_folder: Path, origin: OriginServer, version: str
) -> None:
    """The same version, read by a training job and in a notebook."""
    with Here(fast_folder, Server(origin.url)) as node:
        training = node.grant(version, quota=3 * SIZE)
        assert None not in [whole(training, version, part) for part in range(3)]
        notebook = node.grant(version, "notebook", "n", policy="lru", quota=3 * SIZE)
        assert [whole(notebook, version, part) for part in range(3, 6)] == [None] * 3
        hits = training.counts()["found"]
        assert None not in [whole(training, version, part) for part in range(3)]
        assert training.counts()["found"] == hits + 3


def test_who_asks_for_what_is_fetched_ahead_in_vain_gets_room_for_it(
    fast_folder: Path, origin: OriginServer, store: Store, version: str
) -> None:
    """A fetch ahead lets nothing go; the reader that waits for it may."""
    wanted, got = store.parts(version)[5], list[Any]()
    with Here(fast_folder, Server(origin.url)) as node:
        link, filling = node.grant(version, policy="lru", quota=2 * SIZE), node.node.filling
        assert whole(link, version, 0) == SAMPLES["000"]
        with node.node.files.filling(wanted):
            link.ahead(version, [5])
            begun = until(lambda: filling._under_way.get(wanted)).task
            waiting = len(begun._callbacks)
            asking = threading.Thread(target=lambda: got.append(whole(link, version, 5)))
            asking.start()
            until(lambda: len(begun._callbacks) > waiting)
            node.node.books.reserve(Claim("part", "f" * 64, "faces", Room(SIZE)), 1.0)
        asking.join(60)
        assert got == [SAMPLES["005"]]
        assert store.parts(version)[0] not in node.held()


def test_who_asks_at_the_very_moment_at_which_a_fetch_ahead_ends_in_vain_is_answered_too(
    node: Here, store: Store, version: str
) -> None:
    """Its future is done, but nobody has taken it out yet: whoever waited for it in a loop kept the loop from doing so."""
    link, filling, wanted = node.grant(version), node.node.filling, store.parts(version)[5]

    async def ends_in_vain() -> None:
        over: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        over.set_result(False)
        filling._under_way[wanted] = Begun(over, evict=False)

    node.run(ends_in_vain())
    assert whole(link, version, 5) == SAMPLES["005"]


def test_what_does_not_fit_is_read_from_where_it_is(
    fast_folder: Path, origin: OriginServer, version: str
) -> None:
    with Here(fast_folder, Server(origin.url)) as node:
        link = node.grant(version, quota=0)
        assert link.part(version, 2) is None
        assert link.read(version, 2, 10, 5) == SAMPLES["002"][10:15]
        assert link.counts()["remoteBytes"] == 5


def test_a_read_through_the_agent_is_proven_by_the_sample_s_mark(
    node: Here, origin: OriginServer, store: Store
) -> None:
    version = store.add(SAMPLES, 5)
    link = node.grant(version, quota=0)
    assert link.read(version, 1, SIZE, SIZE, sample=6) == SAMPLES["006"]
    origin.fault = lambda path, piece: b"x" * len(piece)
    with pytest.raises(DataError, match="not the sample's") as found:
        link.read(version, 1, SIZE, SIZE, sample=6)
    assert found.value.code == "corrupt"
    with pytest.raises(DataError, match="sample 7 does not lie there"):
        link.read(version, 1, SIZE, SIZE, sample=7)


# ── an origin that fails ──


@pytest.mark.parametrize(
    ("fault", "code"),
    [
        (lambda path, piece: 503, "unreachable"),
        (lambda path, piece: b"", "unreachable"),
        (lambda path, piece: b"x" * len(piece), "corrupt"),
        (lambda path, piece: 404, "missing"),
        (lambda path, piece: 403, "denied"),
    ],
    ids=["unreachable", "nothing", "other bytes", "gone", "denied"],
)
def test_it_is_an_error_with_a_code_and_nothing_is_kept(
    node: Here, origin: OriginServer, version: str, fault: Any, code: str
) -> None:
    link = node.grant(version)
    assert whole(link, version, 0) == SAMPLES["000"]
    used = node.control(do="status")["used"]
    origin.fault = fault
    for ask in (lambda: link.part(version, 1), lambda: link.read(version, 1, 0, SIZE)):
        with pytest.raises(DataError) as found:
            ask()
        assert found.value.code == code
    assert whole(link, version, 0) == SAMPLES["000"]
    assert node.control(do="status")["used"] == used
    origin.fault = None
    assert whole(link, version, 1) == SAMPLES["001"]


def test_a_source_that_changed_is_told_and_not_kept(
    fast_folder: Path, origin: OriginServer, store: Store
) -> None:
    version = store.add(SAMPLES, stays=True)
    changed: list[bool] = []

    def sources(dataset: str) -> Any:
        def read(part: Part, offset: int, length: int) -> Iterator[bytes]:
            if changed:
                raise Changed(f"{part.key} of dataset {dataset} has changed; refresh it")
            return iter([SAMPLES[str(part.key)][offset : offset + length]])

        return read

    with Here(fast_folder, Server(origin.url), sources) as node:
        link = node.grant(version)
        assert whole(link, version, 0) == SAMPLES["000"]
        changed.append(True)
        with pytest.raises(DataError, match="001 of dataset faces has changed") as found:
            link.part(version, 1)
        assert found.value.code == "changed"
        assert whole(link, version, 0) == SAMPLES["000"]


# ── ahead ──


def test_what_is_fetched_ahead_is_there_when_it_is_asked_for(
    node: Here, origin: OriginServer, version: str
) -> None:
    link = node.grant(version)
    link.ahead(version, [4, 2, 9, 4])
    until(lambda: node.control(do="holds")["versions"].get(version) == 3 * SIZE)
    for part in (4, 2, 9):
        assert whole(link, version, part) == SAMPLES[f"{part:03}"]
    assert link.counts()["found"] == 3
    assert len(origin.asked) == 3


def test_only_so_far_ahead(node: Here, origin: OriginServer, store: Store) -> None:
    version = store.add({f"{number:04}": bytes_of(number, 10) for number in range(FARTHEST + 40)})
    node.grant(version).ahead(version, range(FARTHEST + 40))
    until(lambda: not node.ahead._plans)
    assert len(origin.asked) == FARTHEST


def test_nothing_goes_for_it(fast_folder: Path, origin: OriginServer, store: Store, version: str) -> None:
    """Neither what the policy would let go nor what nobody has a lease on."""
    other = store.add({"other": bytes_of(99, 4 * SIZE)})
    with full(fast_folder, origin, 5 + META // SIZE + 1) as node:
        gone = node.grant(other, "job-0", "0")
        assert whole(gone, other, 0) is not None
        link = node.grant(version, policy="lru")
        held = [whole(link, version, part) for part in range(3)]
        assert None not in held
        until(lambda: not node.node.filling._under_way)
        node.control(do="revoke", job="job-0")
        link.ahead(version, range(3, 20))
        until(lambda: not node.ahead._plans)
        assert node.control(do="holds")["versions"][other] == 4 * SIZE
        hits = link.counts()["found"]
        assert [whole(link, version, part) for part in range(3)] == held
        assert link.counts()["found"] == hits + 3


def test_warm_brings_all_of_a_version_and_says_how_far_it_is(
    node: Here, origin: OriginServer, version: str
) -> None:
    assert node.control(do="warm", version=version, dataset="faces") == {"ok": True, "bytes": 20 * SIZE}
    until(lambda: node.control(do="status")["warming"][version]["finished"])
    status = node.control(do="status")
    assert status["warming"][version] == {"done": 20 * SIZE, "of": 20 * SIZE, "finished": True}
    assert node.control(do="holds")["versions"] == {version: 20 * SIZE}
    assert len(origin.asked) == 20


# ── trees ──


def test_a_tree_is_made_once_of_what_is_there_and_what_is_not(
    node: Here, origin: OriginServer, store: Store
) -> None:
    version = store.add(SAMPLES, 5)
    link = node.grant(version)
    assert whole(link, version, 1) is not None
    tree = link.tree(version)
    assert files_below(Path(tree)) == SAMPLES
    assert link.tree(version) == tree
    assert sorted(origin.asked) == sorted(store.parts(version))
    assert node.control(do="holds")["versions"] == {version: 20 * SIZE}
