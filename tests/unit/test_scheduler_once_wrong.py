"""Minimal examples of what the scheduler once did wrong; each docstring says what that was."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from support.builders import a_gang, a_node, a_request, an_elastic_gang
from support.recount import grown_as_booked
from support.world import World, known
from weft.model.gang import Gang, Within
from weft.scheduler.policy import DEFAULT
from weft.scheduler.queues import QueueRule

CALM = replace(DEFAULT, time_share=False)


def gpus(count: float, tasks: int = 1, **rules: Any) -> Gang:
    return a_gang(*[a_request(1, gpu=count)] * tasks, **rules)


def test_free_gpus_of_a_node_that_is_being_cleared_are_not_given_to_others() -> None:
    """`_reserve_free` keeps a task's room only once all of it is free: 4 of 8 GPUs are anybody's meanwhile."""
    world = World([a_node(cpu=16, gpus=8)], policy=CALM)
    world.runs("victim", gpus(4))
    world.submit("urgent", gpus(8), 10)
    world.cycle()
    world.submit("thief", gpus(4))
    assert world.cycle().placements == ()


def test_free_gpus_of_a_promised_node_are_not_given_to_who_would_stay_too_long() -> None:
    world = World(
        [a_node(cpu=16, gpus=8)], policy=replace(CALM, preempt=False), history=known(("thief", 4, 5000.0))
    )
    world.runs("long", gpus(4))
    world.submit("wide", gpus(8))
    world.now = 400.0
    world.cycle()
    world.submit("thief-1", gpus(4))
    assert world.cycle().placements == ()


def test_a_promise_is_made_although_another_job_was_placed_in_the_same_cycle() -> None:
    """`promise` lets only running jobs leave; who was placed a moment ago is on the stack and never ends."""
    world = World([a_node(cpu=16, gpus=8)], policy=CALM)
    world.runs("first", gpus(4))
    world.submit("wide", gpus(8))
    world.now = 400.0
    world.submit("urgent", gpus(1), 10)
    assert [made.uid for made in world.cycle().promises] == ["wide"]


def test_the_promised_job_starts_although_an_equal_job_has_a_better_rank() -> None:
    """Only the head of a group of equal jobs is tried; the promised one is behind it, and its room stays empty."""
    history = known(("first", 8, 100.0), ("slow", 8, 5000.0), ("quick", 8, 1000.0))
    world = World([a_node(cpu=16, gpus=8)], policy=replace(CALM, patience=10.0), history=history)
    world.runs("first-1", gpus(8))
    world.submit("slow-1", gpus(8))
    world.now = 20.0
    assert [made.uid for made in world.cycle().promises] == ["slow-1"]
    world.submit("quick-1", gpus(8))
    world.now = 100.0
    world.finish("first-1")
    world.cycle()
    assert world.running == {"slow-1"}


def test_the_same_room_is_not_promised_twice_for_the_same_time() -> None:
    world = World(
        [a_node(cpu=16, gpus=8)],
        policy=replace(CALM, patience=10.0, promises=2),
        history=known(("first", 8, 100.0), ("next", 8, 1000.0)),
    )
    world.runs("first-1", gpus(8))
    world.submit("next-1", gpus(8))
    world.submit("next-2", a_gang(a_request(2, gpu=8)))
    world.now = 20.0
    assert [made.uid for made in world.cycle().promises] == ["next-1"]


def test_a_single_task_that_needs_a_whole_node_of_cpus_is_promised_a_start_too() -> None:
    """Only tasks and GPUs were counted: a job of 8 CPUs was passed by jobs of 1 CPU for ever."""
    world = World([a_node(cpu=8)], policy=CALM)
    for number in range(8):
        world.runs(f"small-{number}", a_gang(a_request(1)))
    world.submit("wide", a_gang(a_request(8)))
    world.now = CALM.patience + 10
    assert [made.uid for made in world.cycle().promises] == ["wide"]


def test_a_guarantee_below_a_guaranteed_parent_is_taken_back_from_a_sister() -> None:
    """`borrows` refuses as the parent would fall below its guarantee, but the room stays within the parent."""
    rules = [
        QueueRule("top", guarantee={"gpu": 8000}),
        QueueRule("x", "top", guarantee={"gpu": 4000}),
        QueueRule("y", "top"),
    ]
    world = World([a_node(cpu=16, gpus=8)], rules, CALM)
    world.runs("y-1", gpus(4), queue="y")
    world.runs("y-2", gpus(4), queue="y")
    world.submit("x-1", gpus(4), queue="x")
    assert len(world.cycle().preemptions) == 1


def test_an_elastic_borrower_is_shrunk_to_its_queues_guarantee() -> None:
    """`_may_take` asks whether all that the job has is borrowed, although only a part would be taken."""
    rules = [QueueRule("x", guarantee={"gpu": 4000}), QueueRule("y", guarantee={"gpu": 4000})]
    world = World([a_node(cpu=16, gpus=8)], rules, CALM)
    world.runs("borrower", an_elastic_gang(4, 8, 8, a_request(1, gpu=1)), queue="y")
    world.submit("owed", gpus(4), queue="x")
    (preemption,) = world.cycle().preemptions
    assert [len(shrink.tasks) for shrink in preemption.shrunk] == [4]


def test_room_is_made_in_one_rack_where_the_racks_nodes_are_not_neighbours() -> None:
    """Candidate nodes are the first few that cost the same, of as many racks: no two of one rack."""
    world = World([a_node(f"n{i:03d}", cpu=16, gpus=8, rack=f"r{i % 40}") for i in range(80)], policy=CALM)
    for number in range(80):
        world.runs(f"low-{number}", gpus(8))
    world.submit("urgent", gpus(8, 2, within=Within.RACK), 10)
    assert len(world.cycle().preemptions) == 1


def test_room_is_made_on_one_node_even_if_lower_bands_are_enough_only_by_count() -> None:
    """Room for 2 × 4 GPUs is found among the lowest bands, but on two nodes; the band that helps is not tried."""
    world = World([a_node(f"n{i}", cpu=16, gpus=8, shared=True) for i in range(3)], policy=CALM)
    for number in range(2):
        world.runs_on(f"low-{number}", gpus(4), {"worker-0": f"n{number}"}, 0)
        world.runs_on(f"top-{number}", gpus(4), {"worker-0": f"n{number}"}, 99)
    world.runs_on("middle", gpus(8), {"worker-0": "n2"}, 5)
    world.submit("urgent", gpus(4, 2, one_node=True), 10)
    (preemption,) = world.cycle().preemptions
    assert preemption.evicted == ("middle",)


@pytest.mark.parametrize("wanted", [1, 0.6])
def test_a_share_of_a_gpu_gives_way_to_a_higher_priority(wanted: float) -> None:
    """A band counts no shares, so that a job that would need them back is thought hopeless."""
    world = World([a_node(cpu=16, gpus=1)], policy=CALM)
    world.runs("share", gpus(0.6))
    world.submit("urgent", gpus(wanted), 10)
    assert len(world.cycle().preemptions) == 1


def test_room_held_for_one_job_is_not_counted_for_another_by_stopping_who_gives_it_up() -> None:
    """`elastic` gives two tasks to `first`; stopping the rest of it cannot give these two to `second` as well."""
    world = World([a_node(cpu=16, gpus=4)], policy=CALM)
    world.runs("elastic", an_elastic_gang(2, 4, 4, a_request(1, gpu=1)))
    world.submit("first", gpus(2), 10)
    assert [shrink.uid for shrink in world.cycle().preemptions[0].shrunk] == ["elastic"]
    world.submit("second", gpus(4), 5)
    assert world.cycle().preemptions == ()


def test_quota_of_a_job_for_which_room_is_being_made_is_not_given_away_meanwhile() -> None:
    """`keep_holds` keeps the room but not the quota: the victims leave, and the job is over its limit."""
    rules = [QueueRule("a", limit={"gpu": 8000}), QueueRule("b")]
    world = World([a_node("n0", cpu=16, gpus=8), a_node("n1", cpu=16, gpus=4)], rules, CALM)
    world.runs("victim", gpus(8), queue="b")
    world.submit("urgent", gpus(8), 10, queue="a")
    assert len(world.cycle().preemptions) == 1
    world.submit("thief", gpus(4), queue="a")
    world.cycle()
    world.let_go()
    world.settle()
    assert "urgent" in world.running


def test_a_job_that_is_told_to_stop_is_not_repaired() -> None:
    world = World([a_node(f"n{i}", cpu=16, gpus=8) for i in range(3)], policy=CALM)
    world.runs("victim", gpus(8, 2))
    world.runs("top", gpus(8), 20)
    world.submit("urgent", gpus(8), 10)
    world.cycle()
    world.state.leave_tasks("victim", ["worker-1"], 0.0, missing=True)
    assert world.cycle().repairs == ()


def test_only_tasks_beyond_the_wish_are_booked_as_given_back_on_demand() -> None:
    """A task that grew beyond the wish is within it once another was lost, and is still booked as grown."""
    world = World([a_node(cpu=16, gpus=8)], policy=replace(CALM, grow_after=0.0))
    world.runs("elastic", an_elastic_gang(1, 2, 4, a_request(1, gpu=1)))
    world.cycle()
    assert len(world.state.running["elastic"].tasks) == 4
    world.state.leave_tasks("elastic", ["worker-1"], 0.0, missing=True)
    assert grown_as_booked(world.state.running)


def test_submitting_a_job_twice_is_submitting_it_once() -> None:
    """Events may arrive twice: the second leaves an entry behind that nobody removes, and the cycle raises."""
    world = World([a_node()])
    world.submit("job", gpus(0))
    world.submit("job", gpus(0))
    world.state.withdraw("job")
    assert world.plan().empty
    assert world.state.pending.groups == {}


def test_what_is_left_of_a_shared_gpu_is_kept_for_the_preemptor() -> None:
    """Only whole GPUs were held: a third took the rest of the split one, and they stopped each other without end."""
    for wanted in (0.8, 1):
        world = World([a_node(cpu=16, gpus=1)], policy=CALM)
        world.runs("victim", gpus(0.6), -1)
        world.submit("urgent", gpus(wanted), 10)
        world.submit("small", gpus(0.4), -2)
        world.cycle()
        assert world.let_go() == ["victim"]
        world.cycle()
        assert "urgent" in world.running


def test_an_error_in_a_cycle_leaves_the_books_as_they_were(monkeypatch: Any) -> None:
    """What was planned stayed taken, a little more with every try."""
    from weft.scheduler import schedule as module

    world = World([a_node(cpu=16, gpus=8)], policy=CALM)
    world.submit("job", gpus(5))
    monkeypatch.setattr(module._Cycle, "grow", lambda self: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        world.cycle()
    assert world.state.cluster.idle[1] == 8


def test_a_job_whose_first_checkpoint_comes_late_may_be_asked_to_give_way_at_once() -> None:
    """It was looked at again only after a quarter of its age."""
    world = World(
        [a_node(cpu=16, gpus=8)], policy=DEFAULT, history=known(("short", 8, 60.0), ("long", 8, 1e6))
    )
    job = world.runs("long-1", gpus(8))
    for hour in range(40):
        world.now = 3600.0 * (hour + 1)
        world.cycle()
    world.state.running.saved(job, world.now, world.now)
    world.submit("short-1", gpus(8))
    assert world.cycle().preemptions[0].evicted == ("long-1",)


def test_an_elastic_job_takes_all_the_room_that_there_is_at_once() -> None:
    """It took a half of it, then a half of the rest."""
    world = World([a_node(cpu=16, gpus=7)], policy=CALM)
    job = world.runs("elastic", an_elastic_gang(1, 1, 16, a_request(1, gpu=1)))
    world.now = 100.0
    world.cycle()
    assert len(job.tasks) == 7


def test_nodes_without_a_rack_are_not_one_rack() -> None:
    """A gang of one rack that had started on one of them grew onto the others."""
    world = World([a_node("a", cpu=2), a_node("b", cpu=2), a_node("c", cpu=2, rack="r0")])
    world.runs_on("other", a_gang(a_request(2)), {"worker-0": "c"})
    world.submit("elastic", an_elastic_gang(1, 2, 4, a_request(1), within=Within.RACK))
    for now in (0.0, 1e4, 2e4):
        world.now = now
        world.settle()
    assert len({binding.node for binding in world.state.running["elastic"].tasks.values()}) == 1
