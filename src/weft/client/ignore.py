"""Which files of a folder are left out of its package: gitignore-like patterns, as regular expressions.

`#` comments, `*` and `?` within a name, `[abc]`, `**` across folders, a trailing `/` for folders only, a
leading (or inner) `/` to anchor at the folder itself, `!` to take a file back in. The last pattern that
matches decides. What lies in an ignored folder stays out, because it is never looked at.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

IGNORE_FILE = ".weftignore"
DEFAULT_PATTERNS = (
    ".git",
    "__pycache__/",
    ".venv",
    "venv/",
    "node_modules",
    "*.pyc",
    ".ipynb_checkpoints/",
    ".mypy_cache/",
    ".pytest_cache/",
    ".ruff_cache/",
    ".weft",
)


@dataclass(frozen=True, slots=True)
class Rule:
    pattern: re.Pattern[str]
    folders_only: bool
    keep: bool


class IgnoreRules:
    def __init__(self, lines: Iterable[str]):
        self.rules = [rule for line in lines if (rule := _rule(line)) is not None]

    def ignores(self, path: str, folder: bool) -> bool:
        """Whether this path (relative, with `/`) is left out. Asked for folders before their content."""
        for rule in reversed(self.rules):
            if (folder or not rule.folders_only) and rule.pattern.fullmatch(path):
                return not rule.keep
        return False


def _rule(line: str) -> Rule | None:
    text = line.rstrip("\r\n")
    text = re.sub(r"(?<!\\)[ \t]+$", "", text)
    if not text or text.startswith("#"):
        return None
    keep = text.startswith("!")
    text = text[1:] if keep else text
    folders_only = text.endswith("/")
    text = text.rstrip("/") if folders_only else text
    if not text:
        return None
    anchored = "/" in text
    expression = _expression(text.removeprefix("/"))
    return Rule(
        re.compile(expression if anchored else f"(?:.*/)?{expression}", re.DOTALL), folders_only, keep
    )


def _expression(glob: str) -> str:
    out, i = "", 0
    while i < len(glob):
        if glob.startswith("**/", i) and (i == 0 or glob[i - 1] == "/"):
            out, i = out + "(?:.*/)?", i + 3
        elif glob.startswith("**", i) and i + 2 == len(glob) and (i == 0 or glob[i - 1] == "/"):
            out, i = out + ".+", i + 2
        elif glob[i] == "*":
            out, i = out + "[^/]*", i + 1
        elif glob[i] == "?":
            out, i = out + "[^/]", i + 1
        elif glob[i] == "[" and (end := glob.find("]", i + 2)) > 0:
            out, i = out + _characters(glob[i + 1 : end]), end + 1
        elif glob[i] == "\\" and i + 1 < len(glob):
            out, i = out + re.escape(glob[i + 1]), i + 2
        else:
            out, i = out + re.escape(glob[i]), i + 1
    return out


def _characters(inside: str) -> str:
    negated = inside[0] in "!^"
    inside = re.sub(r"([\\\[\]^&~|])", r"\\\1", inside[1:] if negated else inside)
    expression = f"(?!/)[{'^' if negated else ''}{inside}]"
    try:
        re.compile(expression)
    except re.error:  # such as a range that runs backwards: it matches nothing
        return "(?!)"
    return expression
