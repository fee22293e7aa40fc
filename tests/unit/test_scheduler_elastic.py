"""Elastic gangs: started with what there is, grown into what is idle, shrunk on demand, repaired in place."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from support.builders import a_gang, a_node, a_request, an_elastic_gang
from support.world import World
from weft.model.gang import Within
from weft.scheduler.policy import DEFAULT
from weft.scheduler.queues import QueueRule

CALM = replace(DEFAULT, time_share=False)
ONE = a_request(1, gpu=1)


def world_of(count: int = 1, width: int = 8, **rest: Any) -> World:
    nodes = [a_node(f"node-{i}", cpu=2 * width, gpus=width, shared=True) for i in range(count)]
    return World(nodes, rest.get("rules", ()), rest.get("policy", CALM))


def size(world: World, uid: str = "elastic") -> int:
    return len(world.state.running[uid].tasks)


def test_it_starts_with_its_wish_where_that_fits() -> None:
    world = world_of()
    world.runs("elastic", an_elastic_gang(2, 4, 8, ONE))
    assert size(world) == 4


@given(st.integers(2, 6), st.integers(0, 6))
def test_else_with_as_many_as_there_is_room_for(least: int, free: int) -> None:
    world = world_of(1, 6)
    if free < 6:
        world.runs("other", a_gang(a_request(1, gpu=6 - free)))
    world.submit("elastic", an_elastic_gang(least, 6, 6, ONE))
    world.cycle()
    assert ("elastic" in world.running) == (free >= least)
    assert free < least or size(world) == free


def test_it_grows_to_its_most_when_it_was_left_alone_long_enough() -> None:
    world = world_of()
    world.runs("elastic", an_elastic_gang(2, 4, 8, ONE))
    world.now = CALM.grow_after - 1
    assert world.cycle().growths == ()
    world.now = CALM.grow_after
    world.cycle()
    assert size(world) == 8


def test_one_that_has_to_start_again_for_it_grows_later() -> None:
    world = world_of()
    world.runs("elastic", replace(an_elastic_gang(2, 4, 8, ONE), restart_to_resize=True))
    world.now = CALM.grow_by_restart_after - 1
    assert world.cycle().growths == ()
    world.now = CALM.grow_by_restart_after
    world.cycle()
    assert size(world) == 8


def test_after_a_change_of_size_it_is_left_alone_again() -> None:
    world = world_of()
    world.runs("elastic", an_elastic_gang(2, 4, 8, ONE))
    world.now = 100.0
    world.cycle()
    world.submit("wants", a_gang(a_request(1, gpu=4)))
    world.cycle()
    world.let_go()
    world.cycle()
    world.finish("wants")
    world.now += CALM.grow_after - 1
    assert world.cycle().growths == ()
    world.now += 1
    assert len(world.cycle().growths) == 1


def test_what_it_grew_into_is_given_back_to_an_equal_who_asks() -> None:
    world = world_of()
    world.runs("elastic", an_elastic_gang(2, 4, 8, ONE))
    world.now = 100.0
    world.cycle()
    world.submit("wants", a_gang(a_request(1, gpu=3)))
    (preemption,) = world.cycle().preemptions
    assert preemption.evicted == ()
    assert [len(shrink.tasks) for shrink in preemption.shrunk] == [3]
    world.let_go()
    world.cycle()
    assert "wants" in world.running
    assert size(world) == 5


def test_what_it_asked_for_is_not_given_to_an_equal() -> None:
    world = world_of()
    world.runs("elastic", an_elastic_gang(2, 8, 8, ONE))
    world.submit("wants", a_gang(a_request(1, gpu=1)))
    assert world.cycle().preemptions == ()


def test_who_waits_is_served_before_anybody_grows() -> None:
    world = world_of()
    world.runs("elastic", an_elastic_gang(2, 4, 8, ONE))
    world.now = 100.0
    world.submit("waits", a_gang(a_request(1, gpu=2)))
    world.cycle()
    assert "waits" in world.running
    assert size(world) == 6


def test_it_does_not_grow_over_its_queues_limit() -> None:
    world = world_of(rules=[QueueRule("a", limit={"gpu": 5000})])
    world.runs("elastic", an_elastic_gang(2, 4, 8, ONE), queue="a")
    world.now = 100.0
    world.cycle()
    assert size(world) <= 5


def test_a_queue_that_does_not_allow_its_wish_lets_it_start_with_its_least() -> None:
    world = world_of(rules=[QueueRule("a", limit={"gpu": 3000})])
    world.runs("elastic", an_elastic_gang(2, 6, 8, ONE), queue="a")
    assert 2 <= size(world) <= 3


def test_it_grows_near_where_it_is() -> None:
    world = world_of(4, 4)
    world.runs_on("elastic", an_elastic_gang(2, 2, 4, ONE), {"worker-0": "node-2", "worker-1": "node-2"})
    world.now = 100.0
    world.cycle()
    assert world.places("elastic") == Counter({"node-2": 4})


def test_a_gang_of_one_node_grows_on_that_node_only() -> None:
    world = world_of(2, 4)
    world.runs("elastic", an_elastic_gang(2, 2, 8, ONE, within=Within.NODE))
    world.now = 100.0
    world.cycle()
    assert len(world.places("elastic")) == 1


def test_the_chief_is_never_given_up() -> None:
    world = world_of(1, 4)
    world.runs("elastic", an_elastic_gang(1, 4, 4, ONE))
    world.submit("urgent", a_gang(a_request(1, gpu=3)), 10)
    world.cycle()
    world.let_go()
    assert {*world.state.running["elastic"].tasks} == {"worker-0"}


def test_a_lost_task_comes_back_on_the_node_of_the_rest() -> None:
    world = world_of(3, 4)
    world.runs_on("gang", a_gang(ONE, ONE), {"worker-0": "node-1", "worker-1": "node-1"})
    world.state.leave_tasks("gang", ["worker-1"], 0.0, missing=True)
    world.cycle()
    assert world.places("gang") == Counter({"node-1": 2})


def test_a_lost_task_for_which_there_is_no_room_waits_while_the_job_keeps_the_rest() -> None:
    world = world_of(1, 2)
    world.runs("gang", a_gang(ONE, ONE))
    world.state.leave_tasks("gang", ["worker-1"], 0.0, missing=True)
    world.runs_on("other", a_gang(ONE), {"worker-0": "node-0"})
    assert world.cycle().repairs == ()
    world.finish("other")
    assert [change.uid for change in world.cycle().repairs] == ["gang"]
    assert world.state.running["gang"].missing == ()


def test_what_runs_with_tasks_missing_is_repaired_after_a_restart_too() -> None:
    from weft.scheduler.forecast import Picture
    from weft.scheduler.schedule import schedule

    world = world_of(1, 2)
    world.runs("gang", a_gang(ONE, ONE))
    world.state.leave_tasks("gang", ["worker-1"], 0.0, missing=True)
    again = Picture.of(world.state).books()
    assert [change.uid for change in schedule(again.snapshot(1.0), CALM).repairs] == ["gang"]
