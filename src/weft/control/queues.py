"""The queues that an operator declared: kept in the store, handed to the scheduler, shown with what they use."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from weft.control.declared import Declared
from weft.control.nosuch import NoQueue
from weft.model.lifecycle import Refused
from weft.model.problems import Invalid
from weft.model.quantities import plain_cpu
from weft.model.queue import DEFAULT, FIELDS, Queue, QueueSpec, conflicts, guaranteed, show
from weft.model.resource import Metadata
from weft.scheduler.queues import NONE, RESOURCES, ROOT, Amounts, QueueRule
from weft.scheduler.state import State as Books
from weft.store.store import Store

KIND = "Queue"


def rule_of(name: str, spec: QueueSpec) -> QueueRule:
    """A queue as the scheduler keeps it."""
    return QueueRule(
        name,
        spec.parent or ROOT,
        spec.weight,
        spec.guarantee.given(),
        spec.limit.given(),
        spec.user_limit.given(),
        spec.closed,
    )


@dataclass(slots=True)
class Use:
    """What one user has in a queue."""

    waiting: int = 0
    running: int = 0
    held: Amounts = NONE


@dataclass(frozen=True, slots=True)
class Asking:
    """Who asks for something in a queue: by user, what waits, and what has a place."""

    users: dict[str, Use] = field(default_factory=dict)

    @property
    def waiting(self) -> int:
        return sum(use.waiting for use in self.users.values())

    @property
    def running(self) -> int:
        return sum(use.running for use in self.users.values())


class OperatorQueues:
    """All queues by name. One change at a time, because each is judged next to all others."""

    def __init__(
        self,
        store: Store,
        clock: Callable[[], float],
        new_uid: Callable[[float], str],
        changed: Callable[[list[QueueRule]], None],
    ):
        self._changed = changed
        self._own = Declared(KIND, Queue, store, clock, new_uid)
        self.declared = self._own.by_name
        self.declared[DEFAULT] = Queue(metadata=Metadata(name=DEFAULT))

    def load(self) -> None:
        """As they were when the last server ended."""
        self._own.load()
        self._tell()

    def __contains__(self, name: str) -> bool:
        return name in self.declared

    @property
    def specs(self) -> dict[str, QueueSpec]:
        return {name: queue.spec for name, queue in self.declared.items()}

    def __iter__(self) -> Iterator[str]:
        """Every queue right after its parent."""
        children: dict[str | None, list[str]] = {}
        for name in sorted(self.declared, key=lambda name: (name != DEFAULT, name)):
            children.setdefault(self.declared[name].spec.parent, []).append(name)
        left = list(reversed(children.get(None, ())))
        while left:
            name = left.pop()
            yield name
            left += reversed(children.get(name, ()))

    # ── changing ──

    async def settled(self) -> None:
        await self._own.settled()

    async def put(self, name: str, spec: QueueSpec, metadata: Metadata, actor: str) -> bool:
        """Declare a queue, or change it; True if it is new."""
        async with self._own.one:
            problems = list(conflicts(name, {**self.specs, name: spec}))
            if problems:
                raise Invalid(f"queue {name}", problems, KIND)
            new = name not in self.declared
            await self._own.put(name, Queue(metadata=metadata, spec=spec), actor)
            self._tell()
            return new

    async def remove(self, name: str, asking: Callable[[], dict[str, Asking]], actor: str) -> None:
        async with self._own.one:
            if name not in self.declared:
                raise NoQueue(name, self.declared)
            if name == DEFAULT:
                raise Refused(f"queue {name} is where jobs go that name none; it can be changed, not deleted")
            children = [child for child, spec in self.specs.items() if spec.parent == name]
            if children:
                raise Refused(
                    f"queue {name} has queues in it ({', '.join(sorted(children))}); delete them first"
                )
            jobs = asking()[name]
            if jobs.waiting or jobs.running:
                raise Refused(
                    f"queue {name} is in use: {jobs.waiting} waiting and {jobs.running} running; "
                    "cancel them or let them end (closed: true keeps new ones from starting)"
                )
            await self._own.remove(name, actor)
            self._tell()

    def _tell(self) -> None:
        self._changed([rule_of(name, spec) for name, spec in self.specs.items()])

    # ── showing ──

    def document(self, name: str, books: Books, asking: Asking, now: float) -> dict[str, Any]:
        """The resource, with what the queue has, as the scheduler counts it."""
        queue = self.declared[name]
        account = books.queues.accounts[name]
        used = dict(zip(RESOURCES, account.used, strict=True))
        own = queue.spec.guarantee.given()
        document: dict[str, Any] = queue.model_dump(mode="json", by_alias=True, exclude_none=True)
        document["status"] = {
            "used": _amounts(used),
            "guaranteed": _amounts(own),
            "limit": _amounts(queue.spec.limit.given()),
            "borrowed": _amounts({what: max(0, used[what] - own.get(what, 0)) for what in own or FIELDS}),
            "waiting": asking.waiting,
            "running": asking.running,
            "users": [
                {
                    "owner": owner,
                    "used": _amounts(dict(zip(RESOURCES, use.held, strict=True))),
                    "waiting": use.waiting,
                    "running": use.running,
                }
                for owner, use in sorted(asking.users.items())
            ],
            "share": round(books.queues.lately(account, now), 6),
            "notes": list(self.notes(books)) if queue.spec.parent is None and own else [],
        }
        return document

    def capacity(self, books: Books) -> dict[str, int | float]:
        """What all nodes have together: what queues share."""
        return _amounts(dict(zip(RESOURCES, books.queues.capacity, strict=True)))

    def notes(self, books: Books) -> Iterator[str]:
        """Guarantees that cannot all be kept at once."""
        capacity = dict(zip(RESOURCES, books.queues.capacity, strict=True))
        for resource, together in guaranteed(None, self.specs).items():
            if together > capacity[resource]:
                yield (
                    f"queues are guaranteed {show(resource, together)} {resource} together, all nodes have "
                    f"{show(resource, capacity[resource])}: whoever comes first has it"
                )


def _amounts(given: dict[str, int]) -> dict[str, int | float]:
    """CPUs and GPUs as people count them, memory in bytes."""
    return {what: value if what == "memory" else plain_cpu(value) for what, value in given.items()}
