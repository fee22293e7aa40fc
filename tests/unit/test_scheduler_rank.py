"""Whose turn it is: by what an end is expected to cost, but large jobs that have waited longest stand ahead of that,
and the few that have had most of all stand behind it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.builders import a_gang, a_node, a_request
from support.world import Facts, World, audit
from weft.model.gang import Gang
from weft.scheduler.history import History, likeness
from weft.scheduler.pending import Waiting
from weft.scheduler.policy import DEFAULT, NAMED
from weft.scheduler.rank import AT_ONCE, ENOUGH, LEVELS_AHEAD, TURN

NEXT = DEFAULT.quantum
"""So often it is looked at."""
HAD = 1e6
"""GPU seconds."""
DAY = 86400.0
AHEAD = DEFAULT.factor**LEVELS_AHEAD
"""So much less a job may have had than one that stands ahead and still be no better."""


def gpus(count: int, tasks: int = 1) -> Gang:
    return a_gang(*[a_request(1, gpu=count)] * tasks)


def world_of(nodes: int = 1, **rest: Any) -> World:
    cluster = [a_node(f"node-{i}", cpu=16, gpus=8, shared=True) for i in range(nodes)]
    world = World(cluster, **rest)
    world.now = 1e9
    world.state.relevel(world.now)
    return world


def waits(world: World, uid: str, gang: Gang, had: float, waited: float = 0.0) -> Waiting:
    """A job that has had so many GPU seconds waits again, and has waited so long in all. Nothing is known of its kind."""
    gpus = max(gang.gpus, 1)
    world.facts[uid] = Facts(1e12, saves=True)
    job = Waiting(uid, uid, gang, 0, world.now, owner=uid, waited=waited, attained=had / gpus)
    world.state.submit(job)
    return world.state.pending[uid]


def runs(world: World, uid: str, gang: Gang, had: float, waited: float = 0.0) -> None:
    """It has had so many GPU seconds, runs, and may be asked to give way."""
    waits(world, uid, gang, had, waited)
    world.cycle()
    assert uid in world.running
    look_again(world)
    look_again(world)


def look_again(world: World) -> None:
    world.now += NEXT
    world.state.relevel(world.now)


def first_of(world: World) -> str:
    return world.plan().placements[0].uid


class TestWhoStandsAhead:
    def test_large_jobs_that_have_waited_longest_in_all_as_many_as_fill_a_part_of_the_cluster(self) -> None:
        world = world_of(4, policy=replace(DEFAULT, ahead=0.5))
        for days in range(1, 6):
            waits(world, f"job-{days}", gpus(8), HAD, waited=days * DAY)
        look_again(world)
        assert world.state.ranking.ahead == {"job-5", "job-4"}

    def test_they_pass_who_is_expected_to_cost_somewhat_less(self) -> None:
        world = world_of()
        waits(world, "new", gpus(8), HAD / AHEAD * 2)
        waits(world, "patient", gpus(8), HAD, waited=DAY)
        assert first_of(world) == "new"
        look_again(world)
        assert first_of(world) == "patient"

    def test_but_not_who_is_soon_done(self) -> None:
        world = world_of()
        waits(world, "new", gpus(8), HAD / AHEAD / 4)
        waits(world, "patient", gpus(8), HAD, waited=DAY)
        look_again(world)
        assert first_of(world) == "new"

    def test_one_that_runs_gives_way_to_them(self) -> None:
        world = world_of()
        runs(world, "had-less", gpus(8), HAD / 2)
        waits(world, "patient", gpus(8), HAD, waited=DAY)
        assert world.plan().preemptions == ()
        look_again(world)
        assert world.plan().preemptions[0].evicted == ("had-less",)

    def test_nobody_who_has_waited_for_less_than_a_turn(self) -> None:
        world = world_of()
        waits(world, "young", gpus(8), HAD, waited=TURN - 2 * NEXT)
        look_again(world)
        assert world.state.ranking.ahead == frozenset()
        look_again(world)
        assert world.state.ranking.ahead == {"young"}

    def test_no_small_jobs(self) -> None:
        world = world_of()
        waits(world, "small", gpus(4), HAD, waited=100 * DAY)
        look_again(world)
        assert world.state.ranking.ahead == frozenset()

    def test_who_runs_ahead_keeps_its_turn_until_another_has_waited_a_turn_longer(self) -> None:
        world = world_of()
        runs(world, "has-turn", gpus(8), HAD, waited=2 * DAY)
        waits(world, "next", gpus(8), HAD, waited=2 * DAY + TURN - 2 * NEXT)
        look_again(world)
        assert world.state.ranking.ahead == {"has-turn"}
        look_again(world)
        look_again(world)
        assert world.state.ranking.ahead == {"next"}

    @pytest.mark.parametrize("name", [name for name in NAMED if name != "default"])
    def test_nobody_under_other_policies(self, name: str) -> None:
        world = world_of(policy=NAMED[name])
        waits(world, "patient", gpus(8), HAD, waited=DAY)
        look_again(world)
        assert world.state.ranking.ahead == frozenset()


class TestWhoGoesLast:
    def crowd(self, count: int, part: float = 0.01) -> World:
        """So many large jobs, each of which has had a little more than the one before."""
        world = world_of(policy=replace(DEFAULT, last=part, ahead=0.0))
        for number in range(count):
            waits(world, f"job-{number:04}", gpus(8), HAD / 2 + (number > count // 2) * 100 * HAD + number)
        look_again(world)
        return world

    def test_the_one_in_a_hundred_that_has_had_most_stands_behind_all_others(self) -> None:
        world = self.crowd(200)
        assert world.state.ranking.last == {"job-0198", "job-0199"}
        assert {job.uid for job in world.state.pending.in_order()[-2:]} == {"job-0198", "job-0199"}

    def test_it_gives_way_to_all(self) -> None:
        world = self.crowd(100)
        for number in range(99):
            world.state.withdraw(f"job-{number:04}")
        world.now += NEXT
        world.cycle()
        assert world.running == {"job-0099"}
        world.now += 2 * NEXT
        waits(world, "other", gpus(8), 90 * HAD)
        assert world.plan().preemptions[0].evicted == ("job-0099",)

    def test_it_stays_there_also_when_others_have_had_more_since(self) -> None:
        """Else those who have had most would take turns at being last, and all of them would wait."""
        world = self.crowd(100)
        for number in range(100):
            waits(world, f"more-{number}", gpus(8), HAD / 2 if number < 99 else 1e5 * HAD)
        look_again(world)
        assert world.state.ranking.last == {"job-0099", "more-99"}

    def test_it_never_stands_ahead_however_long_it_waits(self) -> None:
        world = self.crowd(100)
        world.state.ranking._policy = DEFAULT
        world.now += 100 * DAY
        look_again(world)
        assert "job-0099" not in world.state.ranking.ahead
        assert len(world.state.ranking.ahead) == 1

    def test_nobody_does_who_has_had_no_more_than_many(self) -> None:
        world = world_of()
        for number in range(200):
            waits(world, f"job-{number}", gpus(8), 2 * HAD)
        look_again(world)
        assert world.state.ranking.last == frozenset()

    def test_nobody_before_enough_is_known(self) -> None:
        assert self.crowd(ENOUGH - 1, 0.5).state.ranking.last == frozenset()
        assert self.crowd(ENOUGH + 1, 0.5).state.ranking.last != frozenset()

    @given(st.lists(st.floats(0, 1e9), min_size=1, max_size=300), st.sampled_from([0.01, 0.02, 0.1]))
    def test_they_are_never_more_than_that_part_of_all(self, had: list[float], part: float) -> None:
        world = world_of(policy=replace(DEFAULT, last=part))
        for number, seconds in enumerate(had):
            waits(world, f"job-{number}", gpus(8), seconds)
            if number % 7 == 0:
                look_again(world)
            assert len(world.state.ranking.last) <= part * (number + 1)

    def test_what_had_ended_before_a_server_was_restarted_has_had_its_part(self) -> None:
        history = History()
        for took in [HAD / 8 / 4, HAD / 8, HAD / 8 * 4] * 1000:
            history.record(likeness("", "job", 8), took)
        world = world_of(history=history)
        waits(world, "most", gpus(8), 1000 * HAD)
        look_again(world)
        assert world.state.ranking.last == frozenset()


class TestLookingAgain:
    def test_who_waits_is_ranked_anew_as_its_kin_run_and_end(self) -> None:
        world = world_of()
        world.submit("mine", gpus(8), owner="ann", name="train-1", lasts=1e9)
        before = world.state.pending["mine"].rank
        for number in range(8):
            kin = Waiting(f"kin-{number}", f"train-{number}", gpus(8), 0, world.now - 100, owner="ann")
            world.state.kin.ended(kin, 1e6)
        world.now += NEXT
        assert world.state.relevel(world.now)
        assert world.state.pending["mine"].rank > 10 * before
        assert not world.state.relevel(world.now + NEXT), "nothing was new"

    def test_a_few_at_a_time_and_each_of_them_within_so_many_cycles(self) -> None:
        world = world_of()
        count = 2 * AT_ONCE + 1
        for number in range(count):
            world.submit(f"job-{number}", gpus(1), owner="ann", name="train", since=world.now + number)
        before = {job.uid: job.rank for job in world.state.pending}
        for number in range(8):
            kin = Waiting(f"kin-{number}", "train", gpus(1), 0, world.now - 100, owner="ann")
            world.state.kin.ended(kin, 1e6)
        changed = []
        for cycle in range(4):
            world.state.relevel(world.now + NEXT + cycle)
            changed.append(sum(job.rank != before[job.uid] for job in world.state.pending))
        assert changed == [AT_ONCE, 2 * AT_ONCE, count, count]


def two_nodes_with_one_who_stays_and_one_who_gives_way() -> World:
    """And a job that wants a whole node: nowhere is one to be had by stopping alone."""
    world = world_of(2)
    for number in range(2):
        node = {"worker-0": f"node-{number}"}
        for uid, had in ((f"new-{number}", HAD / 1000), (f"old-{number}", 1000 * HAD)):
            job = world.runs_on(uid, gpus(4), node, saves=True, owner=uid)
            job.attained, job.checkpoint = had / 4, float("inf")
    look_again(world)
    look_again(world)
    waits(world, "between", gpus(8), HAD)
    return world


class TestMovingIntoThePlacesOfThoseWhoGiveWay:
    def test_small_jobs_that_stay_are_moved_together_where_small_jobs_that_give_way_were(self) -> None:
        world = two_nodes_with_one_who_stays_and_one_who_gives_way()
        (preemption,) = world.cycle().preemptions
        (moved,) = preemption.moved
        assert moved.uid in ("new-0", "new-1")
        assert set(preemption.evicted) == {"old-0", "old-1", moved.uid}
        world.let_go()
        world.settle()
        assert world.running == {"between", "new-0", "new-1"}
        audit(world.nodes, world.held())

    def test_the_place_is_kept_until_who_gives_way_has_left(self) -> None:
        world = two_nodes_with_one_who_stays_and_one_who_gives_way()
        (preemption,) = world.cycle().preemptions
        (moved,) = preemption.moved
        staying = next(
            uid
            for uid in preemption.evicted
            if world.state.running[uid].tasks["worker-0"].node == moved.bindings[0].node
        )
        for uid in preemption.evicted:
            if uid != staying:
                world.stop(uid)
        waits(world, "other", gpus(4), 0.0)
        plan = world.cycle()
        assert moved.uid not in {placed.uid for placed in plan.placements}
        world.stop(staying)
        world.settle()
        assert world.state.running[moved.uid].tasks["worker-0"].node == moved.bindings[0].node
