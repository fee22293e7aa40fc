"""Queues: who may have how much, who has how much, and whose turn it is.

A queue has a guarantee (its own whenever it wants it), a limit (never more, borrowed or not) and a weight
among its sisters. Limits fail closed: a queue that nobody declared has none of anything.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from weft.model.gang import Request

RESOURCES = ("cpu", "memory", "gpu")
"""CPUs and GPUs in thousandths, memory in bytes."""
Amounts = tuple[int, int, int]
NONE: Amounts = (0, 0, 0)
HALF_LIFE = 4 * 3600.0
ROOT = ""


def amounts_of(requests: Iterable[Request]) -> Amounts:
    cpu = memory = gpu = 0
    for request in requests:
        cpu += request.cpu
        memory += request.memory
        gpu += request.gpu * 1000 + request.gpu_share
    return (cpu, memory, gpu)


@dataclass(frozen=True, slots=True)
class QueueRule:
    """What an operator says of a queue. What a mapping leaves out is not limited, and not guaranteed."""

    name: str
    parent: str = ROOT
    weight: float = 1.0
    guarantee: Mapping[str, int] = field(default_factory=dict)
    limit: Mapping[str, int] = field(default_factory=dict)
    user_limit: Mapping[str, int] = field(default_factory=dict)
    """The most that one user may have in this queue at a time."""
    closed: bool = False


@dataclass(slots=True)
class Account:
    """A queue and what it uses, with everything below it."""

    rule: QueueRule
    path: tuple[str, ...]
    """From the top to this queue."""
    used: Amounts = NONE
    users: dict[str, Amounts] = field(default_factory=dict)
    past: float = 0.0
    """Its dominant share, averaged over a decaying window."""
    at: float = 0.0


class Queues:
    def __init__(self, rules: Iterable[QueueRule] = (), capacity: Amounts = NONE):
        given = {rule.name: rule for rule in rules}
        given.setdefault("default", QueueRule("default"))
        self.capacity = capacity
        self.accounts: dict[str, Account] = {}
        for name, rule in given.items():
            self.accounts[name] = Account(rule, _path(name, given))
        self._stack: list[tuple[str, str, Amounts]] = []
        self.fair = len(self.accounts) > 1
        self.guarantees = any(rule.guarantee for rule in given.values())
        self._limits = any(rule.limit or rule.user_limit or rule.closed for rule in given.values())

    # ── what is used ──

    def take(self, queue: str, user: str, amounts: Amounts, now: float) -> None:
        self._change(queue, user, amounts, 1, now)

    def give(self, queue: str, user: str, amounts: Amounts, now: float) -> None:
        self._change(queue, user, amounts, -1, now)

    def plan(self, queue: str, user: str, amounts: Amounts, sign: int = 1) -> None:
        """As `take` (or `give`), on the undo stack."""
        planned: Amounts = (sign * amounts[0], sign * amounts[1], sign * amounts[2])
        self._change(queue, user, planned, 1, None)
        self._stack.append((queue, user, planned))

    def mark(self) -> int:
        return len(self._stack)

    def revert(self, mark: int) -> None:
        while len(self._stack) > mark:
            self._change(*self._stack.pop(), -1, None)

    def _change(self, queue: str, user: str, amounts: Amounts, sign: int, now: float | None) -> None:
        for name in self._path(queue):
            account = self.accounts[name]
            if now is not None:
                self._age(account, now)
            account.used = plus(account.used, amounts, sign)
            if account.rule.user_limit:
                account.users[user] = plus(account.users.get(user, NONE), amounts, sign)

    def _path(self, queue: str) -> tuple[str, ...]:
        account = self.accounts.get(queue)
        return account.path if account is not None else ()

    def _age(self, account: Account, now: float) -> None:
        if now > account.at:
            kept = 0.5 ** ((now - account.at) / HALF_LIFE)
            account.past = account.past * kept + self._dominant(account.used) * (1.0 - kept)
            account.at = now

    def _dominant(self, used: Amounts) -> float:
        return max(used[i] / self.capacity[i] if self.capacity[i] else 0.0 for i in range(3))

    # ── who may, and whose turn it is ──

    def refusal(self, queue: str, user: str, amounts: Amounts) -> str | None:
        """Why this much more is not allowed, in numbers; None if it is."""
        path = self._path(queue)
        if not path:
            return f"there is no queue {queue}"
        if not self._limits:
            return None
        for name in path:
            account = self.accounts[name]
            rule = account.rule
            if rule.closed:
                return f"queue {name} is closed"
            over = _over(rule.limit, account.used, amounts)
            if over:
                return f"queue {name} is limited to {over}"
            if rule.user_limit:
                over = _over(rule.user_limit, account.users.get(user, NONE), amounts)
                if over:
                    return f"each user of queue {name} is limited to {over}"
        return None

    def could_ever(self, queue: str, amounts: Amounts) -> bool:
        """Whether an empty queue would allow it."""
        return all(
            _over(rule.limit, NONE, amounts) is None and _over(rule.user_limit, NONE, amounts) is None
            for rule in (self.accounts[name].rule for name in self._path(queue))
        ) and bool(self._path(queue))

    def guaranteed(self, queue: str, amounts: Amounts) -> bool:
        """Whether the queue (or one above it) is owed this much more: it stays within its guarantee."""
        return self.guarantees and any(self._owed(self.accounts[name], amounts) for name in self._path(queue))

    def _owed(self, account: Account, amounts: Amounts) -> bool:
        guarantee = account.rule.guarantee
        if not guarantee:
            return False
        wanted = plus(account.used, amounts, 1)
        return all(
            wanted[i] <= guarantee[RESOURCES[i]] if RESOURCES[i] in guarantee else True
            for i in range(3)
            if amounts[i]
        ) and any(RESOURCES[i] in guarantee for i in range(3) if amounts[i])

    def borrows(self, queue: str, amounts: Amounts, claimant: str = "") -> bool:
        """Whether this much of what the queue uses is beyond what it is guaranteed, at every level below those that
        it shares with the claimant."""
        if not self.guarantees:
            return True
        shared = self._path(claimant)
        for name in self._path(queue):
            if name in shared:
                continue
            account = self.accounts[name]
            left = plus(account.used, amounts, -1)
            guarantee = account.rule.guarantee
            if guarantee and any(left[i] < guarantee.get(RESOURCES[i], 0) for i in range(3) if amounts[i]):
                return False
        return True

    def unmoved(self, turns: dict[str, tuple[float, ...]], queue: str) -> dict[str, tuple[float, ...]]:
        """Those of the turns that do not change when this queue gets more: of queues under another top queue."""
        top = self._path(queue)[:1]
        return {name: turn for name, turn in turns.items() if self._path(name)[:1] != top}

    def turn(self, queue: str, now: float) -> tuple[float, ...]:
        """Lower goes first: the weighted dominant share at each level, now and lately, from the top down."""
        if not self.fair:
            return ()
        shares = []
        for name in self._path(queue):
            account = self.accounts[name]
            current = self._dominant(account.used)
            shares.append(round((current + self.lately(account, now)) / account.rule.weight, 6))
        return tuple(shares)

    def lately(self, account: Account, now: float) -> float:
        """Its dominant share, averaged over a decaying window that ends now."""
        kept = 0.5 ** ((now - account.at) / HALF_LIFE) if now > account.at else 1.0
        return account.past * kept + self._dominant(account.used) * (1.0 - kept)


def _path(name: str, rules: Mapping[str, QueueRule]) -> tuple[str, ...]:
    path: list[str] = []
    while name != ROOT:
        if name in path:
            raise ValueError(f"queue {name} is its own ancestor")
        if name not in rules:
            raise ValueError(f"queue {path[-1]} is under {name}, which does not exist")
        path.append(name)
        name = rules[name].parent
    return tuple(reversed(path))


def plus(a: Amounts, b: Amounts, sign: int = 1) -> Amounts:
    return (a[0] + sign * b[0], a[1] + sign * b[1], a[2] + sign * b[2])


def _over(limit: Mapping[str, int], used: Amounts, more: Amounts) -> str | None:
    for i, name in enumerate(RESOURCES):
        if more[i] and name in limit and used[i] + more[i] > limit[name]:
            return f"{_show(name, limit[name])}: {_show(name, used[i])} in use, {_show(name, more[i])} asked"
    return None


def _show(name: str, amount: int) -> str:
    if name == "memory":
        from weft.model.quantities import show_bytes

        return show_bytes(amount)
    return f"{amount / 1000:g} {name}"
