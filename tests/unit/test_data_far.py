"""Samples that a node does not keep: read ahead, a bounded number, and told of when they are wanted."""

from __future__ import annotations

import threading
from collections import Counter

import pytest

from support import samples
from support.datasets import until
from support.samples import Far, opened, some
from weft.data import packs
from weft.data.errors import Unreachable
from weft.data.store import Store
from weft.runtime.data import far as far_module
from weft.runtime.data.reader import Dataset

CONTENT = some(230)


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> tuple[Store, str]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(packs, "SMALL", 4900)
        patch.setattr(packs, "LARGEST", 20_000)
        return samples.stored(tmp_path_factory.mktemp("data"), CONTENT)


class Together(Far):
    """Reads nothing before four ask at the same time; whole samples, and what was asked for is counted."""

    def __init__(self, store: Store, parts: int):
        super().__init__(store, never=set(range(parts)))
        self.asked: list[int] = []
        self.by: Counter[str] = Counter()
        self.most = self._now = 0
        self._changed = threading.Condition()

    def read(self, version: str, part: int, offset: int, length: int, sample: int | None = None) -> bytes:
        with self._changed:
            self.asked.append(length)
            self.by[threading.current_thread().name] += 1
            self._now += 1
            self.most = max(self.most, self._now)
            self._changed.notify_all()
            self._changed.wait_for(lambda: self.most >= 4, 20)
            self._now -= 1
        return self._near.read(version, part, offset, length)


def second_epoch(stored: tuple[Store, str], parts: Far) -> Dataset:
    """Of a dataset of which all parts are known to be far away."""
    data = Dataset(parts, stored[1], shuffle=True)
    for part in range(len(data._files.index.parts)):
        assert data._files.reach(part).file < 0
    return data.epoch(1)


def test_what_is_far_away_is_on_its_way_before_it_is_wanted(stored: tuple[Store, str]) -> None:
    parts = Together(stored[0], len(opened(*stored)._files.index.parts))
    assert dict(second_epoch(stored, parts)) == CONTENT
    assert parts.most >= 4
    assert len(parts.asked) == len(CONTENT) - sum(not data for data in CONTENT.values()), "each once"


@pytest.mark.parametrize("shuffle", [False, True])
def test_of_a_part_that_turns_out_to_be_far_away_one_sample_is_waited_for(
    stored: tuple[Store, str], shuffle: bool
) -> None:
    count = len(opened(*stored)._files.index.parts)
    parts = Together(stored[0], count)
    parts.most = 4  # nobody has to wait
    assert dict(Dataset(parts, stored[1], shuffle=shuffle)) == CONTENT
    assert parts.by.pop(threading.current_thread().name) <= count
    assert set(parts.by) == {"weft-data-far"}


def test_no_more_of_it_than_fits_and_all_of_it_is_given_up_with_the_loop(
    stored: tuple[Store, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(far_module, "AHEAD_BYTES", 20_000)
    parts = Together(stored[0], len(opened(*stored)._files.index.parts))
    parts.most = 4  # nobody has to wait
    taken = 0
    samples = iter(second_epoch(stored, parts))
    for _, content in samples:
        taken += len(content)
        assert sum(parts.asked) <= taken + 20_000
        if taken > 100_000:
            break
    del samples
    until(lambda: not any(each.name == "weft-data-far" for each in threading.enumerate()), "all to end")


def test_what_cannot_be_read_ahead_is_told_when_it_is_wanted(stored: tuple[Store, str]) -> None:
    class Broken(Far):
        def read(self, version: str, part: int, offset: int, length: int, sample: int | None = None) -> bytes:
            if part == 2:
                raise Unreachable("part 2 cannot be had")
            return super().read(version, part, offset, length, sample)

    data = second_epoch(stored, Broken(stored[0], never=set(range(1000))))
    read: dict[str, bytes] = {}

    def all_of_it() -> None:
        for name, content in data:
            read[name] = content

    with pytest.raises(Unreachable, match="part 2"):
        all_of_it()
    assert read.items() <= CONTENT.items()
    index = data._files.index
    first = next(
        place for place, number in enumerate(data.order().take(range(len(data)))) if index.part[number] == 2
    )
    assert len(read) == first


def test_who_has_no_threads_any_more_reads_by_itself(
    stored: tuple[Store, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(far_module, "AT_ONCE", 0)  # as after a fork
    monkeypatch.setattr(far_module, "AHEAD_BYTES", 4_000)
    data = second_epoch(stored, Far(stored[0], never=set(range(1000))))
    (name, content), *_ = (next(iter(data)),)
    assert content == CONTENT[name]
