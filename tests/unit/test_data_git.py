"""A git commit as a source: its files and nothing else, fetched by the system's git."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.samples import opened
from support.web import Web, web
from weft.data.errors import DataError, Denied, Missing, NoRoom, Refused, Unreachable
from weft.data.ingest import ingest
from weft.data.patience import ONCE, Patience
from weft.data.sources import Object, make
from weft.data.sources.git import GitSource
from weft.data.store import Store


class Repository:
    def __init__(self, folder: Path):
        self.folder = folder
        folder.mkdir()
        self("init", "--quiet")

    def __call__(self, *arguments: str) -> str:
        settings = (
            "-c",
            "user.name=me",
            "-c",
            "user.email=me@example.org",
            "-c",
            "protocol.file.allow=always",
        )
        command = ["git", "-C", str(self.folder), *settings, *arguments]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()

    def commit(self, files: dict[str, bytes]) -> str:
        for name, data in files.items():
            (self.folder / name).parent.mkdir(parents=True, exist_ok=True)
            (self.folder / name).write_bytes(data)
        self("add", "--all", "--force")
        self("commit", "--quiet", "--allow-empty", "-m", "x")
        return self("rev-parse", "HEAD")

    def at(self, commit: str) -> str:
        return f"git+file://{self.folder}@{commit}"


@pytest.fixture
def repository(tmp_path: Path) -> Repository:
    return Repository(tmp_path / "repository")


@pytest.fixture
def store(fast_folder: Path) -> Store:
    return Store(fast_folder / "store")


def test_a_commit_is_its_files_and_stays_what_it_was(repository: Repository, store: Store) -> None:
    content = {"a.txt": b"one", "sub/ü b.bin": os.urandom(3 << 20), "empty": b""}
    first = repository.commit(content)
    second = repository.commit({"a.txt": b"two"})
    made = ingest(make({"url": repository.at(first)}), store, "k")
    assert dict(opened(store, made.version)) == content
    again = ingest(make({"url": repository.at(second[:9])}), store, "k")
    assert dict(opened(store, again.version)) == {**content, "a.txt": b"two"}


def test_a_blob_is_its_own_mark_and_can_be_read_in_pieces(repository: Repository) -> None:
    data = os.urandom(2_500_000)
    source = GitSource(repository.at(repository.commit({"a": data})))
    (item,) = source.objects()
    assert item == Object("a", len(data), repository("rev-parse", "HEAD:a"))
    assert b"".join(source.read(item, 1_000_000, 1_200_000)) == data[1_000_000:2_200_000]
    begun = source.read(item)
    next(begun)
    begun.close()
    assert b"".join(source.read(item)) == data


def test_only_that_commit_is_fetched(repository: Repository, tmp_path: Path) -> None:
    repository.commit({"old": b"x"})
    last = repository.commit({"new": b"y"})
    source = GitSource(repository.at(last), scratch=tmp_path)
    list(source.objects())
    assert source._git("rev-list", "--count", last).strip() == b"1"


def test_nothing_is_left_behind(repository: Repository, tmp_path: Path) -> None:
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    source = GitSource(repository.at(repository.commit({"a": b"x"})), scratch=scratch)
    items = list(source.objects())
    assert b"".join(source.read(items[0])) == b"x"
    (reader,) = source._readers
    process = reader._process
    assert os.listdir(scratch)
    del source, reader
    assert os.listdir(scratch) == []
    assert process.returncode is not None


def test_links_and_submodules_are_refused(repository: Repository, tmp_path: Path, store: Store) -> None:
    (repository.folder / "link").symlink_to("/etc/passwd")
    linked = repository.commit({"a": b"x"})
    with pytest.raises(Refused, match=r"link in .* is a link"):
        ingest(make({"url": repository.at(linked)}), store, "k")
    (repository.folder / "link").unlink()
    other = Repository(tmp_path / "other")
    other.commit({"b": b"y"})
    repository("submodule", "--quiet", "add", f"file://{other.folder}", "inner")
    with pytest.raises(Refused, match=r"inner in .* is a submodule"):
        ingest(make({"url": repository.at(repository.commit({}))}), store, "k")
    assert store.versions() == []


def test_a_pointer_to_large_files_is_named_as_what_it_is(repository: Repository, store: Store) -> None:
    pointer = b"version https://git-lfs.github.com/spec/v1\noid sha256:" + b"0" * 64 + b"\nsize 12345\n"
    commit = repository.commit({"model.bin": pointer})
    with pytest.raises(Refused, match=r"model.bin in .* is a Git LFS pointer"):
        ingest(make({"url": repository.at(commit)}), store, "k")


def test_a_full_disk_is_said(repository: Repository, tmp_path: Path) -> None:
    commit = repository.commit({"a": os.urandom(3 << 20)})
    small = tmp_path / "small"
    small.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "none", small], check=False).returncode != 0:
        pytest.skip("a small disk cannot be mounted here")
    try:
        source = GitSource(repository.at(commit), scratch=small)
        with pytest.raises(NoRoom, match=f"no room in {small}"):
            list(source.objects())
        del source
    finally:
        subprocess.run(["umount", "-l", small], check=True)


def test_what_is_not_there_is_missing(repository: Repository, tmp_path: Path) -> None:
    repository.commit({"a": b"x"})
    for url, why in (
        (repository.at("0123456789" * 4), "has no commit 0123456789"),
        (f"git+file://{tmp_path}/nowhere@{'0' * 40}", "cannot fetch"),
    ):
        with pytest.raises(Missing, match=why):
            list(GitSource(url, patience=ONCE).objects())


@pytest.mark.parametrize(
    "url", ["git+https://h/r", "git+ext://sh -c x@0123456", "git+https://-h/r@0123456", "git+file://x@main"]
)
def test_a_url_that_is_none_is_refused(url: str) -> None:
    with pytest.raises(Refused, match="is no git source"):
        GitSource(url)


def test_a_repository_of_whoever_runs_the_server_is_not_taken_for_it(
    repository: Repository, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = Repository(tmp_path / "other")
    other.commit({"theirs": b"x"})
    commit = repository.commit({"mine": b"x"})
    theirs = tmp_path / "objects"
    theirs.mkdir()
    monkeypatch.setenv("GIT_DIR", str(other.folder / ".git"))
    monkeypatch.setenv("GIT_OBJECT_DIRECTORY", str(theirs))
    assert [item.name for item in GitSource(repository.at(commit)).objects()] == ["mine"]
    assert os.listdir(theirs) == []


# ── over https ──


@pytest.fixture
def server() -> Iterator[Web]:
    with web() as made:
        yield made


def over_http(server: Web, credentials: dict[str, str], patience: Patience = ONCE) -> GitSource:
    """The test's server has no certificate: git is told the rest of it."""
    source = GitSource(f"git+https://host/r@{'0' * 40}", credentials, patience)
    source._url = server.url + "/r"
    environment = source._environment
    source._environment = lambda folder: {**environment(folder), "GIT_ALLOW_PROTOCOL": "http"}  # type: ignore[method-assign]
    return source


def test_a_repository_behind_a_password_is_fetched(server: Web, repository: Repository, store: Store) -> None:
    commit = repository.commit({"a": b"one", "sub/b": b"two"})
    repository("update-server-info")
    inside = repository.folder / ".git"
    for path in inside.rglob("*"):
        if path.is_file():
            server.files[f"/r/{path.relative_to(inside)}"] = path.read_bytes()
    server.secret, server.challenge = "Basic Z2l0OnQwcHMzY3JldA==", True
    source = over_http(server, {"token": "t0ps3cret"})
    source._commit = commit
    made = ingest(source, store, "k")
    assert dict(opened(store, made.version)) == {"a": b"one", "sub/b": b"two"}
    wrong = over_http(server, {"token": "other"})
    with pytest.raises(Denied, match="Authentication failed"):
        list(wrong.objects())


def test_credentials_reach_the_server_and_no_argument_or_error(
    server: Web, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.status = lambda path: 401
    server.challenge = True
    started: list[list[str]] = []
    popen = subprocess.Popen

    class Watched(popen):  # type: ignore[type-arg,misc]
        def __init__(self, command: list[str], **how: object):
            started.append(command)
            super().__init__(command, **how)

    monkeypatch.setattr(subprocess, "Popen", Watched)
    source = over_http(server, {"user": "me", "password": "t0ps3cret"})
    with pytest.raises(Denied) as caught:
        list(source.objects())
    assert "Basic bWU6dDBwczNjcmV0" in {headers.get("authorization") for _, headers in server.asked}
    assert len(started) >= 2
    assert "t0ps3cret" not in str(caught.value) + str(started)
    assert source._folder is not None
    assert "t0ps3cret" not in "".join(
        path.read_text(errors="replace") for path in source._folder.rglob("*") if path.is_file()
    )


def test_a_redirect_gets_no_credentials(server: Web) -> None:
    with web() as other:
        other.status = lambda path: 401
        other.challenge = True
        server.moved = {"/r/info/refs": other.url + "/r/info/refs"}
        with pytest.raises(DataError):
            list(over_http(server, {"token": "t0ps3cret"}).objects())
        assert other.asked == []


def test_a_server_that_does_not_answer_is_asked_again(server: Web) -> None:
    waits: list[float] = []
    server.status = lambda path: 503
    with pytest.raises(Unreachable, match="503"):
        list(over_http(server, {}, Patience(tries=3, sleep=waits.append)).objects())
    assert len(waits) == 2
