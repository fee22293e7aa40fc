"""`weft.log()`: what a training script says arrives, whole and once."""

from __future__ import annotations

import errno
import json
import math
import os
import subprocess
import sys
import threading
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from weft.runtime import metrics
from weft.runtime.metrics import Appender, encode, log, number


class Tensor:
    def __init__(self, *values: float):
        self.values = values
        self.shape = (len(values),)

    def item(self) -> float:
        if len(self.values) != 1:
            raise RuntimeError("a Tensor with 2 elements cannot be converted to Scalar")
        return self.values[0]


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "metrics.jsonl"
    monkeypatch.setenv("WEFT_METRICS_FILE", str(path))
    return path


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_bytes().splitlines() if line]


def readable(path: Path) -> list[dict[str, Any]]:
    """What a reader that skips torn lines sees."""
    found = []
    for line in path.read_bytes().split(b"\n"):
        try:
            found.append(json.loads(line))
        except ValueError:
            continue
    return found


def test_one_line_a_call(file: Path) -> None:
    log(step=1, loss=0.5, lr=1e-3)
    log(accuracy=1)
    first, second = lines(file)
    assert (first["step"], first["values"]) == (1, {"loss": 0.5, "lr": 0.001})
    assert (second["step"], second["values"]) == (None, {"accuracy": 1})
    assert first["time"] <= second["time"]


def test_nothing_to_say_writes_nothing(file: Path) -> None:
    log(step=1)
    assert not file.exists()


def test_numbers_of_other_libraries(file: Path) -> None:
    numpy = pytest.importorskip("numpy")
    log(
        step=numpy.int64(7), a=numpy.float32(0.5), b=numpy.array(2), c=Tensor(0.25), d=Decimal("1.5"),
        e=True, f=numpy.float64(3), g=numpy.array([4.0]), h=numpy.bool_(True), i=10**400,
    )  # fmt: skip
    assert lines(file)[0]["step"] == 7
    assert lines(file)[0]["values"] == {
        "a": 0.5, "b": 2, "c": 0.25, "d": 1.5, "e": 1, "f": 3.0, "g": 4.0, "h": 1, "i": "inf",
    }  # fmt: skip


def test_not_a_number_is_written_as_text(file: Path) -> None:
    log(a=math.nan, b=math.inf, c=-math.inf)
    assert lines(file)[0]["values"] == {"a": "nan", "b": "inf", "c": "-inf"}


@pytest.mark.parametrize("value", ["0.5", None, [0.5], {"a": 1}, Tensor(1, 2), 1j, object()])
def test_anything_else_is_an_error_that_names_the_metric(file: Path, value: Any) -> None:
    with pytest.raises(TypeError, match="metric 'val_loss' must be one number, not"):
        log(val_loss=value)
    assert not file.exists()


@pytest.mark.parametrize("step", [1.5, math.nan, math.inf, 1 << 63, "3"])
def test_a_step_is_a_whole_number(file: Path, step: Any) -> None:
    with pytest.raises(TypeError, match="step"):
        log(step=step, loss=1)


def test_outside_of_a_job_it_prints(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("WEFT_METRICS_FILE", raising=False)
    log(step=3, loss=0.123456789, seen=10)
    log(loss=math.nan)
    assert capsys.readouterr() == ("step=3 loss=0.123457 seen=10\nloss=nan\n", "")


def test_threads_do_not_mix_their_lines(file: Path) -> None:
    threads = [
        threading.Thread(target=lambda who=who: [log(step=i, **{f"t{who}": i}) for i in range(200)])
        for who in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    seen = lines(file)
    for who in range(8):
        assert [x["step"] for x in seen if f"t{who}" in x["values"]] == list(range(200))


FORKING = """
import os, sys
from weft.runtime.metrics import log
log(step=-1, parent=1)
children = []
for who in range(4):
    pid = os.fork()
    if not pid:
        for step in range(300):
            log(step=step, **{f"child{who}": step, "padding" * 20: 1})
        os._exit(0)
    children.append(pid)
for pid in children:
    os.waitpid(pid, 0)
log(step=-2, parent=2)
"""


def test_forked_processes_do_not_mix_their_lines(file: Path) -> None:
    subprocess.run([sys.executable, "-c", FORKING], check=True)
    seen = lines(file)
    assert len(seen) == 2 + 4 * 300
    for who in range(4):
        assert [x["step"] for x in seen if f"child{who}" in x["values"]] == list(range(300))


def test_importing_it_is_quick_and_light() -> None:
    code = "import sys; old = set(sys.modules); import weft.runtime.metrics; print(*set(sys.modules) - old)"
    loaded = subprocess.run(
        [sys.executable, "-c", code], check=True, capture_output=True, text=True
    ).stdout.split()
    heavy = {"numpy", "pydantic", "asyncio", "socket", "subprocess", "logging", "typing_extensions"}
    assert not heavy & set(loaded)


# ── full disks ──


class Disk:
    """Stands in for os.write: takes `room` bytes, then says that the device is full."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, room: int):
        self.room = room
        self._write = os.write
        monkeypatch.setattr(metrics.os, "write", self.write)

    def write(self, fd: int, data: bytes) -> int:
        if not self.room:
            raise OSError(errno.ENOSPC, "No space left on device")
        written = self._write(fd, data[: self.room])
        self.room -= written
        return written


BIG = 1 << 40


def test_a_full_disk_costs_nothing_but_time(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    disk = Disk(monkeypatch, 0)
    log(step=1, loss=1)
    log(step=2, loss=2)
    assert file.read_bytes() == b""
    disk.room = BIG
    log(step=3, loss=3)
    assert [x["step"] for x in lines(file)] == [1, 2, 3]


@given(room=st.integers(0, 400), again=st.integers(0, 400))
def test_a_disk_that_fills_up_anywhere_loses_and_doubles_nothing(
    tmp_path_factory: pytest.TempPathFactory, room: int, again: int
) -> None:
    path = tmp_path_factory.mktemp("disk") / "m"
    with pytest.MonkeyPatch.context() as patch:
        disk = Disk(patch, room)
        appender = Appender(str(path), pytest.fail)
        for step in range(4):
            appender.append([encode(step, 1.0, {"loss": step})])
        disk.room = again
        appender.append([encode(step, 1.0, {"loss": step}) for step in range(4, 8)])
        disk.room = BIG
        other = Appender(str(path), pytest.fail)  # a second process, in the middle
        other.append([encode(99, 1.0, {"other": 1})])
        appender.close()
        other.close()
    seen = [x["step"] for x in readable(path)]
    assert sorted(seen) == [*range(8), 99]
    assert [step for step in seen if step != 99] == list(range(8))
    assert path.read_bytes().endswith(b"\n")


def test_what_a_killed_writer_left_does_not_spoil_the_next_line(file: Path) -> None:
    file.write_bytes(b'{"step":1,"ti')
    log(step=2, loss=1)
    assert [x["step"] for x in readable(file)] == [2]


def test_too_many_waiting_lines_are_reported_once_and_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(metrics, "MAX_PENDING", 10)
    disk = Disk(monkeypatch, 0)
    said: list[str] = []
    appender = Appender(str(tmp_path / "m"), said.append)
    for step in range(15):
        appender.append([encode(step, 1.0, {"loss": 1})])
    assert len(said) == 1
    assert "No space left on device" in said[0]
    disk.room = BIG
    appender.close()
    assert said[1].startswith("5 metric lines were lost")
    assert [x["step"] for x in lines(tmp_path / "m")] == list(range(10))


LATE = """
import os
from weft.runtime.metrics import log
log(step=1, loss=1)
os.mkdir(os.path.dirname(os.environ["WEFT_METRICS_FILE"]))
"""


def test_what_waits_is_written_at_exit(tmp_path: Path) -> None:
    path = tmp_path / "later" / "metrics.jsonl"
    env = {**os.environ, "WEFT_METRICS_FILE": str(path)}
    subprocess.run([sys.executable, "-c", LATE], env=env, check=True)
    assert [x["step"] for x in lines(path)] == [1]


def test_what_is_lost_at_exit_is_said(tmp_path: Path) -> None:
    path = tmp_path / "never" / "metrics.jsonl"
    env = {**os.environ, "WEFT_METRICS_FILE": str(path)}
    code = "from weft.runtime.metrics import log; log(loss=1)"
    ran = subprocess.run([sys.executable, "-c", code], env=env, check=True, capture_output=True, text=True)
    assert ran.stderr == f"weft: 1 metric lines were lost: {path} (No such file or directory)\n"


def test_a_forked_child_leaves_the_waiting_lines_to_its_parent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = Disk(monkeypatch, 0)
    appender = Appender(str(tmp_path / "m"), lambda text: None)
    appender.append([encode(1, 1.0, {"loss": 1})])
    appender.after_fork()
    disk.room = BIG
    appender.close()
    assert (tmp_path / "m").read_bytes() == b""


@given(st.one_of(st.integers(), st.floats(), st.booleans()))
def test_every_number_becomes_valid_json(value: float) -> None:
    line = json.loads(encode(None, 1.0, {"x": number(value, "x")}), parse_constant=pytest.fail)
    read = line["values"]["x"]
    read = float(read) if isinstance(read, str) else read
    assert read == value or math.isnan(value) or abs(value) >= 1 << 63
