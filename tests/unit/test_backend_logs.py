"""Logs: any bytes, in any pieces, over any number of segments, come back by line and by offset."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from weft.backends import logs
from weft.backends.logs import LONGEST_LINE, Line, TaskLogReader
from weft.runtime.tasklog import TaskLog

TEXT = st.lists(
    st.sampled_from([b"a", b"bc", b"\n", b"\r", b"\r\n", b"\xc3\xa9", b"\xff", b"loss=1 "]), max_size=60
)
CHUNKS = st.lists(TEXT.map(b"".join), max_size=12)


@contextmanager
def log_of(chunks: list[bytes], segment: int = 16, keep: int = 1000) -> Iterator[TaskLogReader]:
    with tempfile.TemporaryDirectory(prefix="weft-test-") as folder:
        log = TaskLog(folder, segment, keep)
        for index, chunk in enumerate(chunks):
            log.write(chunk, now=100.0 + index)
        log.close()
        yield TaskLogReader(folder, "worker-0")


def texts(data: bytes, *, final: bool = True) -> list[str]:
    """What a person means by lines: \\n, \\r\\n and \\r end one, a bare \\r after nothing is none."""
    found = re.findall(rb"([^\r\n]*)(\r\n|\n|\r|$)", data)
    if found and found[-1] == (b"", b""):
        found.pop()
    if not final and found and found[-1][1] in (b"", b"\r"):
        found.pop()
    return [text.decode("utf-8", "replace") for text, end in found if text or end != b"\r"]


@given(CHUNKS, st.integers(1, 40))
def test_all_that_was_written_is_read(chunks: list[bytes], segment: int) -> None:
    with log_of(chunks, segment) as reader:
        data = b"".join(chunks)
        lines, after = reader.lines(0, 1 << 20, final=True)
        assert [line.text for line in lines] == texts(data)
        assert after == len(data) == reader.end()


@given(CHUNKS, st.integers(1, 40), st.integers(1, 50), st.booleans())
def test_runs_are_the_lines_with_their_times(
    chunks: list[bytes], segment: int, piece: int, final: bool
) -> None:
    with log_of(chunks, segment) as reader, pytest.MonkeyPatch.context() as patch:
        patch.setattr(logs, "PIECE", piece)
        found = [(time, text) for time, run in reader.runs(final=final) for text in texts(run)]
        assert found == [(line.time, line.text) for line in reader.lines(0, 1 << 20, final=final)[0]]


def test_a_line_without_an_end_is_not_held_whole() -> None:
    with log_of([b"x" * (3 * logs.PIECE)], 1 << 30) as reader:
        runs = [run for _, run in reader.runs(final=True)]
        assert b"".join(runs) == b"x" * (3 * logs.PIECE)
        assert max(map(len, runs)) <= logs.PIECE


@given(CHUNKS, st.integers(1, 20), st.integers(1, 4))
def test_what_is_kept_is_a_suffix_at_its_old_offsets(chunks: list[bytes], segment: int, keep: int) -> None:
    with log_of(chunks, segment, keep) as reader:
        data = b"".join(chunks)
        assert reader.end() == len(data)
        assert len(reader.segments()) <= keep
        lines, after = reader.lines(0, 1 << 20, final=True)
        assert [line.text for line in lines] == texts(data[reader.start() :])
        assert all(line.offset >= reader.start() for line in lines)
        assert after == len(data)


@given(CHUNKS, st.integers(1, 40), st.integers(1, 50))
def test_reading_piece_by_piece_is_reading_at_once(chunks: list[bytes], segment: int, limit: int) -> None:
    with log_of(chunks, segment) as reader:
        whole, end = reader.lines(0, 1 << 20, final=True)
        found: list[Line] = []
        offset = 0
        while True:
            lines, after = reader.lines(offset, limit, final=True)
            found += lines
            if after == offset:
                if after == end:
                    break
                limit *= 2  # a line longer than the piece
                continue
            offset = after
        assert found == whole


@given(CHUNKS, st.integers(1, 40))
def test_a_growing_log_gives_only_whole_lines(chunks: list[bytes], segment: int) -> None:
    """Followed while it is written, it gives the same lines as afterwards, each once."""
    with tempfile.TemporaryDirectory(prefix="weft-test-") as folder:
        log, reader = TaskLog(folder, segment, 1000), TaskLogReader(folder, "worker-0")
        found: list[Line] = []
        offset = 0
        for chunk in chunks:
            log.write(chunk, now=1.0)
            lines, offset = reader.lines(offset, 1 << 20)
            found += lines
        log.close()
        lines, _ = reader.lines(offset, 1 << 20, final=True)
        assert [line.text for line in [*found, *lines]] == texts(b"".join(chunks))


@given(CHUNKS, st.integers(0, 10))
def test_the_tail_is_the_last_lines(chunks: list[bytes], count: int) -> None:
    with log_of(chunks) as reader:
        lines, _ = reader.lines(0, 1 << 20, final=True)
        tail, after = reader.tail(count, final=True)
        assert tail == (lines[-count:] if count else [])
        assert after == reader.end()


def test_a_long_logs_tail_is_found_without_reading_it_all() -> None:
    chunks = [b"line %d\n" % i for i in range(20_000)]
    with log_of(chunks, segment=1 << 20) as reader:
        tail, _ = reader.tail(3)
        assert [line.text for line in tail] == ["line 19997", "line 19998", "line 19999"]


def test_a_progress_bar_is_one_line_a_step() -> None:
    with log_of([b"10%\r20%\r", b"30%\n"]) as reader:
        assert [line.text for line in reader.lines(0, 1000)[0]] == ["10%", "20%", "30%"]


def test_half_of_a_line_end_waits_for_the_other_half() -> None:
    with log_of([b"one\r"]) as reader:
        assert reader.lines(0, 1000) == ([], 0)
        assert [line.text for line in reader.lines(0, 1000, final=True)[0]] == ["one"]


def test_an_endless_line_is_cut() -> None:
    with log_of([b"x" * (LONGEST_LINE + 10)], segment=1 << 20) as reader:
        lines, after = reader.lines(0, 1 << 20)
        assert [len(line.text) for line in lines] == [LONGEST_LINE + 10]
        assert after == LONGEST_LINE + 10


def test_each_line_has_the_time_it_was_written() -> None:
    with log_of([b"a\n", b"b\n", b"c\n"], segment=3) as reader:
        assert [line.time for line in reader.lines(0, 1000)[0]] == [100.0, 101.0, 102.0]


def test_logs_of_several_tasks_merge_by_time(tmp_path: Path) -> None:
    merged: list[Line] = []
    for task, offset in (("worker-0", 0.0), ("worker-1", 0.5)):
        folder = tmp_path / task
        folder.mkdir()
        log = TaskLog(str(folder), 1000, 4)
        for i in range(3):
            log.write(b"%d\n" % i, now=10.0 + i + offset)
        log.close()
        merged += TaskLogReader(str(folder), task).lines(0, 1000)[0]
    merged.sort(key=lambda line: line.time)
    assert [(line.task, line.text) for line in merged] == [(f"worker-{i % 2}", str(i // 2)) for i in range(6)]


def test_a_restarted_task_goes_on_at_its_offset(tmp_path: Path) -> None:
    for text in (b"first\n", b"second\n"):
        log = TaskLog(str(tmp_path), 1000, 4)
        log.write(text, now=1.0)
        log.close()
    lines, _ = TaskLogReader(str(tmp_path), "w").lines(0, 1000)
    assert [(line.offset, line.text) for line in lines] == [(0, "first"), (6, "second")]


def test_no_log_is_an_empty_one(tmp_path: Path) -> None:
    reader = TaskLogReader(str(tmp_path / "missing"), "w")
    assert reader.lines(0, 1000, final=True) == ([], 0)
    assert reader.tail(10) == ([], 0)


def test_a_full_disk_costs_lines_and_never_the_task(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import os

    log = TaskLog(str(tmp_path), 1000, 4)
    log.write(b"kept\n", now=1.0)

    def full(*_: object) -> int:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(os, "write", full)
        log.write(b"lost\n", now=1.001)
    log.write(b"kept again\n", now=1.002)
    log.close()
    assert log.dropped == 5
    lines, _ = TaskLogReader(str(tmp_path), "w").lines(0, 1000)
    assert [line.text for line in lines] == ["kept", "kept again"]


def test_a_page_smaller_than_a_line_still_gets_that_line(tmp_path: Path) -> None:
    log = TaskLog(str(tmp_path), 1 << 20, 8)
    log.write(b"x" * 500 + b"\n" + b"y" * 500 + b"\n", 1.0)
    reader = TaskLogReader(str(tmp_path), "worker-0")
    seen, offset = [], 0
    while (page := reader.lines(offset, 10))[0]:
        seen += [line.text for line in page[0]]
        offset = page[1]
    assert seen == ["x" * 500, "y" * 500]


def test_a_time_leads_to_the_first_line_that_begins_then() -> None:
    with log_of([b"one\ntw", b"o\n", b"three\n"], segment=1000) as reader:
        assert [reader.at(time) for time in (99.0, 100.0, 101.0, 102.0, 103.0)] == [0, 0, 8, 8, 14]
