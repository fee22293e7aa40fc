"""The event-file reader, against files that TensorBoard's own writer made."""

from __future__ import annotations

import math
import struct
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from weft.runtime import tensorboard
from weft.runtime.tensorboard import Damaged, EventFile, EventFolder, Scalar, fields, masked_crc32c, scalars

pytest.importorskip("tensorboard")
from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.compat.proto.summary_pb2 import HistogramProto, Summary
from tensorboard.compat.proto.tensor_pb2 import TensorProto
from tensorboard.compat.proto.tensor_shape_pb2 import TensorShapeProto
from tensorboard.summary.writer.event_file_writer import EventFileWriter
from tensorboard.summary.writer.record_writer import RecordWriter


def scalar(tag: str, step: int, value: float, time: float = 1.7e9) -> Any:
    return Event(
        wall_time=time, step=step, summary=Summary(value=[Summary.Value(tag=tag, simple_value=value)])
    )


def tensor(tag: str, proto: Any) -> Any:
    return Event(wall_time=1.7e9, step=3, summary=Summary(value=[Summary.Value(tag=tag, tensor=proto)]))


def shape(*sizes: int) -> Any:
    return TensorShapeProto(dim=[TensorShapeProto.Dim(size=size) for size in sizes])


def write(path: Path, *events: Any) -> bytes:
    with path.open("wb") as file:
        writer = RecordWriter(file)
        for event in events:
            writer.write(event.SerializeToString())
        writer.close()
    return path.read_bytes()


def read_all(file: EventFile) -> list[Scalar]:
    found, before = [], -1
    while file.offset != before:
        before = file.offset
        found += file.read()
    return found


def test_what_tensorboard_writes_is_read(tmp_path: Path) -> None:
    writer = EventFileWriter(str(tmp_path))
    for step in range(100):
        writer.add_event(scalar("loss", step, 1 / (step + 1)))
    writer.close()
    [path] = EventFolder(str(tmp_path)).find()
    assert read_all(EventFile(path)) == [
        Scalar("loss", step, 1.7e9, struct.unpack("<f", struct.pack("<f", 1 / (step + 1)))[0])
        for step in range(100)
    ]


FLOAT, DOUBLE, INT32, STRING, INT64, BOOL, BFLOAT16, HALF, UINT64 = 1, 2, 3, 7, 9, 10, 14, 19, 23


@pytest.mark.parametrize(
    ("proto", "value"),
    [
        (TensorProto(dtype=FLOAT, tensor_content=struct.pack("<f", 0.5)), 0.5),
        (TensorProto(dtype=FLOAT, float_val=[0.5]), 0.5),
        (TensorProto(dtype=FLOAT, float_val=[0.0]), 0.0),
        (TensorProto(dtype=FLOAT), 0.0),
        (TensorProto(dtype=FLOAT, tensor_shape=shape(1, 1), float_val=[0.5]), 0.5),
        (TensorProto(dtype=DOUBLE, tensor_content=struct.pack("<d", 0.1)), 0.1),
        (TensorProto(dtype=DOUBLE, double_val=[-0.1]), -0.1),
        (TensorProto(dtype=INT32, int_val=[-7]), -7),
        (TensorProto(dtype=INT64, int64_val=[-7]), -7),
        (TensorProto(dtype=INT64, tensor_content=struct.pack("<q", -(1 << 40))), -(1 << 40)),
        (TensorProto(dtype=UINT64, uint64_val=[(1 << 64) - 1]), float((1 << 64) - 1)),
        (TensorProto(dtype=BOOL, bool_val=[True]), 1),
        (TensorProto(dtype=HALF, half_val=[0x3800]), 0.5),
        (TensorProto(dtype=BFLOAT16, half_val=[0x3F00]), 0.5),
        (TensorProto(dtype=BFLOAT16, tensor_content=b"\x00\x3f"), 0.5),
        (TensorProto(dtype=FLOAT, float_val=[0.5, 0.6]), None),
        (TensorProto(dtype=INT32, int_val=[1, 2]), None),
        (TensorProto(dtype=FLOAT, tensor_shape=shape(3), float_val=[0.5]), None),
        (TensorProto(dtype=FLOAT, tensor_shape=shape(0)), None),
        (TensorProto(dtype=FLOAT, tensor_content=struct.pack("<ff", 0.5, 0.6)), None),
        (TensorProto(dtype=STRING, string_val=[b"text"]), None),
    ],
)
def test_tensors_of_one_number_are_scalars(proto: Any, value: float | None) -> None:
    expected = [] if value is None else [Scalar("t", 3, 1.7e9, value)]
    assert scalars(tensor("t", proto).SerializeToString()) == expected


def test_other_events_are_passed_by(tmp_path: Path) -> None:
    path = tmp_path / "events"
    histogram = Summary(value=[Summary.Value(tag="h", histo=HistogramProto(min=1, max=2))])
    write(
        path,
        Event(wall_time=1.0, file_version="brain.Event:2"),
        Event(wall_time=1.0, graph_def=b"x" * 5000),
        Event(wall_time=1.0, step=1, summary=histogram),
        scalar("nan", -5, math.nan),
    )
    [found] = read_all(EventFile(str(path)))
    assert (found.tag, found.step) == ("nan", -5)
    assert math.isnan(found.value)


def test_the_checksum_is_the_one_of_the_standard() -> None:
    def mask(crc: int) -> int:
        return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF

    assert masked_crc32c(b"123456789") == mask(0xE3069283)
    assert masked_crc32c(bytes(32)) == mask(0x8A9136AA)


EVENTS = [scalar(f"tag{i}", i, i / 8, time=float(i)) for i in range(6)]
EXPECTED = [Scalar(f"tag{i}", i, float(i), i / 8) for i in range(6)]


@given(cuts=st.lists(st.integers(0, 300), max_size=8).map(sorted))
def test_a_file_cut_at_any_byte_is_read_whole_in_the_end(
    tmp_path_factory: pytest.TempPathFactory, cuts: list[int]
) -> None:
    path = tmp_path_factory.mktemp("cut") / "events"
    whole = write(path, *EVENTS)
    file = EventFile(str(path))
    found: list[Scalar] = []
    for cut in [*cuts, len(whole)]:
        path.write_bytes(whole[:cut])
        found += file.read()
        file = EventFile(str(path), file.offset)  # another process goes on from here
    assert found == EXPECTED


@given(data=st.data())
def test_damage_never_invents_a_value(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    path = tmp_path_factory.mktemp("damage") / "events"
    whole = bytearray(write(path, *EVENTS))
    at = data.draw(st.integers(0, len(whole) - 1))
    whole[at] ^= data.draw(st.integers(1, 255))
    path.write_bytes(whole)
    file = EventFile(str(path))
    found = read_all(file)
    assert all(point in EXPECTED for point in found)
    assert found == [point for point in EXPECTED if point in found]
    assert file.damaged + file.stuck == 1
    if not file.stuck:
        assert len(found) == len(EXPECTED) - 1


@given(st.binary(max_size=200))
def test_any_bytes_are_scalars_or_damaged(data: bytes) -> None:
    try:
        assert isinstance(scalars(data), list)
        list(fields(data))
    except Damaged:
        pass


def test_large_records_are_stepped_over_and_a_budget_stops_reading(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tensorboard, "MAX_RECORD", 1000)
    path = tmp_path / "events"
    write(path, EVENTS[0], Event(graph_def=b"x" * 5000), EVENTS[1], EVENTS[2])
    file = EventFile(str(path))
    assert file.read(budget=100) == EXPECTED[:1]
    assert file.read(budget=1) == EXPECTED[1:2]
    assert file.read() == EXPECTED[2:3]


def test_large_records_with_a_scalar_are_checked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tensorboard, "CHECKED", 10)
    path = tmp_path / "events"
    whole = bytearray(write(path, EVENTS[0], EVENTS[1]))
    whole[-5] ^= 1
    path.write_bytes(whole)
    file = EventFile(str(path))
    assert file.read() == EXPECTED[:1]
    assert file.damaged == 1


def test_files_and_folders_that_come_later_are_found(tmp_path: Path) -> None:
    root = tmp_path / "runs"
    folder = EventFolder(str(root))
    assert folder.find() == []
    root.mkdir()
    (root / "notes.txt").touch()
    assert folder.find() == []
    (root / "train" / "deep").mkdir(parents=True)
    assert folder.find() == []
    (root / "train" / "deep" / "events.out.tfevents.1").touch()
    (root / "events.out.tfevents.2").touch()
    assert folder.find() == [
        str(root / "events.out.tfevents.2"),
        str(root / "train/deep/events.out.tfevents.1"),
    ]
