"""Packs of small objects that stay at their source: any bytes of them, for many at once, without a list of what is in them."""

from __future__ import annotations

import random
import threading
import tracemalloc
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.samples import Listed, opened
from weft.data import digest, packs
from weft.data.agent.origins import StoreFolder, reader
from weft.data.cache.versions import Version
from weft.data.errors import Refused
from weft.data.ingest import ingest
from weft.data.pieces import in_pieces
from weft.data.sources import Object
from weft.data.store import Store


def in_place(folder: Path, source: Listed) -> Version:
    store = Store(folder / "store")
    made = ingest(source, store, "k", in_place=True)
    return Version(store.version(made.version), made.version)


def small(count: int, size: int = 1) -> dict[str, bytes]:
    return {f"{number:06}": number.to_bytes(4, "little")[:size] for number in range(count)}


@given(st.data())
def test_any_bytes_of_a_pack_are_those_of_its_objects_one_behind_the_other(data: st.DataObject) -> None:
    """Whatever lies between them: large ones, which are parts of their own, and empty ones."""
    sizes = data.draw(st.lists(st.one_of(st.integers(0, 50), st.just(300)), min_size=2, max_size=40))
    content = {f"{number:02}": random.Random(number).randbytes(size) for number, size in enumerate(sizes)}
    source = Listed(content, stays=True)
    with pytest.MonkeyPatch.context() as patch, TemporaryDirectory() as folder:
        patch.setattr(packs, "SMALL", 300)
        patch.setattr(packs, "LARGEST", data.draw(st.integers(50, 400)))
        patch.setattr(packs, "MOST_IN_PLACE", data.draw(st.integers(2, 10)))
        version = in_place(Path(folder), source)
        whole = [b""] * len(version.parts)
        for sample in version.all_samples():
            whole[sample.part] += content[sample.name]
        for number, part in enumerate(version.parts):
            if part.pieces is not None:
                offset = data.draw(st.integers(0, part.size))
                length = data.draw(st.integers(0, part.size - offset))
                pieces = part.pieces(offset, length)
                got = b"".join(in_pieces(source, pieces, offset, length))
                assert got == whole[number][offset : offset + length]


def test_a_pack_in_place_has_so_many_objects_at_most() -> None:
    """A request each: what is one part to a node must not be hours of them."""
    objects = [Object(f"{number:05}", 1, "") for number in range(10_000)]
    assert [len(part) for part in packs.plan(objects, most=packs.MOST_IN_PLACE)] == [4096, 4096, 1808]
    assert [len(part) for part in packs.plan(objects)] == [10_000]


def test_what_is_in_place_is_planned_so_and_the_version_is_the_same(
    fast_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = Listed(small(100), stays=True)
    one = in_place(fast_folder / "a", source)
    monkeypatch.setattr(packs, "MOST_IN_PLACE", 10)
    many = in_place(fast_folder / "b", source)
    assert (len(one.parts), len(many.parts)) == (1, 10)
    assert one.name == many.name
    many.check()


def test_readers_of_many_packs_do_not_disturb_each_other(
    fast_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(packs, "MOST_IN_PLACE", 3)
    source = Listed(small(600, 4), stays=True)
    version = in_place(fast_folder, source)
    together = threading.Barrier(32)

    def read(seed: int) -> None:
        chance = random.Random(seed)
        together.wait()
        for number in chance.choices(range(version.samples), k=300):
            _, part, offset, length, _ = version.sample(number)
            pieces = version.parts[part].pieces
            assert pieces is not None
            assert b"".join(in_pieces(source, pieces(offset, length), offset, length)) == number.to_bytes(
                4, "little"
            )

    with ThreadPoolExecutor(32) as pool:
        list(pool.map(read, range(32)))


def memory_of(work: Callable[[], object]) -> int:
    """The most that it had at once, in bytes."""
    tracemalloc.start()
    try:
        work()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def test_a_sample_costs_no_list_of_its_pack_nor_does_the_whole_pack(
    fast_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(packs, "MOST_IN_PLACE", 20_000)
    version = in_place(fast_folder, Listed(small(20_000), stays=True))
    (part,) = version.parts
    assert part.pieces is not None
    list(part.pieces(0, 1))
    assert memory_of(lambda: list(part.pieces(15_000, 2))) < 10_000  # type: ignore[misc]
    assert memory_of(lambda: sum(1 for _ in part.pieces(0, part.size))) < 10_000  # type: ignore[misc]


def test_a_pack_that_cannot_be_read_is_called_by_its_first_object(fast_folder: Path) -> None:
    source = Listed({**small(3), "large": bytes(5 << 20)}, stays=True)
    version = in_place(fast_folder, source)
    large, pack = version.parts
    read = reader(StoreFolder(fast_folder / "store"), "films", None)
    with pytest.raises(Refused, match=r"^large of dataset films lies in its source"):
        read(large, 0, 1)
    with pytest.raises(
        Refused, match=r"^000000 and what is packed with it of dataset films lies in its source"
    ):
        read(pack, 0, 1)
    with pytest.raises(Refused, match=r"was left at its source \(000000 and what is packed with it\)"):
        opened(Store(fast_folder / "store"), version.name)["000001"]
    with pytest.raises(Refused, match=r"was left at its source \(large\)"):
        opened(Store(fast_folder / "store"), version.name)["large"]
    assert large.digest == digest.of_source("large", digest.of(bytes(5 << 20)), 5 << 20)
