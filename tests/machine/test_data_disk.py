"""A cache on a disk that is really full, in bytes or in inodes: readers go on from the origin, with the right bytes."""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from support.datasets import Here, OriginServer, Store, bytes_of, digest, files_below, until, whole
from weft.data.agent.origins import Server
from weft.runtime.data.errors import DataError
from weft.runtime.data.link import Link

pytestmark = pytest.mark.machine

SIZE = 100_000
SAMPLES = {f"{number:02}": bytes_of(number, SIZE) for number in range(30)}


@pytest.fixture
def disk() -> Iterator[Callable[[str], Path]]:
    """Mounts a small file system."""
    mounted: list[Path] = []

    def mount(options: str) -> Path:
        folder = Path(tempfile.mkdtemp(prefix="weft-disk-"))
        done = subprocess.run(
            ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(folder)],
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode != 0:
            folder.rmdir()
            pytest.skip(f"cannot mount a small disk here: {done.stderr.strip()}")
        mounted.append(folder)
        return folder

    yield mount
    for folder in mounted:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)
        folder.rmdir()


@pytest.fixture
def store() -> Iterator[Store]:
    with tempfile.TemporaryDirectory(prefix="weft-") as folder:
        yield Store(Path(folder))


@pytest.fixture
def origin(store: Store) -> Iterator[OriginServer]:
    with OriginServer(store) as served:
        yield served


def read_all(link: Link, version: str, pack: int = 1) -> int:
    """An epoch, every sample compared; how many parts are kept."""
    kept = 0
    for part in range(len(SAMPLES) // pack):
        data = whole(link, version, part)
        kept += data is not None
        if data is None:
            data = link.read(version, part, 0, SIZE * pack)
        assert data == b"".join(list(SAMPLES.values())[part * pack : (part + 1) * pack])
    return kept


def good(folder: Path) -> int:
    found = [path for path in (folder / "parts").rglob("*") if path.is_file()]
    assert all(digest(path.read_bytes()) == path.name for path in found)
    assert not list((folder / "tmp").iterdir())
    return len(found)


def test_a_disk_full_of_bytes(disk: Callable[[str], Path], origin: OriginServer, store: Store) -> None:
    version = store.add(SAMPLES)
    with Here(disk("size=1500k"), Server(origin.url)) as node:
        link = node.grant(version)
        kept = read_all(link, version)
        assert 5 < kept < 15
        assert read_all(link, version) == kept == good(node.folder)
        assert link.counts()["found"] == kept
        assert len(origin.asked) == 30 + 30 - kept, "a part was fetched only to be thrown away"


def test_a_disk_without_inodes(disk: Callable[[str], Path], origin: OriginServer, store: Store) -> None:
    version = store.add(SAMPLES)
    with Here(disk("size=100m,nr_inodes=45"), Server(origin.url)) as node:
        link = node.grant(version)
        kept = read_all(link, version)
        assert 3 < kept < 25
        assert read_all(link, version) == kept == good(node.folder)


def test_a_disk_whose_last_inode_was_taken_a_moment_ago(
    disk: Callable[[str], Path], origin: OriginServer, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Looking first is no promise: here it always finds room."""
    monkeypatch.setattr("weft.data.agent.filling.space_left", lambda *_: True)
    version = store.add(SAMPLES)
    with Here(disk("size=100m,nr_inodes=45"), Server(origin.url)) as node:
        link = node.grant(version)
        kept = read_all(link, version)
        assert 3 < kept < 25
        assert read_all(link, version) == kept == good(node.folder)


def test_a_disk_that_others_fill_while_parts_come(
    disk: Callable[[str], Path], origin: OriginServer, store: Store
) -> None:
    """The room that there was is gone half-way: what came is dropped, and the bytes are read all the same."""
    version = store.add(SAMPLES, 10)
    folder = disk("size=6m")
    with Here(folder, Server(origin.url)) as node:
        link = node.grant(version)
        link.counts()
        until(lambda: node.node.catalog.get(version))

        def fill_disk(path: str, piece: bytes) -> None:
            with suppress(OSError), (folder / "others").open("ab") as others:
                while True:
                    others.write(b"x" * 10_000)
                    others.flush()

        origin.fault = fill_disk
        assert read_all(link, version, 10) == 0
        assert good(node.folder) == 0
        origin.fault = None
        (folder / "others").unlink()
        assert read_all(link, version, 10) == 3 == good(node.folder)
        assert node.control(do="status")["datasets"]["faces"] == {"bytes": 30 * SIZE, "inodes": 3}


def test_no_disk_for_the_index_or_a_tree_is_an_error_that_says_so(
    disk: Callable[[str], Path], origin: OriginServer, store: Store
) -> None:
    version = store.add(SAMPLES)
    folder = disk("size=1500k")
    with Here(folder, Server(origin.url)) as node:
        link = node.grant(version)
        with pytest.raises(DataError, match="No space left") as found:
            link.tree(version)
        assert found.value.code == "noroom"
        assert not [path for path in (node.folder / "trees").iterdir() if path.is_dir()]
        assert node.control(do="status")["datasets"].get("faces") is None
        small = store.add({"a": SAMPLES["00"], "b/c": b"2"}, 2)
        assert set(files_below(Path(node.grant(small, "job-2", "2").tree(small)))) == {"a", "b/c"}
    with Here(disk("size=200k"), Server(origin.url)) as node:
        link = node.grant(version)
        until(lambda: node.node.catalog.get(version))
        other = store.add({f"{'long' * 200}{number}": b"" for number in range(300)}, 300)
        with pytest.raises(DataError, match=r"No space left|disk is full") as found:
            node.grant(other, "job-2", "2").open(other)
        assert found.value.code == "noroom"
        assert read_all(link, version) <= 1


def test_a_disk_that_is_full_when_the_agent_starts(
    disk: Callable[[str], Path], origin: OriginServer, store: Store
) -> None:
    """It answers: what is there is read from there, the rest from the origin."""
    version = store.add(SAMPLES)
    folder = disk("size=2m")
    with Here(folder, Server(origin.url)) as node:
        kept = read_all(node.grant(version), version)
    with suppress(OSError), (folder / "others").open("ab", buffering=0) as others:
        while others.write(b"x" * 4096):
            pass
    assert os.statvfs(folder).f_bavail == 0
    with Here(folder, Server(origin.url)) as node:
        link = Link(str(node.socket), "secret", patience=5)
        assert read_all(link, version) == kept == good(node.folder)
        link.close()
