"""Who may read what, and so what must stay: a grant is a lease on its versions until it is revoked.

Grants are on disk before they are answered for, and outlive the agent. Of a token only its hash is kept.
"""

from __future__ import annotations

import hashlib
import hmac
import json
from dataclasses import asdict, dataclass
from typing import Any

from weft.data.cache.admission import POLICIES
from weft.data.cache.books import Books
from weft.data.errors import Refused

Share = tuple[str, ...] | None
"""The nodes among which the parts of a version are divided; None: every node may hold all."""


@dataclass(frozen=True, slots=True)
class Terms:
    """How a job reads one version."""

    dataset: str
    bytes: int
    policy: str = "nr"
    quota: int | None = None
    share: Share = None
    together: Share = None
    """The nodes that hold all of it, each: a part comes to one of them from its origin, and from there to the others."""


@dataclass(frozen=True, slots=True)
class Grant:
    job: str
    token: str
    """Its hash."""
    versions: dict[str, Terms]


class Leases:
    """Read from memory, written to the books; `refresh` sees what another process wrote."""

    def __init__(self, books: Books):
        self._books = books
        self._grants: dict[str, Grant] = {}
        self.refresh()

    def refresh(self) -> None:
        with self._books.lock:  # else a grant that comes meanwhile is forgotten
            rows = self._books.ask("select job, token, versions from grants")
            self._grants = {job: Grant(job, token, _terms(json.loads(text))) for job, token, text in rows}

    def grant(self, job: str, token: str, versions: dict[str, Any]) -> Grant:
        made = Grant(job, hashed(token), _terms(versions))
        text = json.dumps({name: asdict(terms) for name, terms in made.versions.items()})
        with self._books.writing() as db:
            db.execute("insert or replace into grants values (?, ?, ?)", (job, made.token, text))
        with self._books.lock:
            self._grants = {**self._grants, job: made}
        return made

    def revoke(self, job: str) -> bool:
        with self._books.writing() as db:
            known = db.execute("delete from grants where job = ?", (job,)).rowcount > 0
        with self._books.lock:
            self._grants = {name: grant for name, grant in self._grants.items() if name != job}
        return known

    def holder(self, token: str) -> Grant | None:
        """All are compared, each in constant time: how long it takes says nothing about a token."""
        wanted, found = hashed(token), None
        for grant in self._grants.values():
            if hmac.compare_digest(grant.token, wanted):
                found = grant
        return found

    def of(self, job: str) -> Grant | None:
        return self._grants.get(job)

    @property
    def grants(self) -> list[Grant]:
        return list(self._grants.values())

    def readers(self, version: str) -> list[str]:
        return sorted(grant.job for grant in self._grants.values() if version in grant.versions)

    def versions(self, policy: str | None = None) -> set[str]:
        """Those on which there is a lease."""
        return {
            version
            for grant in self._grants.values()
            for version, terms in grant.versions.items()
            if policy in (None, terms.policy)
        }

    def shares(self, version: str) -> set[Share]:
        """Among whom those who read it divide it."""
        return {g.versions[version].share for g in self._grants.values() if version in g.versions}

    def terms(self, version: str) -> Terms | None:
        """Of any who reads it."""
        return next((g.versions[version] for g in self._grants.values() if version in g.versions), None)


def hashed(token: str) -> str:
    return hashlib.sha256(token.encode()).hexdigest()


def _terms(versions: Any) -> dict[str, Terms]:
    if not isinstance(versions, dict):
        raise Refused('a grant names its versions: {"versions": {VERSION: {"dataset": NAME, "bytes": N}}}')
    found = {}
    for version, about in versions.items():
        try:
            terms = Terms(**about)
        except TypeError as problem:
            raise Refused(f"the terms of version {version[:12]} cannot be read: {problem}") from None
        if terms.policy not in POLICIES:
            raise Refused(
                f"dataset {terms.dataset}: no policy {terms.policy!r}; there are {', '.join(POLICIES)}"
            )
        found[version] = Terms(
            str(terms.dataset), int(terms.bytes), terms.policy, None if terms.quota is None else int(terms.quota),
            _nodes(terms.share), _nodes(terms.together),
        )  # fmt: skip
    return found


def _nodes(named: Share) -> Share:
    return None if named is None else tuple(named)
