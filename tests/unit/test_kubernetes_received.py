"""What comes from a pod is kept once, in order, whoever is killed in between."""

from __future__ import annotations

from pathlib import Path
from random import Random

from hypothesis import given
from hypothesis import strategies as st

from weft.backends.folders import JobFolder
from weft.backends.kubernetes.received import Received
from weft.backends.logs import TaskLogReader


def folder(tmp: Path) -> JobFolder:
    made = JobFolder(str(tmp), "job")
    Path(made.root).mkdir(parents=True, exist_ok=True)
    return made


def text(where: JobFolder) -> str:
    lines, _ = TaskLogReader(where.task("w-0"), "w-0").lines(0, 1 << 20, final=True)
    return "\n".join(line.text for line in lines)


def test_a_second_launch_goes_on_behind_the_first(tmp_path: Path) -> None:
    where = folder(tmp_path)
    first = Received(where, "w-0", 1)
    first.log(0, b"one\n", 1.0)
    first.metrics(0, b"{}\n")
    first.close()
    second = Received(where, "w-0", 2)
    assert (second.log_offset, second.metrics_offset) == (0, 0)
    second.log(0, b"two\n", 2.0)
    second.metrics(0, b"[]\n")
    assert text(where) == "one\ntwo"
    assert Path(where.task("w-0"), "metrics.jsonl").read_text() == "{}\n[]\n"


def test_bytes_that_were_left_out_are_told_and_counted(tmp_path: Path) -> None:
    where = folder(tmp_path)
    got = Received(where, "w-0", 1)
    got.log(0, b"begin\n", 1.0)
    got.log(1000, b"later\n", 2.0)
    assert got.log_offset == 1006
    got.close()
    again = Received(where, "w-0", 1)
    assert again.log_offset == 1006
    assert text(where).splitlines()[0] == "begin"
    assert "994 bytes left out" in text(where)
    assert text(where).splitlines()[-1] == "later"


@given(st.binary(min_size=1, max_size=400), st.integers(0, 2**32))
def test_no_byte_is_kept_twice_or_lost_however_often_it_is_begun_again(data: bytes, seed: int) -> None:
    import tempfile

    data = data.replace(b"\r", b".")
    r = Random(seed)
    with tempfile.TemporaryDirectory() as tmp:
        where = folder(Path(tmp))
        got = Received(where, "w-0", 1)
        sent = 0
        while got.log_offset < len(data):
            if r.random() < 0.3:
                got.close()
                got = Received(where, "w-0", 1)
            start = r.randrange(got.log_offset + 1)  # asked from where it was, or told again from before
            sent = min(len(data), max(start, got.log_offset) + r.randrange(1, 60))
            got.log(start, data[start:sent], 1.0)
            got.metrics(start, data[start:sent])
        got.close()
        kept = b"".join(
            p.read_bytes() for p in sorted(Path(where.task("w-0")).glob("log.*")) if p.suffix != ".index"
        )
        assert kept == data
        assert Path(where.task("w-0"), "metrics.jsonl").read_bytes() == data
