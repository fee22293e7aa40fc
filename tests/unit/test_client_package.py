"""Packages: the same bytes for the same content, the ignore rules, and what is refused."""

from __future__ import annotations

import gzip
import hashlib
import os
import string
import tarfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from weft.client.errors import PackageError
from weft.client.ignore import IgnoreRules
from weft.client.package import list_files, pack


def write(root: Path, files: dict[str, str]) -> Path:
    for name, content in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
    return root


def packed(root: Path) -> tuple[str, bytes]:
    package = pack(root)
    content = package.file.read()
    package.close()
    assert len(content) == package.size
    return package.digest, content


def test_the_digest_is_the_sha256_of_the_bytes(tmp_path: Path) -> None:
    digest, content = packed(write(tmp_path, {"a.py": "1"}))
    assert digest == "sha256:" + hashlib.sha256(content).hexdigest()


NAMES = st.text(string.ascii_letters + "äß_- .", min_size=1, max_size=12).filter(
    lambda name: name.strip(".") and not name.startswith(".")
)


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.dictionaries(NAMES, st.binary(max_size=200), max_size=8), st.randoms())
def test_packing_depends_on_content_alone(
    tmp_path_factory: pytest.TempPathFactory, files: dict[str, bytes], random: object
) -> None:
    orders = [list(files), list(files)]
    random.shuffle(orders[1])  # type: ignore[attr-defined]
    digests = set()
    for number, order in enumerate(orders):
        root = tmp_path_factory.mktemp("tree")
        for name in order:
            (root / name).write_bytes(files[name])
            os.utime(root / name, (number * 1000, number * 1000))
        digests.add(packed(root)[0])
    assert len(digests) == 1


def test_owners_and_times_are_left_out(tmp_path: Path) -> None:
    root = write(tmp_path, {"run.sh": "x", "sub/a.txt": "y"})
    (root / "run.sh").chmod(0o700)
    _, content = packed(root)
    assert content[4:8] == b"\0\0\0\0"  # the gzip header's own time
    with tarfile.open(fileobj=__import__("io").BytesIO(gzip.decompress(content))) as tar:
        members = tar.getmembers()
    assert [(m.name, oct(m.mode)) for m in members] == [
        ("run.sh", "0o755"),
        ("sub", "0o755"),
        ("sub/a.txt", "0o644"),
    ]
    assert {(m.mtime, m.uid, m.gid, m.uname, m.gname) for m in members} == {(0, 0, 0, "", "")}


def test_defaults_are_ignored(tmp_path: Path) -> None:
    root = write(
        tmp_path,
        {
            ".git/config": "",
            "__pycache__/a.pyc": "",
            "pkg/b.pyc": "",
            ".venv/x": "",
            "node_modules/y": "",
            "train.py": "",
        },
    )
    assert list_files(root) == ["pkg", "train.py"]


@pytest.mark.parametrize(
    ("pattern", "path", "folder", "ignored"),
    [
        ("*.ckpt", "a/b/model.ckpt", False, True),
        ("*.ckpt", "model.ckpt.txt", False, False),
        ("/data", "data", True, True),
        ("/data", "sub/data", True, False),
        ("data/", "data", False, False),
        ("data/", "sub/data", True, True),
        ("a/b", "a/b", False, True),
        ("a/b", "x/a/b", False, False),
        ("**/logs", "x/y/logs", True, True),
        ("**/logs", "logs", True, True),
        ("a/**/z", "a/z", False, True),
        ("a/**/z", "a/b/c/z", False, True),
        ("a/**", "a/b/c", False, True),
        ("a/**", "a", True, False),
        ("a*b", "a/b", False, False),
        ("?.txt", "a.txt", False, True),
        ("[ab].txt", "b.txt", False, True),
        ("[!ab].txt", "b.txt", False, False),
        (r"\!important", "!important", False, True),
        (r"\#x", "#x", False, True),
        ("# comment", "# comment", False, False),
        ("trailing  ", "trailing", False, True),
        ("", "x", False, False),
        ("[z-a]", "b", False, False),
    ],
)
def test_one_pattern(pattern: str, path: str, folder: bool, ignored: bool) -> None:
    assert IgnoreRules([pattern]).ignores(path, folder) is ignored


def test_the_last_pattern_decides() -> None:
    rules = IgnoreRules(["*.csv", "!keep.csv", "big/keep.csv"])
    assert rules.ignores("x.csv", False)
    assert not rules.ignores("a/keep.csv", False)
    assert rules.ignores("big/keep.csv", False)


@given(st.text(max_size=30), st.text(min_size=1, max_size=20))
def test_no_pattern_breaks_the_rules(pattern: str, path: str) -> None:
    IgnoreRules([pattern]).ignores(path, False)


def test_weftignore_is_obeyed_and_can_take_back_a_default(tmp_path: Path) -> None:
    root = write(tmp_path, {".weftignore": "data/\n!keep.pyc\n", "data/x": "", "keep.pyc": "", "a.pyc": ""})
    assert list_files(root) == [".weftignore", "keep.pyc"]


def test_links_inside_stay_links(tmp_path: Path) -> None:
    root = write(tmp_path / "code", {"a.txt": "a", "sub/b.txt": "b"})
    (root / "sub" / "up.txt").symlink_to("../a.txt")
    (root / "absolute.txt").symlink_to(root / "sub" / "b.txt")
    _, content = packed(root)
    with tarfile.open(fileobj=__import__("io").BytesIO(content)) as tar:
        links = {m.name: m.linkname for m in tar if m.issym()}
    assert links == {"absolute.txt": "sub/b.txt", "sub/up.txt": "../a.txt"}


@pytest.mark.parametrize("target", ["/etc/passwd", "../outside", "sub/../../outside"])
def test_links_that_leave_are_refused(tmp_path: Path, target: str) -> None:
    root = write(tmp_path / "code", {"sub/b.txt": "b"})
    (root / "link").symlink_to(target)
    with pytest.raises(PackageError, match="link leads out of the folder") as refused:
        pack(root)
    assert refused.value.next is not None
    assert ".weftignore" in refused.value.next


def test_a_link_through_a_link_is_refused_too(tmp_path: Path) -> None:
    (tmp_path / "outside").mkdir()
    root = write(tmp_path / "code", {"a": ""})
    (root / "door").symlink_to(tmp_path / "outside")
    (root / "file").symlink_to("door/secret")
    with pytest.raises(PackageError):
        pack(root)


def test_too_large_names_the_biggest_files(tmp_path: Path) -> None:
    root = write(tmp_path, {"small.py": "x"})
    (root / "big.bin").write_bytes(os.urandom(200_000))
    with pytest.raises(PackageError, match=r"(?s)over 0 MiB.*big\.bin") as refused:
        pack(root, limit=100_000)
    assert ".weftignore" in (refused.value.next or "")


def test_the_home_folder_is_never_packed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    with pytest.raises(PackageError, match="will not pack"):
        pack(tmp_path)


def test_the_home_of_a_server_is_left_out_wherever_it_is(tmp_path: Path) -> None:
    """It holds the token, secrets and a link that leads out of the folder."""
    root = write(tmp_path, {"train.py": "", "deep/home/weft.db": "", "deep/home/server.lock": "1"})
    (root / "deep" / "home" / "runtime").symlink_to("/")
    write(root, {"data/weft.db": "not a home, only a file of that name"})
    assert list_files(root) == ["data", "data/weft.db", "deep", "train.py"]
    pack(root).close()
    with pytest.raises(PackageError, match="the home of a server"):
        pack(root / "deep" / "home")


def test_a_missing_folder_is_named(tmp_path: Path) -> None:
    with pytest.raises(PackageError, match="no such folder"):
        pack(tmp_path / "nope")


def test_pipes_and_sockets_are_no_content(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    assert list_files(tmp_path) == []
