"""One leader among several control planes, by a Lease: who holds it decides, the others wait with everything loaded.

A leader that cannot renew its lease in time stops being one before anybody else can be: it begins again as a candidate,
in the same process. Tasks notice nothing of it. A leader that was held up for longer (its machine was frozen) learns of
the other one late; until then the lock of the home, which both use, keeps them apart.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from weft.backends.kubernetes.client import Client

DURATION = 3.0
RENEW = 0.7
TRY = 0.4
ANSWER = 1.5
"""No answer of the API server is waited for longer."""
MARGIN = 0.3
"""A leader stops trying so long before its lease ends."""
CONFLICT = 409
log = logging.getLogger("weft.leader")


class Lost(Exception):
    """Somebody else leads now, or may."""


class Standing:
    """What one candidate knows of the lease, and what follows from it. No clock and no API server: both are told. Times are
    our own clock's: another machine's is never compared with it."""

    def __init__(self, identity: str, now: float):
        self.identity = identity
        self.seen: tuple[Any, ...] = ("", None, None)
        """The lease: who holds it, when it was renewed by their clock, and its version."""
        self.since = now
        """When we first saw it as it is."""
        self.lasts = DURATION
        self.renewed = now

    @property
    def holder(self) -> str:
        return str(self.seen[0])

    def looked(self, lease: dict[str, Any], now: float) -> int | None:
        """How often the lease will have moved if we write it now; None: it is somebody else's still."""
        spec = lease.get("spec") or {}
        seen = (spec.get("holderIdentity") or "", spec.get("renewTime"), lease["metadata"]["resourceVersion"])
        if seen != self.seen:
            self.seen, self.since = seen, now
        self.lasts = float(spec.get("leaseDurationSeconds") or DURATION)
        theirs = seen[0] not in ("", self.identity)
        if theirs and now - self.since < self.lasts:
            return None
        return (spec.get("leaseTransitions") or 0) + (seen[0] != self.identity)

    def wrote(self, asked: float) -> None:
        """It is ours; what counts is when we asked."""
        self.renewed = asked
        self.seen = (self.identity, None, None)

    def over(self, now: float) -> float:
        """Seconds until the lease of another one is over, as far as we know."""
        return self.since + self.lasts - now

    def left(self, now: float) -> float:
        """Seconds until we have to stop trying."""
        return self.renewed + DURATION - MARGIN - now

    def lost(self, now: float) -> bool:
        """Whether a leader whose lease was not renewed just now has to stop."""
        return self.holder not in ("", self.identity) or self.left(now) <= 0


class Election:
    """This process's part in it."""

    def __init__(
        self,
        client: Client,
        namespace: str,
        name: str,
        identity: str,
        clock: Callable[[], float] = time.monotonic,
    ):
        self._client = client
        self._namespace = namespace
        self._name = name
        self.identity = identity
        self._clock = clock
        self._standing = Standing(identity, clock())
        self._problem = ""
        self.leads = False

    async def win(self) -> None:
        """Wait until we lead."""
        told = ""
        while not await self._attempt(ANSWER):
            holder = self._standing.holder
            if holder and holder != told:
                log.info("%s leads; waiting", holder)
                told = holder
            left = self._standing.over(self._clock())
            await asyncio.sleep(left if 0 < left < TRY else TRY)
        log.info("%s leads", self.identity)
        self.leads = True

    async def hold(self) -> None:
        """Stay the leader; raises Lost when that cannot be said any more."""
        pause = RENEW
        while True:
            await asyncio.sleep(max(0.0, min(pause, self._left())))
            if await self._attempt(min(ANSWER, max(0.0, self._left()) + MARGIN)):
                pause = RENEW
                continue
            pause = TRY
            now = self._clock()
            if self._standing.lost(now):
                self.leads = False
                holder, ago = self._standing.holder, now - self._standing.renewed
                who = holder if holder != self.identity else "another"
                raise Lost(f"{who} may lead: the lease was last renewed {ago:.1f} s ago")

    def _left(self) -> float:
        return self._standing.left(self._clock())

    async def resign(self) -> None:
        """Let another one lead at once."""
        from weft.backends.kubernetes.client import ApiError

        if not self.leads:
            return
        self.leads = False
        try:
            await asyncio.wait_for(self._give_back(), ANSWER)
        except (ApiError, TimeoutError) as problem:
            log.info("the lease runs out by itself: %s", problem or "no answer")

    async def _give_back(self) -> None:
        lease = await self._client.get("Lease", self._name, self._namespace)
        if lease["spec"].get("holderIdentity") == self.identity:
            lease["spec"] |= {"holderIdentity": "", "leaseDurationSeconds": 1}
            await self._client.replace(lease, self._namespace)

    async def _attempt(self, patience: float) -> bool:
        """Take the lease or keep it, if that may be."""
        from weft.backends.kubernetes.client import ApiError

        problem = ""
        began = self._clock()
        try:
            taken = await asyncio.wait_for(self._take(), patience)
        except TimeoutError:
            taken, problem = False, "no answer"
        except ApiError as refusal:
            taken, problem = False, "" if refusal.status == CONFLICT else str(refusal)  # somebody was quicker
        if taken:
            self._standing.wrote(began)
        if problem and problem != self._problem:
            log.warning("the lease: %s", problem)
        self._problem = problem
        return taken

    async def _take(self) -> bool:
        from weft.backends.kubernetes.client import ApiError

        try:
            lease = await self._client.get("Lease", self._name, self._namespace)
        except ApiError as problem:
            if not problem.missing:
                raise
            await self._client.create(self._lease({}, 0), self._namespace)
            return True
        moves = self._standing.looked(lease, self._clock())
        if moves is None:
            return False
        await self._client.replace(self._lease(lease["metadata"], moves), self._namespace)
        return True

    def _lease(self, metadata: dict[str, Any], moves: int) -> dict[str, Any]:
        now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        return {
            "apiVersion": "coordination.k8s.io/v1",
            "kind": "Lease",
            "metadata": metadata or {"name": self._name, "namespace": self._namespace},
            "spec": {
                "holderIdentity": self.identity,
                "leaseDurationSeconds": round(DURATION),
                "renewTime": now,
                "leaseTransitions": moves,
            },
        }
