"""Past the kernel's memory: the same bytes as by `pread`, whatever the sizes, the order, and what goes wrong."""

from __future__ import annotations

import errno
import os
import random
import re
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from support import samples
from support.samples import opened, some
from weft.data import packs
from weft.data.errors import Corrupt
from weft.data.store import Store
from weft.runtime.data import files as files_module
from weft.runtime.data import reader, straight
from weft.runtime.data.files import Held
from weft.runtime.data.parts import part_path
from weft.runtime.data.reader import Dataset

CONTENT = some(230, most=9000)
NAMES = sorted(CONTENT, key=str.encode)
Stored = tuple[Store, str]


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> Stored:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(packs, "LARGEST", 50_000)
        return samples.stored(tmp_path_factory.mktemp("data"), CONTENT)


@pytest.fixture(autouse=True)
def cold(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """What was just written is in memory, so it is said not to be; and little is already worth it."""
    file = tmp_path / "file"
    file.write_bytes(bytes(straight.PAGE))
    try:
        os.close(os.open(file, os.O_RDONLY | os.O_DIRECT))
    except OSError:
        pytest.skip("this file system has no O_DIRECT")
    monkeypatch.setattr(files_module, "cold", lambda *_: True)
    monkeypatch.setattr(files_module, "memory", lambda: 0)
    monkeypatch.setattr(reader, "LONG", 8)
    monkeypatch.setattr(reader, "SMALL", 0)


def small(patch: pytest.MonkeyPatch, pages: int) -> None:
    """A ring that is soon full."""
    patch.setattr(straight, "RING", pages * straight.PAGE)
    patch.setattr(straight, "REFILL", pages * straight.PAGE // 4)
    patch.setattr(straight, "LARGEST", pages * straight.PAGE // 4)


def went_straight(data: Dataset, count: int = len(CONTENT)) -> bool:
    """Whether so many samples did."""
    return data._files.passed == count


@pytest.mark.parametrize("shuffle", [False, True])
@pytest.mark.parametrize("ranks", [(0, 1), (2, 5)])
def test_every_sample_in_the_same_order(stored: Stored, shuffle: bool, ranks: tuple[int, int]) -> None:
    data = opened(*stored, shuffle=shuffle, ranks=ranks)
    numbers = data.order().take(data.places())
    assert list(data) == [(NAMES[number], CONTENT[NAMES[number]]) for number in numbers]
    assert went_straight(data, len(numbers))
    assert data.current_epoch == 1


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    sizes=st.one_of(
        st.lists(st.one_of(st.integers(0, 3000), st.integers(0, 70_000)), min_size=16, max_size=60),
        st.integers(30, 60).map(lambda count: [5000] * count),
    ),
    pages=st.integers(8, 40),
    shuffle=st.booleans(),
    world=st.integers(1, 3),
    joined=st.sampled_from([1, 5000, 1 << 20]),
    block=st.sampled_from([100, 512]),
    seed=st.integers(0, 99),
)
@pytest.mark.slow
def test_it_is_as_pread_for_any_sizes_and_orders(
    tmp_path_factory: pytest.TempPathFactory,
    sizes: list[int],
    pages: int,
    shuffle: bool,
    world: int,
    joined: int,
    block: int,
    seed: int,
) -> None:
    """With a small ring, so that it is full, and goes round; a block of 100 is one that a disk refuses. Where all have
    one size, a sample of one part may begin where one of another ends."""
    content = {f"{i:03d}": random.Random(i + seed).randbytes(size) for i, size in enumerate(sizes)}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(packs, "LARGEST", 100_000)
        patch.setattr(straight, "JOINED", min(joined, pages * straight.PAGE // 4))
        patch.setattr(straight, "SMALLEST_BLOCK", block)
        patch.setattr(reader, "LONG", 1)
        patch.setattr(reader, "PROBES", 1)
        small(patch, pages)
        found = samples.stored(tmp_path_factory.mktemp("data"), content)
        for rank in range(world):
            data = opened(*found, shuffle=shuffle, seed=seed, ranks=(rank, world))
            numbers = data.order().take(data.places())
            taken = list(data)
            assert went_straight(data, len(numbers)) or not any(sizes)
            assert taken == [data[number] for number in numbers]
            assert all(content[name] == read for name, read in taken)


def test_what_fits_in_memory_goes_there_the_second_time(
    stored: Stored, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files_module, "memory", lambda: 1 << 40)
    data = opened(*stored, shuffle=True)
    brought: list[int] = []
    bring = data._files.bring
    monkeypatch.setattr(data._files, "bring", lambda part: brought.append(part) or bring(part))
    assert dict(data) == CONTENT
    assert went_straight(data)
    assert brought == []
    assert dict(data) == CONTENT
    assert went_straight(data)
    assert sorted(brought) == list(range(len(data._files.index.parts)))


def test_what_does_not_fit_goes_past_it_every_time(stored: Stored) -> None:
    data = opened(*stored, shuffle=True)
    for epoch in range(1, 4):
        assert dict(data) == CONTENT
        assert went_straight(data, epoch * len(CONTENT))


def test_a_rank_has_its_share_in_memory_from_its_second_epoch_on(
    stored: Stored, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files_module, "memory", lambda: 1 << 40)
    data = opened(*stored, ranks=(1, 5))
    for _ in range(2):
        assert len(list(data)) == 46
        assert went_straight(data, 46)


def test_what_is_in_memory_is_read_from_there(stored: Stored, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files_module, "cold", lambda *_: False)
    data = opened(*stored)
    assert dict(data) == CONTENT
    assert went_straight(data, 0)


def test_parts_in_memory_among_others_are_read_from_there(
    stored: Stored, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: dict[int, int] = {}
    monkeypatch.setattr(files_module, "cold", lambda file, _: asked.setdefault(file, len(asked)) % 3 == 0)
    data = opened(*stored, shuffle=True)
    assert dict(data) == CONTENT
    assert went_straight(data)


def test_few_samples_and_small_ones_anywhere_are_not_worth_it(
    stored: Stored, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reader, "SMALL", 100_000)
    for how, straight_too in (({"shuffle": True}, False), ({"ranks": (0, 2)}, False), ({}, True)):
        data = opened(*stored, **how)
        count = len(list(data))
        assert went_straight(data, count if straight_too else 0)
    monkeypatch.setattr(reader, "LONG", 231)
    data = opened(*stored)
    assert dict(data) == CONTENT
    assert went_straight(data, 0)


def test_a_loop_that_was_left_goes_on_and_a_state_is_resumed(stored: Stored) -> None:
    data = opened(*stored, shuffle=True)
    whole = list(opened(*stored, shuffle=True))
    first = [sample for sample, _ in zip(data, range(50), strict=False)]
    state = data.state()
    assert state["position"] == 51, "zip has asked for one more"
    assert first == whole[:50]
    assert list(data) == whole[51:]
    other = opened(*stored, shuffle=True).restore(state)
    assert list(other) == whole[51:]
    assert went_straight(other, 179)


def mapped() -> tuple[int, int]:
    """How many queues this process has, and how much memory that a forked one would not have."""
    maps = Path("/proc/self/smaps").read_text()
    mine = re.findall(r"^Size: +(\d+) kB\n(?:(?!VmFlags).*\n)*VmFlags:.* dc ", maps, re.MULTILINE)
    return maps.count("/[aio]"), mine.count(str(straight.RING >> 10))


def test_a_loop_that_was_left_leaves_no_queue_no_memory_and_no_file(stored: Stored) -> None:
    data = opened(*stored, shuffle=True)
    before, maps = set(os.listdir("/proc/self/fd")), mapped()
    samples = iter(data)
    next(samples)
    assert mapped() == (maps[0] + 1, maps[1] + 1)
    assert set(os.listdir("/proc/self/fd")) > before
    samples.close()  # type: ignore[attr-defined]
    assert set(os.listdir("/proc/self/fd")) == before
    assert mapped() == maps


def test_of_several_readers_one_goes_past_memory_and_the_others_share_it(
    stored: Stored, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files_module, "memory", lambda: 1 << 40)
    one, other = opened(*stored), opened(*stored)
    brought: list[int] = []
    bring = other._files.bring
    monkeypatch.setattr(other._files, "bring", lambda part: brought.append(part) or bring(part))
    first = iter(one)
    next(first)
    assert dict(other) == CONTENT
    assert went_straight(other, 0)
    assert brought == list(range(len(other._files.index.parts)))
    assert len(list(first)) == 229
    assert went_straight(one)
    third = opened(*stored)
    assert dict(third) == CONTENT
    assert went_straight(third), "when the first is through, another may"


@pytest.mark.parametrize(("fits", "shuffle", "gives_up"), [(True, True, True), (False, True, False), (True, False, False)])  # fmt: skip
def test_a_disk_that_is_slow_at_it_brings_whole_parts(
    stored: Stored, monkeypatch: pytest.MonkeyPatch, fits: bool, shuffle: bool, gives_up: bool
) -> None:
    """If they fit, and samples do not lie side by side."""
    small(monkeypatch, 64)
    monkeypatch.setattr(straight, "PATIENCE", 0)
    monkeypatch.setattr(straight, "SLOW", 1e18)
    monkeypatch.setattr(files_module, "memory", lambda: 1 << 40 if fits else 0)
    data = opened(*stored, shuffle=shuffle)
    numbers = data.order().take(data.places())
    taken = []
    for sample in data:
        taken.append(sample)
        assert data.state()["position"] == len(taken)
    assert taken == [(NAMES[number], CONTENT[NAMES[number]]) for number in numbers]
    assert (data._files.passed < 230) == gives_up
    assert data._files.passed > 0


def test_a_part_that_is_not_here_yet_is_waited_for(stored: Stored, monkeypatch: pytest.MonkeyPatch) -> None:
    data = opened(*stored, shuffle=True)
    part = data._files.parts.part
    monkeypatch.setattr(
        data._files.parts,
        "part",
        lambda version, number, wait=True: None if not wait and number % 2 else part(version, number, wait),
    )
    assert dict(data) == CONTENT


def test_memory_goes_round_and_is_filled_to_the_last_byte(
    stored: Stored, monkeypatch: pytest.MonkeyPatch
) -> None:
    small(monkeypatch, 4)
    data = opened(*stored)
    held = data._files.straight(0)
    assert held is not None
    ring = straight.Ring(held)
    spans = [straight.Span(held, at, at + straight.PAGE, (0, 0, at, straight.PAGE, "")) for at in (0,) * 6]
    assert [ring.begin(span) for span in spans[:5]] == [True, True, True, True, False]
    ring.end(spans[0])
    assert ring.begin(spans[4])
    assert [span.memory // straight.PAGE for span in spans[:5]] == [0, 1, 2, 3, 0]
    ring.submit()
    for span in spans[:5]:
        read = ring.wait(span)
        assert read is not None
        assert bytes(read) == os.pread(data._files.held[0].file, straight.PAGE, 0)
    ring.close()


# ── forks and threads ──


def exits_well(work: Any) -> None:
    """In a forked process."""
    child = os.fork()
    if child == 0:
        with suppress(BaseException):
            os._exit(0 if work() else 1)
        os._exit(2)
    assert os.waitpid(child, 0)[1] == 0


@pytest.mark.parametrize("shuffle", [False, True])
@pytest.mark.parametrize("at", [1, 37, 200])
def test_a_forked_process_goes_on_by_itself_and_so_does_its_parent(
    stored: Stored, monkeypatch: pytest.MonkeyPatch, shuffle: bool, at: int
) -> None:
    small(monkeypatch, 64)
    whole = list(opened(*stored, shuffle=shuffle))
    samples = iter(opened(*stored, shuffle=shuffle))
    begun = [next(samples) for _ in range(at)]
    assert begun == whole[:at]
    told, tell = os.pipe()
    child = os.fork()
    if child == 0:
        with suppress(BaseException):
            os.read(told, 1)  # when the parent has filled all of the memory anew
            os._exit(0 if list(samples) == whole[at:] else 1)
        os._exit(2)
    assert list(samples) == whole[at:]
    os.write(tell, b"x")
    assert os.waitpid(child, 0)[1] == 0


def test_a_forked_process_has_a_queue_of_its_own(stored: Stored, monkeypatch: pytest.MonkeyPatch) -> None:
    """Perhaps at the same address; what it has of its parent goes on without."""
    small(monkeypatch, 64)
    data = opened(*stored, shuffle=True)
    samples = iter(data)
    next(samples)
    other = opened(*stored)

    submit = straight.Ring.submit

    def only_mine(ring: straight.Ring) -> None:
        assert ring.mine or not ring._batch
        submit(ring)

    def both() -> bool:
        monkeypatch.setattr(straight.Ring, "submit", only_mine)
        mine = iter(other)
        next(mine)
        return len(list(samples)) == 229 and len(list(mine)) == 229 and went_straight(other)

    exits_well(both)
    assert len(list(samples)) == 229


def test_threads_read_the_same_version_at_the_same_time(stored: Stored) -> None:
    data = opened(*stored, shuffle=True)
    found: list[dict[str, bytes]] = []
    threads = [threading.Thread(target=lambda: found.append(dict(data.epoch(0)))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert found == [CONTENT] * 4
    assert data._files.held == {}


# ── what may go wrong ──


@pytest.fixture
def broken(tmp_path: Path) -> tuple[Dataset, Path]:
    """A version of one part, and its file."""
    store, version = samples.stored(tmp_path, CONTENT)
    data = opened(store, version)
    return data, Path(part_path(str(store.root), data._files.index.parts[0]["digest"]))


@pytest.mark.parametrize("joined", [1, 1 << 20])
def test_a_part_that_was_cut_is_said_to_be(
    broken: tuple[Dataset, Path], monkeypatch: pytest.MonkeyPatch, joined: int
) -> None:
    monkeypatch.setattr(straight, "JOINED", joined)
    data, path = broken
    offset, length = data._files.index.offset[100], data._files.index.length[100]
    assert length > 1
    assert offset % straight.SMALLEST_BLOCK
    path.chmod(0o600)
    os.truncate(path, offset + length - 1)
    taken = []
    with pytest.raises(
        Corrupt, match=f"sample {NAMES[100]} of version .* ends after {length - 1} of {length}"
    ):
        taken.extend(data)
    good = [next(samples) for samples in [iter(data.epoch(0))] for _ in range(100)]
    assert dict(good) == {name: CONTENT[name] for name in NAMES[:100]}
    assert data.state()["position"] == 100


def test_what_the_queue_refuses_is_read_plainly(
    stored: Stored, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A file that may not be read; the ring was tried with a good one."""
    data = opened(*stored, shuffle=True)
    parts, deaf = data._files.straight, Held(os.open(tmp_path / "deaf", os.O_WRONLY | os.O_CREAT))
    asked: list[int] = []
    monkeypatch.setattr(
        data._files, "straight", lambda part: asked.append(part) or (parts(part) if len(asked) < 30 else deaf)
    )
    assert dict(data) == CONTENT
    assert len(asked) > 100


def test_an_error_of_the_disk_is_said_by_the_plain_read(
    stored: Stored, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A disk cannot be made to fail, so reads are said to have."""
    wait = straight.Ring.wait

    def failed(self: straight.Ring, span: straight.Span) -> memoryview | None:
        got = wait(self, span)
        return got if span.rows[0][0] % 3 else None

    monkeypatch.setattr(straight.Ring, "wait", failed)
    data = opened(*stored, shuffle=True)
    assert dict(data) == CONTENT

    def gone(number: int) -> bytes:
        raise OSError(errno.EIO, "the disk is gone")

    monkeypatch.setattr(data._files, "read", gone)
    with pytest.raises(OSError, match="the disk is gone"):
        dict(data)


def refuses_direct(monkeypatch: pytest.MonkeyPatch) -> None:
    """As a tmpfs before Linux 6.6."""
    plain = os.open

    def refuse(path: Any, flags: int, *more: Any, **how: Any) -> int:
        if flags & os.O_DIRECT:
            raise OSError(errno.EINVAL, "no O_DIRECT here")
        return plain(path, flags, *more, **how)

    monkeypatch.setattr(os, "open", refuse)


def unknown_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(straight, "CALLS", {})


def no_queue(monkeypatch: pytest.MonkeyPatch) -> None:
    """As where a sandbox allows none: no system call has this number."""
    monkeypatch.setattr(straight, "CALLS", dict.fromkeys(straight.CALLS, (9999, 9999, 9999, 9999)))


def reads_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    """As a file system that opens with O_DIRECT and then reads nothing."""
    monkeypatch.setattr(straight, "SMALLEST_BLOCK", 100)
    monkeypatch.setattr(straight, "PAGE", 100)


@pytest.mark.parametrize("refuses", [refuses_direct, unknown_machine, no_queue, reads_fail])
@pytest.mark.parametrize("fits", [False, True])
def test_where_it_is_not_possible_all_is_as_it_was(
    stored: Stored, monkeypatch: pytest.MonkeyPatch, refuses: Any, fits: bool
) -> None:
    refuses(monkeypatch)
    monkeypatch.setattr(files_module, "memory", lambda: 1 << 40 if fits else 0)
    data = opened(*stored, shuffle=True)
    for _ in range(2):
        assert dict(data) == CONTENT
        assert went_straight(data, 0)


# ── what is in memory ──


@pytest.fixture
def part(tmp_path: Path) -> Held:
    path = tmp_path / "part"
    path.write_bytes(bytes(1 << 20))
    return Held(os.open(path, os.O_RDONLY))


@pytest.mark.parametrize(("looks", "goes"), [([True] * 4, True), ([True, False, True, False], True), ([False, False, True, False], False)])  # fmt: skip
def test_a_part_of_which_most_is_in_memory_is_read_from_there(
    part: Held, monkeypatch: pytest.MonkeyPatch, looks: list[bool], goes: bool
) -> None:
    """One that answers late is not a disk, but a processor that others had."""
    said = iter(looks)
    monkeypatch.setattr(files_module, "cold", lambda *_: next(said))
    part.look(1 << 20)
    assert (part.straight is not None) == goes
    assert part.was_looked_at


def test_nobody_looks_twice_at_the_same_places(part: Held, monkeypatch: pytest.MonkeyPatch) -> None:
    """For looking brings the place into memory. The chance is not that of the program, which may have seeded it."""
    places: list[int] = []
    monkeypatch.setattr(files_module, "cold", lambda _, place: places.append(place) is not None)
    for _ in range(5):
        random.seed(1)
        before = random.getstate()
        part.look(1 << 40)
        assert random.getstate() == before
    assert len(set(places)) == 5 * files_module.PROBES
