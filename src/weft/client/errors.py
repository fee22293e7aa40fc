"""What can go wrong for a caller: each error names the object, the cause and the next command to try."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


class WeftError(Exception):
    """The base of every error that the SDK raises on purpose."""

    def __init__(self, what: str, cause: str = "", next: str | None = None):
        self.what = what
        self.cause = cause
        self.next = next
        gap = "" if cause.startswith("\n") else " "
        super().__init__(f"{what}:{gap}{cause}" if cause else what)


class NoServer(WeftError):
    """Nothing answers where a server was expected."""


class Unreachable(WeftError):
    """A server was there, but the exchange with it broke off."""


class ApiError(WeftError):
    """The server refused a request: an RFC 9457 problem as an exception."""

    def __init__(self, status: int, document: dict[str, Any], path: str):
        self.status = status
        self.path = path
        self.title: str = document.get("title") or f"HTTP {status}"
        self.detail: str = document.get("detail") or ""
        self.problems: list[dict[str, Any]] = document.get("problems") or []
        super().__init__(self.title, _explained(self.detail, self.problems), document.get("next"))


class BadDocument(WeftError):
    """A job file that cannot be read, or that the server refuses; names the file."""


class PackageError(WeftError):
    """A folder that cannot be packed."""


class JobFailed(WeftError):
    """A job that was waited for ended (or stopped) without completing."""

    def __init__(self, name: str, state: str, sentence: str, log_tail: Sequence[str] = ()):
        self.name = name
        self.state = state
        self.log_tail = list(log_tail)
        tail = "".join(f"\n  | {line}" for line in self.log_tail)
        next = f"weft resume {name}" if state == "HALTED" else f"weft show {name}"
        super().__init__(f"job {name} is {state}", sentence + tail, next)


def describe_problem(problem: dict[str, Any]) -> str:
    """One line for one refused field, in the words of `weft.model.problems.Problem`."""
    value = problem.get("value")
    shown = f" (got {value})" if value is not None else ""
    field = problem.get("field")
    return (
        f"{field}: {problem.get('message', '')}{shown}" if field else f"{problem.get('message', '')}{shown}"
    )


def _explained(detail: str, problems: Sequence[dict[str, Any]]) -> str:
    lines = [describe_problem(problem) for problem in problems]
    missing = [line for line in lines if line not in detail]
    return "\n  ".join([detail, *missing] if detail else missing)
