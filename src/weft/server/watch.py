"""`/v1/watch`: all that changes, for pages that stay open.

Whatever happened in a quarter of a second is one message, put into words once for everybody who listens: fifty open pages
cost little more than one. Without a listener nothing is looked at.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import replace
from typing import Any

from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from weft.backends.api import Cached
from weft.control.control import Control
from weft.control.live import KIND
from weft.control.utilization import Sample, Utilization
from weft.server import answers
from weft.server.answers import ref
from weft.server.operations import Answer, Operation, Query
from weft.server.streams import HEADERS, KEEP_ALIVE, LAST_EVENT, NOTHING, Message, events_of, last_event
from weft.server.summaries import now_of, summary_of
from weft.store.changes import Happened
from weft.version import __version__

TICK = 0.25
SLOW_TICKS = 2
"""What changes without an event (how far jobs are, nodes, numbers) is looked at this often: with the third of a second
after which metrics are read, it is on the page within a second."""
CATCH_UP = 2000
"""Events that a page may have missed; with more it reads everything anew."""
OF_JOBS = {"state", "note", "deleted"}
"""Events of these types are of jobs; others are named after the kind of what they happened to."""
MOST_LIVE = 2000
"""Live jobs whose progress is looked at."""
BEHIND = 256
"""Messages that a page may be behind before it has to begin anew."""
STREAM = events_of(
    hello=ref(answers.Hello),
    jobs=ref(answers.ChangedJobs),
    nodes=ref(answers.Nodes),
    status=ref(answers.Status),
    declared=ref(answers.Declared),
    sample=ref(answers.Sample),
    measured=ref(answers.MeasuredUse),
    cached=ref(answers.ChangedCaches),
    reset=NOTHING,
)


class Listener:
    """What one page has not been sent yet."""

    def __init__(self) -> None:
        self.left: deque[bytes] = deque()
        self.wake = asyncio.Event()

    def send(self, message: bytes) -> None:
        if len(self.left) > BEHIND:
            self.left.clear()
            message = Message("reset", {}).encode()
        self.left.append(message)
        self.wake.set()

    async def messages(self) -> AsyncIterator[bytes]:
        while True:
            while self.left:
                whole = b"".join(self.left)
                self.left.clear()
                yield whole
            self.wake.clear()
            try:
                await asyncio.wait_for(self.wake.wait(), KEEP_ALIVE)
            except TimeoutError:
                yield b": keep-alive\n\n"


class Watch:
    def __init__(
        self,
        control: Control,
        utilization: Utilization,
        nodes: Callable[[], dict[str, Any]],
        status: Callable[[], dict[str, Any]],
    ):
        self._control = control
        self._utilization = utilization
        self._slow = {"nodes": nodes, "status": status}
        self._said: dict[str, bytes] = {}
        self._listeners: set[Listener] = set()
        self._changed: set[str] = set()
        self._declared: set[str] = set()
        self._seq = 0
        self._now: dict[str, dict[str, Any]] = {}
        self._working: tuple[asyncio.Task[None], ...] = ()
        self._unwatch: Callable[[], None] = lambda: None
        self._sample: Sample | None = None
        self._cached: Sequence[Cached] = ()
        utilization.heard = self._sampled

    def table(self) -> list[Operation]:
        return [
            Operation(
                "GET",
                "/v1/watch",
                "All that changes, as a stream: hello, then jobs (summaries, and uids that are gone), nodes, status, "
                "declared (of which kinds something was declared, changed or deleted), sample (as of /v1/utilization, also "
                "between its moments), measured (there is more of /v1/jobs/NAME/usage) and cached (of which datasets nodes "
                "hold something else, or were asked for it); reset: read the lists anew",
                self.watch,
                {200: Answer("A stream of events", STREAM, "text/event-stream")},
                headers=(LAST_EVENT,),
            )
        ]

    async def watch(self, request: Request, query: Query) -> Response:
        return StreamingResponse(
            self._listen(last_event(request)), media_type="text/event-stream", headers=HEADERS
        )

    async def _listen(self, seen: int | None) -> AsyncIterator[bytes]:
        listener = Listener()
        store = self._control.store
        hello = {"seq": store.last_seq, "version": __version__, "started": self._slow["status"]()["started"]}
        listener.send(Message("hello", hello, str(store.last_seq)).encode())
        if seen is not None:
            listener.send(self._missed(seen))
        self._listeners.add(listener)
        if not self._working:
            self._begin()
        try:
            async for message in listener.messages():
                yield message
        finally:
            self._listeners.discard(listener)
            if not self._listeners:
                self._end()

    def _missed(self, seen: int) -> bytes:
        """What happened since a page was last connected, if that can be told."""
        store = self._control.store
        missed = store.events(after=seen, limit=CATCH_UP) if seen <= store.last_seq else []
        if seen > store.last_seq or len(missed) == CATCH_UP:
            return Message("reset", {}).encode()
        jobs = {event.uid for event in missed if event.type in OF_JOBS}
        others = {event.type for event in missed if event.type not in OF_JOBS}
        return (_declared(others) if others else b"") + self._jobs(jobs, store.last_seq)

    def close(self) -> None:
        self._end()

    def _begin(self) -> None:
        self._unwatch = self._control.store.watch(self._happened)
        self._working = tuple(map(asyncio.create_task, (self._work(), self._look_at_caches())))

    def _end(self) -> None:
        self._unwatch()
        for task in self._working:
            task.cancel()
        self._working = ()
        self._changed.clear()
        self._declared.clear()
        self._said.clear()
        self._now.clear()
        self._cached = ()

    def _happened(self, event: Happened) -> None:
        if event.type in OF_JOBS:
            self._changed.add(event.uid)
        else:
            self._declared.add(event.type)
        self._seq = max(self._seq, event.seq)

    def _sampled(self, sample: Sample) -> None:
        self._sample = sample
        self._tell(Message("sample", sample.document()).encode())

    def measured(self, time: float) -> None:
        """What tasks use was looked at."""
        self._tell(Message("measured", {"time": time}).encode())

    async def _work(self) -> None:
        ticks = 0
        while True:
            if ticks % SLOW_TICKS == 0:
                self._look()
            if self._changed:
                changed, self._changed = self._changed, set()
                self._tell(self._jobs(changed, self._seq))
            if self._declared:
                declared, self._declared = self._declared, set()
                self._tell(_declared(declared))
            ticks += 1
            await asyncio.sleep(TICK)

    def _look(self) -> None:
        """Find what has changed without an event."""
        jobs = self._control.jobs
        if len(jobs) <= MOST_LIVE:
            now = {uid: now_of(self._control, job, job.status.state) for uid, job in jobs.items()}
            self._changed |= {
                uid for uid, found in now.items() if uid in self._now and self._now[uid] != found
            }
            self._now = now
        sample = self._utilization.now()
        if self._sample is None or replace(self._sample, time=sample.time) != sample:
            self._sampled(sample)
        for event, look in self._slow.items():
            said = Message(event, look()).encode()
            if self._said.get(event) != said:
                self._said[event] = said
                self._tell(said)

    async def _look_at_caches(self) -> None:
        """Apart from the rest: nodes are asked, and may take their time to answer."""
        _, self._cached = await self._control.datasets.touched(())
        while True:
            await asyncio.sleep(TICK * SLOW_TICKS)
            names, self._cached = await self._control.datasets.touched(self._cached)
            if names:
                self._tell(Message("cached", {"datasets": sorted(names)}).encode())

    def _jobs(self, uids: set[str], seq: int) -> bytes:
        rows = self._control.store.summaries(KIND, list(uids))
        items = [summary_of(self._control, row) for row in rows]
        gone = sorted(uids - {row.uid for row in rows})
        return Message("jobs", {"items": items, "gone": gone}, str(seq) if seq else None).encode()

    def _tell(self, message: bytes) -> None:
        for listener in self._listeners:
            listener.send(message)


def _declared(kinds: set[str]) -> bytes:
    return Message("declared", {"kinds": sorted(kinds)}).encode()
