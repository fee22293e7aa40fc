"""`weft.checkpoint`: what is saved comes back, whole, or the one before it does."""

from __future__ import annotations

import errno
import os
import re
import signal
import subprocess
import sys
import time
from io import BytesIO
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from weft.runtime import checkpoint, statefile
from weft.runtime.checkpoint import CheckpointError, Version

SOURCE = Path(__file__).parents[2] / "src"


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("WEFT_CHECKPOINT_STEP", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("CHECKPOINT_DIR", str(tmp_path))
    return tmp_path


def files(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.glob("step-*/*"))


def spoil(path: Path, at: int) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)


def step_file(folder: Path, step: int) -> Path:
    return folder / f"step-{step:012d}" / "whole.weft"


# ── states ──

plain = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False)
    | st.complex_numbers(allow_nan=False)
    | st.text()
    | st.binary()
)
array = arrays.arrays(
    st.sampled_from(["bool", "int8", ">i4", "uint64", "float16", "<f8", "complex64", "S3", "U2", "M8[s]"]),
    arrays.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=3),
)
keys = st.text() | st.integers() | st.binary() | st.none() | st.tuples(st.integers(), st.text())
states = st.recursive(
    plain | array,
    lambda inner: st.lists(inner) | st.lists(inner).map(tuple) | st.dictionaries(keys, inner),
    max_leaves=20,
)


def same(a: Any, b: Any) -> bool:
    if type(a) is not type(b):
        return False
    if isinstance(a, dict):
        return list(map(repr, a)) == list(map(repr, b)) and all(
            same(x, y) for x, y in zip(a.values(), b.values(), strict=True)
        )
    if isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, np.ndarray):
        return (a.dtype, a.shape, a.tobytes()) == (b.dtype, b.shape, b.tobytes())
    return bool(a == b)


@given(states)
@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_state_comes_back_as_it_was(state: Any) -> None:
    file = BytesIO()
    statefile.write(file, *statefile.flatten(state), {})
    assert same(statefile.read_state(file, statefile.read_manifest(file)), state)


def test_special_numbers_and_numpy_scalars_come_back() -> None:
    state = [
        float("inf"),
        10**5000,
        -(2**63),
        np.float32(0.1),
        np.str_("a"),
        np.int64(3),
        np.datetime64(1, "s"),
    ]
    checkpoint.save([*state, float("nan")], step=1)
    *back, nan = checkpoint.load()
    assert nan != nan  # noqa: PLR0124
    assert same(back, state)


def test_arrays_of_any_layout_come_back_and_may_be_changed() -> None:
    base = np.arange(24.0).reshape(4, 6)
    checkpoint.save(
        {"turned": base.T, "every": base[::2, ::3], "locked": np.broadcast_to(base, (2, 4, 6))}, step=1
    )
    back = checkpoint.load()
    assert np.array_equal(back["turned"], base.T)
    assert np.array_equal(back["every"], base[::2, ::3])
    back["locked"] += 1


def test_a_random_generator_goes_on_where_it_was() -> None:
    for kind in (np.random.PCG64, np.random.MT19937):
        source = np.random.Generator(kind(7))
        checkpoint.save({"rng": source.bit_generator.state}, step=1)
        expected = source.random(5)
        source.bit_generator.state = checkpoint.load()["rng"]
        assert np.array_equal(source.random(5), expected)


class Optimizer:
    def state_dict(self) -> dict[str, int]:
        return {}


@pytest.mark.parametrize(
    ("state", "message"),
    [
        ({"optimizer": {"foo": {1, 2}}}, "state.optimizer.foo: a set cannot be kept; use a sorted list"),
        (
            {"a b": [1, (2, object())]},
            "state['a b'][1][1]: an object cannot be kept; a checkpoint holds dict,",
        ),
        ({0: Optimizer()}, "state[0]: an Optimizer cannot be kept; keep its state_dict()"),
        (np.array([None]), "state: an array of dtype object cannot be kept"),
        (np.ma.masked_array([1], [True]), "state: a masked array cannot be kept"),
        ({Optimizer: 1}, "state: a key of type type cannot be kept"),
        (Version(1, 0, [], 0, "", ""), "state: a Version cannot be kept; use its _asdict()"),
        (lambda: 1, "state: a function cannot be kept"),
    ],
)
def test_what_cannot_be_kept_is_named_by_its_place(folder: Path, state: Any, message: str) -> None:
    with pytest.raises(TypeError, match="^" + re.escape(message)):
        checkpoint.save(state, step=1)
    assert files(folder) == []


def test_a_state_that_contains_itself_or_is_too_deep_is_refused() -> None:
    loop: dict[str, Any] = {}
    loop["me"] = [loop]
    with pytest.raises(TypeError, match=r"^state\.me\[0\]: a dict that contains itself"):
        checkpoint.save(loop, step=1)
    deep: list[Any] = []
    for _ in range(150):
        deep = [deep]
    with pytest.raises(TypeError, match="nested over 100 deep"):
        checkpoint.save(deep, step=1)
    shared = [1]
    checkpoint.save([shared, shared], step=1)
    assert checkpoint.load() == [[1], [1]]


def test_names_in_a_state_are_no_files(folder: Path) -> None:
    checkpoint.save({"../../../escape": b"x", "/etc/passwd": np.ones(2)}, step=1)
    assert files(folder) == ["step-000000000001/whole.weft"]
    assert sorted(os.listdir(folder)) == [".weft", "step-000000000001"]
    assert checkpoint.load()["../../../escape"] == b"x"


def test_torch_tensors_come_back_as_tensors() -> None:
    torch = pytest.importorskip("torch")
    names = ["float32", "bfloat16", "float16", "bool", "int64", "complex64", "float8_e4m3fn", "uint8"]
    state = {n: torch.arange(6).reshape(2, 3).to(getattr(torch, n)) for n in names if hasattr(torch, n)}
    state |= {"scalar": torch.tensor(1.5), "empty": torch.empty(0, 3), "turned": torch.ones(3, 2).T}
    model = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.BatchNorm1d(2))
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.ones(4, 3)).sum().backward()
    optimizer.step()
    checkpoint.save(
        {"state": state, "model": model.state_dict(), "optimizer": optimizer.state_dict()}, step=1
    )
    back = checkpoint.load()
    for name, tensor in state.items():
        assert back["state"][name].dtype == tensor.dtype
        assert back["state"][name].shape == tensor.shape
        assert back["state"][name].tolist() == tensor.tolist()
    model.load_state_dict(back["model"])
    optimizer.load_state_dict(back["optimizer"])
    with pytest.raises(TypeError, match=r"state\.s: a sparse_coo cpu tensor cannot be kept"):
        checkpoint.save({"s": torch.eye(2).to_sparse()}, step=2)


# ── versions ──


def test_the_newest_is_loaded_and_so_many_are_kept() -> None:
    assert checkpoint.load() is None
    assert checkpoint.load(default={"step": 0}) == {"step": 0}
    for step in range(1, 6):
        checkpoint.save({"step": step}, step=step, keep=3)
        assert checkpoint.load() == {"step": step}
    assert checkpoint.steps() == [3, 4, 5]
    assert checkpoint.load(step=4) == {"step": 4}
    with pytest.raises(CheckpointError, match=r"no good checkpoint of step 1 in .*; there are: 3, 4, 5"):
        checkpoint.load(step=1)


def test_a_step_that_is_saved_again_is_replaced() -> None:
    checkpoint.save("old", step=7)
    checkpoint.save("new", step=7, keep=1)
    assert (checkpoint.steps(), checkpoint.load()) == ([7], "new")


@pytest.mark.parametrize("wrong", [{"step": -1}, {"step": "x"}, {"step": 1.5}, {"step": 1, "keep": 0}])
def test_wrong_numbers_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="must be"):
        checkpoint.save({}, **wrong)


def test_a_save_shows_at_the_top_of_the_folder_and_what_weft_keeps_there_does_not(folder: Path) -> None:
    """The engine takes the newest time there for the time of the last save."""

    def newest() -> float:
        with os.scandir(folder) as entries:
            return max(entry.stat(follow_symlinks=False).st_mtime for entry in entries)

    for _ in range(2):
        before = time.time() - 0.1
        checkpoint.save({}, step=1)
        assert newest() > before
        for name in os.listdir(folder):
            if name != ".weft":
                os.utime(folder / name, (1, 1))
        assert newest() == 1


def test_outside_of_a_job_nothing_is_kept_and_it_says_so(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("CHECKPOINT_DIR")
    checkpoint.save({}, step=1)
    checkpoint.save({}, step=2)
    assert checkpoint.load(default=5) == 5
    assert checkpoint.steps() == []
    assert capsys.readouterr().err.count("CHECKPOINT_DIR is not set") == 1


# ── damage ──


@given(st.floats(0, 1, exclude_max=True), st.booleans())
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_damaged_or_cut_file_is_never_picked(folder: Path, where: float, cut: bool) -> None:
    older, newer = {"step": 1}, {"step": 2, "b": b"x" * 70, "c": b"y" * 200}
    checkpoint.save(older, step=1)
    checkpoint.save(newer, step=2)
    path = step_file(folder, 2)
    at = int(path.stat().st_size * where)
    if cut:
        os.truncate(path, at)
        assert checkpoint.load() == older
    else:
        spoil(path, at)
        assert checkpoint.load() in (older, newer), "between the arrays there is nothing to damage"


def test_falling_back_is_said(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    checkpoint.save({"w": np.ones(1000)}, step=1)
    checkpoint.save({"w": np.zeros(1000)}, step=2)
    spoil(step_file(folder, 2), 200)
    assert checkpoint.load()["w"][0] == 1
    assert (
        capsys.readouterr().err == "weft: checkpoint of step 2 passed over: "
        "whole.weft: the checksum of array 0 (8000 bytes) is wrong\n"
    )
    os.truncate(step_file(folder, 1), 100)
    assert checkpoint.load(default="begin anew") == "begin anew"
    with pytest.raises(CheckpointError, match="no good checkpoint of step 2"):
        checkpoint.load(step=2)


def test_a_damaged_one_is_not_counted_among_those_to_keep(folder: Path) -> None:
    for step in (1, 2):
        checkpoint.save({}, step=step, keep=2)
    os.truncate(step_file(folder, 2), 10)
    checkpoint.save({}, step=3, keep=2)
    assert checkpoint.steps() == [1, 3]


def test_a_file_cannot_ask_for_objects_or_for_more_than_it_holds(folder: Path) -> None:
    checkpoint.save("good", step=1)
    for about in (
        {"dtype": "|O", "shape": [1]},
        {"dtype": "<f8", "shape": [1 << 40]},
        {"dtype": "<f8", "shape": [-1]},
    ):
        checkpoint.save({"w": np.ones(1)}, step=2)
        with step_file(folder, 2).open("rb") as file:
            manifest = statefile.read_manifest(file)
        manifest["arrays"][0] |= about
        with step_file(folder, 2).open("wb") as out:
            forge(out, manifest)
        assert checkpoint.load() == "good"


def forge(out: BinaryIO, manifest: dict[str, Any]) -> None:
    text = statefile.json.dumps(manifest).encode()
    out.write(bytes(72) + text + statefile.END.pack(len(text), statefile.zlib.crc32(text), statefile.MAGIC))


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EROFS, errno.EIO])
@pytest.mark.parametrize("call", ["open", "write", "fsync", "replace"])
def test_a_disk_that_refuses_leaves_the_one_before(
    folder: Path, monkeypatch: pytest.MonkeyPatch, call: str, number: int
) -> None:
    checkpoint.save("before", step=1, keep=1)

    def refuse(*_: Any, **__: Any) -> Any:
        raise OSError(number, os.strerror(number))

    with monkeypatch.context() as patch:
        if call == "open":
            patch.setattr(checkpoint, "open", refuse, raising=False)
        elif call == "write":
            patch.setattr(statefile, "write", refuse)
        else:
            patch.setattr(checkpoint.os, call, refuse)
        with pytest.raises(CheckpointError) as caught:
            checkpoint.save("after", step=2, keep=1)
    if call != "open":
        said = rf"checkpoint of step 2 not kept in .*: {os.strerror(number)}; it needs 0\.0 MB, .* MB are free; step 1 is intact"
        assert re.fullmatch(said, str(caught.value))
    assert (checkpoint.steps(), checkpoint.load()) == ([1], "before")
    assert os.listdir(folder / ".weft" / "tmp") == []
    checkpoint.save("after", step=2, keep=1)
    assert checkpoint.load() == "after"


def test_a_folder_that_is_not_one_is_a_clear_error(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "file").write_text("")
    monkeypatch.setenv("CHECKPOINT_DIR", str(folder / "file"))
    assert checkpoint.load(default=1) == 1
    with pytest.raises(
        CheckpointError, match=r"step 1 not kept in .*Not a directory.*there is none before it"
    ):
        checkpoint.save({}, step=1)


KILLED = """
import sys, numpy as np
from weft.runtime import checkpoint
for step in range(int(sys.argv[1]), 10_000):
    checkpoint.save({"step": step, "w": np.full(50_000, step)}, step=step, keep=2)
    print(step, flush=True)
"""


def test_kill_9_at_any_moment_leaves_the_last_one_or_the_one_before(folder: Path) -> None:
    begin = 0
    for pause in (0.0, 0.003, 0.007, 0.013):
        worker = subprocess.Popen(
            [sys.executable, "-c", KILLED, str(begin)],
            env={**os.environ, "PYTHONPATH": str(SOURCE)},
            stdout=subprocess.PIPE,
        )
        assert worker.stdout is not None
        for _ in range(4):
            worker.stdout.readline()
        time.sleep(pause)
        worker.send_signal(signal.SIGKILL)
        rest = worker.communicate()[0].split()
        told = int(rest[-1]) if rest else begin + 3
        state = checkpoint.load()
        assert state["step"] in (told, told + 1)
        assert (state["w"] == state["step"]).all()
        begin = state["step"] + 1
    checkpoint.save({}, step=begin, keep=2)
    assert os.listdir(folder / ".weft" / "tmp") == []
    assert len(checkpoint.steps()) == 2


# ── ranks ──


def test_a_step_counts_once_all_its_ranks_have_saved(capsys: pytest.CaptureFixture[str]) -> None:
    for rank in range(3):
        checkpoint.save({"mine": rank}, step=1, rank=rank, world=3)
        assert checkpoint.steps() == ([1] if rank == 2 else [])
    for rank in (2, 0):
        checkpoint.save({"mine": 10 + rank}, step=2, rank=rank, world=3, keep=1)
    assert [checkpoint.load(rank=r, world=3) for r in range(3)] == [{"mine": r} for r in range(3)]
    assert "step 2 passed over: 2 of 3 parts, rank 1 is missing" in capsys.readouterr().err
    checkpoint.save({"mine": 11}, step=2, rank=1, world=3, keep=1)
    assert [checkpoint.load(rank=r, world=3) for r in range(3)] == [{"mine": 10 + r} for r in range(3)]
    assert checkpoint.steps() == [2]


def test_ranks_that_have_a_folder_each_keep_their_newest_parts_and_one_more(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on a cluster, where nobody sees the parts of others: what is complete is known where they come together."""
    monkeypatch.setenv("WEFT_SHARDS_FILE", "/nowhere")
    for rank in range(2):
        checkpoint.save("given to both", step=1, rank=rank, world=2)
    for step in range(2, 7):
        checkpoint.save(f"at {step}", step=step, rank=1, world=2, keep=2)
    assert sorted(path.name for path in folder.glob("step-*")) == [f"step-{n:012d}" for n in (4, 5, 6)]
    checkpoint.save("whole", step=7, keep=1)
    assert checkpoint.steps() == [7], "one state for all is complete by itself"


def test_all_ranks_fall_back_when_the_part_of_one_is_damaged(folder: Path) -> None:
    for step in (1, 2):
        for rank in range(2):
            checkpoint.save({"w": np.full(100, step)}, step=step, rank=rank, world=2)
    spoil(folder / "step-000000000002" / "rank-00001-of-00002.1.weft", 100)
    assert [int(checkpoint.load(rank=r, world=2)["w"][0]) for r in range(2)] == [1, 1]


def test_parts_of_an_earlier_run_do_not_complete_a_step(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    checkpoint.save("run 1", step=1, rank=0)
    checkpoint.save("run 1", step=1, rank=1)
    checkpoint.save("run 1", step=2, rank=0)
    monkeypatch.setattr(checkpoint, "_born", lambda: time.time() + 1)
    checkpoint.save("run 2", step=2, rank=1)
    assert checkpoint.steps() == [1]
    monkeypatch.setattr(checkpoint, "_born", lambda: 0.0)
    checkpoint.save("run 2", step=2, rank=0)
    assert [checkpoint.load(rank=r) for r in range(2)] == ["run 2", "run 2"]


def test_saving_a_complete_step_again_never_leaves_none(monkeypatch: pytest.MonkeyPatch) -> None:
    for rank in range(2):
        checkpoint.save("run 1", step=5, rank=rank, world=2, keep=1)
    monkeypatch.setattr(checkpoint, "_born", lambda: time.time() + 1)
    checkpoint.save("run 2", step=5, rank=0, world=2, keep=1)
    assert [checkpoint.load(rank=r, world=2) for r in range(2)] == ["run 1", "run 1"]
    monkeypatch.setattr(checkpoint, "_born", lambda: 0.0)
    checkpoint.save("run 2", step=5, rank=1, world=2, keep=1)
    assert [checkpoint.load(rank=r, world=2) for r in range(2)] == ["run 2", "run 2"]


def test_a_step_that_is_saved_again_is_whole_or_the_one_before(folder: Path) -> None:
    """By the same processes, as after going back in the middle of a run; one is killed between two ranks."""
    for rank in range(2):
        checkpoint.save("first", step=10, rank=rank, world=2)
    checkpoint.save("second", step=10, rank=0, world=2)
    assert [checkpoint.load(rank=r, world=2) for r in range(2)] == ["first", "first"]
    checkpoint.save("second", step=10, rank=1, world=2)
    assert [checkpoint.load(rank=r, world=2) for r in range(2)] == ["second", "second"]
    assert len(list(folder.glob("step-*/*.weft"))) == 2, "the set before is gone"


def test_no_set_mixes_what_a_late_rank_saves_first_with_what_another_saved_again() -> None:
    for state in ("first", "second"):
        checkpoint.save(state, step=10, rank=0, world=2)
    checkpoint.save("first", step=10, rank=1, world=2)
    assert [checkpoint.load(rank=r, world=2) for r in range(2)] == ["first", "first"]
    checkpoint.save("second", step=10, rank=1, world=2)
    assert len({checkpoint.load(rank=r, world=2) for r in range(2)}) == 1


def test_a_world_of_another_size_is_told_how_to_get_at_the_parts() -> None:
    for rank in range(3):
        checkpoint.save(rank, step=1, rank=rank, world=3)
    with pytest.raises(
        CheckpointError, match=r"saved by 3 ranks, and now there are 2; load\(rank=0, world=3\)"
    ):
        checkpoint.load(rank=0, world=2)
    with pytest.raises(CheckpointError, match=r"each with its part: load\(rank=…\)"):
        checkpoint.load()
    assert [checkpoint.load(rank=r, world=3) for r in range(3)] == [0, 1, 2]


def test_one_state_for_all_is_given_to_every_rank() -> None:
    checkpoint.save("whole", step=1)
    assert checkpoint.load(rank=3, world=4) == "whole"


@pytest.mark.parametrize("wrong", [{"rank": 2, "world": 2}, {"rank": 0}, {"world": 2}])
def test_ranks_that_cannot_be_are_refused(wrong: dict[str, int]) -> None:
    with pytest.raises(ValueError, match="rank"):
        checkpoint.save({}, step=1, **wrong)


# ── weft resume --from-checkpoint ──


def test_a_job_sent_back_goes_on_from_there(monkeypatch: pytest.MonkeyPatch) -> None:
    for step in (10, 20, 30):
        checkpoint.save(f"first {step}", step=step)
    monkeypatch.setenv("WEFT_CHECKPOINT_STEP", "10@2")
    assert checkpoint.load() == "first 10"
    assert checkpoint.load() == "first 10", "until it has saved"
    assert checkpoint.load(step=30) == "first 30", "who asks for a step gets it"
    checkpoint.save("second 15", step=15)
    assert checkpoint.load() == "second 15", "a restart does not go back again"
    assert checkpoint.steps() == [15, 20, 30]
    monkeypatch.setenv("WEFT_CHECKPOINT_STEP", "20@3")
    assert checkpoint.load() == "first 20", "another order"
    monkeypatch.delenv("WEFT_CHECKPOINT_STEP")
    assert checkpoint.load() == "second 15", "the newest is the one saved last"
    monkeypatch.setenv("WEFT_CHECKPOINT_STEP", "30")
    checkpoint.save("third 40", step=40)
    assert checkpoint.load() == "first 30", "a plain number holds always"


def test_a_step_that_was_asked_for_and_is_not_there_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WEFT_CHECKPOINT_STEP", "5")
    with pytest.raises(CheckpointError, match=r"step 5 \(WEFT_CHECKPOINT_STEP\) in .*; there are: none"):
        checkpoint.load(default=1)
    monkeypatch.setenv("WEFT_CHECKPOINT_STEP", "five")
    with pytest.raises(ValueError, match="WEFT_CHECKPOINT_STEP must be a whole number, not 'five'"):
        checkpoint.load()
