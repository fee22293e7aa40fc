"""From files to a version: named by content, whole or not at all, and never with bytes that nobody had."""

from __future__ import annotations

import fcntl
import os
import random
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.samples import Listed, opened, some
from weft.data import digest, ingest, packs
from weft.data.cache.fetch import Read
from weft.data.cache.versions import Version
from weft.data.errors import Changed, DataError, Denied, Missing, NoRoom, Refused
from weft.data.ingest import Progress
from weft.data.pieces import in_pieces
from weft.data.sources import Object, check_name
from weft.data.sources.file import FileSource
from weft.data.store import Store
from weft.data.versions import verify

SRC = str(Path(__file__).parents[2] / "src")


@pytest.fixture
def store(fast_folder: Path) -> Store:
    return Store(fast_folder / "store")


@pytest.fixture
def small_packs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packs, "SMALL", 4096)
    monkeypatch.setattr(packs, "LARGEST", 10_000)


def files_in(folder: Path, content: dict[str, bytes]) -> Path:
    for name, data in content.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(data)
    return folder


def content_of(store: Store, version: str) -> dict[str, bytes]:
    return dict(opened(store, version))


# ── what a version is ──


def test_what_went_in_comes_out(store: Store, fast_folder: Path, small_packs: None) -> None:
    content = {**some(60), "empty": b"", "sub/ü é.txt": b"x"}
    made = ingest.ingest(FileSource(files_in(fast_folder / "in", content)), store, "faces")
    assert content_of(store, made.version) == content
    assert (made.samples, made.bytes, made.new) == (62, sum(map(len, content.values())), True)
    assert 5 < made.parts == made.read == made.stored < 62
    assert verify(store, made.version).good
    assert store.versions() == [made.version]
    assert os.listdir(store.root / "tmp") == []


def test_an_empty_source_is_a_version(store: Store) -> None:
    made = ingest.ingest(Listed({}), store, "none")
    assert (made.samples, made.parts) == (0, 0)
    assert content_of(store, made.version) == {}
    assert verify(store, made.version).good


contents = st.dictionaries(
    st.text("abc/-é", min_size=1, max_size=8).filter(lambda n: all(n.split("/"))),
    st.binary(max_size=60),
    max_size=12,
).filter(lambda c: not any(a != b and b.startswith(a + "/") for a in c for b in c))


@given(contents, st.randoms())
def test_the_version_is_of_the_content_and_of_nothing_else(content: dict[str, bytes], chance: Any) -> None:
    import tempfile

    with tempfile.TemporaryDirectory(dir="/dev/shm" if os.access("/dev/shm", os.W_OK) else None) as folder:
        store, other = Store(Path(folder) / "a"), Store(Path(folder) / "b")
        shuffled = list(content.items())
        chance.shuffle(shuffled)
        first = ingest.ingest(Listed(content), store, "k")
        assert ingest.ingest(Listed(dict(shuffled)), store, "other", pack="none", threads=1).new is False
        assert ingest.ingest(Listed(dict(shuffled)), other, "k", pack="none").version == first.version
        if content:
            name = chance.choice(sorted(content))
            for changed in (
                {**content, name: content[name] + b"!"},
                {n: d for n, d in content.items() if n != name},
                {n + "x" * (n == name): d for n, d in content.items()},
            ):
                assert ingest.ingest(Listed(changed), store, "k").version != first.version
        assert content_of(store, first.version) == content


def test_the_name_of_a_version_is_as_the_contract_says(store: Store) -> None:
    content = {"b": b"two", "a": b"one"}
    made = ingest.ingest(Listed(content), store, "k")
    text = "".join(f"{n}\0{len(content[n])}\0{digest.of(content[n])}\n" for n in ("a", "b"))
    assert made.version == digest.of(text.encode())[:32]


def test_small_ones_are_packed_in_the_order_of_names_and_large_ones_stay_alone() -> None:
    sizes = [3 << 20, 4 << 20, 20 << 20, 3 << 20, *[(4 << 20) - 1] * 8, 0]
    objects = [Object(f"{i:02d}", size, "") for i, size in enumerate(sizes)]
    plan = list(packs.plan(objects))
    assert plan == [[1], [2], [0, 3, 4, 5, 6, 7, 8, 9], [10, 11, 12]]
    assert all(sum(sizes[i] for i in part) <= 32 << 20 for part in plan)
    assert list(packs.plan(objects, "none")) == [[i] for i in range(13)]


def test_large_objects_of_a_source_that_stays_are_left_there(store: Store, small_packs: None) -> None:
    source = Listed({"large": bytes(5000), "small": b"s"}, stays=True)
    made = ingest.ingest(source, store, "k")
    parts = store.index(made.version).parts
    mark = digest.of(bytes(5000))
    assert source.reads == ["small"]
    assert parts[0] == {
        "digest": digest.of(f"large\0{mark}\0{5000}".encode()),
        "size": 5000,
        "place": {"kind": "source", "key": "large", "mark": mark},
    }
    report = verify(store, made.version)
    assert (report.good, report.elsewhere) == (True, 1)
    with pytest.raises(Refused, match="was left at its source"):
        opened(store, made.version)["large"]


def test_in_place_nothing_is_read_or_stored_and_small_objects_are_packs_of_their_source(
    store: Store, small_packs: None
) -> None:
    content = {**some(40, most=900), "1/large": bytes(5000)}
    source = Listed(content, stays=True)
    made = ingest.ingest(source, store, "k", in_place=True)
    assert (source.reads, made.read, made.stored, made.samples) == ([], 0, 0, 41)
    assert not list((store.root / "parts").glob("??/*"))
    index = store.index(made.version)
    places = [about["place"] for about in index.parts]
    assert sum(place.get("count", 1) for place in places) == 41
    assert [place["key"] for place in places if "key" in place] == ["1/large"]
    assert 3 <= len(places) <= 6
    node = Version(store.version(made.version), made.version)
    node.check()
    for number, name in enumerate(index.names):
        part = node.parts[index.part[number]]
        got = b"".join(read_of(source)(part, index.offset[number], index.length[number]))
        assert got == content[name], name
    for part in node.parts:
        assert sum(map(len, read_of(source)(part, 0, part.size))) == part.size
    report = verify(store, made.version, source)
    assert (report.good, report.elsewhere) == (True, 41)
    again = ingest.ingest(source, store, "k", in_place=True)
    assert (again.version, again.new) == (made.version, False)


def read_of(source: Listed) -> Read:
    def read(part: Any, offset: int, length: int) -> Iterator[bytes]:
        if part.pieces is None:
            return source.read(Object(part.key, part.size, part.mark), offset, length)
        return in_pieces(source, part.pieces(offset, length), offset, length)

    return read


def test_an_object_of_such_a_pack_that_has_changed_is_noticed(store: Store, small_packs: None) -> None:
    content = some(12, most=900)
    source = Listed(content, stays=True)
    made = ingest.ingest(source, store, "k", in_place=True)
    name = sorted(content)[5]
    source.content = {**content, name: bytes(len(content[name]))}
    (part,) = Version(store.version(made.version), made.version).parts
    with pytest.raises(Changed, match=name):
        list(read_of(source)(part, 0, part.size))
    report = verify(store, made.version, source)
    assert [problem.name for problem in report.problems] == [name]
    again = ingest.ingest(source, store, "k", in_place=True)
    assert again.version != made.version


def test_where_marks_are_not_all_objects_in_place_are_parts_of_their_own(
    store: Store, small_packs: None
) -> None:
    source = Listed(some(5), stays=True)
    source.proves = False
    parts = store.index(ingest.ingest(source, store, "k", in_place=True).version).parts
    assert sorted(part["place"]["key"] for part in parts) == sorted(source.content)


def test_a_source_that_cannot_be_read_later_cannot_be_in_place(store: Store) -> None:
    with pytest.raises(Refused, match=r"inPlace: not every object .* leave inPlace out, and it is copied"):
        ingest.ingest(Listed(some(5)), store, "k", in_place=True)
    assert store.versions() == []


def test_identical_parts_are_stored_once(store: Store) -> None:
    data = os.urandom(5 << 20)
    made = ingest.ingest(Listed({"a": data, "b": data}), store, "k")
    assert (made.parts, made.stored) == (2, 1)
    assert len(list((store.root / "parts").glob("??/*"))) == 1
    assert content_of(store, made.version) == {"a": data, "b": data}
    assert verify(store, made.version).good


def test_what_is_stored_cannot_be_written_to(store: Store) -> None:
    ingest.ingest(Listed(some(5)), store, "k")
    kept = [*(store.root / "parts").glob("??/*"), *(store.root / "versions").glob("*/*")]
    assert {oct(file.stat().st_mode & 0o777) for file in kept} == {"0o444"}


def test_readers_see_one_version_each_while_the_source_changes(store: Store, small_packs: None) -> None:
    old, new = some(50, 1), some(50, 2)
    first = ingest.ingest(Listed(old), store, "k")
    store.name("faces", first.version)
    early = iter(opened(store, first.version))
    seen = [next(early)]
    second = ingest.ingest(Listed(new), store, "k")
    store.name("faces", second.version)
    assert dict([*seen, *early]) == old
    assert store.named("faces") == second.version != first.version
    assert content_of(store, second.version) == new


# ── refresh and resume ──


def test_what_was_read_before_is_not_read_again(store: Store, small_packs: None) -> None:
    content = some(80)
    source = Listed(content)
    first = ingest.ingest(source, store, "k")
    source.reads.clear()
    again = ingest.ingest(source, store, "k")
    assert (again.version, again.read, again.stored, again.new) == (first.version, 0, 0, False)
    assert source.reads == []
    source.content = {**content, max(content): b"another"}
    changed = ingest.ingest(source, store, "k")
    assert (changed.read, changed.new) == (1, True)
    assert content_of(store, changed.version) == source.content


def test_a_part_that_was_lost_is_read_again(store: Store, small_packs: None) -> None:
    source = Listed(some(80))
    made = ingest.ingest(source, store, "k")
    store.part(store.index(made.version).parts[3]["digest"]).unlink()
    assert not verify(store, made.version).good
    assert ingest.ingest(source, store, "k").stored == 1
    assert verify(store, made.version).good


def damage(part: Path) -> None:
    data = bytearray(part.read_bytes())
    data[5] ^= 1
    part.chmod(0o644)
    part.write_bytes(data)


def test_a_part_that_was_damaged_is_replaced_by_a_good_one(store: Store, small_packs: None) -> None:
    source = Listed(some(80))
    made = ingest.ingest(source, store, "k")
    part = store.part(store.index(made.version).parts[3]["digest"])
    damage(part)
    again = ingest.ingest(source, store, "another")
    assert (again.version, again.stored, again.new) == (made.version, 0, False)
    assert verify(store, made.version).good
    assert part.stat().st_mode & 0o777 == 0o444


def test_a_part_that_was_found_damaged_is_read_again(store: Store, small_packs: None) -> None:
    source = Listed(some(80))
    made = ingest.ingest(source, store, "k")
    damage(store.part(store.index(made.version).parts[3]["digest"]))
    assert not verify(store, made.version).good
    assert len(content_of(store, made.version)) == 80, "what is good of it can be read meanwhile"
    again = ingest.ingest(source, store, "k")
    assert (again.read, again.stored) == (1, 1)
    assert verify(store, made.version).good
    assert ingest.ingest(source, store, "k").read == 0


def test_nothing_is_left_of_what_was_found_damaged_and_is_gone(store: Store, small_packs: None) -> None:
    made = ingest.ingest(Listed(some(80)), store, "k")
    damage(store.part(store.index(made.version).parts[3]["digest"]))
    verify(store, made.version)
    store.remove(made.version)
    store.collect()
    assert not [path for name in ("parts", "damaged") for path in (store.root / name).iterdir()]


def test_a_store_that_cannot_be_written_is_proven_too(store: Store, small_packs: None) -> None:
    made = ingest.ingest(Listed(some(80)), store, "k")
    damage(store.part(store.index(made.version).parts[3]["digest"]))
    (store.root / "damaged").touch()
    assert not verify(store, made.version).good


def test_a_journal_that_was_damaged_counts_for_nothing(store: Store, small_packs: None) -> None:
    source = Listed(some(80))
    made = ingest.ingest(source, store, "k")
    (journal,) = (store.root / "journals").iterdir()
    text = bytearray(journal.read_bytes())
    text[len(text) // 2] ^= 1
    journal.write_bytes(text[:-10])
    again = ingest.ingest(source, store, "k")
    assert (again.version, again.read) == (made.version, 2)


KILLED = """
import os, random, signal, sys
from pathlib import Path
from weft.data import ingest, packs
from weft.data.sources.file import FileSource
from weft.data.store import Store
packs.SMALL, packs.LARGEST = 4096, 10_000
left = int(sys.argv[3])
def count(event, arguments):
    global left
    if event in ("open", "os.rename", "os.mkdir", "os.chmod", "os.remove", "os.rmdir", "os.scandir", "fcntl.flock"):
        left -= 1
        if left == 0:
            os.kill(os.getpid(), signal.SIGKILL)
sys.addaudithook(count)
made = ingest.ingest(FileSource(Path(sys.argv[1])), Store(Path(sys.argv[2])), "k", threads=2)
print(made.version, made.read, left)
"""


@pytest.mark.slow
def test_kill_9_leaves_nothing_or_a_good_version_and_the_next_goes_on(
    fast_folder: Path, monkeypatch: pytest.MonkeyPatch, small_packs: None
) -> None:
    monkeypatch.setattr("weft.data.sources.file.FRESH", 0)
    content = some(60)
    source = files_in(fast_folder / "in", content)
    code = KILLED.replace("left = int", "import weft.data.sources.file as f; f.FRESH = 0; left = int")
    whole = ingest.ingest(FileSource(source), Store(fast_folder / "whole"), "k").version
    env = {**os.environ, "PYTHONPATH": SRC}

    def run(where: Path, steps: int) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-c", code, str(source), str(where), str(steps)]
        return subprocess.run(command, env=env, capture_output=True, text=True, timeout=60, check=False)

    done = run(fast_folder / "counted", 1_000_000)
    steps = 1_000_000 - int(done.stdout.split()[2])
    reads = []
    chance = random.Random(int.from_bytes(os.urandom(4)))
    for number in range(8):
        where = fast_folder / f"killed-{number}"
        at = chance.randrange(1, steps)
        killed = run(where, at)
        assert killed.returncode == -signal.SIGKILL, (at, killed.stderr)
        store = Store(where)
        for version in store.versions():
            assert verify(store, version).good, at
        parts = len(list((where / "parts").glob("??/*")))
        made = ingest.ingest(FileSource(source), store, "k")
        assert made.version == whole
        assert made.stored == made.parts - parts, at
        assert verify(store, whole).good, at
        assert os.listdir(where / "tmp") == []
        reads.append(made.parts - made.read)
    assert max(reads) > 0


# ── what is not taken ──


@pytest.mark.parametrize(
    "name",
    ["", "/a", "a//b", "a/", "..", "a/../b", "./a", "a/.", "a\nb", "a\0b", "a\x7f", "é" * 513, "\udc80"],
)
def test_names_that_could_leave_the_folder_are_refused(store: Store, name: str) -> None:
    class Source(Listed):
        def objects(self) -> Iterator[Object]:
            yield Object(name, 0, "")

    with pytest.raises(Refused, match="sample "):
        ingest.ingest(Source({}), store, "k")
    assert store.versions() == []


def test_ordinary_names_are_taken() -> None:
    for name in ("a", "a/b", "...", "a b", "é/ü.jpg", "-x", "~", "a" * 1024, "日本/語"):
        check_name(name)


@pytest.mark.parametrize(
    ("names", "said"), [(["a", "a"], "twice"), (["a", "a-b", "a/b"], "as a file and as a folder")]
)
def test_names_that_clash_are_refused(store: Store, names: list[str], said: str) -> None:
    class Source(Listed):
        def objects(self) -> Iterator[Object]:
            return (Object(name, 0, "") for name in names)

    with pytest.raises(Refused, match=said):
        ingest.ingest(Source({}), store, "k")


@pytest.mark.parametrize("kind", ["link", "pipe", "socket"])
def test_links_and_devices_are_refused(store: Store, fast_folder: Path, kind: str) -> None:
    source = files_in(fast_folder / "in", {"a": b"1", "sub/b": b"2"})
    path = source / "sub" / "odd"
    if kind == "link":
        path.symlink_to("/etc/passwd")
    elif kind == "pipe":
        os.mkfifo(path)
    else:
        with socket.socket(socket.AF_UNIX) as made:
            made.bind(str(path))
    with pytest.raises(Refused, match=f"odd is a {kind}.*take it away"):
        ingest.ingest(FileSource(source), store, "k")
    assert (store.versions(), list((store.root / "parts").glob("??/*"))) == ([], [])


def test_what_is_not_there_or_not_readable_is_said(store: Store, fast_folder: Path) -> None:
    with pytest.raises(Missing, match=r"nowhere.* is not there"):
        ingest.ingest(FileSource(fast_folder / "nowhere"), store, "k")
    os.mkfifo(fast_folder / "pipe")
    with pytest.raises(Refused, match="neither a folder nor a file"):
        ingest.ingest(FileSource(fast_folder / "pipe"), store, "k")
    if os.geteuid() != 0:
        source = files_in(fast_folder / "in", {"a": b"1"})
        (source / "a").chmod(0)
        with pytest.raises(Denied, match="may not read it"):
            ingest.ingest(FileSource(source), store, "k")


def test_a_single_file_is_a_dataset(store: Store, fast_folder: Path) -> None:
    files_in(fast_folder / "in", {"a.csv": b"1,2\n", "b.csv": b"no"})
    made = ingest.ingest(FileSource(fast_folder / "in" / "a.csv"), store, "k")
    assert content_of(store, made.version) == {"a.csv": b"1,2\n"}


@pytest.mark.parametrize("how", ["grown", "cut", "rewritten", "replaced", "gone", "link"])
def test_a_file_that_changes_meanwhile_is_noticed(store: Store, fast_folder: Path, how: str) -> None:
    source = files_in(fast_folder / "in", {"a": bytes(3000), "b": bytes(9_000_000), "c": b"c"})
    victim = source / "b"

    class Disturbed(FileSource):
        def read(self, item: Object, offset: int = 0, length: int | None = None) -> Iterator[bytes]:
            for number, chunk in enumerate(super().read(item, offset, length)):
                if item.name == "b" and number == 0 and how not in ("gone", "link"):
                    disturb()
                yield chunk

    def disturb() -> None:
        if how == "grown":
            with victim.open("ab") as file:
                file.write(b"more")
        elif how == "cut":
            os.truncate(victim, 5_000_000)
        elif how == "rewritten":
            with victim.open("r+b") as file:
                file.write(b"other")
        elif how == "replaced":
            victim.unlink()
            victim.write_bytes(bytes(9_000_000))
        else:
            victim.unlink()
            if how == "link":
                victim.symlink_to("a")

    class Late(Disturbed):
        def objects(self) -> Iterator[Object]:
            yield from super().objects()
            disturb()

    if how == "replaced":  # after it was opened it would be the old content still, which is as good
        with pytest.raises(Changed, match="b changed while it was read"):
            ingest.ingest(Late(source), store, "k")
    elif how in ("gone", "link"):
        with pytest.raises((Missing, Changed), match=r"b (is not there|became a link)"):
            ingest.ingest(Late(source), store, "k")
    else:
        with pytest.raises(Changed, match="b changed while it was read; let its writer finish"):
            ingest.ingest(Disturbed(source), store, "k")
    assert store.versions() == []
    assert os.listdir(store.root / "tmp") == []


def test_a_file_changed_a_moment_ago_is_not_trusted_to_be_the_same(store: Store, fast_folder: Path) -> None:
    source = FileSource(files_in(fast_folder / "in", {"a": b"one"}))
    ingest.ingest(source, store, "k")
    assert ingest.ingest(source, store, "k").read == 1


def test_a_source_that_gives_less_than_it_listed_is_noticed(store: Store) -> None:
    class Short(Listed):
        def read(self, item: Object, offset: int = 0, length: int | None = None) -> Iterator[bytes]:
            yield b"12"

    with pytest.raises(Changed, match="a gave 2 bytes and was listed with 3"):
        ingest.ingest(Short({"a": b"123"}), store, "k")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount a small disk")
@pytest.mark.parametrize("options", ["size=200k", "size=40m,nr_inodes=25"])
def test_a_full_disk_is_said_and_leaves_nothing(fast_folder: Path, options: str, small_packs: None) -> None:
    disk = fast_folder / "disk"
    disk.mkdir()
    source = Listed(some(400))
    if subprocess.run(["mount", "-t", "tmpfs", "-o", options, "none", disk], check=False).returncode != 0:
        pytest.skip("a small disk cannot be mounted here")
    try:
        store = Store(disk)
        with pytest.raises(
            NoRoom, match=r"no room in .* for 400 files of \d+ bytes: \d+ bytes and \d+ inodes are free"
        ):
            ingest.ingest(source, store, "k")
        assert store.versions() == []
        assert list((disk / "parts").glob("??/*")) == []
        assert os.listdir(disk / "tmp") == []
        source.content = some(4)
        assert verify(store, ingest.ingest(source, store, "k").version).good
    finally:
        subprocess.run(["umount", disk], check=True)


@pytest.mark.parametrize("call", ["write", "fsync", "mkdir"])
def test_a_disk_that_fills_up_at_any_call_leaves_nothing(
    store: Store, monkeypatch: pytest.MonkeyPatch, call: str, small_packs: None
) -> None:
    """Without root: the fault is made where the system would show it."""
    import errno

    real, calls = getattr(os, call), iter(range(1000))

    def full(*given: Any, **named: Any) -> Any:
        if next(calls) >= 3:
            raise OSError(errno.ENOSPC, "No space left on device")
        return real(*given, **named)

    with monkeypatch.context() as patch:
        patch.setattr(os, call, full)
        with pytest.raises(NoRoom, match="make room there"):
            ingest.ingest(Listed(some(60)), store, "k")
    assert (store.versions(), list((store.root / "parts").glob("??/*"))) == ([], [])
    assert os.listdir(store.root / "tmp") == []


def test_an_error_of_the_source_is_the_one_that_is_shown(store: Store, small_packs: None) -> None:
    class Failing(Listed):
        def read(self, item: Object, offset: int = 0, length: int | None = None) -> Iterator[bytes]:
            if item.name == "3/0052.bin":
                raise Denied("the key was revoked")
            return super().read(item, offset, length)

    with pytest.raises(DataError, match="the key was revoked"):
        ingest.ingest(Failing(some(200)), store, "k")
    assert store.versions() == []


# ── meanwhile ──


@pytest.mark.parametrize("moment", ["made", "opened"])
def test_who_sweeps_up_never_takes_a_folder_that_is_just_being_made(
    store: Store, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    """Several processes read sources at a time, and each first takes away what the dead have left."""
    other, swept = Store(store.root), []

    def sweeps_once() -> None:
        if not swept:
            swept.append(True)
            other.sweep()

    if moment == "made":
        make = tempfile.mkdtemp

        def made(**how: Any) -> str:
            folder = make(**how)
            sweeps_once()
            return folder

        monkeypatch.setattr(tempfile, "mkdtemp", made)
    else:
        lock = fcntl.flock

        def locked(file: int, how: int) -> None:
            if how == fcntl.LOCK_EX:
                monkeypatch.setattr(fcntl, "flock", lock)
                sweeps_once()
            lock(file, how)

        monkeypatch.setattr(fcntl, "flock", locked)
    with store.filling() as folder:
        (folder / "part").write_bytes(b"there")
        other.sweep()
        assert (folder / "part").read_bytes() == b"there"
    assert swept


def test_progress_is_told_in_the_middle_of_a_large_object(store: Store) -> None:
    """One file may be all that there is, and take hours."""
    heard = threading.Event()

    class Slow(Listed):
        def read(self, item: Object, offset: int = 0, length: int | None = None) -> Iterator[bytes]:
            yield item.name.encode()
            assert heard.wait(60), "nobody was told of the first bytes"
            yield b"!"

    def tell(far: ingest.Progress) -> None:
        if 0 < far.bytes < far.all_bytes:
            heard.set()

    ingest.ingest(Slow({"one": b"one!"}), store, "k", progress=tell)


def test_progress_is_told_from_beginning_to_end(store: Store, small_packs: None) -> None:
    told: list[Progress] = []
    content = some(60)
    ingest.ingest(Listed(content), store, "k", progress=told.append)
    size = sum(map(len, content.values()))
    assert (told[0].files, told[0].bytes, told[0].all_files, told[0].all_bytes) == (0, 0, 60, size)
    assert (told[-1].files, told[-1].bytes) == (60, size)
    assert told[-1].rate > 0
    assert [p.files for p in told] == sorted(p.files for p in told)


def test_files_are_read_in_parallel(store: Store, small_packs: None) -> None:
    together = threading.Barrier(4, timeout=30)

    class Waiting(Listed):
        def read(self, item: Object, offset: int = 0, length: int | None = None) -> Iterator[bytes]:
            together.wait()
            return super().read(item, offset, length)

    made = ingest.ingest(Waiting({f"{i}": os.urandom(5000) for i in range(8)}), store, "k", threads=4)
    assert made.parts == 8


def test_nothing_is_collected_while_something_is_added(store: Store, small_packs: None) -> None:
    content = some(60)
    refused = []

    class Collecting(Listed):
        def read(self, item: Object, offset: int = 0, length: int | None = None) -> Iterator[bytes]:
            try:
                store.collect()
            except Refused as problem:
                refused.append(str(problem))
            return super().read(item, offset, length)

    made = ingest.ingest(Collecting(content), store, "k")
    assert len(refused) == 60
    assert "data is being added" in refused[0]
    assert store.collect() == 0
    other = ingest.ingest(Listed(some(60, 9)), store, "k")
    store.remove(made.version)
    assert store.collect() == made.bytes
    assert verify(store, other.version).good
    assert store.versions() == [other.version]
    with pytest.raises(Missing, match="has no version"):
        store.remove(made.version)


def test_all_is_on_disk_before_a_version_has_its_name(
    store: Store, monkeypatch: pytest.MonkeyPatch, small_packs: None
) -> None:
    """A machine may lose its power after the last step: what was not synced by then could be gone."""
    synced: list[str] = []
    real_sync, real_rename = os.fsync, Path.rename

    def sync(file: int) -> None:
        synced.append(os.readlink(f"/proc/self/fd/{file}"))
        real_sync(file)

    def rename(self: Path, target: Path) -> Path:
        if target.parent.name == "versions":
            synced.append("named")
        return real_rename(self, target)

    monkeypatch.setattr(os, "fsync", sync)
    monkeypatch.setattr(Path, "rename", rename)
    made = ingest.ingest(Listed(some(60)), store, "k")
    before, after = synced[: synced.index("named")], synced[synced.index("named") + 1 :]
    parts = [store.part(part["digest"]) for part in store.index(made.version).parts]
    assert len([path for path in before if Path(path).name.startswith("part-")]) == len(parts)
    assert {str(part.parent) for part in parts} | {str(store.root / "parts")} <= set(before)
    files = {Path(path).name for path in before if "/version/" in path}
    assert files == {"samples.idx", "names.idx", "names.txt", "marks.bin", "version.json"}
    assert any(path.endswith("/version") for path in before)
    assert after == [str(store.root / "versions")]


def test_an_empty_file_that_grew_meanwhile_is_noticed(store: Store, fast_folder: Path) -> None:
    source = files_in(fast_folder / "in", {"a": b""})

    class Late(FileSource):
        def objects(self) -> Iterator[Object]:
            yield from list(super().objects())
            (source / "a").write_bytes(b"more")

    with pytest.raises(Changed, match="a changed while it was read"):
        ingest.ingest(Late(source), store, "k")
