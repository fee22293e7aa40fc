"""The same workload under several policies."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from weft.model.node import Node
from weft.scheduler.policy import NAMED, Policy
from weft.scheduler.queues import QueueRule
from weft.sim.engine import Simulation
from weft.sim.failures import Failure
from weft.sim.oracle import Oracle, Told
from weft.sim.outcome import Outcome
from weft.sim.workload import Arrival, by_owner

ORACLE = "+oracle"
"""Ends the name of a policy that is told how long every job will run."""


def policy_of(name: str) -> Policy:
    try:
        return NAMED[name.removesuffix(ORACLE)]
    except KeyError:
        known = ", ".join(NAMED)
        raise ValueError(f"no policy {name}; there are {known}, each also with {ORACLE}") from None


def simulate(
    name: str,
    nodes: Sequence[Node],
    arrivals: Sequence[Arrival],
    *,
    rules: Iterable[QueueRule] = (),
    failures: Iterable[Failure] = (),
    queues: bool = False,
    tick: float = 1.0,
    progress: Callable[[int, int], None] | None = None,
) -> Outcome:
    """One policy by its name. `fair` has a queue for every owner, the others only where `queues` is said."""
    policy = policy_of(name)
    history = Oracle(arrivals) if name.endswith(ORACLE) else None
    rules = list(rules)
    if not rules and (queues or name.removesuffix(ORACLE) == "fair"):
        arrivals, rules = by_owner(arrivals)
    return Simulation(
        nodes,
        arrivals,
        policy,
        rules,
        history=history,
        kin=Told(history) if history else None,
        failures=failures,
        tick=tick,
        progress=progress,
    ).run()
