"""A version mounted for real: read by ordinary programs, unmounted cleanly, and mounted again after a kill -9."""

from __future__ import annotations

import errno
import os
import random
import signal
import stat
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from support.samples import some, stored
from weft.data.fuse import unmount
from weft.data.store import Store

pytestmark = pytest.mark.machine


def why_not() -> str | None:
    if not os.access("/dev/fuse", os.R_OK | os.W_OK) or os.geteuid() != 0:
        return "mounting needs /dev/fuse and root"
    try:
        import mfusepy  # noqa: F401
    except (ImportError, OSError) as problem:
        return f"mounting needs mfusepy and libfuse (Debian: apt-get install libfuse3-3): {problem}"
    return None


if reason := why_not():
    pytest.skip(reason, allow_module_level=True)

Mount = Callable[..., "subprocess.Popen[str]"]
CONTENT = {**some(300), "deep/er/é ü.txt": b"hello", "empty": b"", "large": os.urandom(9 << 20)}


@pytest.fixture(scope="module")
def version(tmp_path_factory: pytest.TempPathFactory) -> tuple[Store, str]:
    return stored(tmp_path_factory.mktemp("data"), CONTENT)


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    made = tmp_path / "mount"
    made.mkdir()
    yield made
    if mounted(made):
        unmount(made)


@pytest.fixture
def mount(version: tuple[Store, str], folder: Path) -> Iterator[Mount]:
    started: list[subprocess.Popen[str]] = []

    def start(wait: bool = True) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [
                sys.executable,
                "-m",
                "weft.data.fuse",
                "--store",
                str(version[0].root),
                version[1],
                str(folder),
            ],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        started.append(process)
        assert process.stdout is not None
        if wait and process.stdout.readline() != f"mounted {folder}\n":
            raise RuntimeError(process.communicate()[1])
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate()


def mounted(folder: Path) -> bool:
    return any(
        line.split()[4] == str(folder) for line in Path("/proc/self/mountinfo").read_text().splitlines()
    )


def found(folder: Path) -> dict[str, bytes]:
    return {
        os.path.relpath(os.path.join(above, name), folder): Path(above, name).read_bytes()
        for above, _, names in os.walk(folder)
        for name in names
    }


def test_programs_see_files(mount: Mount, folder: Path) -> None:
    mount()
    assert found(folder) == CONTENT
    listed = subprocess.run(["ls", "-la", folder / "deep/er"], check=True, capture_output=True, text=True)
    assert "-r--r--r-- 1 root root 5" in listed.stdout
    total = subprocess.run(["find", folder, "-type", "f"], check=True, capture_output=True, text=True)
    assert len(total.stdout.splitlines()) == len(CONTENT)


def test_pieces_of_a_file_are_those_pieces(mount: Mount, folder: Path) -> None:
    mount()
    chance, data = random.Random(0), CONTENT["large"]
    with open(folder / "large", "rb", buffering=0) as file:
        for _ in range(200):
            begin, size = chance.randrange(len(data)), chance.randrange(1, 300_000)
            assert os.pread(file.fileno(), size, begin) == data[begin : begin + size]
        assert os.pread(file.fileno(), 10, len(data)) == b""


def test_nobody_writes(mount: Mount, folder: Path) -> None:
    mount()
    about = os.stat(folder / "empty")
    assert (stat.S_IMODE(about.st_mode), about.st_size, about.st_uid) == (0o444, 0, 0)
    assert stat.S_IMODE(os.stat(folder / "deep").st_mode) == 0o555
    attempts: list[Callable[[], object]] = [
        lambda: (folder / "new").write_bytes(b"x"),
        lambda: os.open(folder / "empty", os.O_WRONLY | os.O_APPEND),
        lambda: os.open(folder / "empty", os.O_RDONLY | os.O_TRUNC),
        lambda: os.unlink(folder / "empty"),
        lambda: os.mkdir(folder / "new"),
        lambda: os.rename(folder / "empty", folder / "full"),
        lambda: os.chmod(folder / "empty", 0o777),
        lambda: os.symlink("/etc/passwd", folder / "link"),
    ]
    for attempt in attempts:
        with pytest.raises(OSError, match="Read-only") as caught:
            attempt()
        assert caught.value.errno == errno.EROFS
    with pytest.raises(FileNotFoundError):
        (folder / "nowhere").read_bytes()


def test_other_users_may_read(mount: Mount, folder: Path) -> None:
    mount()
    for above in [folder, *folder.parents]:
        if above != Path("/tmp") and os.stat(above).st_uid == os.getuid() and not mounted(above):
            os.chmod(above, os.stat(above).st_mode | 0o055)
    done = subprocess.run(
        ["cat", folder / "deep/er/é ü.txt"],
        user=65534,
        group=65534,
        extra_groups=[],
        capture_output=True,
        check=False,
    )
    assert done.stdout == b"hello"


def test_many_read_at_once(mount: Mount, folder: Path) -> None:
    mount()
    wrong: list[str] = []

    def read(seed: int) -> None:
        names = sorted(CONTENT)
        random.Random(seed).shuffle(names)
        wrong.extend(name for name in names if (folder / name).read_bytes() != CONTENT[name])

    readers = [threading.Thread(target=read, args=(seed,)) for seed in range(8)]
    for reader in readers:
        reader.start()
    for reader in readers:
        reader.join()
    assert wrong == []


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGINT])
def test_told_to_end_it_unmounts_also_while_a_file_is_open(
    mount: Mount, folder: Path, how: signal.Signals
) -> None:
    process = mount()
    assert (folder / "empty").read_bytes() == b""
    with open(folder / "large", "rb"):
        process.send_signal(how)
        assert process.wait(60) == 0
    assert not mounted(folder)
    assert os.listdir(folder) == []


def test_unmounted_by_hand_it_ends(mount: Mount, folder: Path) -> None:
    process = mount()
    unmount(folder)
    assert process.wait(60) == 0


def test_after_a_kill_the_next_start_mounts_again(mount: Mount, folder: Path) -> None:
    for _ in range(3):
        process = mount()
        assert (folder / "empty").read_bytes() == b""
        process.kill()
        process.wait()
        with pytest.raises(OSError, match="not connected") as caught:
            os.listdir(folder)
        assert caught.value.errno == errno.ENOTCONN
    mount()
    assert found(folder) == CONTENT
    assert (
        sum(line.split()[4] == str(folder) for line in Path("/proc/self/mountinfo").read_text().splitlines())
        == 1
    )


def test_it_says_why_it_does_not_mount(mount: Mount, folder: Path, version: tuple[Store, str]) -> None:
    mount()
    again = mount(wait=False)
    assert again.wait(60) == 1
    assert f"something is mounted on {folder} already" in again.communicate()[1]
    (folder.parent / "full").mkdir()
    (folder.parent / "full" / "file").write_text("x")
    root = str(version[0].root)
    for arguments, why in (
        ((root, version[1], str(folder.parent / "full")), "is not empty: 'file' would be hidden"),
        ((root, version[1], str(folder.parent / "nowhere")), "is not there"),
        ((root, "0" * 32, str(folder)), "holds no version"),
        ((root, "../" + version[1], str(folder)), "is no version"),
    ):
        done = subprocess.run(
            [sys.executable, "-m", "weft.data.fuse", "--store", *arguments],
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 1
        assert why in done.stderr
        assert "Traceback" not in done.stderr


def test_a_damaged_store_gives_errors_and_no_wrong_bytes(tmp_path: Path, folder: Path, mount: Mount) -> None:
    store, version = stored(tmp_path, {"a": b"x" * 5_000_000, "b": b"y" * 5_000_000})
    parts = {part["size"]: store.part(part["digest"]) for part in store.index(version).parts}
    first, second = (store.part(part["digest"]) for part in store.index(version).parts)
    assert len(parts) == 1
    first.unlink()
    second.chmod(0o600)
    os.truncate(second, 1_000_000)
    process = subprocess.Popen(
        [sys.executable, "-m", "weft.data.fuse", "--store", str(store.root), version, str(folder)],
        stdout=subprocess.PIPE,
    )
    try:
        assert process.stdout is not None
        process.stdout.readline()
        with pytest.raises(FileNotFoundError):
            (folder / "a").read_bytes()
        with pytest.raises(OSError, match="Input/output") as caught:
            (folder / "b").read_bytes()
        assert caught.value.errno == errno.EIO
    finally:
        process.terminate()
        process.wait()
        process.stdout.close()
