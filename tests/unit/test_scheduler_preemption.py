"""Who gives way to whom, what it costs, and what happens to the room meanwhile."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from support.builders import a_gang, a_node, a_request, an_elastic_gang
from support.world import World, known
from weft.model.gang import Gang
from weft.scheduler.policy import DEFAULT
from weft.scheduler.queues import QueueRule

CALM = replace(DEFAULT, time_share=False)


def gpus(count: int, tasks: int = 1, **rules: Any) -> Gang:
    return a_gang(*[a_request(1, gpu=count)] * tasks, **rules)


def world_of(count: int, width: int = 8, **rest: Any) -> World:
    nodes = [a_node(f"node-{i}", cpu=2 * width, gpus=width, shared=True) for i in range(count)]
    return World(nodes, policy=rest.pop("policy", CALM), **rest)


def test_a_job_of_100_gpus_is_shrunk_to_50_for_a_job_of_50_and_neither_is_stopped() -> None:
    world = world_of(25, 4)
    world.runs("wide", an_elastic_gang(50, 100, 100, a_request(1, gpu=1)))
    world.submit("urgent", a_gang(*[a_request(1, gpu=1)] * 50), 10)
    plan = world.cycle()
    assert plan.preemptions[0].evicted == ()
    assert [len(shrink.tasks) for shrink in plan.preemptions[0].shrunk] == [50]
    world.let_go()
    world.cycle()
    assert {uid: len(world.state.running[uid].tasks) for uid in world.running} == {"wide": 50, "urgent": 50}
    assert world.stopped == []


def test_an_elastic_job_that_cannot_shrink_far_enough_is_stopped_whole() -> None:
    world = world_of(1)
    world.runs("elastic", an_elastic_gang(4, 8, 8, a_request(1, gpu=1)))
    world.submit("urgent", gpus(6), 10)
    (preemption,) = world.cycle().preemptions
    assert (preemption.evicted, preemption.shrunk) == (("elastic",), ())


def test_a_job_whose_parts_lie_on_two_nodes_is_not_counted_twice() -> None:
    """It was shrunk on one node and stopped on the other, and its room given away twice."""
    world = World([a_node("a", cpu=4), a_node("b", cpu=4)], policy=CALM)
    gang = an_elastic_gang(1, 2, 2, a_request(2))
    world.runs_on("elastic", gang, {"worker-0": "a", "worker-1": "b"}, 0)
    world.runs_on("top-a", a_gang(a_request(2)), {"worker-0": "a"}, 99)
    world.runs_on("top-b", a_gang(a_request(2)), {"worker-0": "b"}, 99)
    world.submit("too-wide", a_gang(a_request(4)), 10)
    world.submit("urgent", a_gang(a_request(2), a_request(2)), 10)
    (preemption,) = world.cycle().preemptions
    assert (preemption.uid, preemption.evicted, preemption.shrunk) == ("urgent", ("elastic",), ())


def test_whoever_has_lost_least_since_its_checkpoint_goes() -> None:
    world = world_of(3)
    for name in ("never-saved", "saved-long-ago", "just-saved"):
        world.runs(name, gpus(8))
    world.now = 1000.0
    world.state.running["saved-long-ago"].checkpoint = 100.0
    world.state.running["just-saved"].checkpoint = 990.0
    world.submit("urgent", gpus(8), 10)
    assert world.cycle().preemptions[0].evicted == ("just-saved",)


def test_one_wide_job_is_stopped_rather_than_many_small_ones() -> None:
    world = world_of(2)
    for number in range(8):
        world.runs_on(f"small-{number}", gpus(1), {"worker-0": "node-0"})
    world.runs_on("wide", gpus(8), {"worker-0": "node-1"})
    world.submit("urgent", gpus(8), 10)
    assert world.cycle().preemptions[0].evicted == ("wide",)


def test_the_least_important_goes_first() -> None:
    world = world_of(2)
    world.runs("low", gpus(8), -5)
    world.runs("normal", gpus(8), 0)
    world.submit("urgent", gpus(8), 10)
    assert world.cycle().preemptions[0].evicted == ("low",)


def test_equal_priority_takes_nothing() -> None:
    world = world_of(1)
    world.runs("first", gpus(8), 10)
    world.submit("second", gpus(8), 10)
    assert world.cycle().preemptions == ()


def test_nobody_is_stopped_where_there_is_room() -> None:
    world = world_of(2)
    world.runs("low", gpus(8))
    world.submit("urgent", gpus(8), 10)
    plan = world.cycle()
    assert [placed.uid for placed in plan.placements] == ["urgent"]
    assert plan.preemptions == ()


def test_freed_room_goes_to_whom_it_was_freed_for_and_to_nobody_else() -> None:
    world = world_of(2)
    world.runs("a", gpus(8))
    world.runs("b", gpus(8))
    world.submit("urgent", gpus(8, 2), 10)
    world.cycle()
    world.state.leave("a", world.now)
    world.submit("thief", gpus(8), 5)
    plan = world.cycle()
    assert plan.placements == ()
    assert [held.uid for held in plan.holds] == ["urgent"]
    world.state.leave("b", world.now)
    world.cycle()
    assert world.running == {"urgent"}


def test_whoever_is_leaving_already_is_waited_for_before_anybody_else_is_stopped() -> None:
    """Once wrong: after a restart nobody knew for whom a job was giving way, and a second one had to."""
    world = world_of(2)
    world.runs("a", gpus(8))
    world.runs("b", gpus(8))
    world.submit("urgent", gpus(8), 10)
    (preemption,) = world.cycle().preemptions
    world.state.holds.clear()  # as after a restart
    plan = world.cycle()
    assert plan.preemptions == ()
    assert [(held.uid, held.evicted) for held in plan.holds] == [("urgent", preemption.evicted)]
    world.submit("second", gpus(8), 10)
    other = {"a": "b", "b": "a"}[preemption.evicted[0]]
    assert [preempted.evicted for preempted in world.cycle().preemptions] == [(other,)], (
        "one for each of them"
    )


def test_tasks_that_are_leaving_already_are_waited_for_too() -> None:
    world = world_of(1)
    world.runs("wide", an_elastic_gang(2, 8, 8, a_request(1, gpu=1)))
    world.submit("urgent", gpus(3), 10)
    (preemption,) = world.cycle().preemptions
    world.state.holds.clear()
    plan = world.cycle()
    assert plan.preemptions == ()
    assert [held.shrunk for held in plan.holds] == [preemption.shrunk]
    world.let_go()
    world.cycle()
    assert (len(world.state.running["wide"].tasks), world.running) == (5, {"wide", "urgent"})


def test_a_preemptor_that_is_withdrawn_leaves_the_room_to_all() -> None:
    world = world_of(1)
    world.runs("victim", gpus(8))
    world.submit("urgent", gpus(8), 10)
    world.cycle()
    world.state.withdraw("urgent")
    world.let_go()
    world.cycle()
    assert world.running == {"victim"}


def test_a_policy_without_preemption_stops_nobody() -> None:
    world = world_of(1, policy=replace(CALM, preempt=False))
    world.runs("low", gpus(8))
    world.submit("urgent", gpus(8), 10)
    assert world.cycle().preemptions == ()


def test_a_long_job_that_saves_gives_way_to_a_short_one_of_its_priority() -> None:
    history = known(("short", 8, 60.0), ("long", 8, 1e6))
    world = world_of(1, policy=DEFAULT, history=history)
    world.runs("long-1", gpus(8), saves=True)
    world.now = 2 * DEFAULT.quantum
    world.submit("short-1", gpus(8))
    assert world.cycle().preemptions[0].evicted == ("long-1",)


def test_but_not_before_it_has_had_its_quantum() -> None:
    history = known(("short", 8, 60.0), ("long", 8, 1e6))
    world = world_of(1, policy=DEFAULT, history=history)
    world.runs("long-1", gpus(8), saves=True)
    world.now = DEFAULT.quantum / 2
    world.submit("short-1", gpus(8))
    assert world.cycle().preemptions == ()


def test_and_not_if_it_cannot_go_on_from_a_checkpoint() -> None:
    history = known(("short", 8, 60.0), ("long", 8, 1e6))
    world = world_of(1, policy=DEFAULT, history=history)
    world.runs("long-1", gpus(8), saves=False)
    world.now = 2 * DEFAULT.quantum
    world.submit("short-1", gpus(8))
    assert world.cycle().preemptions == ()


def test_victims_that_may_not_be_taken_at_the_end_of_the_list_do_not_hide_those_that_may() -> None:
    """The last try was left out when the last victim had to be passed over."""
    rules = [
        QueueRule("owed", guarantee={"gpu": 6000}),
        QueueRule("lent", guarantee={"gpu": 1000}),
        QueueRule("own", guarantee={"gpu": 2000}),
    ]
    world = world_of(1, rules=rules)
    for number in range(6):
        world.runs(f"lent-{number}", gpus(1), queue="lent")
    for number in range(2):
        world.runs(f"own-{number}", gpus(1), queue="own")
    world.submit("back", gpus(5), queue="owed")
    (preemption,) = world.cycle().preemptions
    assert len(preemption.evicted) == 5
    assert all(uid.startswith("lent") for uid in preemption.evicted)


def test_waits_and_work_before_a_stop_are_counted_on() -> None:
    world = world_of(1)
    world.runs("first", gpus(8))
    world.submit("second", gpus(8), saves=True)
    world.now = 100.0
    world.finish("first")
    world.cycle()
    world.now = 160.0
    world.stop("second")
    assert (world.state.pending["second"].waited, world.state.pending["second"].attained) == (100.0, 60.0)
    world.now = 200.0
    world.cycle()
    assert world.state.running["second"].waited == 140.0
