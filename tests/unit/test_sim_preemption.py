"""Preemption under the simulator, where a wrong hold shows as jobs that stop each other for ever."""

from __future__ import annotations

from dataclasses import replace
from random import Random

from hypothesis import given
from hypothesis import strategies as st

from weft.scheduler.policy import NAMED
from weft.scheduler.queues import QueueRule
from weft.sim.clusterfile import equal_nodes
from weft.sim.engine import Arrival, Simulation
from weft.sim.workload import gang_of_gpus

LONGEST, RESTART = 1500.0, 60.0


def test_what_is_free_of_a_preemptors_place_is_not_sold_to_another() -> None:
    """Half of the place was free and half was another's: the free half went to a third, and so on without end."""
    jobs = [
        Arrival("x", 0.0, 6000.0, gang_of_gpus(4), priority=10),
        Arrival("y", 0.0, 6000.0, gang_of_gpus(1)),
        Arrival("high", 100.0, 600.0, gang_of_gpus(4), priority=10),
        Arrival("small", 100.0, 600.0, gang_of_gpus(3)),
    ]
    outcome = Simulation(equal_nodes(1), jobs).run()
    records = {record.arrival.name: record for record in outcome.records}
    assert records["high"].started is not None
    assert records["high"].started < 110
    assert [records[name].preemptions for name in ("x", "y", "high", "small")] == [0, 1, 0, 0]


def test_priority_does_not_take_what_a_queue_is_guaranteed() -> None:
    """It was taken by priority and taken back by right, at every event."""
    jobs = [
        Arrival("low", 0.0, 6000.0, gang_of_gpus(8), queue="a"),
        Arrival("high", 700.0, 6000.0, gang_of_gpus(8), priority=10, queue="c"),
        *(Arrival(f"other{i}", 800.0 + 10 * i, 60.0, gang_of_gpus(16), queue="c") for i in range(40)),
    ]
    rules = [QueueRule("a", guarantee={"gpu": 8000}), QueueRule("c")]
    outcome = Simulation(equal_nodes(1), jobs, rules=rules).run()
    assert sum(record.preemptions for record in outcome.records) == 0


@given(st.randoms(use_true_random=False), st.integers(2, 30), st.sampled_from(["default", "shortest"]))
def test_nobody_waits_longer_than_the_bound_and_who_is_ahead_of_it(r: Random, jobs: int, policy: str) -> None:
    """Jobs give way to each other again and again. One that has waited longer than the bound goes before all that have not,
    and is left alone then: at worst it waits for everybody else, one after the other, to start again and run to the end."""
    rules = replace(
        NAMED[policy],
        quantum=20.0,
        bound=900.0,
        bound_again=1200.0,
        settled=1.0,
        large=4.0,
    )
    arrivals = [
        Arrival(
            f"job-{number}",
            float(r.randrange(3000)),
            r.choice([30.0, 200.0, LONGEST]),
            gang_of_gpus(r.choice([1, 4, 8, 16])),
        )
        for number in range(jobs)
    ]
    outcome = Simulation(equal_nodes(2), arrivals, rules, restart=RESTART).run()
    assert len(outcome.records) == jobs
    for record in outcome.records:
        assert record.finished is not None
        assert record.waited <= rules.bound_again + jobs * (LONGEST + 2 * RESTART)
