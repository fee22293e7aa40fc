"""The merged log: paged through from any place in both directions, and searched, it is always the same log."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from weft.backends import logs as reading
from weft.backends.api import LogLine
from weft.backends.logs import TaskLogReader
from weft.backends.logsearch import Wanted
from weft.runtime.tasklog import TaskLog
from weft.server import logs as merged
from weft.server.logs import Logs, Place

TASKS = ("worker-0", "worker-1", "worker-2")
WORDS = ("loss", "LOSS", "é", "ERROR", "ValueError: x", "", "step", "\x1b[31mred")
WRITES = st.lists(
    st.tuples(st.sampled_from(TASKS), st.lists(st.sampled_from(WORDS), max_size=4).map(" ".join)), max_size=40
)


@contextmanager
def logs_of(writes: list[tuple[str, str]], segment: int = 64, keep: int = 1000) -> Iterator[Logs]:
    with tempfile.TemporaryDirectory(prefix="weft-test-") as folder:
        for task in TASKS:
            (own := Path(folder, task)).mkdir()
            log = TaskLog(str(own), segment, keep)
            for moment, (who, text) in enumerate(writes):
                if who == task:
                    log.write(f"{text}\n".encode(), now=100.0 + moment)
            log.close()
        yield {task: TaskLogReader(f"{folder}/{task}", task) for task in TASKS}


def whole(logs: Logs) -> list[LogLine]:
    return merged.from_offset(logs, 0, 1 << 20, True).lines


def beginning(logs: Logs) -> Place:
    return {task: log.start() for task, log in logs.items()}


@given(WRITES, st.integers(1, 7), st.integers(1, 4))
def test_pages_from_the_end_are_the_log(writes: list[tuple[str, str]], count: int, keep: int) -> None:
    with logs_of(writes, 32, keep) as logs:
        page = merged.last(logs, count, True)
        found = page.lines
        while page.previous is not None:
            page = merged.before(logs, page.previous, count)
            assert page.lines
            found = [*page.lines, *found]
        assert found == whole(logs)


@given(WRITES, st.integers(1, 60), st.integers(1, 4))
def test_as_text_it_is_the_log_with_whose_each_line_is(
    writes: list[tuple[str, str]], chunk: int, keep: int
) -> None:
    with logs_of(writes, 32, keep) as logs, pytest.MonkeyPatch.context() as patch:
        patch.setattr(merged, "CHUNK", chunk)
        text = b"".join(merged.as_text(logs, True)).decode()
        assert text == "".join(f"[{line.task}] {line.text}\n" for line in whole(logs))


def test_as_text_a_bar_that_goes_back_is_a_line_each_time(tmp_path: Path) -> None:
    logs = {}
    for task in TASKS[:2]:
        (own := tmp_path / task).mkdir()
        log = TaskLog(str(own), 1 << 20, 10)
        log.write(b"1%\r\r2%\r\n\r\n\rdone\n\nlast\r", now=100.0)
        log.close()
        logs[task] = TaskLogReader(str(own), task)
    lines = ["1%", "2%", "", "done", "", "last"]
    said = "".join(f"[{task}] {line}\n" for task in logs for line in lines)
    assert b"".join(merged.as_text(logs, True)).decode() == said
    unfinished = "".join(f"[{task}] {line}\n" for task in logs for line in lines[:-1])
    assert b"".join(merged.as_text(logs, False)).decode() == unfinished


@given(WRITES, st.integers(1, 7))
def test_pages_from_the_beginning_are_the_log(writes: list[tuple[str, str]], count: int) -> None:
    with logs_of(writes) as logs:
        found, place = [], beginning(logs)
        while (page := merged.after(logs, place, count, True)).lines:
            assert len(page.lines) <= count
            found += page.lines
            place = page.next
        assert found == whole(logs)
        assert place == merged.ends(logs)


@given(WRITES, st.integers(1, 5), st.integers(0, 40))
def test_before_and_after_a_place_meet_there(writes: list[tuple[str, str]], count: int, many: int) -> None:
    with logs_of(writes) as logs:
        place = merged.after(logs, beginning(logs), many, True).next if many else beginning(logs)
        lines = whole(logs)
        many = min(many, len(lines))
        assert merged.before(logs, place, count).lines == lines[max(0, many - count) : many]
        assert merged.after(logs, place, count, True).lines == lines[many : many + count]


@given(WRITES, st.integers(1, 7))
def test_a_place_from_before_a_task_came_is_at_that_tasks_beginning(
    writes: list[tuple[str, str]], count: int
) -> None:
    """Elastic jobs grow while somebody pages through their log."""
    with logs_of(writes) as logs:
        known = {TASKS[0]: logs[TASKS[0]].end()}
        known_of_all = {**dict.fromkeys(TASKS, 0), **known}
        assert (
            merged.after(logs, known, count, True).lines
            == merged.after(logs, known_of_all, count, True).lines
        )
        page, of_all = merged.before(logs, known, count), merged.before(logs, known_of_all, count)
        assert page.lines == of_all.lines
        assert (page.previous is None) == (of_all.previous is None)


@given(WRITES, st.sampled_from(["loss", "É".lower(), "r", "step LOSS"]), st.booleans(), st.booleans())
@pytest.mark.parametrize("piece", [80, 1 << 20])
def test_a_search_finds_what_reading_would(
    piece: int, writes: list[tuple[str, str]], words: str, errors: bool, backward: bool
) -> None:
    reading.PIECE, kept = piece, reading.PIECE
    try:
        with logs_of(writes) as logs:
            place = merged.ends(logs) if backward else beginning(logs)
            found = merged.search(logs, Wanted(words, errors), place, 1000, backward=backward)
            expected = [
                line
                for line in whole(logs)
                if words.lower() in line.text.lower() and (not errors or re.search("ERROR|Error:", line.text))
            ]
            assert [line for line, _ in found.lines] == (expected[::-1] if backward else expected)
            assert not found.more
    finally:
        reading.PIECE = kept


@given(WRITES, st.booleans())
def test_a_line_that_was_found_begins_its_place(writes: list[tuple[str, str]], backward: bool) -> None:
    with logs_of(writes) as logs:
        place = merged.ends(logs) if backward else beginning(logs)
        for line, where in merged.search(logs, Wanted("loss"), place, 3, backward=backward).lines:
            assert merged.after(logs, where, 1, True).lines == [line]


@given(WRITES)
def test_the_next_match_is_looked_for_from_the_last(writes: list[tuple[str, str]]) -> None:
    with logs_of(writes) as logs:
        one_by_one, place = [], merged.ends(logs)
        while (found := merged.search(logs, Wanted("", True), place, 1, backward=True)).lines:
            (line, place) = found.lines[0]
            one_by_one.append(line)
        at_once = merged.search(logs, Wanted("", True), merged.ends(logs), 1000, backward=True)
        assert one_by_one == [line for line, _ in at_once.lines]


def test_a_search_without_time_says_how_far_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "PIECE", 64)
    with logs_of([("worker-0", f"step {n}") for n in range(100)], 1 << 20) as logs:
        monkeypatch.setattr(merged, "PATIENCE", -1.0)
        place, rounds = merged.ends(logs), 0
        while not (found := merged.search(logs, Wanted("step 3"), place, 100, backward=True)).lines:
            assert found.more
            assert found.searched["worker-0"] < place["worker-0"]
            place, rounds = found.searched, rounds + 1
        assert rounds > 3
        assert found.lines[0][0].text in {"step 39", "step 38"}


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("2026-11-16 ERROR train: disk is slow", True),
        ("RuntimeError: loss became nan", True),
        ("Traceback (most recent call last):", True),
        ("panic: runtime", True),
        ("mean error 0.1", False),
        ("TERRORS", False),
        ("INFO all is well", False),
    ],
)
def test_what_a_person_would_call_an_error(text: str, error: bool) -> None:
    assert bool(list(Wanted(errors=True).spans(text.encode(), 0))) is error


def test_as_a_text_file_each_line_says_whose_it_is() -> None:
    with logs_of([("worker-0", "one"), ("worker-1", "two")]) as logs:
        assert b"".join(merged.as_text(logs, True)) == b"[worker-0] one\n[worker-1] two\n"
        assert b"".join(merged.as_text({"worker-1": logs["worker-1"]}, True)) == b"two\n"
