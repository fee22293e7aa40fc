"""The twelve ways in which schedulers of this field are known to fail, and that Weft does not fail so.

Numbered as in our survey of Kueue, Volcano, kube-scheduler, YuniKorn and Slurm.
"""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

import pytest

from support.builders import a_gang, a_node, a_request, an_elastic_gang
from support.world import World, audit, known
from weft.model.gang import Gang, Within
from weft.model.status import Binding
from weft.scheduler import schedule as module
from weft.scheduler.explain import FITS, explain_waiting
from weft.scheduler.feasible import place
from weft.scheduler.policy import DEFAULT
from weft.scheduler.queues import QueueRule
from weft.scheduler.running import Running
from weft.scheduler.state import State

CALM = replace(DEFAULT, time_share=False)


def gpus(count: int, tasks: int = 1, **rules: Any) -> Gang:
    return a_gang(*[a_request(1, gpu=count)] * tasks, **rules)


def gpu_nodes(count: int, width: int = 8, **rest: Any) -> list[Any]:
    return [a_node(f"node-{i}", cpu=2 * width, gpus=width, shared=True, **rest) for i in range(count)]


def stream(count: int, every: float, gang: Gang, lasts: float) -> list[Any]:
    """Small jobs without end."""
    return [(i * every, f"small-{i:04d}", gang, {"lasts": lasts, "name": "small"}) for i in range(count)]


def test_1_a_big_gang_starts_in_spite_of_a_stream_of_small_jobs_that_always_fit() -> None:
    """It is promised a start after its patience, and small jobs that would still run then do not pass it."""
    history = known(("small", 1, 600.0), ("big", 16, 600.0))
    world = World(gpu_nodes(2), policy=CALM, history=history)
    small = stream(400, 40.0, gpus(1), 600.0)
    world.run(700.0, [a for a in small if a[0] <= 700.0])
    world.submit("big", gpus(8, 2), lasts=600.0)
    came = world.now
    world.run(6000.0, [a for a in small if a[0] > came])
    # patience, then whoever ran when it was promised ends, within the stretched prediction
    assert world.first_start["big"] - came <= CALM.patience + 600.0 * CALM.margin


def test_1_small_jobs_that_end_in_time_go_around_the_big_one() -> None:
    history = known(("long", 8, 10_000.0), ("quick", 1, 60.0), ("big", 16, 600.0))
    world = World(gpu_nodes(2), policy=replace(CALM, preempt=False), history=history)
    world.runs("long", gpus(8), lasts=10_000.0)
    world.submit("big", gpus(8, 2))
    world.now += CALM.patience + 1
    world.submit("quick", gpus(1))
    plan = world.cycle()
    assert [made.uid for made in plan.promises] == ["big"]
    assert [placed.uid for placed in plan.placements] == ["quick"]


def test_2_the_blocked_head_of_one_queue_does_not_keep_another_queue_from_borrowing() -> None:
    rules = [QueueRule("a", guarantee={"gpu": 8000}), QueueRule("b", guarantee={"gpu": 8000})]
    world = World(gpu_nodes(2), rules)
    world.runs("fixed", gpus(4), queue="b")
    world.submit("too-wide", gpus(8, 2), queue="a")
    world.submit("borrower", gpus(8), queue="b")
    world.cycle()
    assert world.running == {"fixed", "borrower"}


def test_2_a_queue_at_its_limit_does_not_block_the_others() -> None:
    world = World(gpu_nodes(1), [QueueRule("a", limit={"gpu": 1000}), QueueRule("b")])
    world.submit("first", gpus(2), 5, queue="a")
    world.submit("second", gpus(2), queue="b")
    plan = world.cycle()
    assert world.running == {"second"}
    assert plan.waiting == (("first", "limit"),)


def test_3_thousands_of_equal_jobs_are_one_question_and_none_at_all_while_nothing_is_given_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[str] = []
    original = module.place_elastic

    def counted(cluster: Any, gang: Gang, *rest: Any) -> Any:
        asked.append("")
        return original(cluster, gang, *rest)

    monkeypatch.setattr(module, "place_elastic", counted)
    world = World(gpu_nodes(1))
    world.runs("all", gpus(8))
    for number in range(5000):
        world.submit(f"job-{number}", gpus(1))
    asked.clear()
    world.cycle()
    assert len(asked) == 1
    world.cycle()
    assert len(asked) == 1
    world.finish("all")
    world.cycle()
    assert len(asked) == 1 + 9  # eight start, the ninth does not fit


def test_4_the_victim_does_not_take_the_freed_room_back() -> None:
    world = World(gpu_nodes(1), policy=CALM)
    world.runs("victim", gpus(8), 0)
    world.submit("urgent", gpus(8), 10)
    assert [p.evicted for p in world.cycle().preemptions] == [("victim",)]
    world.let_go()
    world.settle()
    assert world.running == {"urgent"}
    assert world.stopped == [(0.0, "victim")]


def test_4_no_second_preemption_while_the_first_is_under_way() -> None:
    world = World(gpu_nodes(2), policy=CALM)
    world.runs("a", gpus(8))
    world.runs("b", gpus(8))
    world.submit("urgent", gpus(8), 10)
    first = world.cycle()
    for _ in range(3):
        world.now += 1
        again = world.cycle()
        assert again.preemptions == ()
        assert [held.uid for held in again.holds] == ["urgent"]
    assert len(first.preemptions[0].evicted) == 1


def test_4_who_is_owed_its_guarantee_and_who_has_priority_do_not_stop_each_other_for_ever() -> None:
    world = World(gpu_nodes(1), [QueueRule("a", guarantee={"gpu": 8000}), QueueRule("b")], CALM)
    world.runs("urgent", gpus(8), 10, queue="b")
    world.submit("owed", gpus(8), 0, queue="a")
    world.settle()
    assert len(world.stopped) <= 1


def test_5_two_nominations_in_one_cycle_are_not_given_the_same_room() -> None:
    world = World(gpu_nodes(4), policy=CALM)
    for number in range(4):
        world.runs(f"low-{number}", gpus(8))
    for number in range(3):
        world.submit(f"urgent-{number}", gpus(8), 10)
    plan = world.cycle()
    evicted = [uid for preemption in plan.preemptions for uid in preemption.evicted]
    assert len(evicted) == len({*evicted}) == 3
    audit(world.nodes, [(gpus(8), preemption.bindings) for preemption in plan.preemptions])


def test_6_nobody_is_stopped_for_a_job_that_would_still_not_fit() -> None:
    world = World(gpu_nodes(2), policy=CALM)
    world.runs("low", gpus(8), 0)
    world.runs("high", gpus(1), 20)
    world.submit("urgent", gpus(8, 2), 10)
    assert world.cycle().preemptions == ()


def test_6_no_more_are_stopped_than_needed() -> None:
    world = World(gpu_nodes(4, 4), policy=CALM)
    for number in range(16):
        world.runs(f"low-{number:02d}", gpus(1))
    world.submit("urgent", gpus(4), 10)
    (preemption,) = world.cycle().preemptions
    assert len(preemption.evicted) == 4
    assert len({world.state.running[uid].tasks["worker-0"].node for uid in preemption.evicted}) == 1


def test_7_two_gangs_that_would_each_take_half_do_not_both_wait() -> None:
    world = World(gpu_nodes(100, 1))
    for name in ("first", "second"):
        world.submit(name, gpus(1, 100), lasts=50.0)
    world.run(1000.0)
    assert world.first_start == {"first": 0.0, "second": 50.0}


def test_8_a_gang_that_lost_a_task_is_repaired_before_anybody_else_is_served() -> None:
    world = World(gpu_nodes(3, 4, rack="r"))
    world.runs("gang", gpus(4, 2))
    world.submit("waiting", gpus(4), 100)
    world.submit("waiting-too", gpus(4), 100)
    world.state.leave_tasks("gang", ["worker-1"], 0.0, missing=True)
    plan = world.cycle()
    assert [change.uid for change in plan.repairs] == ["gang"]
    assert len(world.state.running["gang"].tasks) == 2
    assert world.stopped == []


def test_8_a_gang_bound_to_a_rack_is_repaired_in_that_rack() -> None:
    nodes = [a_node(f"node-{i}", cpu=4, gpus=1, rack=f"r{i % 2}") for i in range(6)]
    world = World(nodes)
    job = world.runs("gang", gpus(1, 2, within=Within.RACK))
    rack = {node.name: node.rack for node in nodes}
    stays = rack[job.tasks["worker-0"].node]
    world.state.leave_tasks("gang", ["worker-1"], 0.0, missing=True)
    (repair,) = world.cycle().repairs
    assert rack[repair.bindings[0].node] == stays


def test_9_what_was_decided_is_assumed_until_it_is_known() -> None:
    """The next cycle sees a start that is under way, and what a start that failed had is free again at once."""
    world = World(gpu_nodes(1))
    world.submit("first", gpus(8))
    world.submit("second", gpus(8))
    world.cycle()
    assert world.cycle().placements == ()
    world.stop("first")
    assert [placed.uid for placed in world.cycle().placements] in (["first"], ["second"])


def test_9_room_that_a_leaving_job_still_has_is_not_sold() -> None:
    world = World(gpu_nodes(1), policy=CALM)
    world.runs("victim", gpus(8))
    world.submit("urgent", gpus(8), 10)
    world.cycle()
    world.submit("other", gpus(1), 20)
    plan = world.cycle()
    assert plan.placements == ()
    audit(world.nodes, world.held())


def test_10_a_queue_that_has_its_guarantee_reclaims_nothing_however_much_it_has_waiting() -> None:
    rules = [QueueRule("a", guarantee={"gpu": 4000}), QueueRule("b", guarantee={"gpu": 4000})]
    world = World(gpu_nodes(2), rules, CALM)
    for number in range(2):
        world.runs(f"a-{number}", gpus(4), queue="a")
        world.runs(f"b-{number}", gpus(4), queue="b")
    for name in ("a", "b"):
        for number in range(20):
            world.submit(f"{name}-more-{number}", gpus(4), queue=name)
    for _ in range(5):
        plan = world.cycle()
        assert plan.preemptions == ()
        world.now += 1000.0


def test_10_reclaiming_ends_once_both_have_their_own() -> None:
    rules = [QueueRule("a", guarantee={"gpu": 4000}), QueueRule("b", guarantee={"gpu": 4000})]
    world = World(gpu_nodes(1), rules, CALM)
    for number in range(8):
        world.runs(f"a-{number}", gpus(1), queue="a")
    for number in range(8):
        world.submit(f"b-{number}", gpus(1), queue="b")
    world.settle()
    assert len([uid for uid in world.running if uid.startswith("b")]) == 4
    assert len(world.stopped) == 4


def test_11_who_plans_and_who_carries_out_ask_the_same_question() -> None:
    """What the plan says fits is taken without complaint; what it says waits is told why by the same check."""
    world = World(gpu_nodes(2, 4))
    world.submit("fits", gpus(4))
    world.submit("waits", gpus(4, 2))
    plan = world.cycle()
    assert [placed.uid for placed in plan.placements] == ["fits"]
    waits = world.state.pending["waits"]
    assert explain_waiting(world.state, waits).reason != FITS
    assert place(world.state.cluster, waits.gang) is None
    world.finish("fits")
    assert explain_waiting(world.state, waits).reason == FITS


def test_12_books_of_10_000_jobs_on_5_000_nodes_are_rebuilt_within_3_seconds() -> None:
    nodes = [a_node(f"node-{i}", cpu=16, gpus=8, shared=True, rack=f"r{i // 32}") for i in range(5000)]
    gang = gpus(4)
    jobs = []
    for number in range(10_000):
        first = 4 * (number % 2)
        binding = Binding("worker-0", nodes[number // 2].name, (), tuple(range(first, first + 4)))
        jobs.append(Running(f"r-{number}", "r", gang, 0, "default", "ann", 0.0, {"worker-0": binding}))
    begin = time.process_time()
    state = State(nodes)
    for job in jobs:
        state.restore(job, 0.0)
    assert time.process_time() - begin < 3.0
    assert state.cluster.idle[1] == 0
    assert len(state.running) == 10_000


def test_an_elastic_gang_that_lost_a_task_is_still_one_job() -> None:
    world = World(gpu_nodes(1, 4))
    world.runs("elastic", an_elastic_gang(1, 4, 4, a_request(1, gpu=1)))
    world.state.leave_tasks("elastic", ["worker-3"], 0.0, missing=True)
    world.cycle()
    assert len(world.state.running["elastic"].tasks) == 4
