"""`weft.shards`: every sample once an epoch, whoever joins, leaves or dies."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from weft.runtime import books, leases
from weft.runtime import shards as module
from weft.runtime.books import FileBooks, Keeper, ShardsError
from weft.runtime.leases import Books, Holder, Plan
from weft.runtime.shards import Permutation, Shards, shards

SOURCE = Path(__file__).parents[2] / "src"


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("CHECKPOINT_DIR", str(tmp_path))
    monkeypatch.setattr(module, "_keepers", {})
    for name in ("WEFT_TASK", "WEFT_LAUNCH", "WEFT_RESTARTS"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path


# ── alone ──


def test_every_sample_comes_once_in_shards_of_the_size() -> None:
    seen = [list(shard) for shard in shards(1000, size=64)]
    assert [len(s) for s in seen] == [64] * 15 + [40]
    samples = [i for shard in seen for i in shard]
    assert samples != list(range(1000))
    assert sorted(samples) == list(range(1000))


def test_epochs_follow_each_other_and_a_complete_one_yields_nothing() -> None:
    first = [list(s) for s in shards(100, size=30)]
    second = [(s.epoch, list(s)) for s in shards(100, size=30)]
    assert {epoch for epoch, _ in second} == {1}
    assert [indices for _, indices in second] != first, "another order"
    assert list(shards(100, epoch=0, size=30)) == []
    assert [s.epoch for s in shards(100, epoch=7)] == [7] * 100, "any epoch may be asked for"
    assert [s.epoch for s in shards(100, size=50)] == [8, 8]


def test_without_shuffling_shards_are_ranges() -> None:
    seen = list(shards(10, size=4, shuffle=False))
    assert [list(s) for s in seen] == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]
    assert seen[1][1:] == range(5, 8)


def test_a_shard_is_a_sequence_that_numpy_takes_as_indices() -> None:
    data = np.arange(50) * 10
    for shard in shards(50, size=8):
        assert data[shard].tolist() == [10 * i for i in shard] == [10 * shard[k] for k in range(len(shard))]
        assert shard[2:] == list(shard)[2:]


def test_no_samples_are_an_epoch_too() -> None:
    assert list(shards(0)) == []
    assert list(shards(0, epoch=0)) == []


@pytest.mark.parametrize(
    "wrong", [{"n": -1}, {"n": 5, "size": 0}, {"n": 5, "epoch": -1}, {"n": 5, "name": "../x"}]
)
def test_what_makes_no_sense_is_refused(wrong: dict[str, int]) -> None:
    with pytest.raises(ValueError):
        shards(**wrong)


def test_tasks_that_cut_an_epoch_differently_are_told(folder: Path) -> None:
    loop = iter(shards(100, size=10))
    next(loop)
    with pytest.raises(
        ShardsError, match=r"epoch 0 was begun with n=100, size=10, .* not with n=100, size=20"
    ):
        next(iter(shards(100, size=20)))
    with pytest.raises(ShardsError, match="not with n=90"):
        next(iter(shards(90)))
    assert len(next(iter(shards(100)))) == 10, "who does not say follows the others"
    assert next(iter(shards(100, size=20, name="test"))).epoch == 0, "other data have books of their own"


def test_outside_of_a_job_it_works_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CHECKPOINT_DIR")
    assert sorted(i for s in shards(100, size=7) for i in s) == list(range(100))
    assert {s.epoch for s in shards(100, size=7)} == {1}


@given(st.integers(1, 3000), st.integers(), st.integers(0, 10))
@settings(max_examples=60, deadline=None)
def test_a_permutation_has_every_index_once(n: int, seed: int, epoch: int) -> None:
    order = Permutation(n, seed, epoch)
    assert sorted(order[i] for i in range(n)) == list(range(n))


def test_a_permutation_is_well_mixed_and_never_changes() -> None:
    assert [Permutation(10, 0, 0)[i] for i in range(10)] == ORDER
    order = Permutation(10_000, 0, 0)
    values = [order[i] for i in range(10_000)]
    for cut in (values[:5000], values[::2], values[1000:2000]):
        assert abs(np.mean(cut) - 5000) < 250
    assert abs(np.corrcoef(values[:-1], values[1:])[0, 1]) < 0.05
    assert Permutation(10**12, 3, 4)[5] < 10**12, "no table of all indices"


ORDER = [0, 8, 1, 5, 7, 6, 9, 2, 3, 4]


# ── leaving the loop ──


def test_leaving_a_loop_early_gives_its_shard_back() -> None:
    for shard in shards(30, size=10, shuffle=False):
        if shard.number == 1:
            break
    assert [s.number for s in shards(30, size=10, shuffle=False)] == [1, 2]


def test_done_may_be_said_before_leaving() -> None:
    for shard in shards(30, size=10, shuffle=False):
        assert shard.done()
        assert shard.done(), "again changes nothing"
        break
    assert [s.number for s in shards(30, size=10, shuffle=False)] == [1, 2]


def test_the_loop_of_a_task_that_is_told_to_stop_ends_after_its_shard(folder: Path) -> None:
    code = (
        "import os, signal, weft\n"
        "with weft.stopping():\n"
        "    for shard in weft.shards(30, size=10, shuffle=False):\n"
        "        print(shard.number)\n"
        "        if shard.number == 1: os.kill(os.getpid(), signal.SIGTERM)\n"
    )
    env = {**os.environ, "PYTHONPATH": str(SOURCE)}
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout.split()) == (143, ["0", "1"])
    assert [s.number for s in shards(30, size=10, shuffle=False)] == [2], "what was begun was finished"


def test_importing_it_is_quick_and_light() -> None:
    code = "import sys; old = set(sys.modules); import weft; weft.checkpoint, weft.on_preempt, weft.shards; print(*set(sys.modules) - old)"
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={"PYTHONPATH": str(SOURCE)},
        check=True,
        capture_output=True,
        text=True,
    )
    heavy = {
        "numpy",
        "torch",
        "pydantic",
        "asyncio",
        "socket",
        "subprocess",
        "logging",
        "dataclasses",
        "shutil",
    }
    assert not heavy & set(done.stdout.split())


def test_a_forked_child_does_not_give_its_parents_shard_back() -> None:
    loop = iter(shards(30, size=10, shuffle=False))
    next(loop)
    child = os.fork()
    if child == 0:
        loop.close()  # type: ignore[attr-defined]
        os._exit(0)
    os.waitpid(child, 0)
    assert [s.number for s in loop] == [1, 2]


# ── many workers, simulated ──


class World:
    """Books in memory, a clock, and processes that are alive or not."""

    def __init__(self) -> None:
        self.books = Books()
        self.now = 0.0
        self.dead: set[int] = set()
        self.done: Counter[int] = Counter()


class Worker(Keeper):
    def __init__(self, world: World, pid: int, machine: str, task: str = "", restarts: int = 0):
        super().__init__(clock=lambda: world.now)
        self.world = world
        self.holder = Holder(task or f"worker-{pid}", 1, restarts, machine, pid, 1)
        self.held: leases.Lease | None = None

    @contextmanager
    def change(self) -> Iterator[Books]:
        books = leases.from_json(json.loads(json.dumps(leases.to_json(self.world.books))))
        yield books
        self.world.books = books

    def me(self) -> Holder:
        return self.holder

    def alive(self, holder: Holder) -> bool:
        assert holder.machine == self.holder.machine
        return holder.pid not in self.world.dead

    def turn(self, want: bool = True) -> bool:
        """Finish what is held and take the next; whether the epoch is over."""
        finished = [] if self.held is None else [self.held.number]
        shard = None if self.held is None else self.held.shard
        answer = self.step(0, done=finished, want=want)
        if answer.counted:
            assert shard is not None
            self.world.done[shard] += 1
        self.held = answer.lease
        return answer.over


acts = st.lists(
    st.tuples(
        st.sampled_from(["join", "turn", "turn", "turn", "turn", "die", "leave", "beat", "wait", "stall"]),
        st.integers(0, 5),
    ),
    max_size=80,
)


@given(acts, st.integers(1, 15), st.integers(1, 3), st.booleans())
@settings(max_examples=150, deadline=None)
def test_each_shard_is_marked_done_once_whoever_joins_leaves_or_dies(
    story: list[tuple[str, int]], count: int, machines: int, silent: bool
) -> None:
    world = World()
    workers: list[Worker] = []
    born = 0

    def join(which: int) -> Worker:
        nonlocal born
        born += 1
        worker = Worker(world, born, f"machine-{which % machines}")
        worker.begin(0, Plan(count, 1, False, 0), Plan(count, 1, False, 0))
        workers.append(worker)
        return worker

    for act, which in story:
        if act == "join" and len(workers) < 6:
            join(which)
        elif act == "wait":
            world.now += 50
        elif workers:
            worker = workers[which % len(workers)]
            if act == "turn":
                worker.turn()
            elif act == "beat":
                worker.beat()
            elif act == "stall":  # silent for so long that other machines give it up
                world.now += 2 * books.LEASE_SECONDS
            else:
                if act == "leave" and worker.held is not None:
                    worker.step(0, back=[worker.held.number])
                workers.remove(worker)
                world.dead.add(worker.holder.pid)
        check(world, count)
    for worker in workers:
        if silent:
            world.dead.add(worker.holder.pid)
    survivor = join(0)
    for _ in range(4 * count + 10):
        world.now += books.LEASE_SECONDS
        for worker in [survivor] if silent else workers:
            worker.turn()
    assert survivor.turn()
    assert world.done == Counter(range(count))
    for worker in workers:
        worker.turn(want=False)  # whoever comes too late is not counted
    assert world.done == Counter(range(count))
    assert world.books.complete == [0]
    assert world.books.epochs == {}


def check(world: World, count: int) -> None:
    """Every shard is in exactly one place."""
    if 0 not in world.books.epochs:
        return
    epoch = world.books.epochs[0]
    away = epoch.back + [held.shard for held in epoch.leases.values()]
    assert sorted(away + list(world.done)) == list(range(epoch.next))
    assert set(world.done.values()) <= {1}


def test_the_dead_of_this_machine_are_replaced_at_once_those_of_others_after_silence() -> None:
    world = World()
    here, there, heir = Worker(world, 1, "a"), Worker(world, 2, "b"), Worker(world, 3, "a")
    for worker in (here, there, heir):
        worker.begin(0, Plan(2, 1, False, 0), Plan(2, 1, False, 0))
    here.turn()
    there.turn()
    heir.turn()
    assert heir.held is None
    world.dead |= {1, 2}
    heir.turn()
    assert heir.held is not None
    assert heir.held.shard == 0
    world.now += books.LEASE_SECONDS / 2
    heir.turn()
    assert heir.held is None
    world.now += books.LEASE_SECONDS
    heir.turn()
    assert heir.held is not None
    assert heir.held.shard == 1


def test_who_is_heard_of_keeps_its_shard() -> None:
    world = World()
    there, here = Worker(world, 1, "b"), Worker(world, 2, "a")
    here.begin(0, Plan(1, 1, False, 0), Plan(1, 1, False, 0))
    there.turn()
    for _ in range(10):
        world.now += books.LEASE_SECONDS / 4
        there.beat()
        here.turn()
        assert here.held is None
    there.turn(want=False)
    assert here.turn()
    assert world.done == Counter([0])


def test_a_task_that_was_restarted_elsewhere_has_its_old_shard_at_once() -> None:
    world = World()
    old, new = Worker(world, 1, "b", "worker-0"), Worker(world, 9, "a", "worker-0", restarts=1)
    old.begin(0, Plan(3, 1, False, 0), Plan(3, 1, False, 0))
    old.turn()
    new.begin(0, None, Plan(3, 1, False, 0))
    new.turn()
    assert new.held is not None
    assert new.held.shard == 0
    old.turn(want=False)
    assert world.done == Counter(), "the old one comes too late"


@pytest.mark.parametrize("asked", [True, False])
def test_who_lost_its_shard_is_told(capsys: pytest.CaptureFixture[str], asked: bool) -> None:
    world = World()
    slow, quick = Worker(world, 1, "b"), Worker(world, 2, "a")
    loop = iter(Shards(slow, 0, 1, Plan(1, 1, False, 0)))
    shard = next(loop)
    quick.turn()
    world.now += 2 * books.LEASE_SECONDS
    quick.turn()
    assert quick.held is not None
    if asked:
        assert not shard.done()
    quick.turn()
    assert list(loop) == []
    assert world.done == Counter([0])
    assert ("was given to another task" in capsys.readouterr().err) is not asked


# ── files ──


def books_file(folder: Path) -> Path:
    return folder / ".weft" / "shards" / "train"


def test_the_books_are_small_however_many_shards_there_are(folder: Path) -> None:
    for _ in shards(1000, size=1):
        pass
    assert os.stat(f"{books_file(folder)}.safe").st_size < 500  # half a byte a shard


def test_shards_do_not_look_like_a_checkpoint(folder: Path) -> None:
    """The engine takes the newest time at the top of the folder for the time of the last save."""
    for _ in shards(5, size=1):
        pass
    assert os.listdir(folder) == [".weft"]
    assert (folder / ".weft").stat().st_mtime == 0


def two_steps() -> None:
    for shard in shards(30, size=10, shuffle=False):
        if shard.number == 1:
            break


@given(st.integers(0, 400))
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_change_that_was_cut_short_has_not_happened(folder: Path, cut: int) -> None:
    """What kill -9 in the middle of a write leaves: the beginning of the new over the end of the old."""
    for path in (folder / ".weft" / "shards").glob("train*"):
        path.unlink()
    two_steps()
    before = places(folder)
    loop = iter(shards(30, size=10, shuffle=False))
    next(loop)
    after = places(folder)
    changed = 0 if before[0] != after[0] else 1
    torn = after[changed][:cut] + before[changed][cut:]
    with books_file(folder).open("r+b") as file:
        os.pwrite(file.fileno(), torn, changed * books.PLACE)
    lost = torn != after[changed]
    assert next(iter(shards(30, size=10, shuffle=False))).number == (1 if lost else 2)


def places(folder: Path) -> list[bytes]:
    with books_file(folder).open("rb") as file:
        return [os.pread(file.fileno(), 500, at).ljust(500, b"\0") for at in (0, books.PLACE)]


def test_damaged_books_are_never_taken_for_others(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    two_steps()
    for bad in (b"", b"x" * 100):
        books_file(folder).write_bytes(bad)
        assert next(iter(shards(30, size=10, shuffle=False))).number <= 1
        assert "train is damaged; going on from its copy" in capsys.readouterr().err
    books_file(folder).write_bytes(b"x")
    Path(f"{books_file(folder)}.safe").write_bytes(b"x")
    with pytest.raises(ShardsError, match="is damaged; remove it"):
        next(iter(shards(30)))


def test_a_full_disk_is_a_clear_error_and_changes_nothing(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loop = iter(shards(30, size=10, shuffle=False))
    next(loop)
    with monkeypatch.context() as patch:
        patch.setattr(books.os, "pwrite", lambda *_: 5)
        with pytest.raises(ShardsError, match=r"shards 'train' in .*: No space left on device"):
            next(loop)
    leases_now = leases.from_json(json.loads(kept_books(folder))).epochs[0].leases
    assert [held.shard for held in leases_now.values()] == [0], "as it was before"


def kept_books(folder: Path) -> bytes:
    with books_file(folder).open("rb") as file:
        return books.newest(file.fileno(), str(books_file(folder)))[1]


WORKER = """
import os, sys, time
from weft.runtime.shards import shards
log = os.open(sys.argv[1], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
def note(what, shard):
    os.write(log, "".join(f"{what} {shard.epoch} {i}\\n" for i in shard).encode())
for epoch in range(2):
    for shard in shards(1200, epoch=epoch, size=3, seed=5):
        note("begun", shard)
        time.sleep(0.002)
        assert shard.done()
        note("done", shard)
"""


@pytest.mark.slow
def test_every_sample_once_while_workers_are_killed_at_random(
    folder: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """A worker notes samples before and after done(): one that is killed in between may have done them unsaid."""
    log = tmp_path_factory.mktemp("log") / "samples"
    choose = random.Random(11)
    workers: list[subprocess.Popen[bytes]] = []
    started = killed = 0
    while workers or not started:
        while killed < 12 and len(workers) < 3:
            env = {**os.environ, "PYTHONPATH": str(SOURCE), "WEFT_TASK": f"worker-{started % 3}"}
            workers.append(subprocess.Popen([sys.executable, "-c", WORKER, str(log)], env=env))
            started += 1
        if killed < 12:
            time.sleep(choose.uniform(0.02, 0.15))
            victim = workers.pop(choose.randrange(len(workers)))
            victim.send_signal(signal.SIGKILL)
            killed += victim.wait() == -signal.SIGKILL
        else:
            assert workers.pop().wait(60) == 0
    seen = Counter(log.read_text().splitlines())
    everything = {f"{epoch} {i}" for epoch in range(2) for i in range(1200)}
    begun = {line.removeprefix("begun ") for line in seen if line.startswith("begun")}
    done = {line.removeprefix("done "): times for line, times in seen.items() if line.startswith("done")}
    assert begun == everything, "no sample is left out"
    assert set(done.values()) == {1}, "none is done twice"
    assert len(everything) - len(done) <= 3 * killed, "but for one shard of each that was killed, all said so"
    assert json.loads(kept_books(folder))["complete"] == [0, 1]


def test_the_holder_is_this_process(folder: Path) -> None:
    assert FileBooks(str(folder), "x").me().pid == os.getpid()
    assert books.runs(os.getpid(), books.start_time(os.getpid()))
    assert not books.runs(os.getpid(), 1)
    child = subprocess.Popen(["true"])
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    assert not books.runs(child.pid, books.start_time(child.pid)), "ended, though not collected"
    child.wait()
