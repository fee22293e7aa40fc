"""Bringing a part here over a bad line: all of its bytes, or an error that says what is wrong. Never others."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.datasets import OriginServer, Store, bytes_of, digest
from weft.data.agent.catalog import Catalog
from weft.data.agent.origins import Server, StoreFolder, reader
from weft.data.cache.admission import Room
from weft.data.cache.books import Books
from weft.data.cache.fetch import fetch, fetch_range
from weft.data.cache.versions import Part
from weft.data.errors import Changed, Corrupt, Denied, Missing, NoRoom, Refused, Unreachable
from weft.data.patience import Patience

DATA = bytes_of(1, 5000)
PART = Part(digest(DATA), len(DATA))
ROOMY = Room(1 << 20, 100)
AT_ONCE = Patience(tries=4, sleep=lambda seconds: None)


class Memory:
    def __init__(self) -> None:
        self.data = b""

    @property
    def size(self) -> int:
        return len(self.data)

    def write(self, chunk: bytes) -> None:
        self.data += chunk

    def restart(self) -> None:
        self.data = b""


def fetched(read: Any, part: Part = PART, patience: Patience = AT_ONCE) -> bytes:
    into = Memory()
    fetch(part, read, into, patience)
    return into.data


# ── patience, on virtual time ──


class Clock:
    def __init__(self) -> None:
        self.slept: list[float] = []

    def patience(self, tries: int = 6) -> Patience:
        return Patience(
            tries=tries, first=0.2, longest=10.0, sleep=self.slept.append, chance=Random(1).random
        )


def never(part: Part, offset: int, length: int) -> Iterator[bytes]:
    raise Unreachable("no route")
    yield


def test_what_is_out_of_reach_is_tried_again_later_each_time_and_not_for_ever() -> None:
    clock = Clock()
    with pytest.raises(Unreachable, match="no route"):
        fetched(never, patience=clock.patience(9))
    assert len(clock.slept) == 8
    for failures, slept in enumerate(clock.slept):
        whole = min(10.0, 0.2 * 2**failures)
        assert whole / 2 <= slept <= whole
    assert len({slept / 10 for slept in clock.slept}) == 8, "no two wait alike"


def test_bytes_that_came_are_not_asked_for_again() -> None:
    asked: list[int] = []

    def breaks_off(part: Part, offset: int, length: int) -> Iterator[bytes]:
        asked.append(offset)
        yield DATA[offset : offset + 1000]
        raise Unreachable("reset")

    def ends_early(part: Part, offset: int, length: int) -> Iterator[bytes]:
        asked.append(offset)
        yield DATA[offset : offset + 1000]

    assert fetched(breaks_off, patience=Clock().patience(2)) == DATA
    assert fetched(ends_early, patience=Clock().patience(2)) == DATA
    assert asked == [0, 1000, 2000, 3000, 4000] * 2


@pytest.mark.parametrize("problem", [Changed("other etag"), Denied("401"), Missing("404"), Refused("no")])
def test_what_is_not_temporary_is_told_at_once(problem: Exception) -> None:
    clock = Clock()

    def read(part: Part, offset: int, length: int) -> Iterator[bytes]:
        raise problem
        yield

    with pytest.raises(type(problem), match=str(problem)):
        fetched(read, patience=clock.patience())
    assert clock.slept == []


def test_a_wrong_checksum_is_fetched_once_more_and_then_refused() -> None:
    sent = [b"x" * 5000, DATA]
    assert fetched(lambda part, offset, length: iter([sent.pop(0)])) == DATA
    with pytest.raises(Corrupt, match="came twice with other bytes"):
        fetched(lambda part, offset, length: iter([b"x" * 5000]))


def test_more_bytes_than_promised_are_refused() -> None:
    with pytest.raises(Corrupt, match="more bytes came than its 5000"):
        fetched(lambda part, offset, length: iter([DATA, b"x"]))


def test_what_stays_in_its_source_is_known_by_its_mark_and_its_size() -> None:
    part = Part(digest(b"key\0mark\x005000"), 5000, "key", "mark")

    def sources(dataset: str) -> Callable[[Part, int, int], Iterator[bytes]]:
        def read(part: Part, offset: int, length: int) -> Iterator[bytes]:
            if part.mark != "mark":
                raise Changed(f"{part.key} has changed; refresh dataset {dataset}")
            return iter([DATA[offset : offset + length]])

        return read

    origin = StoreFolder(Path("/nowhere"))
    assert fetched(reader(origin, "faces", sources), part) == DATA
    changed = Part(part.digest, 5000, "key", "other")
    with pytest.raises(Changed, match="key has changed; refresh dataset faces"):
        fetched(reader(origin, "faces", sources), changed)
    with pytest.raises(Refused, match="lies in its source"):
        fetched(reader(origin, "faces", None), part)


@given(st.data(), st.integers(0, 300))
def test_over_any_line_it_is_the_part_or_an_error(data: Any, size: int) -> None:
    whole = bytes_of(size, size)

    def read(part: Part, offset: int, length: int) -> Iterator[bytes]:
        piece = whole[offset : offset + length]
        fault = data.draw(st.sampled_from(["none", "none", "short", "flip", "long", "gone", "late"]))
        if fault == "gone":
            raise Unreachable("gone")
        if fault == "flip" and piece:
            piece = bytes([piece[0] ^ 1]) + piece[1:]
        yield piece[: len(piece) // 2] if fault == "short" else piece
        if fault == "long":
            yield b"x"
        if fault == "late":
            raise Unreachable("late")

    try:
        came = fetched(read, Part(digest(whole), size))
    except (Corrupt, Unreachable):
        return
    assert came == whole


def test_a_range_is_whole_or_an_error() -> None:
    assert fetch_range(PART, lambda part, o, n: iter([DATA[o : o + n]]), 10, 20, AT_ONCE) == DATA[10:30]
    with pytest.raises(Unreachable, match="19 bytes of 20"):
        fetch_range(PART, lambda part, o, n: iter([DATA[o : o + n - 1]]), 10, 20, AT_ONCE)
    with pytest.raises(Corrupt):
        fetch_range(PART, lambda part, o, n: iter([b"x" * n]), 0, 5000, AT_ONCE)


def test_a_full_disk_is_no_room() -> None:
    class Full(Memory):
        def write(self, chunk: bytes) -> None:
            with open("/dev/full", "wb", buffering=0) as disk:
                disk.write(chunk)

    with pytest.raises(NoRoom, match="No space left"):
        fetch(PART, lambda part, o, n: iter([DATA]), Full(), AT_ONCE)


# ── a server ──


@pytest.fixture
def store(fast_folder: Path) -> Store:
    made = Store(fast_folder / "store")
    assert made.keep(DATA) == PART.digest
    return made


@pytest.fixture
def server() -> Iterator[Callable[..., Server]]:
    made: list[Server] = []

    def make(*arguments: Any) -> Server:
        made.append(Server(*arguments))
        return made[-1]

    yield make
    for one in made:
        one.close()


def test_a_server_sends_ranges_over_one_connection(store: Store, server: Any) -> None:
    with OriginServer(store, token="t") as served:
        origin = server(served.url, lambda: "t")
        assert fetched(origin.read) == DATA
        assert b"".join(origin.read(PART, 100, 50)) == DATA[100:150]
        assert len(origin._remote._idle) == 1
        assert origin.has(PART.digest)
        assert not origin.has("0" * 64)


def test_a_server_that_breaks_off_is_asked_for_the_rest(store: Store, server: Any) -> None:
    with OriginServer(store, fault=lambda path, piece: piece[: len(piece) // 2 + 1]) as served:
        assert fetched(server(served.url).read) == DATA
        assert len(served.asked) > 5


@pytest.mark.parametrize(
    ("fault", "error", "says"),
    [
        (503, Unreachable, "503 Service Unavailable"),
        (429, Unreachable, "429"),
        (401, Denied, "token of this node is not accepted"),
        (404, Missing, "no such thing"),
        (400, Corrupt, "it answers 400"),
    ],
)
def test_what_a_server_says_becomes_an_error_that_is_known(
    store: Store, server: Any, fault: int, error: type[Exception], says: str
) -> None:
    with OriginServer(store, fault=lambda path, piece: fault) as served:
        with pytest.raises(error, match=says):
            fetched(server(served.url).read)
        assert len(served.asked) == (AT_ONCE.tries if error is Unreachable else 1)


def test_a_server_whose_file_is_cut_short_or_has_other_bytes_is_corrupt(store: Store, server: Any) -> None:
    with OriginServer(store) as served:
        store.path(PART.digest).write_bytes(DATA[:-1])
        with pytest.raises(Corrupt, match="bytes 0-4998/4999"):
            fetched(server(served.url).read)
        store.path(PART.digest).write_bytes(DATA + b"x")
        with pytest.raises(Corrupt, match="bytes 0-4999/5001"):
            fetched(server(served.url).read)
        store.path(PART.digest).write_bytes(b"x" * 5000)
        with pytest.raises(Corrupt, match="other bytes"):
            fetched(server(served.url).read)


def test_a_server_that_is_not_there_is_unreachable(store: Store, server: Any) -> None:
    with OriginServer(store) as served:
        url = served.url
    with pytest.raises(Unreachable, match="does not answer"):
        fetched(server(url).read)


def test_a_store_on_this_machine_that_lost_a_part_says_so(store: Store) -> None:
    origin = StoreFolder(store.folder)
    assert fetched(origin.read) == DATA
    store.path(PART.digest).write_bytes(DATA[:9])
    with pytest.raises(Corrupt, match="has 9 bytes of 5000 in the store"):
        origin.open(PART)
    store.path(PART.digest).unlink()
    with pytest.raises(Missing, match="not in the store"):
        origin.open(PART)


# ── version folders ──


def brought(folder: Path, url: str, version: str, limit: Room = ROOMY) -> Any:
    with closing(Server(url)) as origin, closing(Books(folder / "books.sqlite", limit)) as books:
        return Catalog(folder, books, origin, AT_ONCE).bring(version, "faces", lambda claim: None)


@pytest.fixture
def version(store: Store) -> str:
    return store.add({"a/b": b"1", "c": b"22"})


def test_a_version_is_brought_once_and_is_read_only(store: Store, version: str, tmp_path: Path) -> None:
    with OriginServer(store) as served:
        found = brought(tmp_path, served.url, version)
    assert [sample.name for sample in found.all_samples()] == ["a/b", "c"]
    assert {path.stat().st_mode & 0o777 for path in found.folder.iterdir()} == {0o444}
    again = brought(tmp_path, served.url, version)  # the server is gone by now
    assert again.parts == found.parts


@pytest.mark.parametrize("file", ["names.txt", "marks.bin", "samples.idx", "version.json", "names.idx"])
def test_an_index_with_other_bytes_is_refused_and_leaves_nothing(
    store: Store, version: str, tmp_path: Path, file: str
) -> None:
    def spoil(path: str, piece: bytes) -> bytes | None:
        return bytes([piece[0] ^ 255]) + piece[1:] if path.endswith(file) else None

    with OriginServer(store, fault=spoil) as served, pytest.raises(Corrupt):
        brought(tmp_path, served.url, version)
    assert not list((tmp_path / "versions").glob("*[!k]"))


def test_an_index_needs_room_too(store: Store, version: str, tmp_path: Path) -> None:
    with OriginServer(store) as served, pytest.raises(NoRoom, match="the index of dataset faces has"):
        brought(tmp_path, served.url, version, Room(100, 100))


@pytest.mark.parametrize("name", ["../x", "a" * 31, "", None, 5])
def test_only_versions_are_names_of_folders(tmp_path: Path, name: Any) -> None:
    with pytest.raises(Refused, match="is no version"):
        brought(tmp_path, "http://127.0.0.1:9", name)
