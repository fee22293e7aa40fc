"""The operations on queues: what waits, and the queues that an operator declared."""

from __future__ import annotations

from dataclasses import asdict
from operator import itemgetter

from starlette.requests import Request
from starlette.responses import Response

from weft.control.control import Control
from weft.control.foresight import UNKNOWN
from weft.model.quantities import plain_cpu
from weft.model.queue import Queue
from weft.model.resource import NAME_PATTERN
from weft.scheduler.line import startable
from weft.scheduler.queues import Amounts, amounts_of
from weft.server.answers import ref
from weft.server.declared import read_declared
from weft.server.operations import Answer, Operation, Query, as_json
from weft.server.path import path_name
from weft.server.statuses import Line, Queues

QUEUE = {"$ref": "#/components/schemas/Queue"}


class QueueOperations:
    def __init__(self, control: Control, owner: str):
        self._control = control
        self._owner = owner

    def table(self) -> list[Operation]:
        name = {"name": NAME_PATTERN}
        return [
            Operation(
                "GET",
                "/v1/queue",
                "What waits, in the order in which it should start; last, and without a position, what never can",
                self.queue,
                {
                    200: Answer(
                        "Jobs; and beside them what runs, in the order in which it should end", ref(Line)
                    )
                },
            ),
            Operation(
                "GET",
                "/v1/queues",
                "The queues, each after its parent, and what they use",
                self.list_queues,
                {200: Answer("Queues; and beside them the capacity that they share", ref(Queues))},
            ),
            Operation(
                "PUT",
                "/v1/queues/{name}",
                "Declare a queue or change it",
                self.put_queue,
                {200: Answer("Changed", QUEUE), 201: Answer("Declared", QUEUE)},
                body=QUEUE,
                problems=(413, 507),
                path_patterns=name,
            ),
            Operation(
                "DELETE",
                "/v1/queues/{name}",
                "Delete a queue that nothing uses",
                self.delete_queue,
                {204: Answer("Gone")},
                problems=(404, 409, 507),
                path_patterns=name,
            ),
        ]

    async def queue(self, request: Request, query: Query) -> Response:
        control = self._control
        estimates = await control.estimates()
        now = control.clock()
        items = []
        for position, waiting in enumerate(control.waiting(), 1):
            promise = control.books.promises.get(waiting.uid)
            possible = startable(control.books, waiting)
            items.append(
                {
                    "position": position if possible else None,
                    "name": waiting.name,
                    "uid": waiting.uid,
                    "queue": waiting.queue,
                    "owner": waiting.owner,
                    "priority": waiting.priority,
                    "waited": now - waiting.since,
                    "needs": control.needs(waiting),
                    **_size(amounts_of(task.request for task in waiting.gang.preferred)),
                    "likelyDuration": control.likely_length(waiting),
                    "reason": control.why_waiting(control.jobs[waiting.uid]),
                    "possible": possible,
                    "estimatedStart": asdict(estimates.get(waiting.uid, UNKNOWN) if possible else UNKNOWN),
                    "promisedStart": promise.start if promise is not None else None,
                }
            )
        running = [
            {
                "name": job.name,
                "uid": job.uid,
                "queue": job.queue,
                "owner": job.owner,
                "priority": job.priority,
                "started": job.started,
                **_size(job.held()),
                "likelyEnd": control.likely_end(job),
            }
            for job in control.books.running
        ]
        return as_json({"items": items, "running": sorted(running, key=itemgetter("likelyEnd"))})

    async def list_queues(self, request: Request, query: Query) -> Response:
        control = self._control
        asking, now = control.asking(), control.clock()
        items = [control.queues.document(n, control.books, asking[n], now) for n in control.queues]
        return as_json({"items": items, "capacity": control.queues.capacity(control.books)})

    async def put_queue(self, request: Request, query: Query) -> Response:
        name = path_name(request)
        queue = await read_declared(request, Queue, name, "queue")
        control = self._control
        new = await control.queues.put(name, queue.spec, queue.metadata, self._owner)
        found = control.queues.document(name, control.books, control.asking()[name], control.clock())
        return as_json(found, 201 if new else 200)

    async def delete_queue(self, request: Request, query: Query) -> Response:
        control = self._control
        await control.queues.remove(path_name(request), control.asking, self._owner)
        return Response(status_code=204)


def _size(amounts: Amounts) -> dict[str, int | float]:
    """CPUs and GPUs as people count them."""
    cpu, _, gpu = amounts
    return {"cpu": plain_cpu(cpu), "gpu": plain_cpu(gpu)}
