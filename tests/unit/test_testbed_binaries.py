"""Building Kubernetes: what is made again, and what is mended on the way."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "scripts"))

from testbed import binaries, debian


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    (binaries.folder() / "bin").mkdir(parents=True)
    return binaries.folder()


def test_an_interrupted_build_goes_on(folder: Path) -> None:
    (folder / "bin" / "kubelet").touch()
    assert binaries.missing() == [name for name in binaries.PROGRAMS if name != "kubelet"]


def test_of_a_build_from_before_the_mending_the_api_server_is_made_again(folder: Path) -> None:
    for name in binaries.PROGRAMS:
        (folder / "bin" / name).touch()
    (folder / ".whole").touch()
    assert binaries.missing() == ["kube-apiserver"]
    (folder / ".mended").touch()
    assert binaries.missing() == []


def test_the_library_that_does_not_know_the_compiler_is_replaced_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = tmp_path / "tree" / "vendor" / binaries.REFLECT
    new = tmp_path / "debian" / "usr/share/gocode/src" / binaries.REFLECT
    for place, name in ((old, "unsafe_map.go"), (new, "go_above_118.go"), (new, "a_test.go")):
        place.mkdir(parents=True, exist_ok=True)
        (place / name).touch()
    monkeypatch.setattr(debian, "unpacked", lambda names: tmp_path / "debian")
    for _ in range(2):
        binaries._mend(tmp_path / "tree")
        assert [path.name for path in old.iterdir()] == ["go_above_118.go"]
