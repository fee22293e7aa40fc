"""The testbed ends what it started, and nothing that merely has the same number."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "scripts"))

from testbed import processes
from testbed.processes import Process, Record
from testbed.refusal import Refused
from testbed.telling import until


@pytest.fixture
def record(tmp_path: Path) -> Iterator[Record]:
    made = Record(tmp_path)
    yield made
    assert processes.end(made.processes, patience=0) == []


def test_a_process_is_written_down_when_it_is_started(record: Record) -> None:
    started = processes.start(record, "sleeper", ["sleep", "60"])
    again = processes.read(record.folder)
    assert again is not None
    assert again.processes == [started]
    assert processes.alive(started)


def test_a_process_that_is_ended_is_gone(record: Record) -> None:
    started = processes.start(record, "sleeper", ["sleep", "60"])
    assert processes.end([started]) == []
    assert not processes.alive(started)


def test_of_those_who_need_a_daemon_at_once_the_first_starts_it_for_all(record: Record) -> None:
    """As the workers of a test run do: two schedulers on one cluster would place the same pods."""
    record.save()
    start = partial(processes.start_once, record.folder, "sleeper", lambda _: ["sleep", "60"])
    with ThreadPoolExecutor(4) as workers:
        started = {each.result() for each in [workers.submit(start) for _ in range(8)]}
    again = processes.read(record.folder)
    assert again is not None
    record.processes = again.processes
    assert list(started) == record.processes


def test_a_daemon_that_is_needed_again_after_its_end_is_started_again(record: Record) -> None:
    first = processes.start(record, "sleeper", ["sleep", "60"])
    processes.end([first])
    second = processes.start_once(record.folder, "sleeper", lambda _: ["sleep", "60"])
    record.processes = [second]
    assert second != first
    assert processes.alive(second)


def test_one_that_does_not_listen_is_killed(record: Record) -> None:
    deaf = [sys.executable, "-c", "import signal; signal.pthread_sigmask(0, {15}); signal.pause()"]
    started = processes.start(record, "deaf", deaf)
    assert processes.end([started], patience=0.05) == []
    assert not processes.alive(started)


def test_another_process_with_the_same_number_is_left_alone() -> None:
    with subprocess.Popen(["sleep", "60"]) as other:
        born = processes.birth(other.pid)
        assert born is not None
        stranger = Process("kubelet", other.pid, born + 1, processes.boot())
        before_reboot = dataclasses.replace(stranger, born=born, boot="another boot")
        processes.end([stranger, before_reboot], patience=0)
        assert other.poll() is None
        other.kill()


def test_what_a_daemon_leaves_behind_is_found_by_its_mark(record: Record) -> None:
    daemon = processes.start(record, "daemon", ["sh", "-c", "sleep 61 & echo $!; wait"])
    log = record.folder / "logs" / "daemon.log"
    assert until(lambda: log.read_text().strip() != "", 5)
    child = int(log.read_text())
    assert {process.pid for process in processes.marked(record.folder)} == {daemon.pid, child}
    processes.end([daemon], patience=0)
    orphans = processes.marked(record.folder)
    assert [process.pid for process in orphans] == [child]
    assert processes.end(orphans) == []


def test_a_daemon_that_ended_is_told_with_its_last_words(record: Record) -> None:
    ended = processes.start(record, "etcd", ["sh", "-c", "echo the disk is full; exit 1"])
    assert until(lambda: not processes.alive(ended), 5)
    with pytest.raises(Refused, match="etcd: ended while starting") as refused:
        processes.refuse_ended(record, ended, "starting")
    assert "the disk is full" in str(refused.value)
    assert "etcd.log" in str(refused.value)


def test_without_a_record_there_is_no_testbed(tmp_path: Path) -> None:
    assert processes.read(tmp_path) is None
