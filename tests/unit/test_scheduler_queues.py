"""Queues: guarantees, limits, borrowing, reclaiming, nesting, users, and whose turn it is over time."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import pytest

from support.builders import a_gang, a_node, a_request
from support.world import World, known
from weft.model.gang import Gang
from weft.scheduler.explain import explain_waiting
from weft.scheduler.policy import DEFAULT, Order, Policy
from weft.scheduler.queues import QueueRule, Queues

CALM = replace(DEFAULT, time_share=False)


def gpus(count: int) -> Gang:
    return a_gang(a_request(1, gpu=count))


def world_of(rules: list[QueueRule], width: int = 8, policy: Policy = CALM, **rest: Any) -> World:
    return World([a_node(cpu=4 * width, gpus=width, shared=True)], rules, policy, **rest)


def test_a_queue_borrows_what_nobody_else_uses() -> None:
    world = world_of([QueueRule("a", guarantee={"gpu": 4000}), QueueRule("b", guarantee={"gpu": 4000})])
    world.submit("wide", gpus(8), queue="a")
    world.cycle()
    assert world.running == {"wide"}


def test_what_was_borrowed_is_given_back_to_whom_it_is_guaranteed() -> None:
    world = world_of([QueueRule("a", guarantee={"gpu": 4000}), QueueRule("b", guarantee={"gpu": 4000})])
    world.runs("own", gpus(4), queue="a")
    world.runs("borrowed", gpus(4), queue="a")
    world.submit("back", gpus(4), queue="b")
    world.settle()
    assert "back" in world.running
    assert len(world.stopped) == 1


def test_what_is_its_own_is_not_given_up() -> None:
    world = world_of([QueueRule("a", guarantee={"gpu": 8000}), QueueRule("b", guarantee={"gpu": 8000})])
    world.runs("own", gpus(8), queue="a")
    world.submit("wants", gpus(8), queue="b")
    assert world.cycle().preemptions == ()


def test_a_limit_holds_even_when_everything_is_idle() -> None:
    world = world_of([QueueRule("a", limit={"gpu": 4000})])
    world.runs("first", gpus(4), queue="a")
    world.submit("second", gpus(1), queue="a")
    world.cycle()
    assert world.running == {"first"}
    said = explain_waiting(world.state, world.state.pending["second"])
    assert said.reason == "queue a is limited to 4 gpu: 4 gpu in use, 1 gpu asked"


def test_the_limit_of_a_queue_holds_for_all_below_it() -> None:
    world = world_of([QueueRule("top", limit={"gpu": 4000}), QueueRule("x", "top"), QueueRule("y", "top")])
    world.runs("x-1", gpus(3), queue="x")
    world.submit("y-1", gpus(2), queue="y")
    world.cycle()
    assert world.running == {"x-1"}


def test_a_user_limit_holds_for_each_user_apart() -> None:
    world = world_of([QueueRule("a", user_limit={"gpu": 2000})])
    for number in range(3):
        world.submit(f"ann-{number}", gpus(1), queue="a", owner="ann")
        world.submit(f"bob-{number}", gpus(1), queue="a", owner="bob")
    world.cycle()
    assert Counter(uid.split("-")[0] for uid in world.running) == {"ann": 2, "bob": 2}


def test_a_queue_that_nobody_declared_has_nothing() -> None:
    world = world_of([QueueRule("a")])
    world.submit("lost", gpus(1), queue="nowhere")
    assert world.cycle().waiting == (("lost", "limit"),)
    assert (
        explain_waiting(world.state, world.state.pending["lost"]).reason
        == "can never start here: there is no queue nowhere"
    )


def test_a_closed_queue_starts_nothing_and_stops_nothing() -> None:
    world = world_of([QueueRule("a")])
    world.runs("before", gpus(1), queue="a")
    world.state.rules([QueueRule("a", closed=True)], world.now)
    world.submit("after", gpus(1), queue="a")
    world.cycle()
    assert world.running == {"before"}


def test_a_queue_under_itself_or_under_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="queue a is its own ancestor"):
        Queues([QueueRule("a", "b"), QueueRule("b", "a")])
    with pytest.raises(ValueError, match="queue a is under b, which does not exist"):
        Queues([QueueRule("a", "b")])


def test_a_nested_guarantee_is_taken_back_from_outside() -> None:
    rules = [QueueRule("top", guarantee={"gpu": 4000}), QueueRule("x", "top"), QueueRule("other")]
    world = world_of(rules)
    world.runs("lent-1", gpus(4), queue="other")
    world.runs("lent-2", gpus(4), queue="other")
    world.submit("x-1", gpus(4), queue="x")
    world.settle()
    assert "x-1" in world.running


def test_whoever_has_less_of_what_is_its_due_goes_first() -> None:
    world = world_of([QueueRule("a"), QueueRule("b", weight=3.0)])
    for number in range(8):
        world.submit(f"a-{number}", gpus(1), queue="a")
        world.submit(f"b-{number}", gpus(1), queue="b")
    world.cycle()
    assert Counter(uid[0] for uid in world.running) == {"a": 2, "b": 6}


def test_over_time_queues_get_gpu_time_by_their_weights() -> None:
    world = world_of([QueueRule("a"), QueueRule("b", weight=3.0)])
    arrivals = [
        (0.0, f"{queue}-{number:03d}", gpus(1), {"queue": queue, "lasts": 100.0})
        for queue in "ab"
        for number in range(300)
    ]
    world.run(2000.0, arrivals)
    started = Counter(uid[0] for uid in world.first_start)
    assert 2.5 <= started["b"] / started["a"] <= 3.5


def test_a_queue_that_had_much_lately_waits_for_one_that_had_nothing() -> None:
    world = world_of([QueueRule("busy"), QueueRule("quiet")])
    world.runs("long", gpus(8), queue="busy")
    world.now = 4 * 3600.0
    world.finish("long")
    world.submit("busy-1", gpus(8), queue="busy")
    world.submit("quiet-1", gpus(8), queue="quiet")
    world.cycle()
    assert world.running == {"quiet-1"}


def test_what_it_had_lately_stays_when_nodes_or_rules_change() -> None:
    rules = [QueueRule("busy"), QueueRule("quiet")]
    world = world_of(rules)
    world.runs("long", gpus(8), queue="busy")
    world.now = 4 * 3600.0

    def had(queue: str) -> float:
        return world.state.queues.lately(world.state.queues.accounts[queue], world.now)

    before = had("busy")
    assert before > 0.4
    world.state.rules(rules, world.now)
    assert had("busy") == pytest.approx(before)
    closed = [replace(node, labels={"new": "label"}) for node in world.nodes]
    assert world.state.renew(closed, world.now)
    assert (had("busy"), had("quiet")) == (pytest.approx(before), 0.0)


def test_time_sharing_takes_no_queue_below_its_guarantee() -> None:
    rules = [QueueRule("a", guarantee={"gpu": 8000}), QueueRule("b")]
    world = world_of(rules, policy=DEFAULT)
    world.runs("own", gpus(8), queue="a", saves=True)
    world.now = 100_000.0
    world.submit("short", gpus(8), queue="b")
    assert world.cycle().preemptions == ()


# ── the order within a queue ──


def test_the_shortest_goes_first_where_durations_are_known() -> None:
    policy = Policy(order=Order.SHORTEST, time_share=False)
    world = world_of([], policy=policy, history=known(("quick", 8, 60.0), ("slow", 8, 6000.0)))
    world.submit("slow-1", gpus(8))
    world.now = 1.0
    world.submit("quick-1", gpus(8))
    world.cycle()
    assert world.running == {"quick-1"}


def test_until_somebody_has_waited_longer_than_the_bound() -> None:
    policy = Policy(order=Order.SHORTEST, time_share=False, bound=1000.0, settled=1.0)
    world = world_of([], policy=policy, history=known(("quick", 8, 60.0), ("slow", 8, 6000.0)))
    world.submit("slow-1", gpus(8))
    world.now = 1001.0
    world.submit("quick-1", gpus(8))
    world.cycle()
    assert world.running == {"slow-1"}


def test_first_in_first_out_without_backfill_lets_nothing_pass() -> None:
    world = world_of([], policy=Policy(order=Order.FIFO, backfill=False, preempt=False, time_share=False))
    world.runs("first", gpus(4))
    world.submit("wide", gpus(8))
    world.now = 1.0
    world.submit("small", gpus(1))
    plan = world.cycle()
    assert plan.waiting == (("wide", "room"), ("small", "behind"))
