"""The folder that a version looks like: its names as a tree, its bytes as they are."""

from __future__ import annotations

import errno
import os
import stat
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.samples import some, stored
from weft.data.errors import Refused, Unreachable
from weft.data.fuse import Samples, serve
from weft.runtime.data.parts import StoreParts

contents = st.dictionaries(
    st.text("ab/-.0é", min_size=1, max_size=9).filter(lambda n: not {"", ".", ".."} & set(n.split("/"))),
    st.binary(max_size=60),
    max_size=15,
).filter(lambda c: not any(a != b and b.startswith(a + "/") for a in c for b in c))


def listed(samples: Samples, path: str, at_once: int) -> list[str]:
    """As the kernel lists: so many entries, and then from the last one's offset on."""
    found: list[str] = []
    offset = 0
    while True:
        entries = samples.readdir_with_offset(path, offset, 0)
        page = [entry for entry, _ in zip(entries, range(at_once), strict=False)]
        if not page:
            return found
        found += [name for name, _, _ in page]
        offset = page[-1][2]


def walked(samples: Samples, at_once: int) -> dict[str, bytes]:
    files: dict[str, bytes] = {}
    folders = ["/"]
    while folders:
        folder = folders.pop()
        names = listed(samples, folder, at_once)
        assert names[:2] == [".", ".."]
        assert len(set(names)) == len(names)
        for name in names[2:]:
            path = os.path.join(folder, name)
            about = samples.getattr(path)
            if stat.S_ISDIR(about["st_mode"]):
                assert about["st_mode"] & 0o777 == 0o555
                folders.append(path)
            else:
                assert about["st_mode"] & 0o777 == 0o444
                files[path[1:]] = data = samples.read(path, 1 << 20, 0, 0)
                assert about["st_size"] == len(data)
    return files


@given(contents, st.integers(1, 5))
def test_what_is_seen_is_what_there_is(content: dict[str, bytes], at_once: int) -> None:
    with tempfile.TemporaryDirectory(dir="/dev/shm" if os.access("/dev/shm", os.W_OK) else None) as folder:
        store, version = stored(Path(folder), content)
        assert walked(Samples(StoreParts(str(store.root)), version), at_once) == content


def test_what_is_not_there_is_not_there(fast_folder: Path) -> None:
    store, version = stored(fast_folder, {"a/b.txt": b"x", "a/b/c": b"y", "e": b""})
    samples = Samples(StoreParts(str(store.root)), version)
    for path in ("/x", "/a/x", "/a/b.tx", "/a/b.txt/c", "/a/b/", "/e/x", "/\udcff"):
        with pytest.raises(FileNotFoundError) as caught:
            samples.getattr(path)
        assert caught.value.errno == errno.ENOENT
    for path, number in (("/x", errno.ENOENT), ("/e", errno.ENOTDIR)):
        with pytest.raises((FileNotFoundError, NotADirectoryError)) as caught:
            list(samples.readdir_with_offset(path, 0, 0))
        assert caught.value.errno == number


class Far(StoreParts):
    """Parts that are on another machine, some bytes at a time."""

    gone = False

    def part(self, version: str, part: int, wait: bool = True) -> int | None:
        return None

    def read(self, version: str, part: int, offset: int, length: int) -> bytes:
        if self.gone:
            raise Unreachable("the node is gone; try later")
        file = super().part(version, part)
        assert file is not None
        try:
            return os.pread(file, min(length, 100), offset)
        finally:
            os.close(file)

    def ahead(self, version: str, parts: Sequence[int]) -> None: ...


def test_parts_that_are_not_here_are_read_from_where_they_are(fast_folder: Path) -> None:
    content = some(20)
    store, version = stored(fast_folder, content)
    parts = Far(str(store.root))
    samples = Samples(parts, version)
    assert walked(samples, 100) == content
    name = max(content, key=lambda name: len(content[name]))
    assert samples.read("/" + name, 700, 300, 0) == content[name][300:1000]
    parts.gone = True
    with pytest.raises(OSError, match="the node is gone") as caught:
        samples.read("/" + name, 100, 0, 0)
    assert caught.value.errno == errno.EAGAIN


def test_reading_beyond_the_end_gives_nothing_of_the_next_sample(fast_folder: Path) -> None:
    store, version = stored(fast_folder, {"a": b"one", "b": b"two"})
    samples = Samples(StoreParts(str(store.root)), version)
    assert samples.read("/a", 100, 1, 0) == b"ne"
    assert samples.read("/a", 100, 3, 0) == b""
    assert samples.read("/a", 100, 99, 0) == b""


def test_so_many_parts_are_open_and_no_more(fast_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from weft.data import fuse, packs

    monkeypatch.setattr(packs, "LARGEST", 3000)
    monkeypatch.setattr(fuse, "OPEN", 3)
    monkeypatch.setattr(fuse, "KNOWN", 5)
    content = some(60)
    store, version = stored(fast_folder, content)
    samples = Samples(StoreParts(str(store.root)), version)
    before = len(os.listdir("/proc/self/fd"))
    assert walked(samples, 100) == content
    assert len(os.listdir("/proc/self/fd")) - before == 3
    assert len(samples._numbers) <= 5


def test_what_is_not_installed_is_named(fast_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store, version = stored(fast_folder, {"a": b"one"})
    monkeypatch.setitem(sys.modules, "mfusepy", None)
    with pytest.raises(Refused, match=r"mfusepy .* and libfuse 3"):
        serve(StoreParts(str(store.root)), version, fast_folder)
