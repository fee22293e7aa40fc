"""A node that is closed gets nothing, one that is opened again is used at once, and closing is exact."""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from support.builders import a_gang, a_node, a_request
from support.clusters import make_gang, seeds, some_nodes, some_worlds
from support.recount import check
from support.world import World
from weft.model.node import Node
from weft.scheduler.cluster import Cluster
from weft.scheduler.empty import could_ever_fit
from weft.scheduler.explain import explain
from weft.scheduler.feasible import place
from weft.scheduler.fit import fit_of
from weft.scheduler.forecast import Picture
from weft.scheduler.schedule import schedule

WHOLE = a_gang(a_request(4))


def two() -> World:
    return World([a_node("a", cpu=4), a_node("b", cpu=4)])


def test_a_closed_node_gets_nothing_and_an_opened_one_is_used_in_the_next_cycle() -> None:
    world = two()
    world.state.cluster.set_open("a", False)
    world.submit("first", WHOLE)
    world.submit("second", WHOLE)
    world.cycle()
    assert world.running == {"first"}
    assert world.places("first") == {"b": 1}
    world.cycle()  # that it does not fit is remembered by now
    assert world.running == {"first"}
    world.state.cluster.set_open("a", True)
    world.cycle()
    assert world.places("second") == {"a": 1}


def test_what_runs_on_a_node_that_is_closed_goes_on() -> None:
    world = World([a_node("a", cpu=4)])
    world.runs("first", a_gang(a_request(1)))
    world.state.cluster.set_open("a", False)
    world.submit("second", a_gang(a_request(1)))
    world.settle()
    assert world.running == {"first"}
    world.finish("first")
    check(world.state)


def test_nobody_is_stopped_on_a_closed_node_for_room_that_nobody_may_use() -> None:
    world = World([a_node("a", cpu=4)])
    world.runs("small", WHOLE)
    world.state.cluster.set_open("a", False)
    world.submit("urgent", WHOLE, priority=5)
    world.settle()
    assert world.running == {"small"}
    assert world.stopped == []


def test_a_lost_task_is_not_replaced_on_a_closed_node() -> None:
    world = two()
    gang = a_gang(a_request(2), a_request(2), strategy="spread")
    job = world.runs("gang", gang)
    lost = next(task for task, binding in job.tasks.items() if binding.node == "a")
    world.state.cluster.set_open("a", False)
    world.state.leave_tasks("gang", [lost], world.now, missing=True)
    world.cycle()
    assert world.places("gang") == {"b": 2}


def test_closing_twice_changes_nothing_more() -> None:
    cluster = Cluster([a_node("a")])
    cluster.set_open("a", False)
    freed = cluster.freed
    cluster.set_open("a", False)
    assert cluster.freed == freed
    cluster.set_open("a", True)
    cluster.set_open("a", True)
    assert cluster.freed == freed + 1


def test_a_closed_node_is_named() -> None:
    cluster = Cluster([a_node("a", cpu=4), a_node("b", cpu=1)])
    cluster.set_open("a", False)
    explained = explain(cluster, WHOLE)
    assert explained.numbers["closed"] == 1
    assert any("a: closed" in line for line in explained.details)


def picture(cluster: Cluster) -> Any:
    return (
        cluster.free.tolist(),
        cluster.share.tolist(),
        cluster.open.tolist(),
        list(cluster.idle),
        [
            (room.node, list(room.cpu_ids), list(room.gpus), dict(room.split), room.tasks)
            for room in cluster.rooms.values()
        ],
    )


@given(some_nodes(4), seeds, st.lists(st.integers(0, 3), max_size=6))
def test_a_cluster_that_was_closed_and_opened_answers_as_a_new_one(
    nodes: list[Node], seed: int, flips: list[int]
) -> None:
    gang = make_gang(Random(seed))
    cluster = Cluster(nodes)
    for flip in flips:
        name = nodes[flip % len(nodes)].name
        place(cluster, gang, gang.least)  # so that there are answers to be forgotten
        cluster.revert(0)
        could_ever_fit(cluster, gang)
        cluster.set_open(name, not cluster.rooms[name].node.schedulable)
    fresh = Cluster(cluster.nodes)
    assert picture(cluster) == picture(fresh)
    assert could_ever_fit(cluster, gang) == could_ever_fit(fresh, gang)
    for task in gang.tasks:
        kept, new = (fit_of(one, gang, task.request) for one in (cluster, fresh))
        assert np.array_equal(kept.count, new.count)
        assert np.array_equal(kept.key, new.key)
        assert not kept.count[~cluster.open].any()
    assert place(cluster, gang, gang.least) == place(fresh, gang, gang.least)
    cluster.revert(0)
    assert picture(cluster) == picture(Cluster(cluster.nodes))


@given(some_worlds(), st.integers(0, 4))
def test_any_books_are_lent_and_come_back_and_plan_nothing_on_what_was_closed(
    world: World, number: int
) -> None:
    cluster = world.state.cluster
    name = cluster.nodes[number % len(cluster.nodes)].name
    cluster.set_open(name, False)
    before = picture(cluster)
    plan = world.plan()
    assert picture(cluster) == before
    for change in (*plan.placements, *plan.repairs, *plan.growths):
        assert name not in {binding.node for binding in change.bindings}
    check(world.state)
    if not world.state.policy.time_share:
        fresh = Picture.of(world.state).books()
        assert replace(schedule(fresh.snapshot(world.now), fresh.policy), full=()) == replace(plan, full=())
