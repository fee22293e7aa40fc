"""Parts as files: whole or not there, one filler each, whoever dies when."""

from __future__ import annotations

import os
import random
import signal
import stat
import threading
import time
from contextlib import suppress
from pathlib import Path

import pytest

from support.datasets import bytes_of, digest
from weft.data.cache.files import Files
from weft.data.errors import Refused

DATA = bytes_of(1, 100_000)
NAME = digest(DATA)


def put(files: Files, data: bytes) -> str:
    with files.filling(digest(data)) as temporary:
        temporary.write(data)
        files.keep(digest(data), temporary)
    return digest(data)


def content(files: Files, name: str, size: int) -> bytes | None:
    fd = files.open(name, size)
    if fd is None:
        return None
    with os.fdopen(fd, "rb") as file:
        return file.read()


def test_a_part_is_there_when_it_is_kept(tmp_path: Path) -> None:
    files = Files(tmp_path)
    assert content(files, NAME, len(DATA)) is None
    put(files, DATA)
    assert content(files, NAME, len(DATA)) == DATA
    assert list(files.held()) == [(NAME, len(DATA))]
    assert not list(files.tmp.iterdir())


def test_the_bytes_are_durable_before_the_name_and_the_name_before_anybody_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a power cut would show, read from the calls."""
    files, calls = Files(tmp_path), []
    sync, rename = os.fsync, Path.rename

    def fsync(fd: int) -> None:
        calls.append(("sync", Path(os.readlink(f"/proc/self/fd/{fd}"))))
        sync(fd)

    def renamed(path: Path, target: Path) -> Path:
        calls.append(("rename", target))
        return rename(path, target)

    monkeypatch.setattr(os, "fsync", fsync)
    monkeypatch.setattr(Path, "rename", renamed)
    put(files, DATA)
    path = files.path(NAME)
    assert calls == [
        ("sync", files.growing(NAME)), ("sync", files.parts), ("rename", path), ("sync", path.parent),
    ]  # fmt: skip


def test_nobody_may_write_to_it_whatever_the_umask(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        files = Files(tmp_path / "cache")
        put(files, DATA)
    finally:
        os.umask(before)
    path = files.path(NAME)
    assert stat.S_IMODE(path.stat().st_mode) == 0o444
    for folder in (path.parent, files.parts, files.tmp):
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700


def test_what_is_not_kept_is_gone(tmp_path: Path) -> None:
    files = Files(tmp_path)
    with files.filling(NAME) as temporary:
        temporary.write(DATA)
    with suppress(ZeroDivisionError), files.filling(NAME) as temporary:
        temporary.write(DATA)
        raise ZeroDivisionError
    assert not files.has(NAME)
    assert not list(files.tmp.iterdir())


def test_a_part_of_another_size_is_not_handed_out(tmp_path: Path) -> None:
    """A file system that lost bytes in a power cut, or somebody with a pen."""
    files = Files(tmp_path)
    put(files, DATA)
    os.truncate(files.path(NAME), 10)
    assert content(files, NAME, len(DATA)) is None
    assert not files.has(NAME)


@pytest.mark.parametrize("name", ["../../etc/passwd", "", "a" * 63, "A" * 64, "/" * 64, "a" * 64 + "\n"])
def test_only_digests_are_names(tmp_path: Path, name: str) -> None:
    with pytest.raises(Refused, match="no digest"):
        Files(tmp_path).path(name)


def test_who_comes_second_waits_and_finds_it(tmp_path: Path) -> None:
    files, found = Files(tmp_path), []

    def second() -> None:
        with files.filling(NAME):
            found.append(files.has(NAME))

    with files.filling(NAME) as temporary:
        thread = threading.Thread(target=second)
        thread.start()
        temporary.write(DATA)
        files.keep(NAME, temporary)
        assert found == []
    thread.join(60)
    assert found == [True]
    assert content(files, NAME, len(DATA)) == DATA


def test_of_many_that_want_the_lock_each_has_it_alone(tmp_path: Path) -> None:
    files, inside, most = Files(tmp_path), [], []

    def work() -> None:
        for _ in range(30):
            with files.filling(NAME) as temporary:
                inside.append(1)
                most.append(len(inside))
                temporary.write(b"x")
                assert os.fstat(temporary.fd).st_size == 1
                inside.pop()

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert most == [1] * 240


def test_a_sweep_takes_what_the_dead_left_and_not_what_grows(tmp_path: Path) -> None:
    files = Files(tmp_path)
    (files.tmp / ("a" * 64)).write_bytes(b"left")
    with files.filling(NAME) as temporary:
        assert files.sweep() == 1
        temporary.write(DATA)
        files.keep(NAME, temporary)
    assert content(files, NAME, len(DATA)) == DATA


def test_what_a_dead_filler_left_does_not_stand_in_the_way(tmp_path: Path) -> None:
    files = Files(tmp_path)
    left = files.tmp / NAME
    left.write_bytes(b"half")
    left.chmod(0o444)
    put(files, DATA)
    assert content(files, NAME, len(DATA)) == DATA


def test_what_passes_leaves_nothing(tmp_path: Path) -> None:
    files = Files(tmp_path)
    for size in (10, 65 << 20):
        passing = files.passing(size)
        passing.write(DATA)
        assert os.pread(passing.fd, 10, 5) == DATA[5:15]
        os.close(passing.fd)
    assert not list(files.tmp.iterdir())


def fill_for_ever(files: Files, seed: int, ready: int) -> None:
    """Fills parts and removes some, until it is killed."""
    parts = {digest(data): data for data in (bytes_of(number, 300_000) for number in range(7))}
    os.write(ready, b"x")
    while True:
        name = list(parts)[seed % 7]
        with files.filling(name) as temporary:
            for begin in range(0, 300_000, 10_000):
                temporary.write(parts[name][begin : begin + 10_000])
            files.keep(name, temporary)
        if seed % 3 == 0:
            files.remove(name)
        seed += 1


def forked(files: Files, seed: int, ready: int) -> int:
    child = os.fork()
    if child == 0:
        try:
            fill_for_ever(files, seed, ready)
        finally:
            os._exit(1)
    return child


@pytest.mark.slow
def test_kill_9_at_any_moment_leaves_nothing_or_a_good_file(fast_folder: Path) -> None:
    """Two processes fill and remove the same parts and are killed at random moments, again and again."""
    chance, files, swept = random.Random(6), Files(fast_folder), 0
    for seed in range(60):
        read, write = os.pipe()
        fillers = [forked(files, seed + n, write) for n in range(2)]
        ready = os.read(read, 1) + os.read(read, 1)
        time.sleep(chance.random() * 0.02)  # the moment is what is tested
        for filler in fillers:
            os.kill(filler, signal.SIGKILL)
            assert os.WIFSIGNALED(os.waitpid(filler, 0)[1])
        os.close(read)
        os.close(write)
        assert len(ready) == 2
        for name, size in files.held():
            assert size == 300_000
            assert digest(files.path(name).read_bytes()) == name
        swept += files.sweep()
        assert not list(files.tmp.iterdir())
    assert swept > 5, "hardly a filler was killed in the middle"
    put(files, DATA)
    assert content(files, NAME, len(DATA)) == DATA
