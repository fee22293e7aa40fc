"""What a reader may ask, once it has said by which token. It reads the versions of its job's grant and no others."""

from __future__ import annotations

import asyncio
import hmac
import os
import time
from dataclasses import dataclass
from typing import Any

from weft.data.agent.ahead import Ahead
from weft.data.agent.counts import Counted
from weft.data.agent.frames import Answer, Connection
from weft.data.agent.node import Node
from weft.data.cache.leases import Grant, Terms
from weft.data.cache.versions import HANDED, Version, checked
from weft.data.errors import Denied, Refused

PROTOCOL = 1
LARGEST_READ = 64 << 20
MOST_AHEAD = 65_536
TOLD = ("turn", "hits", "misses", "hitBytes", "missBytes")
MOST_TOLD = 1 << 53
"""No number of a JSON document that all read alike is larger."""
LAST_WORDS = 0.5
"""Seconds that a reader of a job that is over is heard out; one that has ended has said all at once."""


@dataclass(frozen=True, slots=True)
class Asked:
    """A request about a version that its reader may read."""

    reader: str
    job: str
    version: Version
    terms: Terms
    request: dict[str, Any]


class Desk:
    def __init__(self, node: Node, ahead: Ahead):
        self._node = node
        self._ahead = ahead
        self._readers: dict[str, set[Connection]] = {}
        """By job."""
        self._answers = {
            "open": self._open,
            "part": self._part,
            "read": self._read,
            "ahead": self._follow,
            "tree": self._tree,
            "got": self._got,
        }

    async def handle(self, connection: Connection, request: dict[str, Any]) -> Answer:
        wanted = request.get("do")
        if wanted == "hello":
            return await self._hello(connection, request)
        grant = self._grant(connection)
        if wanted == "counts":
            counted = self._node.counts.of(grant.job)
            return Answer({name: getattr(counted, name) for name in counted.__slots__})
        if not isinstance(wanted, str) or wanted not in self._answers:
            raise Refused(
                f"nobody here knows how to do {str(wanted)[:40]!r}; {', '.join(self._answers)} and counts can be done"
            )
        name = checked(request.get("version"))
        terms = grant.versions.get(name)
        if terms is None:
            raise Denied(
                f"job {grant.job} may not read version {name[:12]}; name its dataset in the job's `datasets`"
            )
        version = await self._node.version(name, terms.dataset)
        return await self._answers[wanted](
            Asked(connection.about["reader"], grant.job, version, terms, request)
        )

    async def _hello(self, connection: Connection, request: dict[str, Any]) -> Answer:
        if request.get("protocol") != PROTOCOL:
            raise Refused(
                f"this agent speaks protocol {PROTOCOL}, not {request.get('protocol')!r}; use the same release of weft"
            )
        token = request.get("token")
        grant = None
        if isinstance(token, str):
            grant = self._node.leases.holder(token)
            if grant is None:  # another agent of this cache may have been told
                await self._node.aside(self._node.leases.refresh)
                grant = self._node.leases.holder(token)
        if grant is None:
            raise Denied("the token is of no job that may read data on this node; it ends with its job")
        former = connection.about.get("job")
        connection.about = {"job": grant.job, "token": grant.token, "reader": f"{grant.job} {id(connection)}"}
        if former is None:
            connection.ended.add_done_callback(lambda _: self._leave(connection, connection.about["job"]))
        elif former != grant.job:
            self._leave(connection, former)
        self._readers.setdefault(grant.job, set()).add(connection)
        return Answer({"job": grant.job, "hears": True})

    def _leave(self, connection: Connection, job: str) -> None:
        readers = self._readers.get(job, set())
        readers.discard(connection)
        if not readers:
            self._readers.pop(job, None)

    async def hear_out(self, job: str) -> None:
        """What the readers of a job that is over said last, without waiting for an answer, may still be on its way."""
        if talking := [connection.ended for connection in self._readers.get(job, ())]:
            await asyncio.wait(talking, timeout=LAST_WORDS)

    def _grant(self, connection: Connection) -> Grant:
        """Looked up at each request: a lease that was revoked ends now."""
        if not connection.about:
            raise Denied('say who you are first: {"do": "hello", "protocol": 1, "token": …}')
        grant = self._node.leases.of(connection.about["job"])
        if grant is None or not hmac.compare_digest(grant.token, connection.about["token"]):
            raise Denied(f"job {connection.about['job']} may not read data on this node any more")
        return grant

    async def _open(self, asked: Asked) -> Answer:
        files: list[int] = []
        try:
            files.extend(os.open(asked.version.folder / name, os.O_RDONLY | os.O_CLOEXEC) for name in HANDED)
        except OSError:
            for fd in files:
                os.close(fd)
            raise
        return Answer({"folder": str(asked.version.folder)}, files=files)

    async def _part(self, asked: Asked) -> Answer:
        part = asked.version.part(asked.request.get("part"))
        fd = self._node.open(part)
        if fd is not None:
            self._node.count(asked.job, asked.terms.dataset, Counted(found=1, givenBytes=part.size))
            return Answer({"have": True, "came": self._node.take_fresh(part)}, files=[fd])
        if asked.request.get("wait", True) is not True:
            self._node.count(asked.job, asked.terms.dataset, Counted(lacked=1))
            coming = self._node.peers.owns(part.digest, asked.terms.share)
            if coming:
                self._ahead.begin(asked.job, asked.version, asked.terms, part)
            return Answer({"have": False, "coming": coming})
        started = time.monotonic()
        try:
            if await self._node.fill(asked.version.name, part, asked.terms, asked.job):
                fd = self._node.open(part)
        finally:
            stalled = time.monotonic() - started
            self._node.count(asked.job, asked.terms.dataset, Counted(lacked=1, stallSeconds=stalled))
        if fd is None:
            return Answer({"have": False})
        self._node.count(asked.job, asked.terms.dataset, Counted(givenBytes=part.size))
        return Answer({"have": True, "came": self._node.take_fresh(part)}, files=[fd])

    async def _read(self, asked: Asked) -> Answer:
        """With `sample`, the number of the sample that these bytes are, they are proven by its mark."""
        part = asked.version.part(asked.request.get("part"))
        offset, length = asked.request.get("offset"), asked.request.get("length")
        if (
            type(offset) is not int
            or type(length) is not int
            or not 0 <= offset <= offset + length <= part.size
        ):
            raise Refused(
                f"part {asked.request['part']} has {part.size} bytes; there are no {length!r} at {offset!r}"
            )
        if length > LARGEST_READ:
            raise Refused(f"{length} bytes at once; at most {LARGEST_READ} are read in one request")
        mark = b""
        if "sample" in asked.request:
            sample = asked.version.sample(asked.request["sample"])
            if (sample.part, sample.offset, sample.length) != (asked.request["part"], offset, length):
                raise Refused(f"sample {asked.request['sample']} does not lie there")
            mark = sample.mark
        if not length:
            return Answer()
        started = time.monotonic()
        try:
            data = await self._node.aside(
                self._node.read, asked.version, part, asked.terms, asked.job, offset, length, mark
            )
        finally:
            stalled = time.monotonic() - started
            self._node.count(asked.job, asked.terms.dataset, Counted(stallSeconds=stalled))
        return Answer(body=data)

    async def _follow(self, asked: Asked) -> Answer:
        numbers = asked.request.get("parts")
        if not isinstance(numbers, list) or len(numbers) > MOST_AHEAD:
            raise Refused(f"ahead needs a list of at most {MOST_AHEAD} parts")
        self._ahead.follow(
            asked.reader,
            asked.job,
            asked.version,
            asked.terms,
            [asked.version.part(number) for number in numbers],
        )
        return Answer()

    async def _got(self, asked: Asked) -> Answer:
        """What a reader got of a version, and what of it was on this node."""
        told = {name: asked.request.get(name) for name in TOLD}
        if not all(type(value) is int and 0 <= value < MOST_TOLD for value in told.values()):
            raise Refused(f"got needs numbers: {', '.join(TOLD)}")
        self._node.count(asked.job, asked.terms.dataset, Counted(**told))  # type: ignore[arg-type]
        return Answer()

    async def _tree(self, asked: Asked) -> Answer:
        if asked.request.get("make", True) is not True:
            there = self._node.trees.path(asked.version.name)
            return Answer({"folder": str(there) if there.exists() else None})
        made = await self._node.aside(self._node.tree, asked.version, asked.terms, asked.job)
        return Answer({"folder": str(made)})
