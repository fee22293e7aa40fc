"""Templates: text with places like `${hosts.worker}`, filled from the gang when one of its tasks starts.

There is no logic in them: a place is a name from the table below, `$$` is a dollar sign, and everything else
is itself. So a mistake can be found when a template is written, and not when the first job runs.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches

PLAIN = {
    "job": "the job's name",
    "task": "the task's name, like worker-0",
    "role": "its role",
    "index": "its number within the role, from 0",
    "rank": "its number within the job, from 0",
    "localRank": "its number among the job's tasks on its node",
    "world": "how many tasks there are",
    "launch": "the number of the launch that started it",
    "restarts": "how often it was restarted",
    "host": "the address others reach it at",
    "port": "the port that is kept free for it",
    "gpus": "how many GPUs it has",
    "processes": "one a GPU, or one",
    "python": "the interpreter that the job's command begins with, else python",
    "chief": "true for the task that leads, else false",
    "chief.host": "the address of the task that leads",
    "chief.port": "its port",
    "json.roles": 'all addresses: {"worker": ["host:port", ...], ...}',
    "json.names": 'all hosts: {"worker": ["host", ...], ...}',
}
OF_A_ROLE = {
    "count": "how many tasks of the role there are",
    "least": "how few of them may run",
    "most": "how many of them may run",
    "hosts": "host:port of each, with commas between",
    "names": "the host of each, with commas between",
    "first": "host:port of its first task",
}
_PLACE = re.compile(r"\$(?:(?P<dollar>\$)|\{(?P<name>[^{}$]*)\}|(?P<wrong>))")


@dataclass(frozen=True, slots=True)
class RoleFacts:
    hosts: Sequence[str]
    """host:port of each task."""
    least: int
    most: int


@dataclass(frozen=True, slots=True)
class Facts:
    """What one task of a gang can be told."""

    plain: Mapping[str, str]
    roles: Mapping[str, RoleFacts]
    variables: Mapping[str, str] = field(default_factory=dict)
    """Environment variables that Weft sets; each can be named as well."""

    def value(self, name: str) -> str:
        if name in self.plain:
            return self.plain[name]
        if name in self.variables:
            return self.variables[name]
        if name == "json.roles":
            return json.dumps({role: list(facts.hosts) for role, facts in self.roles.items()})
        if name == "json.names":
            return json.dumps({role: _names(facts) for role, facts in self.roles.items()})
        what, _, role = name.partition(".")
        facts = self.roles.get(role, RoleFacts((), 0, 0))
        match what:
            case "count":
                return str(len(facts.hosts))
            case "least":
                return str(facts.least)
            case "most":
                return str(facts.most)
            case "hosts":
                return ",".join(facts.hosts)
            case "names":
                return ",".join(_names(facts))
            case "first":
                return facts.hosts[0] if facts.hosts else ""
            case _:
                raise KeyError(name)


def _names(facts: RoleFacts) -> list[str]:
    return [place.rpartition(":")[0] for place in facts.hosts]


def mistakes(template: str, roles: Sequence[str] | None) -> Iterator[str]:
    """What is wrong with a template, each with what would be right. `roles`: only these are there; None: any."""
    for place in _PLACE.finditer(template):
        if place["wrong"] is not None:
            shown = template[place.start() : place.start() + 20]
            if template.startswith("${", place.start()):
                yield f"{shown!r}: the place that begins here does not end; write ${{name}}"
            else:
                yield f"{shown!r}: write $$ for a dollar sign, or ${{name}} for a place"
        elif place["name"] is not None and (wrong := _wrong_name(place["name"], roles)):
            yield wrong


def _wrong_name(name: str, roles: Sequence[str] | None) -> str | None:
    if name in PLAIN or re.fullmatch(r"[A-Z][A-Z0-9_]*", name):
        return None
    what, dot, role = name.partition(".")
    if what in OF_A_ROLE and dot and role:
        if roles is None or role in roles:
            return None
        return f"${{{name}}}: there is no role {role}{_near(role, roles)}; the roles are {', '.join(roles)}"
    known = [*PLAIN, *(f"{what}.ROLE" for what in OF_A_ROLE)]
    return f"${{{name}}}: no such place{_near(name, known)}; the places are {', '.join(known)}"


def _near(name: str, known: Sequence[str]) -> str:
    near = get_close_matches(name, known, n=1)
    return f", did you mean {near[0]}?" if near else ""


def fill(template: str, facts: Facts) -> str:
    def value(place: re.Match[str]) -> str:
        return "$" if place["dollar"] else facts.value(place["name"])

    return _PLACE.sub(value, template) if "$" in template else template


def fill_command(wrapper: Sequence[str], command: Sequence[str], facts: Facts) -> list[str]:
    """A wrapper's arguments, with the job's own command in place of `${command}`."""
    found: list[str] = []
    for part in wrapper:
        if part == "${command}":
            found += command
        else:
            found.append(fill(part, facts))
    return found


def command_mistakes(wrapper: Sequence[str], roles: Sequence[str] | None) -> Iterator[tuple[int | None, str]]:
    if wrapper and wrapper.count("${command}") != 1:
        yield None, "must hold ${command} once, as an argument of its own: it becomes the job's own command"
    for number, part in enumerate(wrapper):
        if part != "${command}":
            for wrong in mistakes(part, roles):
                yield number, wrong
