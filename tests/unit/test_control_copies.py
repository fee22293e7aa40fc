"""The results store: a second place for checkpoints and results, and what comes back from it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from weft.control.mirror import UNFINISHED, mirror

LATER = 10_000_000_000.0


def tree(folder: Path) -> dict[str, str]:
    files = (path for path in folder.rglob("*") if path.is_file() and not path.is_symlink())
    return {path.relative_to(folder).as_posix(): path.read_text() for path in files}


def fill(folder: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


@pytest.fixture
def both(tmp_path: Path) -> tuple[Path, Path]:
    (tmp_path / "from").mkdir()
    return tmp_path / "from", tmp_path / "store" / "to"


class TestMirror:
    def test_what_is_new_is_added_and_what_is_gone_is_removed(self, both: tuple[Path, Path]) -> None:
        source, target = both
        fill(source, {"step-1/whole": "one", "step-2/whole": "two"})
        assert mirror(source, target, final=True).files == 2
        assert mirror(source, target, final=True).files == 0, "once is enough"
        (source / "step-1/whole").unlink()
        (source / "step-1").rmdir()
        fill(source, {"step-3/whole": "three"})
        done = mirror(source, target, final=True)
        assert (done.files, done.bytes) == (1, 5)
        assert tree(target) == {"step-2/whole": "two", "step-3/whole": "three"}
        assert not (target / "step-1").exists()

    def test_what_may_still_be_written_is_left_and_nothing_old_goes_before_it_is_there(
        self, both: tuple[Path, Path]
    ) -> None:
        source, target = both
        fill(source, {"old": "old"})
        mirror(source, target, final=True)
        (source / "old").unlink()
        fill(source, {"new": "half"})
        written = (source / "new").stat().st_mtime
        assert mirror(source, target, now=lambda: written + 1).unsettled == 1
        assert tree(target) == {"old": "old"}
        assert mirror(source, target, now=lambda: written + 3).files == 1
        assert tree(target) == {"new": "half"}

    def test_a_source_that_is_empty_or_gone_takes_nothing_away(self, both: tuple[Path, Path]) -> None:
        source, target = both
        fill(source, {"step-1/whole": "one"})
        mirror(source, target, final=True)
        (source / "step-1/whole").unlink()
        mirror(source, target, final=True)
        mirror(source / "nowhere", target, final=True)
        assert tree(target) == {"step-1/whole": "one"}

    def test_links_pipes_and_books_are_not_copied(self, both: tuple[Path, Path], tmp_path: Path) -> None:
        source, target = both
        fill(tmp_path, {"secret": "s", "dir/secret": "s"})
        fill(source, {"good": "g", ".weft/books": "b"})
        (source / "link").symlink_to(tmp_path / "secret")
        (source / "folder").symlink_to(tmp_path / "dir")
        os.mkfifo(source / "pipe")
        mirror(source, target, final=True)
        assert tree(target) == {"good": "g"}

    def test_a_copy_that_was_cut_short_is_never_seen_as_one(self, both: tuple[Path, Path]) -> None:
        source, target = both
        fill(source, {"step-1/whole": "one"})
        fill(target, {UNFINISHED: "o"})
        mirror(source, target, final=True)
        assert tree(target) == {"step-1/whole": "one"}

    @given(
        st.lists(
            st.dictionaries(
                st.sampled_from(["a", "b", "d/a", "d/b", "d/e/a", "f/a"]),
                st.text("xyz", max_size=5),
                min_size=1,
            ),
            min_size=1,
            max_size=4,
        )
    )
    def test_after_the_last_round_both_are_equal(
        self, tmp_path_factory: pytest.TempPathFactory, rounds: list[dict[str, str]]
    ) -> None:
        source, target = tmp_path_factory.mktemp("from"), tmp_path_factory.mktemp("to")
        for number, files in enumerate(rounds):
            for path in sorted(source.rglob("*"), reverse=True):
                path.rmdir() if path.is_dir() else path.unlink()
            fill(source, files)
            for name in files:  # two rounds within one tick of the clock would look alike
                os.utime(source / name, (number, number))
            mirror(source, target, now=lambda: LATER)
            assert tree(target) == files
