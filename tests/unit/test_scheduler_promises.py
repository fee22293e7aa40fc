"""Promised starts are kept, nobody starves, and a forecast is what then happens."""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.builders import a_gang, a_node, a_request
from support.clusters import seeds
from support.recount import books
from support.world import World, known
from weft.model.gang import Gang
from weft.scheduler.forecast import Picture, forecast
from weft.scheduler.pending import Waiting
from weft.scheduler.policy import DEFAULT, Order, Policy

CALM = replace(DEFAULT, time_share=False, patience=50.0)


def gpus(count: int, tasks: int = 1) -> Gang:
    return a_gang(*[a_request(1, gpu=count)] * tasks)


def nodes(count: int, width: int = 4) -> list[Any]:
    return [a_node(f"node-{i}", cpu=2 * width, gpus=width, shared=True) for i in range(count)]


WIDE, SMALL = gpus(4, 2), gpus(4)
LONGEST = 400.0


def a_busy_time(seed: int, jobs: int, policy: Policy, whole_nodes: bool) -> World:
    """Jobs that last exactly as long as jobs like them did, on 2 nodes; every third is wide."""
    r = Random(seed)
    kinds = [("quick", 30.0), ("usual", 100.0), ("slow", LONGEST)]
    history = known(*((name, size, s) for name, s in kinds for size in (1.0, 2.0, 4.0, 8.0)))
    world = World(nodes(2), policy=policy, history=history)
    arrivals: list[Any] = []
    for number in range(jobs):
        name, lasts = r.choice(kinds)
        small = SMALL if whole_nodes else gpus(r.choice([1, 2, 4]))
        gang = WIDE if r.random() < 0.33 else small
        when = r.randrange(0, 1500, 10)
        arrivals.append((float(when), f"job-{number}", gang, {"lasts": lasts, "name": f"{name}-{number}"}))
    world.run(1e6, arrivals)
    return world


@given(seeds, st.integers(1, 25))
def test_promises_are_kept_where_jobs_take_whole_nodes_and_one_promise_is_made_at_a_time(
    seed: int, jobs: int
) -> None:
    """Nobody outlives its prediction here (it is stretched by the margin), so no promise may be late."""
    world = a_busy_time(seed, jobs, replace(CALM, promises=1, order=Order.FIFO), whole_nodes=True)
    for made in world.promised:
        assert world.first_start[made.uid] <= made.start + 1e-6


@given(seeds, st.integers(10, 25))
def test_promises_are_kept_whatever_the_sizes_and_however_many(seed: int, jobs: int) -> None:
    world = a_busy_time(seed, jobs, replace(CALM, promises=4), whole_nodes=False)
    for made in world.promised:
        assert world.first_start[made.uid] <= made.start + 1e-6


@given(seeds, st.integers(1, 25), st.booleans())
def test_everybody_who_could_ever_fit_starts_within_the_bound_and_what_is_ahead_of_it(
    seed: int, jobs: int, whole_nodes: bool
) -> None:
    """After `bound` a job goes before all that came later, so at most those ahead of it (fewer than `jobs`) start
    first, one after the other at worst, each for at most LONGEST; then who runs must end, once more LONGEST."""
    policy = replace(CALM, bound=600.0, settled=1.0)
    world = a_busy_time(seed, jobs, policy, whole_nodes)
    assert {*world.first_start} == {*world.submitted}
    for uid, when in world.first_start.items():
        assert when - world.submitted[uid] <= policy.bound + (jobs + 1) * LONGEST


def test_a_promise_says_when_enough_will_have_ended() -> None:
    world = World(nodes(2), policy=CALM, history=known(("first", 4, 100.0), ("second", 4, 1000.0)))
    world.runs("first-1", SMALL)
    world.runs("second-1", SMALL)
    world.submit("wide", WIDE)
    world.now = 60.0
    (made,) = world.cycle().promises
    assert made.start == pytest.approx(60.0 + (1000.0 - 60.0) * CALM.margin)


def test_a_job_with_a_deadline_has_ended_by_then() -> None:
    world = World(nodes(2), policy=CALM)
    world.runs("limited", replace(gpus(4, 2), deadline=90.0))
    world.submit("wide", WIDE)
    world.now = 60.0
    (made,) = world.cycle().promises
    assert made.start == 90.0


def test_who_has_not_waited_long_is_promised_nothing() -> None:
    world = World(nodes(2), policy=CALM)
    world.runs("first", WIDE)
    world.submit("wide", WIDE)
    world.now = CALM.patience - 1
    assert world.cycle().promises == ()


@pytest.mark.parametrize(("time_share", "promised"), [(True, set()), (False, {"again"})])
def test_who_has_run_before_is_promised_nothing_where_equals_give_way(
    time_share: bool, promised: set[str]
) -> None:
    """Its turn comes by its rank; room that is kept for it meanwhile would be idle."""
    world = World(nodes(2), policy=replace(CALM, time_share=time_share), history=known(("runs", 4, 100.0)))
    world.runs("runs", gpus(4), lasts=100.0)
    world.state.submit(Waiting("again", "again", WIDE, 0, world.now, attained=500.0))
    world.now += 60.0
    assert {made.uid for made in world.cycle().promises} == promised


def test_who_could_never_fit_is_promised_nothing() -> None:
    world = World(nodes(2), policy=CALM)
    world.runs("first", WIDE)
    world.submit("too-wide", gpus(4, 3))
    world.now = 1000.0
    assert world.cycle().promises == ()


def test_the_promised_job_starts_early_when_others_end_early() -> None:
    world = World(nodes(2), policy=CALM, history=known(("first", 8, 1000.0)))
    world.runs("first-1", WIDE)
    world.submit("wide", WIDE)
    world.now = 60.0
    world.cycle()
    world.finish("first-1")
    world.cycle()
    assert world.running == {"wide"}


# ── forecasts ──


def test_an_estimate_is_what_happens_when_durations_are_as_predicted() -> None:
    history = known(*((name, size, s) for name, s in (("a", 60.0), ("b", 200.0)) for size in (4.0, 8.0)))
    policy = replace(CALM, margin=1.0)
    world = World(nodes(2), policy=policy, history=history)
    for number in range(8):
        name, lasts = ("a", 60.0) if number % 2 else ("b", 200.0)
        world.submit(
            f"job-{number}", WIDE if number % 3 == 0 else SMALL, name=f"{name}-{number}", lasts=lasts
        )
    world.cycle()
    said = {uid: estimate.likely for uid, estimate in forecast(Picture.of(world.state), world.now).items()}
    world.run(1e5, timers=False)
    assert said == {uid: world.first_start[uid] for uid in said}


def test_an_estimate_has_its_range_around_it() -> None:
    world = World(nodes(1), policy=CALM, history=known(("first", 4, 100.0), ("first", 4, 300.0), times=10))
    world.runs("first-1", SMALL)
    world.submit("next", SMALL)
    estimate = forecast(Picture.of(world.state), 0.0)["next"]
    assert estimate.earliest is not None
    assert estimate.likely is not None
    assert estimate.latest is not None
    assert 100.0 <= estimate.earliest <= estimate.likely <= estimate.latest


def test_who_can_never_start_has_no_estimate_and_the_books_are_left_alone() -> None:
    world = World(nodes(1), policy=CALM)
    world.runs("first", SMALL)
    world.submit("never", gpus(8))
    before = books(world.state)
    assert forecast(Picture.of(world.state), 0.0)["never"].likely is None
    assert books(world.state) == before
