"""`weft.shards`: the samples of an epoch, shared out among whatever tasks there are.

    for shard in weft.shards(50_000, epoch=epoch, size=512):
        train(data[list(shard)])

Every task of a job runs the same loop and gets shards that nobody else has. A shard is done when its task asks for
the next one; the shards of a task that dies or leaves go to the others. The loop ends for all when the last is done.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from math import isqrt
from typing import overload

from weft.runtime.books import NAME, Answer, Coordinator, FileBooks, OwnBooks, ShardsError
from weft.runtime.leases import Lease, Plan
from weft.runtime.preempt import asked


def shards(
    n: int,
    epoch: int | None = None,
    size: int | None = None,
    *,
    shuffle: bool = True,
    seed: int = 0,
    name: str = "train",
) -> Shards:
    """The samples 0 to n-1 in shards of `size`, for all tasks together, each once an epoch.

    An epoch that is complete yields nothing, so every task may run `for epoch in range(…)` from the beginning;
    None is the one that is open, or else the next. The order is a permutation made of `seed` and `epoch`, the same for
    any number of tasks; shuffle=False gives ranges. Several sets of data need a `name` each.
    """
    if n < 0 or (size is not None and size < 1) or (epoch is not None and epoch < 0):
        raise ValueError(f"n={n}, epoch={epoch}, size={size}: n and epoch must be 0 or more, size 1 or more")
    if not NAME.fullmatch(name):
        raise ValueError(f"name={name!r}: letters, digits, '_' and '-', at most 64")
    folder = os.environ.get("CHECKPOINT_DIR") or None
    return Shards(
        _keeper(folder, name), epoch, size, Plan(n, size or max(1, min(1024, n // 100)), shuffle, seed)
    )


class Shard(Sequence[int]):
    """Indices of samples that this task alone has. In a `for` loop it is done when the next one is asked for."""

    def __init__(
        self, epoch: int, lease: Lease, plan: Plan, order: Permutation | None, finish: Callable[[], bool]
    ):
        self.epoch = epoch
        self.number = lease.shard
        self._range = range(lease.shard * plan.size, min(plan.n, (lease.shard + 1) * plan.size))
        self._order = order
        self._finish = finish

    def done(self) -> bool:
        """Mark it done now. False if it was given to another task, because this one was silent for too long."""
        return self._finish()

    def __len__(self) -> int:
        return len(self._range)

    @overload
    def __getitem__(self, at: int) -> int: ...
    @overload
    def __getitem__(self, at: slice) -> Sequence[int]: ...
    def __getitem__(self, at: int | slice) -> int | Sequence[int]:
        found = self._range[at]
        if self._order is None:
            return found
        return self._order[found] if isinstance(found, int) else [self._order[i] for i in found]

    def __iter__(self) -> Iterator[int]:
        return iter(self._range) if self._order is None else map(self._order.__getitem__, self._range)

    def __repr__(self) -> str:
        return f"<shard {self.number} of epoch {self.epoch}: {len(self)} samples>"


class Shards:
    """What `weft.shards` gives: iterate over it. Leaving the loop early gives the unfinished shard back."""

    def __init__(self, coordinator: Coordinator, epoch: int | None, size: int | None, plan: Plan):
        self._coordinator = coordinator
        self._epoch = epoch
        self._size = size
        self._plan = plan

    def __iter__(self) -> Iterator[Shard]:
        coordinator = self._coordinator
        epoch, plan = coordinator.begin(self._epoch, None if self._size is None else self._plan, self._plan)
        if (plan.n, plan.shuffle, plan.seed) != (self._plan.n, self._plan.shuffle, self._plan.seed):
            raise ShardsError(
                f"epoch {epoch} was begun with {plan}, not with {self._plan}; use another name="
            )
        order = Permutation(plan.n, plan.seed, epoch) if plan.shuffle else None
        current = _Current(coordinator, epoch)
        try:
            while (lease := current.next()) is not None:
                yield Shard(epoch, lease, plan, order, current.finisher(lease))
        finally:
            current.give_back()


class _Current:
    """The lease of one loop."""

    def __init__(self, coordinator: Coordinator, epoch: int):
        self._coordinator = coordinator
        self._epoch = epoch
        self._held: int | None = None
        self._pid = os.getpid()

    def next(self) -> Lease | None:
        """Finish the current one and wait for the next; None when the epoch is over or the task has to stop."""
        pause = 0.01
        while True:
            finished, stop = self._own(), asked()
            answer = self._coordinator.step(self._epoch, done=finished, want=not stop)
            self._held = None
            self._check(finished, answer)
            if answer.lease is not None:
                self._held = answer.lease.number
                return answer.lease
            if answer.over or stop:
                return None
            time.sleep(pause)
            pause = min(pause * 1.5, 0.5)

    def finisher(self, lease: Lease) -> Callable[[], bool]:
        counted: list[bool] = []

        def finish() -> bool:
            if not counted:
                answer = self._coordinator.step(self._epoch, done=[lease.number])
                counted.append(lease.number in answer.counted)
                if self._held == lease.number:
                    self._held = None
            return counted[0]

        return finish

    def give_back(self) -> None:
        if mine := self._own():
            self._held = None
            self._coordinator.step(self._epoch, back=mine)

    def _own(self) -> list[int]:
        if self._pid != os.getpid():  # a forked child: what is held is its parent's
            self._pid, self._held = os.getpid(), None
        return [] if self._held is None else [self._held]

    def _check(self, finished: list[int], answer: Answer) -> None:
        if len(answer.counted) < len(finished):
            text = f"weft: a shard of epoch {self._epoch} was given to another task, which will do it again: "
            print(f"{text}nothing was heard of this one for too long", file=sys.stderr, flush=True)


# ── the order ──


class Permutation:
    """A shuffle of 0 to n-1 without a table: any index of it at once, the same on every machine.

    Four rounds of a Feistel network over the squares of a board that has at least n of them; an index that falls
    beyond n goes round again.
    """

    def __init__(self, n: int, seed: int, epoch: int):
        from hashlib import blake2b

        digest = blake2b(f"{seed}/{epoch}".encode(), digest_size=32).digest()
        self._keys = [int.from_bytes(digest[i : i + 8], "little") for i in range(0, 32, 8)]
        self._n = n
        self._side = isqrt(max(n - 1, 0)) + 1

    def __getitem__(self, index: int) -> int:
        side = self._side
        while True:
            left, right = divmod(index, side)
            for key in self._keys:
                mixed = (right + key) * 0x9E3779B97F4A7C15 & 0xFFFFFFFFFFFFFFFF
                mixed = (mixed ^ mixed >> 32) * 0xD6E8FEB86659FD93 & 0xFFFFFFFFFFFFFFFF
                left, right = right, (left + (mixed >> 16)) % side
            index = left * side + right
            if index < self._n:
                return index


# ── who keeps the books ──


_keepers: dict[tuple[str | None, str], Coordinator] = {}


def _keeper(folder: str | None, name: str) -> Coordinator:
    """An agent where there is one, since it outlives processes and serves tasks elsewhere; else the folder that all share."""
    desk = os.environ.get("WEFT_SHARDS_FILE") or None
    where = desk or folder
    if (where, name) not in _keepers:
        _keepers[where, name] = _made(desk, folder, name)
    return _keepers[where, name]


def _made(desk: str | None, folder: str | None, name: str) -> Coordinator:
    if desk is not None:
        from weft.runtime.deskbooks import DeskBooks

        return DeskBooks(desk, name)
    return FileBooks(folder, name) if folder else OwnBooks()
