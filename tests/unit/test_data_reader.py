"""`weft.data`: every sample, in its order, exactly once, and on from anywhere."""

from __future__ import annotations

import json
import os
import pickle
import subprocess
import sys
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import weft
from support import samples
from support.samples import Far, opened, some
from weft.data import packs
from weft.data.errors import Corrupt, Missing, Refused, Unreachable
from weft.data.store import Store
from weft.runtime.data import files as files_module
from weft.runtime.data.errors import BY_CODE, DataError
from weft.runtime.data.files import AHEAD_PARTS, Files
from weft.runtime.data.reader import Dataset, Sample

SRC = str(Path(__file__).parents[2] / "src")
CONTENT = some(230)
NAMES = sorted(CONTENT, key=str.encode)


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> tuple[Store, str]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(packs, "SMALL", 4900)
        patch.setattr(packs, "LARGEST", 20_000)
        return samples.stored(tmp_path_factory.mktemp("data"), CONTENT)


# ── by number and name ──


def test_by_number_and_by_name(stored: tuple[Store, str]) -> None:
    data = opened(*stored)
    assert len(data) == 230
    assert data[7] == Sample(NAMES[7], CONTENT[NAMES[7]]) == data[NAMES[7]]
    assert data[-1].name == NAMES[-1]
    assert (data.version, data.bytes) == (stored[1], sum(map(len, CONTENT.values())))
    assert list(data.names) == NAMES
    assert repr(data).endswith(f"230 samples, {data.bytes} bytes>")
    for wrong in (230, -231):
        with pytest.raises(IndexError, match="which has 230"):
            data[wrong]
    with pytest.raises(KeyError, match=r"has no sample 'x'; see \.names"):
        data["x"]


def test_decode_makes_of_samples_what_is_wanted(stored: tuple[Store, str]) -> None:
    data = opened(*stored, decode=lambda name, content: (name, len(content)))
    expected = [(name, len(CONTENT[name])) for name in NAMES]
    assert list(data) == expected
    assert (data[3], data.take([5, 2])) == (expected[3], [expected[5], expected[2]])


# ── one after the other ──


def test_an_epoch_has_every_sample_once_and_the_next_is_another_order(stored: tuple[Store, str]) -> None:
    data = opened(*stored, shuffle=True, seed=3)
    first, second = list(data), list(data)
    assert dict(first) == dict(second) == CONTENT
    assert len(first) == 230
    assert first != second
    assert data.current_epoch == 2
    assert [list(data.epoch(0)), list(opened(*stored, shuffle=True, seed=3, epoch=1))] == [first, second]
    assert data.current_epoch == 2
    assert [sample.name for sample in opened(*stored)] == NAMES


def test_a_loop_that_was_left_goes_on_where_it_was(stored: tuple[Store, str]) -> None:
    data, expected = opened(*stored, shuffle=True), list(opened(*stored, shuffle=True))
    seen = []
    for sample in data:
        seen.append(sample)
        if len(seen) == 100:
            break
    assert data.left == 130
    assert seen + list(data) == expected


@given(st.lists(st.tuples(st.integers(1, 9), st.integers(0, 40)), max_size=8), st.booleans(), st.data())
def test_exactly_once_over_all_ranks_and_resizes(
    stored: tuple[Store, str], resizes: list[tuple[int, int]], shuffle: bool, draw: Any
) -> None:
    """Each time every rank takes so many, one of them saves the state, and other ranks go on from it."""
    seen: list[str] = []
    state = None
    for world, taken in [*resizes, (draw.draw(st.integers(1, 9)), 230)]:
        states = []
        for rank in range(world):
            data = opened(*stored, shuffle=shuffle, seed=9, ranks=(rank, world)).restore(state)
            for _, sample in zip(range(taken), data, strict=False):
                assert sample.data == CONTENT[sample.name]
                seen.append(sample.name)
            states.append(data.state())
        if any(one["epoch"] for one in states):
            break
        assert all(one == states[0] for one in states)
        state = json.loads(json.dumps(states[0]))
    assert sorted(seen) == sorted(NAMES)


def test_a_state_is_the_same_on_all_ranks_at_the_same_step(stored: tuple[Store, str]) -> None:
    data = [opened(*stored, shuffle=True, ranks=(rank, 4)) for rank in range(4)]
    ranks = [iter(one) for one in data]
    for _ in range(20):
        for rank in ranks:
            next(rank)
        assert len({json.dumps(one.state()) for one in data}) == 1
    assert data[0].state()["position"] == 80


def test_the_state_counts_the_sample_that_the_loop_has(stored: tuple[Store, str]) -> None:
    data = opened(*stored)
    for number, _ in enumerate(data, 1):
        assert data.state()["position"] == number
    assert data.state() | {"version": ""} == {
        "version": "",
        "shuffle": False,
        "seed": 0,
        "epoch": 1,
        "position": 0,
    }


def test_a_state_of_something_else_is_refused(stored: tuple[Store, str]) -> None:
    data = opened(*stored, shuffle=True, seed=1)
    good = data.state()
    for change in ({"seed": 2}, {"shuffle": False}, {"version": "0" * 32}):
        with pytest.raises(Refused, match=f"cannot go on from a state with {next(iter(change))} "):
            data.restore(good | change)
    for change in ({"position": 231}, {"position": -1}, {"epoch": -1}, {"epoch": "x"}, {"more": 1}):
        with pytest.raises(ValueError, match="dataset "):
            data.restore(good | change)
    assert data.restore(good | {"epoch": 4, "position": 230}).left == 0
    assert data.restore(None).state() == good


def test_epochs_are_counted_from_0(stored: tuple[Store, str]) -> None:
    with pytest.raises(ValueError, match="counted from 0"):
        opened(*stored, epoch=-1)
    with pytest.raises(ValueError, match="counted from 0"):
        opened(*stored).epoch(-1)


# ── from where ──


@pytest.mark.parametrize("shuffle", [False, True])
def test_what_comes_next_is_told_in_its_order_and_never_more(
    stored: tuple[Store, str], shuffle: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files_module, "AHEAD_PARTS", 5)
    far = Far(stored[0], here=set())
    data = Dataset(far, stored[1], shuffle=shuffle, ranks=(1, 3))
    numbers = data.order().take(data.places())
    wanted = list(dict.fromkeys(data._files.index.part[number] for number in numbers))
    reached: set[int] = set()
    for number, sample in zip(numbers, data, strict=True):
        assert sample.name == NAMES[number]
        reached.add(data._files.index.part[number])
        told = [part for entry in far.log if entry[0] == "ahead" for part in entry[1]]
        assert told == wanted[: len(told)], "each once, in the order in which they are wanted"
        assert len(set(told) - reached) <= 5
    assert set(told) | {wanted[0]} == set(wanted)
    assert [entry[1] for entry in far.log if entry[0] == "part" and entry[2]] == wanted


@pytest.mark.parametrize("step", [1, 3])
def test_what_other_processes_need_next_is_told_once_in_its_order_and_never_far_ahead(
    stored: tuple[Store, str], step: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files_module, "AHEAD_PARTS", 5)
    far = Far(stored[0], here=set())
    data = Dataset(far, stored[1], shuffle=True, ranks=(1, 3))
    places = data.places()
    parts = [data._files.index.part[number] for number in data.order().take(places)]
    wanted = list(dict.fromkeys(parts))
    look = data.coming(places)
    for at in range(0, len(places), step):
        look.move(at)
        told = [part for entry in far.log if entry[0] == "ahead" for part in entry[1]]
        assert told == wanted[: len(told)]
        assert len(set(told) - set(parts[:at])) <= 5
    assert set(told) | set(parts[-step:]) == set(wanted)


def test_look_ahead_is_bounded_in_samples_too(
    stored: tuple[Store, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files_module, "AHEAD_SAMPLES", 3)
    far = Far(stored[0], here=set())
    data = Dataset(far, stored[1])
    next(iter(data))
    parts = [data._files.index.part[number] for number in range(4)]
    assert {part for entry in far.log if entry[0] == "ahead" for part in entry[1]} <= set(parts)


def test_rows_of_the_table_are_the_same_without_numpy(
    stored: tuple[Store, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    index = stored[0].index(stored[1])
    numbers = [7, 0, 229, 7]
    with_numpy = list(index.rows(numbers))
    monkeypatch.delitem(sys.modules, "numpy")
    assert list(index.rows(numbers)) == with_numpy
    assert [row[0] for row in with_numpy] == numbers
    assert [row[4] for row in with_numpy] == [NAMES[number] for number in numbers]
    assert (list(index.rows([])), len(with_numpy)) == ([], 4)


def test_nothing_is_told_when_all_is_open(stored: tuple[Store, str]) -> None:
    far = Far(stored[0])
    data = Dataset(far, stored[1], shuffle=True)
    list(data)
    far.log.clear()
    assert dict(data) == dict(data.epoch(7)) == CONTENT
    assert far.log == []


def test_parts_that_are_not_on_this_node_are_read_from_afar(stored: tuple[Store, str]) -> None:
    far = Far(stored[0], never={0, 2, 3})
    data = Dataset(far, stored[1], shuffle=True)
    assert dict(data) == CONTENT
    assert {entry[1] for entry in far.log if entry[0] == "read"} == {0, 2, 3}
    assert dict(data.take(range(230))) == CONTENT


def test_an_agent_that_cannot_fetch_ahead_disturbs_nobody(stored: tuple[Store, str]) -> None:
    class Deaf(Far):
        def ahead(self, version: str, parts: Sequence[int]) -> None:
            raise Unreachable("the agent is busy")

    assert dict(Dataset(Deaf(stored[0]), stored[1])) == CONTENT


def test_few_files_are_open_however_many_parts_there_are(stored: tuple[Store, str]) -> None:
    data = opened(*stored, shuffle=True)
    assert len(data._files.index.parts) > 20
    data._files = Files(data._files.parts, data._files.index, most=4)
    before = len(os.listdir("/proc/self/fd"))
    most = 0
    for name, content in data:
        assert content == CONTENT[name]
        most = max(most, len(os.listdir("/proc/self/fd")) - before)
    assert most <= 4 + files_module.AHEAD_PARTS + files_module.BRINGERS
    assert len(data._files.held) <= 4
    del data
    assert len(os.listdir("/proc/self/fd")) <= before


def test_threads_never_read_from_a_part_that_another_has_closed(stored: tuple[Store, str]) -> None:
    data = opened(*stored)
    data._files = Files(data._files.parts, data._files.index, most=2)
    wrong = []

    def read(seed: int) -> None:
        for sample in data.epoch(0) if seed % 2 else map(data.__getitem__, range(229, -1, -1)):
            if sample.data != CONTENT[sample.name]:
                wrong.append(sample.name)

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(read, range(24)))
    assert wrong == []


@pytest.mark.parametrize("shuffle", [False, True])
@pytest.mark.parametrize("fits", [False, True])
def test_from_a_cold_disk_it_is_the_same(
    stored: tuple[Store, str], monkeypatch: pytest.MonkeyPatch, shuffle: bool, fits: bool
) -> None:
    """The kernel cannot be made to forget a file in memory, so it is said to have."""
    monkeypatch.setattr(files_module, "cold", lambda *_: True)
    monkeypatch.setattr(files_module, "memory", lambda: 1 << 40 if fits else 0)
    data = opened(*stored, shuffle=shuffle)
    for _ in range(2):
        assert dict(data) == CONTENT
    part = opened(*stored, shuffle=shuffle, ranks=(2, 5))
    assert [sample.name for sample in part] == [
        NAMES[i] for i in opened(*stored, shuffle=shuffle).order().take(range(2, 230, 5))
    ]


def test_a_part_on_its_way_is_waited_for(stored: tuple[Store, str], monkeypatch: pytest.MonkeyPatch) -> None:
    """And one that cannot be brought is read all the same."""
    monkeypatch.setattr(files_module, "cold", lambda *_: True)
    brought = threading.Event()

    def slow(self: Any, room: bytearray) -> None:
        brought.wait(30)
        raise OSError("the disk is slow")

    monkeypatch.setattr(files_module.Held, "bring", slow)
    data = opened(*stored, shuffle=True)
    files = data._files
    files.bring(0)
    assert files.held[0].file < 0
    threading.Timer(0.05, brought.set).start()
    assert files.reach(0).file >= 0
    assert dict(data) == CONTENT


def test_a_process_that_was_forked_waits_for_no_thread(
    stored: tuple[Store, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The threads that bring parts stay with the parent."""
    monkeypatch.setattr(files_module, "cold", lambda *_: True)
    forever = threading.Event()
    monkeypatch.setattr(files_module.Held, "bring", lambda *_: forever.wait(60))
    data = opened(*stored, shuffle=True)
    data._files.bring(0)
    child = os.fork()
    if child == 0:
        os._exit(0 if data._files.reach(0).file >= 0 else 1)
    assert os.waitpid(child, 0)[1] == 0
    forever.set()


def test_it_goes_to_another_process_with_its_position(stored: tuple[Store, str]) -> None:
    data = opened(*stored, shuffle=True, ranks=(1, 2))
    for _, _ in zip(range(10), data, strict=False):
        pass
    copied = pickle.loads(pickle.dumps(data))
    assert copied.state() == data.state()
    assert len(pickle.dumps(data)) < 1000
    assert list(copied) == list(data)


# ── the function ──


@pytest.fixture
def outside(monkeypatch: pytest.MonkeyPatch, stored: tuple[Store, str]) -> pytest.MonkeyPatch:
    for name in os.environ:
        if name.startswith(("WEFT_", "OMPI_")) or name in ("RANK", "WORLD_SIZE"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("WEFT_DATA_STORE", str(stored[0].root))
    return monkeypatch


def test_a_store_beside_it_is_enough(outside: pytest.MonkeyPatch, stored: tuple[Store, str]) -> None:
    store, version = stored
    store.name("faces", version)
    assert dict(weft.data("faces", shuffle=True)) == CONTENT
    assert weft.data("faces", decode=lambda name, content: name)[3] == NAMES[3]
    assert weft.data(version[:12]).version == weft.data(version).version == version
    outside.setenv(
        "WEFT_DATASETS", json.dumps({"pets": {"version": version, "mode": "replicate", "as": "p"}})
    )
    assert weft.data("pets").version == weft.data("p").version == version


def test_ranks_are_those_of_the_task(outside: pytest.MonkeyPatch, stored: tuple[Store, str]) -> None:
    version = stored[1]

    def ranks(**how: Any) -> tuple[int, int]:
        data = weft.data(version, **how)
        return data.rank, data.world

    assert (ranks(), ranks(shard=True), ranks(shard=(2, 5))) == ((0, 1), (0, 1), (2, 5))
    outside.setenv("WEFT_RANK", "1")
    outside.setenv("WEFT_WORLD_SIZE", "3")
    assert (ranks(), ranks(shard=True), ranks(shard=False)) == ((0, 1), (1, 3), (0, 1))
    outside.setenv("RANK", "5")
    outside.setenv("WORLD_SIZE", "8")
    assert ranks(shard=True) == (5, 8)
    outside.setenv("WEFT_DATASETS", json.dumps({version: {"version": version, "mode": "shard"}}))
    assert (ranks(), ranks(shard=False)) == ((5, 8), (0, 1))
    with pytest.raises(ValueError, match="rank 5 of 5"):
        ranks(shard=(5, 5))


class Gang:
    """The tasks of a job as its hosts file has them, each with a dataset of its own."""

    def __init__(self, patch: pytest.MonkeyPatch, hosts: Path, version: str):
        self._patch, self._hosts, self._version = patch, hosts, version
        patch.setenv("WEFT_HOSTS_FILE", str(hosts))
        self.data: dict[str, Dataset] = {}

    def are(self, *tasks: str, servers: Sequence[str] = ()) -> None:
        self._hosts.write_text(json.dumps({"ps": list(servers), "worker": list(tasks)}))
        for rank, task in enumerate(tasks):
            if task not in self.data:
                own = {
                    "WEFT_ADDRESS": task,
                    "RANK": str(rank),
                    "WORLD_SIZE": str(len(tasks)),
                    "WEFT_ROLE": "worker",
                }
                for name, value in own.items():
                    self._patch.setenv(name, value)
                    self._patch.setenv(f"WEFT_{name}" if name in ("RANK", "WORLD_SIZE") else name, value)
                self.data[task] = weft.data(self._version, shuffle=True, shard=True)

    def read(self, *tasks: str) -> list[str]:
        return sorted(sample.name for task in tasks for sample in self.data[task])


@pytest.fixture
def gang(outside: pytest.MonkeyPatch, tmp_path: Path, stored: tuple[Store, str]) -> Gang:
    return Gang(outside, tmp_path / "hosts.json", stored[1])


def test_an_epoch_is_divided_among_those_who_are_there_when_it_begins(gang: Gang) -> None:
    gang.are("a:1", "b:1", "c:1")
    assert gang.read("a:1", "b:1", "c:1") == sorted(NAMES)
    gang.are("a:1", "c:1")
    assert gang.read("b:1") == []  # it was told to leave, and the others have its share
    assert gang.read("a:1", "c:1") == sorted(NAMES)
    gang.are("a:1", "b2:1", "c:1", "d:1")
    for late in ("b2:1", "d:1"):
        gang.data[late].restore(gang.data["a:1"].state())
    assert gang.read("a:1", "b2:1", "c:1", "d:1") == sorted(NAMES)
    assert [(data.rank, data.world) for data in gang.data.values()] == [
        (0, 4),
        (0, 0),
        (2, 4),
        (1, 4),
        (3, 4),
    ]


def test_a_loop_that_has_begun_keeps_its_share_and_a_state_is_divided_anew(gang: Gang) -> None:
    gang.are("a:1", "b:1")
    taken = [
        sample.name for task in ("a:1", "b:1") for _, sample in zip(range(20), gang.data[task], strict=False)
    ]
    saved = gang.data["a:1"].state()
    gang.are("a:1")
    assert len(gang.read("a:1")) == len(NAMES) // 2 - 20
    assert gang.data["a:1"].restore(saved).left == len(NAMES) - 40
    assert sorted(taken + gang.read("a:1")) == sorted(NAMES)


def test_servers_of_a_job_have_no_share(gang: Gang, outside: pytest.MonkeyPatch) -> None:
    outside.setenv("WEFT_SERVICES", "ps")
    gang.are("a:1", "b:1", servers=["p:1", "q:1"])
    assert gang.read("a:1", "b:1") == sorted(NAMES)


def test_who_was_given_ranks_by_a_launcher_of_its_own_keeps_them(
    gang: Gang, outside: pytest.MonkeyPatch, stored: tuple[Store, str]
) -> None:
    gang.are("a:1", "b:1")
    outside.setenv("TORCHELASTIC_RUN_ID", "train")  # as many processes as tasks
    outside.setenv("RANK", "0")
    assert weft.data(stored[1], shard=True).left == len(NAMES) // 2
    gang.are("a:1")
    assert weft.data(stored[1], shard=True).left == len(NAMES) // 2
    outside.delenv("TORCHELASTIC_RUN_ID")
    outside.setenv("RANK", "7")
    outside.setenv("WORLD_SIZE", "8")
    assert weft.data(stored[1], shard=True).places() == range(7, len(NAMES), 8)


def test_what_is_missing_is_said_with_the_next_step(
    outside: pytest.MonkeyPatch, stored: tuple[Store, str], tmp_path: Path
) -> None:
    for name in ("nothing", "", "../names/faces", "0" * 32):
        with pytest.raises(Missing, match="has no dataset and no version"):
            weft.data(name)
    outside.setenv("WEFT_DATA_STORE", str(tmp_path))
    with pytest.raises(Missing, match="is not a store"):
        weft.data("faces")
    outside.delenv("WEFT_DATA_STORE")
    with pytest.raises(
        Missing, match=r"Declare it in the job, datasets: \[\{name: faces\}\], or set WEFT_DATA_STORE"
    ):
        weft.data("faces")
    outside.setenv("WEFT_DATA_SOCKET", str(tmp_path / "socket"))
    outside.setenv("WEFT_DATASETS", json.dumps({"pets": {"version": "v"}}))
    with pytest.raises(Missing, match="this job has no dataset faces, only: pets"):
        weft.data("faces")


def test_the_name_is_a_function_and_a_package_and_costs_little(stored: tuple[Store, str]) -> None:
    code = (
        "import sys; old = set(sys.modules); import weft; weft.data; "
        "print(*(set(sys.modules) - old)); d = weft.data(sys.argv[1], shuffle=True); print(len(list(d))); "
        "print(sorted(m for m in sys.modules if m.split('.')[0] in ('numpy', 'blake3', 'pydantic', 'torch'))); "
        "import weft.data.packs; print(weft.data.packs.SMALL, callable(weft.data)); from weft import data; "
        "print(len(data(sys.argv[1])))"
    )
    env = {"PYTHONPATH": SRC, "WEFT_DATA_STORE": str(stored[0].root)}
    command = [sys.executable, "-c", code, stored[1]]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=60, check=False)
    assert done.stderr == ""
    lines = done.stdout.splitlines()
    added = {name for name in lines[0].split() if not name.startswith("importlib")}
    assert added <= {"weft", "weft.data", "types", "warnings"}
    assert lines[1:] == ["230", "[]", "4194304 True", "230"]


def test_an_error_has_the_code_by_which_an_agent_says_it() -> None:
    assert sorted(BY_CODE) == ["changed", "corrupt", "denied", "missing", "noroom", "refused", "unreachable"]
    assert BY_CODE["corrupt"] is Corrupt
    assert all(issubclass(kind, DataError) for kind in BY_CODE.values())
    assert AHEAD_PARTS == 16
