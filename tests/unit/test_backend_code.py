"""Bringing a job's code: whole or not at all, and never outside of its folder."""

from __future__ import annotations

import io
import os
import subprocess
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest

from weft.backends.code import bring, package_file
from weft.backends.folders import JobFolder
from weft.model.failures import Code as FailureCode
from weft.model.failures import Permanent
from weft.model.job import Code

DIGEST = "sha256:" + "0" * 64
Entry = Callable[[tarfile.TarFile], None]


@pytest.fixture
def packages(tmp_path: Path) -> Path:
    folder = tmp_path / "packages"
    folder.mkdir()
    return folder


@pytest.fixture
def folder(tmp_path: Path) -> JobFolder:
    (tmp_path / "jobs").mkdir()
    return JobFolder(str(tmp_path / "jobs"), "uid")


def file(name: str, text: str = "x", mode: int = 0o644) -> Entry:
    def add(tar: tarfile.TarFile) -> None:
        info = tarfile.TarInfo(name)
        info.size, info.mode = len(text.encode()), mode
        tar.addfile(info, io.BytesIO(text.encode()))

    return add


def special(name: str, kind: bytes, target: str = "") -> Entry:
    def add(tar: tarfile.TarFile) -> None:
        info = tarfile.TarInfo(name)
        info.type, info.linkname = kind, target
        tar.addfile(info)

    return add


def store(packages: Path, *entries: Entry) -> Code:
    with tarfile.open(packages / package_file(DIGEST), "w:gz") as tar:
        for entry in entries:
            entry(tar)
    return Code(package=DIGEST)


def refused(code: Code, packages: Path, folder: JobFolder) -> str:
    with pytest.raises(Permanent) as refusal:
        bring(code, packages, folder)
    assert refusal.value.failure.code is FailureCode.BAD_CODE
    assert not os.path.exists(folder.code), "half of the code is there"
    assert not os.path.exists(f"{folder.root}/code.new"), "something is left behind"
    return refusal.value.failure.message


class TestPackages:
    def test_files_folders_and_modes_arrive(self, packages: Path, folder: JobFolder) -> None:
        bring(store(packages, file("train.py", "print(1)"), file("bin/run", "#!", 0o755)), packages, folder)
        assert Path(folder.code, "train.py").read_text() == "print(1)"
        assert os.access(f"{folder.code}/bin/run", os.X_OK)

    @pytest.mark.parametrize(
        "entry",
        [
            file("../evil"),
            file("a/../../evil"),
            special("link", tarfile.SYMTYPE, "/etc/passwd"),
            special("link", tarfile.SYMTYPE, "../../outside"),
            special("hard", tarfile.LNKTYPE, "../../../etc/passwd"),
            special("device", tarfile.CHRTYPE),
            special("pipe", tarfile.FIFOTYPE),
        ],
    )
    def test_nothing_reaches_outside(
        self, packages: Path, folder: JobFolder, entry: Entry, tmp_path: Path
    ) -> None:
        before = {p for p in tmp_path.rglob("*") if "jobs" not in p.parts}
        message = refused(store(packages, file("ok.py"), entry), packages, folder)
        assert message.startswith(f"package {DIGEST} cannot be unpacked")
        assert {p for p in tmp_path.rglob("*") if "jobs" not in p.parts} - before <= {
            packages / package_file(DIGEST)
        }

    def test_an_absolute_path_becomes_one_inside(self, packages: Path, folder: JobFolder) -> None:
        bring(store(packages, file("/evil-weft-test")), packages, folder)
        assert not Path("/evil-weft-test").exists()
        assert Path(folder.code, "evil-weft-test").exists()

    def test_a_package_that_is_not_there(self, packages: Path, folder: JobFolder) -> None:
        message = refused(Code(package=DIGEST), packages, folder)
        assert message == f"package {DIGEST} is not stored here; submit the job again"

    @pytest.mark.parametrize("damage", [b"", b"not a tar", b"\x1f\x8b\x08\x00broken"])
    def test_a_damaged_package(self, packages: Path, folder: JobFolder, damage: bytes) -> None:
        (packages / package_file(DIGEST)).write_bytes(damage)
        assert "cannot be unpacked" in refused(Code(package=DIGEST), packages, folder)

    def test_a_package_that_ends_too_early(self, packages: Path, folder: JobFolder) -> None:
        code = store(packages, file("big", "x" * 100_000))
        path = packages / package_file(DIGEST)
        path.write_bytes(path.read_bytes()[:-30])
        assert "cannot be unpacked" in refused(code, packages, folder)

    def test_a_folder_that_the_code_does_not_have(self, packages: Path, folder: JobFolder) -> None:
        code = store(packages, file("a.py")).model_copy(update={"subdir": "src"})
        assert refused(code, packages, folder) == "the code has no folder 'src' (spec.code.subdir)"

    def test_code_that_is_there_is_left_as_the_tasks_changed_it(
        self, packages: Path, folder: JobFolder
    ) -> None:
        code = store(packages, file("a.py"))
        bring(code, packages, folder)
        Path(folder.code, "made-by-a-task").touch()
        bring(code, packages, folder)
        assert Path(folder.code, "made-by-a-task").exists()

    def test_code_half_brought_before_a_crash_is_brought_anew(
        self, packages: Path, folder: JobFolder
    ) -> None:
        Path(folder.root, "code.new").mkdir(parents=True)
        Path(folder.root, "code.new", "half").touch()
        Path(folder.code).mkdir()
        bring(store(packages, file("a.py")), packages, folder)
        assert sorted(p.name for p in Path(folder.code).iterdir()) == ["a.py"]


class TestGit:
    @pytest.fixture
    def repository(self, tmp_path: Path) -> tuple[str, list[str]]:
        where = tmp_path / "repo"
        where.mkdir()

        def git(*arguments: str) -> str:
            identity = ["-c", "user.name=t", "-c", "user.email=t@example.org"]
            done = subprocess.run(
                ["git", "-C", where, *identity, *arguments], capture_output=True, text=True, check=True
            )
            return done.stdout.strip()

        git("init", "--quiet", "--initial-branch=main")
        commits = []
        for text in ("one", "two"):
            (where / "train.py").write_text(text)
            git("add", ".")
            git("commit", "--quiet", "-m", text)
            commits.append(git("rev-parse", "HEAD"))
        return f"file://{where}", commits

    @pytest.mark.parametrize("length", [40, 10, 7])
    def test_a_commit_by_its_full_or_abbreviated_hash(
        self, repository: tuple[str, list[str]], packages: Path, folder: JobFolder, length: int
    ) -> None:
        url, commits = repository
        bring(Code(git=url, commit=commits[0][:length]), packages, folder)
        assert Path(folder.code, "train.py").read_text() == "one"
        assert not Path(folder.code, ".git").exists()

    def test_a_commit_that_does_not_exist(
        self, repository: tuple[str, list[str]], packages: Path, folder: JobFolder
    ) -> None:
        url, _ = repository
        message = refused(Code(git=url, commit="deadbeef"), packages, folder)
        assert message == f"{url} has no commit deadbeef"

    def test_a_repository_that_does_not_exist(
        self, packages: Path, folder: JobFolder, tmp_path: Path
    ) -> None:
        url = f"file://{tmp_path}/nowhere"
        assert refused(Code(git=url, commit="deadbeef"), packages, folder).startswith(
            f"git cannot fetch {url}: "
        )

    def test_a_machine_without_git(
        self, packages: Path, folder: JobFolder, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        monkeypatch.setenv("PATH", str(tmp_path))
        message = refused(Code(git="https://example.org/x", commit="deadbeef"), packages, folder)
        assert message == "code from git needs git, which is not installed here"
