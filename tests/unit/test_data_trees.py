"""A version as a folder of files: made once, read-only, counted, and never outside of its folder."""

from __future__ import annotations

import json
import os
import stat
import struct
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.datasets import Store, bytes_of, files_below
from weft.data.cache.admission import NOTHING, Room
from weft.data.cache.books import TREE, Books
from weft.data.cache.files import Files
from weft.data.cache.trees import Trees, needed
from weft.data.cache.versions import Part, Version, check_name
from weft.data.errors import Corrupt, NoRoom, Unreachable

SAMPLES = {"a/b/one": b"1", "a/two": b"22", "three": b"333", "empty": b"", "ünï/çödé": b"5"}
ROOMY = Room(1 << 30, 1000)


class Cache:
    def __init__(self, folder: Path, limit: Room = ROOMY):
        self.store = Store(folder / "store")
        self.books = Books(folder / "books.sqlite", limit)
        self.trees = Trees(folder / "cache", self.books)
        self.brought: list[str] = []

    def version(self, name: str) -> Version:
        return Version(self.store.folder / "versions" / name, name)

    def bring(self, part: Part) -> int:
        self.brought.append(part.digest)
        return os.open(self.store.path(part.digest), os.O_RDONLY)

    def make(self, name: str) -> Path:
        return self.trees.make(self.version(name), "faces", None, 1.0, self.bring)


@pytest.fixture
def cache(fast_folder: Path) -> Iterator[Cache]:
    made = Cache(fast_folder)
    yield made
    made.books.close()


@pytest.mark.parametrize("pack", [1, 3])
def test_all_samples_are_there_with_their_names_and_bytes(cache: Cache, pack: int) -> None:
    tree = cache.make(cache.store.add(SAMPLES, pack))
    assert files_below(tree) == SAMPLES


def test_nobody_may_write_there_whatever_the_umask(cache: Cache) -> None:
    before = os.umask(0)
    try:
        tree = cache.make(cache.store.add(SAMPLES, 2))
    finally:
        os.umask(before)
    for path in [tree, *tree.rglob("*")]:
        assert stat.S_IMODE(path.stat().st_mode) == (0o755 if path.is_dir() else 0o444)


def test_it_is_made_once_however_many_ask(cache: Cache) -> None:
    name = cache.store.add({f"{n:03}": bytes_of(n, 100) for n in range(50)}, 5)
    threads = [threading.Thread(target=cache.make, args=(name,)) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert len(cache.brought) == 10
    assert len(files_below(cache.trees.path(name))) == 50


def test_no_file_of_a_tree_is_a_part_itself(cache: Cache) -> None:
    """Who has the same user can write to a read-only file: to one of his own, not to what all read."""
    name = cache.store.add({"large": bytes_of(1, 10_000)})
    (part,) = map(cache.store.path, cache.store.parts(name))
    part.chmod(0o444)
    tree = cache.make(name)
    assert (tree / "large").read_bytes() == part.read_bytes()
    assert not (tree / "large").samefile(part)


def test_where_jobs_see_it_through_a_read_only_mount_a_part_of_one_sample_is_linked_unless_somebody_may_write_to_it(
    cache: Cache,
) -> None:
    cache.trees = Trees(cache.trees.folder.parent, cache.books, mounted=True)
    name = cache.store.add({"closed": bytes_of(1, 10_000), "open": bytes_of(2, 10_000)})
    closed, opened = map(cache.store.path, cache.store.parts(name))
    closed.chmod(0o444)
    opened.chmod(0o644)
    tree = cache.make(name)
    assert (tree / "closed").samefile(closed)
    assert not (tree / "open").samefile(opened)
    assert (tree / "open").read_bytes() == opened.read_bytes()


def test_what_passes_becomes_the_tree_s_file(cache: Cache, tmp_path: Path) -> None:
    """A large part that is not kept is written once: its nameless file gets its name in the tree."""
    files = Files(cache.trees.folder.parent)
    data = bytes_of(1, 10_000)
    name = cache.store.add({"large": data})
    passed: list[int] = []

    def bring(part: Part) -> int:
        passing = files.passing(65 << 20)
        passing.write(data)
        passed.append(os.fstat(passing.fd).st_ino)
        return passing.fd

    tree = cache.trees.make(cache.version(name), "faces", None, 1.0, bring)
    assert (tree / "large").read_bytes() == data
    assert (tree / "large").stat().st_ino == passed[0]


def test_it_is_counted_with_its_folders(cache: Cache) -> None:
    name = cache.store.add(SAMPLES, 2)
    tree = cache.make(name)
    inodes = 1 + len(list(tree.rglob("*")))
    assert cache.books.total() == needed(cache.version(name)) == Room(7, inodes)
    assert [entry.kind for entry in cache.books.entries()] == [TREE]


@pytest.mark.parametrize(
    ("limit", "words"),
    [
        (Room(6, 100), "need 7 bytes, the cache has 6 left"),
        (Room(100, 8), "need 9 inodes, the cache has 8 left"),
    ],
)
def test_without_room_it_says_what_it_needs(fast_folder: Path, limit: Room, words: str) -> None:
    cache = Cache(fast_folder, limit)
    with pytest.raises(NoRoom, match=words):
        cache.make(cache.store.add(SAMPLES, 2))
    assert cache.books.total() == NOTHING
    assert not list(cache.trees.folder.glob("*[!k]"))
    cache.books.close()


def test_one_that_fails_half_way_leaves_nothing(cache: Cache) -> None:
    name = cache.store.add(SAMPLES)

    def bring(part: Part) -> int:
        if len(cache.brought) == 3:
            raise Unreachable("gone")
        return cache.bring(part)

    with pytest.raises(Unreachable):
        cache.trees.make(cache.version(name), "faces", None, 1.0, bring)
    assert cache.books.total() == NOTHING
    assert not [path for path in cache.trees.folder.iterdir() if path.is_dir()]
    assert files_below(cache.make(name)) == SAMPLES


def test_what_the_dead_left_is_swept(cache: Cache) -> None:
    name = cache.store.add(SAMPLES)
    for left in (f".{name}", f".{name}.leaving"):
        (cache.trees.folder / left / "a").mkdir(parents=True)
    assert cache.trees.sweep() == 2
    assert files_below(cache.make(name)) == SAMPLES
    assert cache.trees.sweep() == 0
    cache.trees.remove(name)
    assert not [path for path in cache.trees.folder.iterdir() if path.is_dir()]


# ── names ──

BAD = [
    "../up",
    "a/../../up",
    "/etc/passwd",
    "a//b",
    "",
    ".",
    "a/.",
    "a/",
    "a\0b",
    "a\nb",
    "x" * 1025,
    "a/\x7f",
]


@pytest.mark.parametrize("name", BAD)
def test_a_name_that_leads_out_is_refused_wherever_the_index_came_from(cache: Cache, name: str) -> None:
    with pytest.raises(Corrupt, match="no name of a file below a folder"):
        cache.make(cache.store.add({"good": b"1", name: b"2"}, 2))
    assert not [path for path in cache.trees.folder.iterdir() if path.is_dir()]
    assert not (cache.trees.folder.parent / "up").exists()


@given(st.text(max_size=30) | st.lists(st.sampled_from(["..", ".", "", "a", "b"]), max_size=6).map("/".join))
def test_whatever_passes_stays_below(name: str) -> None:
    try:
        check_name(name)
    except (Corrupt, UnicodeEncodeError):
        return
    assert os.path.normpath(f"/root/tree/{name}") == f"/root/tree/{name}"


@pytest.mark.parametrize("names", [["a", "a/b"], ["a/b", "a/b/c"]])
def test_a_file_that_is_also_a_folder_is_refused(cache: Cache, names: list[str]) -> None:
    with pytest.raises(Corrupt, match=r"also a file|two samples"):
        cache.make(cache.store.add(dict.fromkeys(names, b"1"), 2))


def test_two_samples_of_one_name_are_refused(cache: Cache) -> None:
    name = cache.store.add({"aa": b"1", "ab": b"2"}, 2)
    (cache.store.folder / "versions" / name / "names.txt").write_bytes(b"aaaa")
    with pytest.raises(Corrupt, match="two samples"):
        cache.make(name)


def test_an_index_that_points_past_its_part_is_corrupt(cache: Cache) -> None:
    name = cache.store.add({"a": b"123", "b": b"456"}, 2)
    index = cache.store.folder / "versions" / name / "samples.idx"
    index.write_bytes(struct.pack("<2Q2Q2I", 0, 4, 3, 3, 0, 0))
    with pytest.raises(Corrupt, match="reaches beyond the end of its part"):
        cache.version(name).check()
    with pytest.raises(Corrupt, match="ended 1 bytes early"):
        cache.make(name)


@pytest.mark.parametrize(
    "spoilt",
    [
        {"format": 2},
        {"version": "0" * 32},
        {"parts": [{"digest": "../x", "size": 1, "place": {}}]},
        {"parts": 5},
    ],
)
def test_a_version_that_says_strange_things_is_corrupt(cache: Cache, spoilt: dict[str, object]) -> None:
    name = cache.store.add(SAMPLES)
    path = cache.store.folder / "versions" / name / "version.json"
    path.write_text(json.dumps({**json.loads(path.read_bytes()), **spoilt}))
    with pytest.raises(Corrupt, match=r"version\.json cannot be read"):
        cache.version(name)
