"""Of a file that is replaced all the time, one that is whole is always at hand; never one that somebody still writes to."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from weft.runtime.agent.folders import files
from weft.runtime.agent.generations import MOST, Generations

STEPS = st.lists(st.sampled_from(["begin", "write", "finish", "rewrite", "remove", "look"]), max_size=40)


class Saver:
    """A program that writes a file elsewhere and puts it into its place; and one that does not."""

    def __init__(self, folder: Path):
        self.folder, self.number = folder, 0
        self.whole: set[bytes] = set()
        """What lay in its place when it was replaced or removed: nobody wrote to that any more."""

    def do(self, step: str) -> None:
        new, place = self.folder / "model.new", self.folder / "model"
        match step:
            case "begin":
                self.number += 1
                new.write_bytes(b"%d:" % self.number)
            case "write" if new.exists():
                with new.open("ab") as file:
                    file.write(b"more;")
            case "finish" if new.exists():
                self._goes(place)
                new.replace(place)
            case "rewrite" if place.exists():
                with place.open("ab") as file:
                    file.write(b"torn")
                self._touch(place)
            case "remove":
                self._goes(place)
                place.unlink(missing_ok=True)

    def _goes(self, place: Path) -> None:
        if place.exists():
            self.whole.add(place.read_bytes())

    def _touch(self, place: Path) -> None:
        """Two writes within one tick of the clock would look like one."""
        self.number += 1
        now = place.stat().st_mtime_ns + self.number
        os.utime(place, ns=(now, now))


@given(STEPS)
def test_what_is_told_to_be_whole_is_what_nobody_writes_to_any_more(steps: list[str]) -> None:
    with tempfile.TemporaryDirectory(dir="/dev/shm" if Path("/dev/shm").is_dir() else None) as name:
        folder = Path(name)
        saver, generations = Saver(folder), Generations(name, settled=1000.0)
        for step in [*steps, "look"]:
            if step != "look":
                saver.do(step)
                continue
            for file in generations.told(files(name)):
                if file.get("whole") and file["path"] == "model":
                    with generations.open("model") as kept:
                        content = kept.read()
                    assert content in saver.whole
                    assert len(content) == file["size"]


def test_of_two_that_were_replaced_the_newer_is_handed_over(tmp_path: Path) -> None:
    saver, generations = Saver(tmp_path), Generations(str(tmp_path), settled=1000.0)
    for wanted in (None, b"1:", b"2:", b"3:"):
        saver.do("begin")
        saver.do("finish")
        (told,) = generations.told(files(str(tmp_path)))
        assert told.get("whole", False) == (wanted is not None)
        if wanted is not None:
            with generations.open("model") as kept:
                assert kept.read() == wanted


def test_what_has_settled_is_told_as_it_is_and_nothing_is_kept_open(tmp_path: Path) -> None:
    saver, generations = Saver(tmp_path), Generations(str(tmp_path), settled=1000.0)
    for _ in range(3):
        saver.do("begin")
        saver.do("finish")
        generations.told(files(str(tmp_path)))
    (file,) = files(str(tmp_path))
    assert generations.told([{**file, "age": 2000.0}]) == [{**file, "age": 2000.0}]
    held = [os.readlink(f"/proc/self/fd/{fd}") for fd in os.listdir("/proc/self/fd") if exists(fd)]
    assert not [path for path in held if str(tmp_path) in path]


def exists(fd: str) -> bool:
    return os.path.lexists(f"/proc/self/fd/{fd}")


def test_links_folders_and_more_than_a_few_files_are_not_kept_open(tmp_path: Path) -> None:
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep/x").write_bytes(b"x")
    (tmp_path / "link").symlink_to("/etc/passwd")
    for number in range(MOST + 10):
        (tmp_path / f"{number:03}").write_bytes(b"x")
    generations = Generations(str(tmp_path), settled=1000.0)
    before = len(os.listdir("/proc/self/fd"))
    generations.told([*files(str(tmp_path)), {"path": "link", "age": 0.0, "size": 1, "modified": 0.0}])
    assert len(os.listdir("/proc/self/fd")) == before + MOST
    generations.told([])
    assert len(os.listdir("/proc/self/fd")) == before
