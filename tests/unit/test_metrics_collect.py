"""Collectors: what a task prints and writes becomes metric lines, each once."""

from __future__ import annotations

import json
import os
import signal
import threading
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from weft.runtime import collect
from weft.runtime.collect import Collector, Lines

pytest.importorskip("tensorboard")
from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.summary.writer.record_writer import RecordWriter

Point = tuple[int | None, dict[str, Any]]


def source(kind: str, **given: Any) -> dict[str, Any]:
    blank = {"names": [], "pattern": None, "window": 4, "path": None, "group": None}
    return {"source": kind, **blank, **given}


class Task:
    """A task's folder and what its collector has written."""

    def __init__(self, folder: Path, *sources: dict[str, Any]):
        self.logs = folder / "logs"
        self.logs.mkdir(parents=True, exist_ok=True)
        self.out = folder / "metrics.jsonl"
        self.sources = list(sources)
        self.collector = Collector(self.sources, str(self.logs), str(self.out))

    def restart(self) -> None:
        self.collector.close()
        self.collector = Collector(self.sources, str(self.logs), str(self.out))

    def print(self, text: str) -> list[Point]:
        self.collector.feed(text.encode())
        return self.points()

    def poll(self) -> list[Point]:
        self.collector.poll()
        return self.points()

    def end(self) -> list[Point]:
        self.collector.close()
        return self.points()

    def records(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.out.read_text().splitlines()] if self.out.exists() else []

    def points(self) -> list[Point]:
        return [(record["step"], record["values"]) for record in self.records()]


def printed(folder: Path, what: dict[str, Any], text: str) -> list[Point]:
    task = Task(folder, what)
    task.print(text)
    assert task.collector.notes == []
    return task.end()


# ── the stream of lines ──


@given(text=st.text(alphabet="ab=1\r\n", max_size=60), sizes=st.lists(st.integers(1, 5), min_size=1))
def test_chunks_do_not_matter(text: str, sizes: list[int]) -> None:
    whole, cut = Lines(), Lines()
    data, found, at, turn = text.encode(), [], 0, 0
    while at < len(data):
        size = sizes[turn % len(sizes)]
        found += cut.feed(data[at : at + size])
        at, turn = at + size, turn + 1
    expected = whole.feed(data) + whole.rest()
    assert found + cut.rest() == expected
    ends = text.replace("\r\n", "\n").replace("\r", "\n").split("\n")
    assert expected == (ends if ends[-1] else ends[:-1])


def test_long_lines_are_cut_and_colours_dropped() -> None:
    lines = Lines()
    for _ in range(100):
        assert lines.feed(b"x" * 10_000) == []
    assert [len(line) for line in lines.feed(b"\n" + b"y" * 100_000 + b"\nz\n")] == [1 << 16, 1 << 16, 1]
    assert lines.feed(b"\x1b[1;32mloss=1\x1b[0m caf\xc3\xa9 \xff\n") == ["loss=1 café \ufffd"]


# ── log ──


@pytest.mark.parametrize(
    ("line", "points"),
    [
        ("loss=0.25, acc: 0.9", [(None, {"loss": 0.25})]),
        ("step=3 loss=0.25 acc=97.5%", [(3, {"loss": 0.25, "acc": 97.5})]),
        ("epoch=2 loss=1e-3", [(2, {"loss": 0.001})]),
        ("epoch=2 step=30/100 loss=-.5E+2", [(30, {"loss": -50.0})]),
        ("[Epoch=1] iteration=7, train/loss=1. val.acc-1=+2", [(7, {"train/loss": 1.0, "val.acc-1": 2})]),
        ("global_step=8 loss = 3", [(8, {"loss": 3})]),
        ("epoch=1.5 loss=1", [(None, {"loss": 1})]),
        ("loss=nan a=inf b=-Infinity", [(None, {"loss": "nan", "a": "inf", "b": "-inf"})]),
        ("loss=0.5. And so on", [(None, {"loss": 0.5})]),
        ("Epoch 1...loss=0.5", [(None, {"loss": 0.5})]),
        ("(loss=1,acc=2)", [(None, {"loss": 1, "acc": 2})]),
        ("loss=1 then loss=2", [(None, {"loss": 1}), (None, {"loss": 2})]),
        ("python train.py --lr=0.1", []),
        ("v=1.2.3 at=12:30 day=2024-05-01 size=10MB n=1,234 x=abc y= =3 no=nano", []),
        ("step=5", []),
        ("=" * 70_000, []),
        ("a" * 70_000 + "=1", []),
    ],
)
def test_pairs_in_the_log(tmp_path: Path, line: str, points: list[Point]) -> None:
    assert printed(tmp_path, source("log"), line + "\n") == points


def test_names_choose_and_a_group_prefixes(tmp_path: Path) -> None:
    only = source("log", names=["loss", "epoch"], group="train")
    assert printed(tmp_path, only, "epoch=2 loss=1 acc=2\nacc=3\n") == [
        (2, {"train/epoch": 2, "train/loss": 1})
    ]


def test_progress_bars_count_as_lines(tmp_path: Path) -> None:
    task = Task(tmp_path, source("log"))
    assert task.print("10% step=1 loss=3\r20% step=2 loss=2\r") == [(1, {"loss": 3}), (2, {"loss": 2})]


def test_the_last_line_needs_no_end(tmp_path: Path) -> None:
    task = Task(tmp_path, source("log"))
    assert task.print("loss=0.1") == []
    assert task.print("25") == []
    assert task.end() == [(None, {"loss": 0.125})]


# ── regex ──


def test_named_groups_are_metrics_and_step_is_the_step(tmp_path: Path) -> None:
    pattern = r"^iter (?P<step>\d+): (?:loss (?P<loss>\S+)|acc (?P<acc>\S+)%)$"
    text = "iter 1: loss 0.5\nother\niter 2: acc 90%\niter 3: loss -1e-2\n"
    expected = [(1, {"loss": 0.5}), (2, {"acc": 90}), (3, {"loss": -0.01})]
    assert printed(tmp_path, source("regex", pattern=pattern), text) == expected


def test_a_match_over_several_lines_counts_once_and_at_once(tmp_path: Path) -> None:
    task = Task(tmp_path, source("regex", pattern=r"epoch (?P<step>\d+)\n(?:.*\n)*?loss: (?P<loss>[\d.]+)"))
    assert task.print("epoch 1\nstill busy\n") == []
    assert task.print("loss: 0.5\n") == [(1, {"loss": 0.5})]
    assert task.print("a\nb\nc\nd\ne\n") == [(1, {"loss": 0.5})]
    assert task.print("epoch 2\na\nb\nloss: 0.4\n")[1:] == [(2, {"loss": 0.4})]
    assert task.print("epoch 3\na\nb\nc\nloss: 0.3\n")[2:] == []  # five lines; the window has four


def test_a_part_that_comes_later_still_counts(tmp_path: Path) -> None:
    task = Task(
        tmp_path, source("regex", pattern=r"at (?P<step>\d+) loss (?P<loss>\d+)\n(?:acc (?P<acc>\d+))?")
    )
    assert task.print("at 1 loss 5\n") == [(1, {"loss": 5})]
    assert task.print("acc 6\nat 2 loss 4\n") == [(1, {"loss": 5}), (1, {"acc": 6}), (2, {"loss": 4})]


@given(
    numbers=st.lists(st.integers(0, 9), max_size=20),
    window=st.integers(1, 6),
    gaps=st.lists(st.booleans(), min_size=20, max_size=20),
)
def test_every_match_of_one_line_counts_exactly_once(
    tmp_path_factory: pytest.TempPathFactory, numbers: list[int], window: int, gaps: list[bool]
) -> None:
    task = Task(tmp_path_factory.mktemp("t"), source("regex", pattern=r"x(?P<x>\d)", window=window))
    for value, gap in zip(numbers, gaps, strict=False):
        task.print(f"x{value} x{value}" + ("\n\n" if gap else "\n"))
    assert [values["x"] for _, values in task.end()] == [n for n in numbers for _ in range(2)]


def test_pairs_of_lines_do_not_overlap(tmp_path: Path) -> None:
    points = printed(
        tmp_path, source("regex", pattern=r"(?P<a>\d)\n(?P<b>\d)\n", window=3), "1\n2\n3\n4\n5\n6\n7\n"
    )
    assert [values for _, values in points] == [{"a": 1, "b": 2}, {"a": 3, "b": 4}, {"a": 5, "b": 6}]


def test_what_is_no_number_is_noted_once(tmp_path: Path) -> None:
    task = Task(tmp_path, source("regex", pattern=r"loss (?P<loss>\w+) at (?P<step>\S+)", group="g"))
    assert task.print("loss bad at 1\nloss 3 at 1.5\nloss worse at 2\n") == [(None, {"g/loss": 3})]
    [loss, step] = task.collector.notes
    assert loss.endswith("group loss is not a number (2 times), first: 'bad'")
    assert step.endswith("group step is not a whole number, first: '1.5'")


def test_a_pattern_that_takes_for_ever_is_switched_off_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(collect, "PATTERN_SECONDS", 0.05)
    before = signal.getsignal(signal.SIGVTALRM)
    task = Task(tmp_path, source("regex", pattern=r"(?P<x>(a+)+)$"), source("log"))
    assert task.print("a" * 50 + "!\nloss=1\n") == [(None, {"loss": 1})]
    [note] = task.collector.notes
    assert "switched off" in note
    assert task.print("a" * 50 + "!\nloss=2\n")[1:] == [(None, {"loss": 2})]
    assert signal.getitimer(signal.ITIMER_VIRTUAL) == (0.0, 0.0)
    assert signal.getsignal(signal.SIGVTALRM) == before


def test_it_works_outside_of_the_main_thread(tmp_path: Path) -> None:
    task = Task(tmp_path, source("regex", pattern=r"x(?P<x>\d)"))
    thread = threading.Thread(target=task.print, args=("x1\n",))
    thread.start()
    thread.join()
    assert task.points() == [(None, {"x": 1})]


def test_a_source_that_cannot_be_is_noted(tmp_path: Path) -> None:
    task = Task(tmp_path, source("regex", pattern="("), source("log"))
    assert len(task.collector.notes) == 1
    assert task.print("a=1\n") == [(None, {"a": 1})]


# ── file ──


def append(path: Path, text: str) -> None:
    with path.open("a") as file:
        file.write(text)


def test_json_lines_are_followed(tmp_path: Path) -> None:
    task = Task(tmp_path, source("file"))
    file = task.logs / "metrics.jsonl"
    assert task.poll() == []
    append(file, '{"step": 1, "loss": 0.5, "phase": "train"}\n{"epoch": 2, "lo')
    assert task.poll() == [(1, {"loss": 0.5})]
    assert task.poll() == [(1, {"loss": 0.5})]
    append(file, 'ss": NaN}\n\nnot json\n[1]\n{"values": {"acc": "inf"}, "step": 3, "time": 1.7e9}\n')
    assert task.poll()[1:] == [(2, {"loss": "nan"}), (3, {"acc": "inf"})]
    assert task.records()[-1]["time"] == 1.7e9
    [note] = task.collector.notes
    assert note == "metrics 1 (file): lines that are not JSON objects (2 times), first: 'not json'"


def test_a_time_that_is_a_duration_is_a_metric(tmp_path: Path) -> None:
    task = Task(tmp_path, source("file", path="a/b.json"))
    (task.logs / "a").mkdir()
    append(
        task.logs / "a" / "b.json",
        '{"epoch": 1, "time": 12.5}\n{"epoch": 2, "time": 1700000000, "loss": 1}\n',
    )
    assert task.poll() == [(1, {"time": 12.5}), (2, {"loss": 1})]


def test_the_lines_of_ffdl_are_understood(tmp_path: Path) -> None:
    task = Task(tmp_path, source("file", path="evaluation-metrics.txt", names=["accuracy"]))
    record = {
        "meta": {"training_id": "t"},
        "grouplabel": "test",
        "etimes": {"iteration": {"type": 2, "value": "20"}},
        "values": {"accuracy": {"type": 3, "value": "0.97"}, "loss": {"type": 3, "value": 0.1}},
    }
    append(task.logs / "evaluation-metrics.txt", json.dumps(record) + "\n")
    assert task.poll() == [(20, {"test/accuracy": 0.97})]


LINES = [json.dumps({"step": step, "loss": step / 4}) for step in range(6)]
TEXT = "\n".join(LINES) + "\n"
ALL = [(step, {"loss": step / 4}) for step in range(6)]


@given(
    cuts=st.lists(st.tuples(st.integers(0, len(TEXT)), st.booleans()), max_size=8).map(sorted),
    read=st.sampled_from([40, 1 << 21]),
    ended=st.booleans(),
)
def test_a_file_cut_anywhere_is_read_once_also_over_restarts(
    tmp_path_factory: pytest.TempPathFactory, cuts: list[tuple[int, bool]], read: int, ended: bool
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(collect, "READ", read)
        task = Task(tmp_path_factory.mktemp("t"), source("file"))
        file, at = task.logs / "metrics.jsonl", 0
        for cut, restart in cuts:
            append(file, TEXT[at:cut])
            at = max(at, cut)
            if restart:
                task.restart()
            else:
                task.poll()
        append(file, TEXT[at:] if ended else TEXT[at:-1])
        assert task.end() == ALL


def test_a_file_that_is_written_anew_is_read_anew(tmp_path: Path) -> None:
    task = Task(tmp_path, source("file"))
    file = task.logs / "metrics.jsonl"
    file.write_text('{"step": 1, "loss": 1}\n{"step": 2, "loss": 1}\n')
    assert len(task.poll()) == 2
    file.write_text('{"step": 1, "loss": 2}\n')
    assert task.poll()[2:] == [(1, {"loss": 2})]
    file.write_text('{"step": 9, "loss": 3}\n{"step": 2, "loss": 3}\n')  # longer, but another file
    assert task.poll()[3:] == [(9, {"loss": 3}), (2, {"loss": 3})]


def test_a_line_without_end_is_skipped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(collect, "READ", 100)
    task = Task(tmp_path, source("file"))
    append(task.logs / "metrics.jsonl", "x" * 250 + '\n{"a": 1}\n')
    assert task.end() == [(None, {"a": 1})]


def test_a_file_that_cannot_be_read_is_noted_and_tried_again(tmp_path: Path) -> None:
    task = Task(tmp_path, source("file"))
    file = task.logs / "metrics.jsonl"
    file.mkdir()
    assert task.poll() == []
    assert "Is a directory" in task.collector.notes[0]
    file.rmdir()
    append(file, '{"a": 1}\n')
    assert task.poll() == [(None, {"a": 1})]


# ── tensorboard ──


def events(path: Path, *points: tuple[str, int, float]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("ab") as file:
        writer = RecordWriter(file)
        for tag, step, value in points:
            summary = Summary(value=[Summary.Value(tag=tag, simple_value=value)])
            writer.write(Event(wall_time=1.7e9, step=step, summary=summary).SerializeToString())
        writer.flush()


def test_scalars_of_all_runs_are_followed(tmp_path: Path) -> None:
    task = Task(tmp_path, source("tensorboard"))
    root, run = task.logs / "events.out.tfevents.1", task.logs / "val" / "events.out.tfevents.2"
    assert task.poll() == []
    events(root, ("loss", 1, 0.5))
    assert task.poll() == [(1, {"loss": 0.5})]
    assert task.records()[0]["time"] == 1.7e9
    events(run, ("loss", 1, 0.75))
    events(root, ("loss", 2, 0.25))
    assert task.poll()[1:] == [(2, {"loss": 0.25}), (1, {"val/loss": 0.75})]
    task.restart()
    events(root, ("loss", 3, 0.125))
    assert task.end()[3:] == [(3, {"loss": 0.125})]
    assert task.collector.notes == []


def test_a_folder_names_and_a_group(tmp_path: Path) -> None:
    task = Task(tmp_path, source("tensorboard", path="tb", names=["loss"], group="train"))
    events(task.logs / "tb" / "run" / "x.tfevents", ("loss", 1, 0.5), ("lr", 1, 0.5))
    events(task.logs / "elsewhere" / "x.tfevents", ("loss", 1, 0.5))
    assert task.poll() == [(1, {"train/run/loss": 0.5})]


def test_damage_is_noted(tmp_path: Path) -> None:
    task = Task(tmp_path, source("tensorboard"))
    file = task.logs / "x.tfevents"
    events(file, ("a", 1, 0.5), ("b", 1, 0.5), ("c", 1, 0.5))
    data = bytearray(file.read_bytes())
    size = len(data) // 3
    data[size + 14] ^= 1
    file.write_bytes(data)
    assert task.poll() == [(1, {"a": 0.5}), (1, {"c": 0.5})]
    [note] = task.collector.notes
    assert note == f"metrics 1 (tensorboard): damaged records, first: '{file}'"
    file.write_bytes(data + b"\0" * 16)
    assert len(task.end()) == 2
    assert task.collector.notes[1:] == [
        f"metrics 1 (tensorboard): unreadable from a damaged length on, first: '{file}, byte {3 * size}'"
    ]


# ── the whole ──


def test_no_sources_cost_nothing(tmp_path: Path) -> None:
    collector = Collector([], str(tmp_path / "nowhere"), str(tmp_path / "out"))
    collector.feed(b"loss=1\n")
    collector.poll()
    collector.close()
    assert list(tmp_path.iterdir()) == []


def test_quiet_files_are_not_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    task = Task(tmp_path, source("file"), source("tensorboard"))
    append(task.logs / "metrics.jsonl", '{"a": 1}\n')
    events(task.logs / "x.tfevents", ("b", 1, 0.5))
    assert len(task.poll()) == 2
    monkeypatch.setattr("builtins.open", pytest.fail)
    assert len(task.poll()) == 2


def test_a_full_disk_is_survived_and_said(tmp_path: Path) -> None:
    task = Task(tmp_path / "gone", source("log"), source("file"))
    append(task.logs / "metrics.jsonl", '{"a": 1}\n')
    os.rename(tmp_path / "gone", tmp_path / "moved")
    task.print("loss=1\n")
    os.rename(tmp_path / "moved", tmp_path / "gone")
    assert task.poll() == [(None, {"loss": 1}), (None, {"a": 1})]
    os.rename(tmp_path / "gone", tmp_path / "moved")
    lost = Collector([source("log")], "x", str(tmp_path / "nowhere" / "out"))
    lost.feed(b"loss=1\n")
    lost.close()
    assert lost.notes == [f"1 metric lines were lost: {tmp_path}/nowhere/out (No such file or directory)"]
    lost.close()
