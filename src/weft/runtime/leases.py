"""Which task has which part of an epoch: the books, and nothing else. No clock, no files, no processes.

The shards of an epoch are handed out in order, those that came back first. What was handed out, is not held and did
not come back is done: the books stay as small as the number of tasks, however many shards there are. Every lease has
a number of its own, so who lost a shard to another cannot mark it done any more: that happens once for each shard.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

REMEMBERED = 256
"""Of so many processes it is known what they last marked done."""


class Plan(NamedTuple):
    """How an epoch is cut; all tasks must agree on it."""

    n: int
    size: int
    shuffle: bool
    seed: int

    @property
    def shards(self) -> int:
        return -(-self.n // self.size)

    def __str__(self) -> str:
        return f"n={self.n}, size={self.size}, shuffle={self.shuffle}, seed={self.seed}"


class Holder(NamedTuple):
    """A process that holds leases."""

    task: str
    launch: int
    restarts: int
    machine: str
    """Where process ids mean the same; empty if they cannot be compared."""
    pid: int
    birth: int


class Lease(NamedTuple):
    number: int
    shard: int


class Held(NamedTuple):
    shard: int
    holder: Holder
    beat: int


class Epoch:
    def __init__(self, plan: Plan):
        self.plan = plan
        self.next = 0
        self.back: list[int] = []
        self.leases: dict[int, Held] = {}

    @property
    def free(self) -> bool:
        return bool(self.back) or self.next < self.plan.shards

    @property
    def over(self) -> bool:
        return not self.free and not self.leases


class Mismatch(Exception):
    """Two tasks cut the same epoch differently."""


class Books:
    def __init__(self) -> None:
        self.last_lease = 0
        self.complete: list[int] = []
        self.epochs: dict[int, Epoch] = {}
        self.counted: dict[Holder, list[int]] = {}
        """What each process last marked done: who did not hear the answer asks again, perhaps of another who keeps the books."""

    def begin(self, epoch: int | None, plan: Plan | None, otherwise: Plan) -> tuple[int, Plan]:
        """The epoch, opened if need be; None is the lowest open one, else the next. No plan: as it was begun."""
        if epoch is None:
            epoch = min(self.epochs, default=max(self.complete, default=-1) + 1)
        if epoch in self.complete:
            return epoch, plan or otherwise
        found = self.epochs.get(epoch)
        if found is None:
            found = self.epochs[epoch] = Epoch(plan or otherwise)
            self._close(epoch)
        elif plan is not None and found.plan != plan:
            raise Mismatch(f"epoch {epoch} was begun with {found.plan}, not with {plan}")
        return epoch, found.plan

    def take(self, epoch: int, holder: Holder) -> Lease | None:
        """A lease on a shard that is free; None if there is none now."""
        found = self.epochs.get(epoch)
        if found is None or not found.free:
            return None
        if found.back:
            shard = found.back.pop(0)
        else:
            shard, found.next = found.next, found.next + 1
        self.last_lease += 1
        found.leases[self.last_lease] = Held(shard, holder, 0)
        return Lease(self.last_lease, shard)

    def done(self, epoch: int, leases: Iterable[int], holder: Holder) -> list[int]:
        """Mark shards done; those whose lease still held, now or when this was asked before, are the answer."""
        found, before = self.epochs.get(epoch), self.counted.get(holder, [])
        held = found.leases if found is not None else {}
        counted = [number for number in leases if held.pop(number, None) or number in before]
        if counted:
            self.counted.pop(holder, None)
            self.counted[holder] = counted
            if len(self.counted) > REMEMBERED:
                del self.counted[next(iter(self.counted))]
        if found is not None:
            self._close(epoch)
        return counted

    def give_back(self, epoch: int, leases: Iterable[int]) -> None:
        found = self.epochs.get(epoch)
        if found is not None:
            held = [found.leases.pop(number) for number in leases if number in found.leases]
            found.back = sorted([*found.back, *(h.shard for h in held)])

    def take_from(self, gone: Callable[[int, Held], bool]) -> None:
        """Shards whose holder is gone are free again."""
        for epoch, found in self.epochs.items():
            self.give_back(epoch, [number for number, held in found.leases.items() if gone(number, held)])

    def keep_only(self, holder: Holder, leases: Iterable[int]) -> None:
        """What the holder was given and never heard of is free again."""
        known = set(leases)
        self.take_from(lambda number, held: held.holder == holder and number not in known)

    def beat(self, holder: Holder) -> None:
        """The holder is alive."""
        for found in self.epochs.values():
            for number, held in found.leases.items():
                if held.holder == holder:
                    found.leases[number] = held._replace(beat=held.beat + 1)

    def over(self, epoch: int) -> bool:
        return epoch in self.complete

    def _close(self, epoch: int) -> None:
        if self.epochs[epoch].over:
            del self.epochs[epoch]
            self.complete = sorted([*self.complete, epoch])


# ── as JSON ──


def to_json(books: Books) -> dict[str, Any]:
    return {
        "format": 1,
        "lastLease": books.last_lease,
        "complete": books.complete,
        "counted": [*books.counted.items()],
        "epochs": {
            str(number): {
                "plan": epoch.plan,
                "next": epoch.next,
                "back": epoch.back,
                "leases": {str(n): held for n, held in epoch.leases.items()},
            }
            for number, epoch in books.epochs.items()
        },
    }


def from_json(told: dict[str, Any]) -> Books:
    books = Books()
    books.last_lease = told["lastLease"]
    books.complete = told["complete"]
    books.counted = {Holder(*holder): last for holder, last in told.get("counted", ())}
    for number, epoch in told["epochs"].items():
        found = books.epochs[int(number)] = Epoch(Plan(*epoch["plan"]))
        found.next = epoch["next"]
        found.back = epoch["back"]
        found.leases = {int(n): Held(h[0], Holder(*h[1]), h[2]) for n, h in epoch["leases"].items()}
    return books
