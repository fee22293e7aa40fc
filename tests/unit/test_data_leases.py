"""What a job reads stays, what nobody reads goes, and what the engine sees of it."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import pytest

from support.datasets import (
    META,
    SAMPLES,
    SIZE,
    Here,
    OriginServer,
    Store,
    bytes_of,
    whole,
)
from weft.data.agent.origins import Server
from weft.data.cache.admission import Room
from weft.runtime.data.link import DataError

# ── leases, collecting, forgetting ──


def test_what_a_job_reads_is_not_collected_until_it_is_over(node: Here, store: Store, version: str) -> None:
    link = node.grant(version)
    whole(link, version, 0)
    link.tree(version)
    assert node.control(do="collect", all=True)["bytes"] == 0
    assert node.control(do="revoke", job="job-1")["known"] is True
    with pytest.raises(DataError, match="job job-1 may not read data on this node any more"):
        link.part(version, 0)
    collected = [node.control(do="collect", all=True) for _ in range(3)]
    assert sum(answer["bytes"] for answer in collected) > 21 * SIZE
    assert node.held() == set()
    assert node.control(do="status")["used"] == {"bytes": 0, "inodes": 0}
    assert node.control(do="holds")["versions"] == {}


def test_only_what_can_be_fetched_again_goes(
    node: Here, origin: OriginServer, store: Store, version: str
) -> None:
    link = node.grant(version)
    for part in range(3):
        whole(link, version, part)
    node.control(do="revoke", job="job-1")
    last_copy = store.parts(version)[1]
    store.path(last_copy).unlink()
    assert node.control(do="collect", all=True)["kept"] == 1
    assert node.held() == {last_copy}


def test_an_origin_that_does_not_answer_has_not_said_that_it_has_it(
    fast_folder: Path, store: Store, version: str
) -> None:
    with OriginServer(store) as origin, Here(fast_folder, Server(origin.url)) as node:
        whole(node.grant(version), version, 0)
        node.control(do="revoke", job="job-1")
        origin._server.shutdown()
        origin._server.server_close()
        node.node.origin.close()
        assert node.control(do="collect", all=True)["kept"] == 1
        assert len(node.held()) == 1


def test_what_nobody_used_for_long_goes(
    fast_folder: Path, origin: OriginServer, store: Store, version: str
) -> None:
    clock = [1000.0]
    with Here(fast_folder, Server(origin.url), ttl=100.0, now=lambda: clock[0]) as node:
        link = node.grant(version)
        whole(link, version, 0)
        clock[0] += 90
        whole(link, version, 1)
        node.control(do="revoke", job="job-1")
        clock[0] += 20
        assert node.control(do="collect")["inodes"] == 1
        assert node.held() == {store.parts(version)[1]}


def test_a_job_that_comes_finds_room_where_nobody_reads_any_more(
    fast_folder: Path, origin: OriginServer, store: Store, version: str
) -> None:
    other = store.add({f"x{number}": bytes_of(500 + number, SIZE) for number in range(8)})
    with Here(fast_folder, Server(origin.url), quota=Room(2 * META + 10 * SIZE, 100)) as node:
        link = node.grant(other, "old", "o", dataset="old")
        assert None not in [whole(link, other, part) for part in range(8)]
        node.control(do="revoke", job="old")
        link = node.grant(version)
        for part in range(10):
            assert whole(link, version, part) == SAMPLES[f"{part:03}"]


def test_a_cache_with_many_files_makes_room_by_inodes_alone(
    fast_folder: Path, origin: OriginServer, store: Store, version: str
) -> None:
    """There are bytes in plenty. Each part is a file; an index is five and their folder."""
    other = store.add({f"x{number}": bytes_of(500 + number, SIZE) for number in range(8)})
    with Here(fast_folder, Server(origin.url), quota=Room(1 << 30, 6 + 8 + 6)) as node:
        link = node.grant(other, "old", "o", dataset="old")
        assert None not in [whole(link, other, part) for part in range(8)]
        link = node.grant(version)  # while others read there is no file left for it, only remote reads
        assert [whole(link, version, part) for part in range(8)] == [None] * 8
        assert link.read(version, 0, 0, SIZE, sample=0) == SAMPLES["000"]
        node.control(do="revoke", job="old")
        assert [whole(link, version, part) is not None for part in range(8)] == [True] * 8
        assert node.control(do="status")["used"]["inodes"] <= 20
        assert {*store.parts(version)[:8]} <= node.held()


def test_a_cache_full_of_leases_takes_nothing_and_says_so(
    fast_folder: Path, origin: OriginServer, store: Store, version: str
) -> None:
    other = store.add({f"x{number}": bytes_of(500 + number, SIZE) for number in range(30)})
    with Here(fast_folder, Server(origin.url), quota=Room(META + 10 * SIZE, 100)) as node:
        first = node.grant(version)
        kept = [whole(first, version, part) is not None for part in range(20)]
        assert kept.count(True) < 20
        second = node.grant(other, "job-2", "2", dataset="other")
        answers = []
        for part in range(30):
            with suppress(DataError):
                answers.append(second.part(other, part))
        assert set(answers) <= {None}
        assert [whole(first, version, part) is not None for part in range(20)] == kept


def test_forget_is_refused_with_the_names_of_its_readers(node: Here, version: str) -> None:
    whole(node.grant(version), version, 0)
    answer = node.control(do="forget", version=version)
    assert answer["code"] == "refused"
    assert "is read by job-1" in answer["message"]
    node.control(do="revoke", job="job-1")
    assert node.control(do="forget", version=version)["bytes"] > SIZE
    assert node.held() == set()
    assert node.control(do="forget", version=version)["code"] == "missing"


def test_what_another_version_has_too_stays(node: Here, store: Store, version: str) -> None:
    newer = store.add({**SAMPLES, "new": b"new"})
    whole(node.grant(version), version, 0)
    whole(node.grant(newer, "job-2", "2"), newer, 1)
    node.control(do="revoke", job="job-1")
    node.control(do="forget", version=version)
    assert len(node.held()) == 2


# ── books that are lost ──


@pytest.mark.parametrize("damage", ["lost", "damaged"])
def test_an_agent_without_its_books_begins_with_what_is_there(
    fast_folder: Path, origin: OriginServer, store: Store, version: str, damage: str
) -> None:
    with Here(fast_folder, Server(origin.url)) as node:
        whole(node.grant(version), version, 0)
    for path in node.folder.glob("books*"):
        if damage == "lost":
            path.unlink()
        else:
            path.write_bytes(b"x" * 10_000)
    with Here(fast_folder, Server(origin.url)) as node:
        assert node.control(do="status")["used"] == {"bytes": SIZE, "inodes": 1}
        link = node.grant(version)
        assert whole(link, version, 0) == SAMPLES["000"]
        assert link.counts()["found"] == 1
        node.control(do="revoke", job="job-1")
        node.control(do="collect", all=True)
        assert node.held() == set()
