"""Launches that an earlier server began: their journals tell a new one everything, once and in order."""

from __future__ import annotations

import fcntl
import json
import os
import resource
import subprocess
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from weft.backends.local import supervisors
from weft.backends.local.supervisors import Adopted, processes_of
from weft.runtime.identity import boot_id, start_time


@pytest.fixture
def living() -> Iterator[subprocess.Popen[bytes]]:
    """A process that stands for a supervisor at work."""
    process = subprocess.Popen(
        ["sleep", "60"], env={"WEFT_JOB_UID": "u1", "WEFT_LAUNCH": "3", "PATH": os.environ["PATH"]}
    )
    yield process
    process.kill()
    process.wait()


def claimed(pid: int, **changed: Any) -> dict[str, Any]:
    return {"event": "claimed", "pid": pid, "birth": start_time(pid), "boot": boot_id(), **changed}


STARTED = {"event": "started", "time": 1.0, "pids": {"worker-0": [11, 1], "worker-1": [12, 1]}}
UNDONE = {"event": "undone", "code": "COMMAND_NOT_FOUND", "message": "no", "task": "worker-0"}


def exited(task: str) -> dict[str, Any]:
    return {"event": "exited", "task": task, "code": 0}


def lines(*events: dict[str, Any]) -> bytes:
    return b"".join(json.dumps(event).encode() + b"\n" for event in events)


class Reader:
    def __init__(self, folder: Path):
        self.path = folder / "journal"
        self.heard: list[str] = []
        self.adopted = Adopted(str(self.path), lambda event: self.heard.append(event["event"]))

    def grows(self, data: bytes) -> Reader:
        with self.path.open("ab") as file:
            file.write(data)
        self.adopted.read()
        return self


def test_a_launch_that_ended_meanwhile_is_told_whole(tmp_path: Path) -> None:
    dead = claimed(2**22 + 1, birth=5)
    reader = Reader(tmp_path).grows(lines(dead, STARTED, exited("worker-0"), exited("worker-1")))
    assert reader.heard == ["claimed", "started", "exited", "exited"]
    assert reader.adopted.finished


def test_a_launch_that_goes_on_is_followed(tmp_path: Path, living: subprocess.Popen[bytes]) -> None:
    reader = Reader(tmp_path).grows(lines(claimed(living.pid), STARTED))
    reader.grows(lines(exited("worker-1")))
    assert not reader.adopted.finished
    reader.grows(lines(exited("worker-0")))
    assert reader.heard == ["claimed", "started", "exited", "exited"]
    assert reader.adopted.finished
    assert reader.adopted.pidfd == -1


def test_a_start_that_was_undone_is_the_end(tmp_path: Path, living: subprocess.Popen[bytes]) -> None:
    reader = Reader(tmp_path).grows(lines(claimed(living.pid), UNDONE))
    assert reader.heard == ["claimed", "undone"]
    assert reader.adopted.finished


def test_a_supervisor_that_dies_at_work_is_lost(tmp_path: Path, living: subprocess.Popen[bytes]) -> None:
    reader = Reader(tmp_path).grows(lines(claimed(living.pid), STARTED, exited("worker-0")))
    reader.grows(b"")
    assert "lost" not in reader.heard
    living.kill()
    living.wait()
    reader.grows(b"")
    assert reader.heard == ["claimed", "started", "exited", "lost"]
    assert reader.adopted.finished


def test_its_last_words_are_heard_before_its_death(tmp_path: Path, living: subprocess.Popen[bytes]) -> None:
    reader = Reader(tmp_path).grows(lines(claimed(living.pid), STARTED))
    living.kill()
    living.wait()
    reader.grows(lines(exited("worker-0"), exited("worker-1")))
    assert reader.heard == ["claimed", "started", "exited", "exited"]


def test_a_server_with_thousands_of_open_files_still_sees_its_death(
    tmp_path: Path, living: subprocess.Popen[bytes]
) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 4096), hard))
    try:
        reader = Reader(tmp_path).grows(lines(claimed(living.pid), STARTED))
        low = reader.adopted.pidfd
        reader.adopted.pidfd = fcntl.fcntl(low, fcntl.F_DUPFD_CLOEXEC, 2000)
        os.close(low)
        reader.grows(b"")
        assert not reader.adopted.finished
        living.kill()
        living.wait()
        assert reader.grows(b"").heard[-1] == "lost"
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.parametrize("changed", [{"boot": "another"}, {"birth": 1}])
def test_a_process_id_that_now_is_someone_else_is_no_supervisor(
    tmp_path: Path, living: subprocess.Popen[bytes], changed: dict[str, Any]
) -> None:
    reader = Reader(tmp_path).grows(lines(claimed(living.pid, **changed), STARTED))
    reader.grows(b"")
    assert reader.heard == ["claimed", "started", "lost"]


def test_a_journal_that_nobody_claims_is_lost_after_a_while(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [100.0]
    monkeypatch.setattr(supervisors.time, "monotonic", lambda: now[0])
    reader = Reader(tmp_path).grows(b"")
    assert reader.heard == []
    now[0] += supervisors.UNCLAIMED_PATIENCE + 0.1
    reader.grows(b"")
    assert reader.heard == ["lost"]


def test_a_torn_line_is_passed_over(tmp_path: Path) -> None:
    whole = lines(claimed(2**22 + 1, birth=5), STARTED, exited("worker-0"))
    torn = lines(exited("worker-1"))
    reader = Reader(tmp_path).grows(whole + torn[:9] + b"\n" + torn)
    assert reader.heard == ["claimed", "started", "exited", "exited"]


@given(cuts=st.lists(st.integers(0, 400), max_size=6))
def test_however_the_journal_grows_each_line_is_told_once(tmp_path_factory: Any, cuts: list[int]) -> None:
    data = lines(claimed(os.getpid()), STARTED, exited("worker-0"), exited("worker-1"))
    reader = Reader(tmp_path_factory.mktemp("journal"))
    places = sorted({min(cut, len(data)) for cut in (0, *cuts, len(data))})
    for begin, end in pairwise(places):
        reader.grows(data[begin:end])
    assert reader.heard == ["claimed", "started", "exited", "exited"]
    assert reader.adopted.finished


def test_processes_of_a_launch_are_found_by_their_mark(living: subprocess.Popen[bytes]) -> None:
    assert processes_of("u1", 3) == [living.pid]
    assert processes_of("u1", 4) == []
