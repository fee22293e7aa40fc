"""The page's sources: their types, their form, and the tests of what needs no browser."""

from __future__ import annotations

from pages import BUILT, ROOT, node

MOST = 350 * 1024
"""Bytes of the whole page, gzipped: it opens at once also from afar."""


def test_the_types_are_sound() -> None:
    assert "error" not in node("typescript/bin/tsc", "--noEmit", "--pretty", "false")


def test_they_are_formatted() -> None:
    assert "All matched files use Prettier" in node("prettier/bin/prettier.cjs", "--check", ".")


def test_what_needs_no_browser() -> None:
    tests = sorted(str(file) for file in (ROOT / "ui/tests").glob("*.test.mjs"))
    said = node("", "--test", "--test-reporter=tap", *tests)
    assert "# fail 0" in said
    assert "# pass 0" not in said


def test_the_page_is_small() -> None:
    packed = {file.name: file.stat().st_size for file in BUILT.rglob("*.gz")}
    assert any(name.endswith(".js.gz") for name in packed)
    assert sum(packed.values()) < MOST, packed
