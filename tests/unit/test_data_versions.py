"""`verify` proves every byte of a version, and says what is wrong with which part and sample."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from support import samples
from support.samples import opened, some
from weft.data import digest, packs
from weft.data.errors import Corrupt, Missing, Refused
from weft.data.store import Store
from weft.data.versions import verify
from weft.runtime.data.index import Index


@pytest.fixture
def stored(fast_folder: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Store, str]:
    monkeypatch.setattr(packs, "SMALL", 4096)
    monkeypatch.setattr(packs, "LARGEST", 10_000)
    return samples.stored(fast_folder, some(60))


def part_of(store: Store, version: str, name: str) -> tuple[Path, int]:
    """The file with a sample, and where it begins there."""
    index = store.index(version)
    number = index.number(name)
    file = store.part(index.parts[index.part[number]]["digest"])
    file.chmod(0o644)
    return file, index.offset[number]


def test_a_good_version(stored: tuple[Store, str]) -> None:
    report = verify(*stored)
    assert report.good
    assert (report.samples, report.parts) == (60, len(stored[0].index(stored[1]).parts))
    assert str(report).startswith(f"version {stored[1][:12]} is good: 60 samples in {report.parts} parts, ")


def test_a_flipped_bit(stored: tuple[Store, str]) -> None:
    file, offset = part_of(*stored, "3/0010.bin")
    data = bytearray(file.read_bytes())
    data[offset] ^= 4
    file.write_bytes(data)
    report = verify(*stored)
    assert [(p.what, p.name) for p in report.problems][1:] == [("sample", "3/0010.bin")]
    assert "its content has the digest" in report.problems[0].cause
    assert "is damaged, 2 problems" in str(report)


def test_a_part_that_was_cut(stored: tuple[Store, str]) -> None:
    file, offset = part_of(*stored, "3/0010.bin")
    size = file.stat().st_size
    os.truncate(file, offset + 1)
    problems = verify(*stored).problems
    assert problems[0].cause == f"it has {offset + 1} bytes instead of {size}"
    assert "3/0010.bin" in {p.name for p in problems if p.what == "sample"}


def test_a_part_that_is_missing(stored: tuple[Store, str]) -> None:
    part_of(*stored, "3/0010.bin")[0].unlink()
    (problem,) = verify(*stored).problems
    assert (problem.what, problem.cause) == ("part", "it is missing")


def rewrite(name: str, change: Callable[[bytearray], Any]) -> Callable[[Path], None]:
    def lie(folder: Path) -> None:
        data = bytearray((folder / name).read_bytes())
        change(data)
        (folder / name).chmod(0o644)
        (folder / name).write_bytes(data)

    return lie


def document(change: Callable[[dict[str, Any]], Any]) -> Callable[[Path], None]:
    def lie(data: bytearray) -> None:
        about = json.loads(data)
        change(about)
        data[:] = json.dumps(about).encode()

    return rewrite("version.json", lie)


def put(data: bytearray, at: int, value: int, width: int = 8) -> None:
    data[at : at + width] = value.to_bytes(width, "little")


def swap_two_samples(data: bytearray) -> None:
    data[8 * 1 : 8 * 2], data[8 * 2 : 8 * 3] = data[8 * 2 : 8 * 3], data[8 * 1 : 8 * 2]


LIES: dict[str, Callable[[Path], None]] = {
    "an offset beyond the part": rewrite("samples.idx", lambda d: put(d, 8, 1 << 40)),
    "an offset that wraps around": rewrite("samples.idx", lambda d: put(d, 8, (1 << 64) - 1)),
    "an offset of another sample": rewrite("samples.idx", swap_two_samples),
    "a length": rewrite("samples.idx", lambda d: put(d, 60 * 8, 1)),
    "a length beyond the part": rewrite("samples.idx", lambda d: put(d, 60 * 8, 1 << 50)),
    "a part that does not exist": rewrite("samples.idx", lambda d: put(d, 60 * 16, 9999, 4)),
    "another part": rewrite("samples.idx", lambda d: put(d, 60 * 16, 3, 4)),
    "a table that is cut": rewrite("samples.idx", lambda d: d.__delitem__(slice(-4, None))),
    "a name": rewrite("names.txt", lambda d: d.__setitem__(3, d[3] + 1)),
    "a name that leads outside": rewrite("names.txt", lambda d: d.__setitem__(slice(0, 3), b"../")),
    "a name that is no UTF-8": rewrite("names.txt", lambda d: d.__setitem__(3, 0xFF)),
    "names that are cut": rewrite("names.txt", lambda d: d.__delitem__(slice(-4, None))),
    "where names begin": rewrite("names.idx", lambda d: put(d, 8, 3)),
    "where names begin, backwards": rewrite("names.idx", lambda d: put(d, 8, 1 << 40)),
    "a mark": rewrite("marks.bin", lambda d: d.__setitem__(100, d[100] ^ 1)),
    "marks that are cut": rewrite("marks.bin", lambda d: d.__delitem__(slice(-4, None))),
    "another version": document(lambda d: d.update(version="0" * 32)),
    "fewer bytes": document(lambda d: d.update(bytes=d["bytes"] - 1)),
    "a smaller largest": document(lambda d: d.update(largest=1)),
    "fewer samples": document(lambda d: d.update(samples=59)),
    "a digest": document(lambda d: d["parts"][0].update(digest="0" * 64)),
    "no digest": document(lambda d: d["parts"][0].update(digest="../../../etc/passwd")),
    "a size": document(lambda d: d["parts"][0].update(size=d["parts"][0]["size"] + 1)),
    "a place": document(lambda d: d["parts"][0].update(place={"kind": "moon"})),
    "no parts": document(lambda d: d.update(parts=[])),
    "no JSON": rewrite("version.json", lambda d: d.__delitem__(slice(50, None))),
    "another format": document(lambda d: d.update(format=2)),
    "no index": lambda folder: (folder / "samples.idx").unlink(),
    "no marks": lambda folder: (folder / "marks.bin").unlink(),
    "nothing": lambda folder: [file.unlink() for file in folder.iterdir()] and None,
}


@pytest.mark.parametrize("lie", LIES)
def test_an_index_that_lies(stored: tuple[Store, str], lie: str) -> None:
    store, version = stored
    LIES[lie](store.version(version))
    report = verify(store, version)
    assert not report.good
    assert "is damaged" in str(report)
    assert {problem.what for problem in report.problems} <= {"index", "part", "sample"}


def test_every_single_byte_of_the_table_counts(stored: tuple[Store, str]) -> None:
    """Except in the JSON, where there are spellings."""
    store, version = stored
    folder = store.version(version)
    for name in ("samples.idx", "names.idx", "names.txt", "marks.bin"):
        whole = (folder / name).read_bytes()
        (folder / name).chmod(0o644)
        for at in range(0, len(whole), 41):
            (folder / name).write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
            assert not verify(store, version, 1).good, (name, at)
        (folder / name).write_bytes(whole)
    assert verify(store, version).good


def test_a_reader_never_gets_fewer_bytes_than_the_sample_has(stored: tuple[Store, str]) -> None:
    store, version = stored
    file, offset = part_of(store, version, "3/0010.bin")
    os.truncate(file, offset + 1)
    with pytest.raises(Corrupt, match=r"3/0010.bin of version .* ends after 1 of \d+ bytes"):
        opened(store, version)["3/0010.bin"]


def test_a_part_that_is_gone_is_named(stored: tuple[Store, str]) -> None:
    store, version = stored
    part_of(store, version, "3/0010.bin")[0].unlink()
    with pytest.raises(Missing, match=r"part \d+ of version .* is not in .*verify"):
        opened(store, version)["3/0010.bin"]


def test_names_are_found_without_a_list_of_them(stored: tuple[Store, str]) -> None:
    names = stored[0].index(stored[1]).names
    expected = sorted(some(60), key=str.encode)
    assert list(names) == expected
    assert (names[0], names[-1], names[3:5]) == (expected[0], expected[-1], expected[3:5])
    assert [names.index(name) for name in expected] == list(range(60))
    assert [name in names for name in (expected[7], "", "zzz", "3/", 7)] == [True, False, False, False, False]
    with pytest.raises(ValueError, match="no sample is called 'x'"):
        names.index("x")


def test_what_cannot_be_opened_is_said(stored: tuple[Store, str]) -> None:
    store, version = stored
    with pytest.raises(Missing, match=r"holds no version: .*samples\.idx is missing"):
        Index.open(str(store.root))
    LIES["another format"](store.version(version))
    with pytest.raises(Refused, match="format 2, this Weft reads format 1"):
        store.index(version)


def test_a_digest_is_blake3() -> None:
    assert digest.of(b"") == "af1349b9f5f9a1a6a0404dea36dcc9499bcb25c9adc112b7cc9a93cae41f3262"
