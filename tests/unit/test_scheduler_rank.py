"""Large jobs that have had much stand in one line; the few that have had most of all stand behind it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.builders import a_gang, a_node, a_request
from support.world import Facts, World, audit, known
from weft.model.gang import Gang
from weft.scheduler.history import History, likeness
from weft.scheduler.pending import Waiting
from weft.scheduler.policy import NAMED
from weft.scheduler.rank import ENOUGH, LOOK
from weft.scheduler.running import level_of

PATIENT = NAMED["patient"]
HALF = 8.0**6
"""GPU seconds: half of the large jobs of these tests take less."""
NORMAL = [HALF / 8 / 4] * 10 + [HALF / 8] * 10 + [HALF / 8 * 4] * 10
"""Seconds of jobs of 8 GPUs."""


def gpus(count: int, tasks: int = 1) -> Gang:
    return a_gang(*[a_request(1, gpu=count)] * tasks)


def lived(seconds: list[float], size: int = 8) -> History:
    history = History()
    for took in seconds:
        history.record(likeness("", "job", size), took)
    return history


def world_of(nodes: int = 1, seconds: list[float] = NORMAL, **rest: Any) -> World:
    cluster = [a_node(f"node-{i}", cpu=16, gpus=8, shared=True) for i in range(nodes)]
    world = World(cluster, history=lived(seconds), **{"policy": PATIENT, **rest})
    world.now = 1e9
    world.state.relevel(world.now)
    return world


def waits(world: World, uid: str, gang: Gang, had: float, waited: float = 0.0) -> Waiting:
    """A job that has had so many GPU seconds waits again, and has waited so long in all."""
    gpus = max(gang.gpus, 1)
    world.facts[uid] = Facts(1e12, saves=True)
    world.state.submit(Waiting(uid, uid, gang, 0, world.now, waited=waited, attained=had / gpus))
    return world.state.pending[uid]


def runs(world: World, uid: str, gang: Gang, had: float) -> None:
    """It has had so many GPU seconds, runs, and may be asked to give way."""
    waits(world, uid, gang, had)
    world.cycle()
    assert uid in world.running
    world.now += 2 * PATIENT.quantum
    world.state.relevel(world.now)


def first_of(world: World) -> str:
    return world.plan().placements[0].uid


class TestTheLine:
    def test_it_begins_at_the_level_that_is_nearest_to_what_half_of_the_large_jobs_need(self) -> None:
        assert world_of().state.ranking.line == level_of(HALF, PATIENT.factor)
        assert world_of(seconds=[took * 2 for took in NORMAL]).state.ranking.line == 6
        assert world_of(seconds=[took * 8 for took in NORMAL]).state.ranking.line == 7

    def test_in_it_who_has_waited_longest_in_all_is_first_however_much_it_has_had(self) -> None:
        world = world_of()
        waits(world, "had-less", gpus(8), 2 * HALF, waited=10.0)
        waits(world, "had-more", gpus(8), 60 * HALF, waited=20.0)
        assert first_of(world) == "had-more"

    def test_before_it_who_has_had_least_is_first(self) -> None:
        world = world_of()
        waits(world, "little", gpus(8), HALF / 100, waited=10.0)
        waits(world, "less", gpus(8), HALF / 200, waited=0.0)
        waits(world, "in-line", gpus(8), 2 * HALF, waited=20.0)
        assert first_of(world) == "less"

    def test_nobody_in_it_gives_way_to_another(self) -> None:
        world = world_of()
        runs(world, "had-more", gpus(8), 60 * HALF)
        waits(world, "had-less", gpus(8), 1.1 * HALF, waited=1e6)
        assert world.plan().preemptions == ()

    def test_but_to_who_has_had_little(self) -> None:
        world = world_of()
        runs(world, "in-line", gpus(8), 2 * HALF)
        waits(world, "new", gpus(8), HALF / 1000)
        assert world.plan().preemptions[0].evicted == ("in-line",)

    def test_small_jobs_that_have_had_much_more_give_way_to_it(self) -> None:
        world = world_of()
        runs(world, "small", gpus(4), 9 * HALF)
        waits(world, "in-line", gpus(8), 60 * HALF)
        assert world.plan().preemptions[0].evicted == ("small",)

    def test_and_small_jobs_that_have_not_go_before_it(self) -> None:
        world = world_of()
        waits(world, "in-line", gpus(8), 2 * HALF, waited=1e6)
        waits(world, "small", gpus(4), 7 * HALF)
        assert first_of(world) == "small"

    def test_there_is_none_before_enough_is_known(self) -> None:
        assert world_of(seconds=NORMAL[: ENOUGH - 1]).state.ranking.line is None
        assert world_of(seconds=NORMAL[:ENOUGH]).state.ranking.line is not None

    def test_jobs_that_are_still_here_count_with_what_they_have_had(self) -> None:
        world = world_of(seconds=[])
        for number in range(ENOUGH):
            waits(world, f"job-{number}", gpus(8), HALF)
        world.state.relevel(world.now + LOOK)
        assert world.state.ranking.line == 6
        assert all(level_of(job.rank, PATIENT.factor) == 6 for job in world.state.pending)

    def test_small_jobs_do_not_count(self) -> None:
        cluster = [a_node(cpu=16, gpus=8, shared=True)]
        world = World(cluster, policy=PATIENT, history=known(("small", 4, HALF)))
        world.state.relevel(LOOK)
        assert world.state.ranking.line is None

    @pytest.mark.parametrize("name", [name for name in NAMED if name != "patient"])
    def test_only_the_patient_policy_has_one(self, name: str) -> None:
        assert world_of(policy=NAMED[name]).state.ranking.line is None

    def test_who_waits_is_ranked_anew_when_it_begins_elsewhere(self) -> None:
        world = world_of()
        job = waits(world, "job", gpus(8), 2 * HALF)
        for _ in range(200):
            world.state.history.record(likeness("", "job", 8), HALF)
        world.state.relevel(world.now + LOOK)
        assert world.state.ranking.line == 7
        assert world.state.pending["job"].rank == 2 * HALF < job.rank


class TestWhoGoesLast:
    def crowd(self, count: int, part: float = 0.01) -> World:
        """So many large jobs, each of which has had a little more than the one before."""
        world = world_of(seconds=[], policy=replace(PATIENT, last=part))
        for number in range(count):
            waits(world, f"job-{number:04}", gpus(8), HALF / 2 + (number > count // 2) * 100 * HALF + number)
        world.state.relevel(world.now + LOOK)
        return world

    def test_the_one_in_a_hundred_that_has_had_most_stands_behind_all_others(self) -> None:
        world = self.crowd(200)
        assert world.state.ranking.last == {"job-0198", "job-0199"}
        assert [job.uid for job in world.state.pending.in_order()][-2:] == ["job-0198", "job-0199"]

    def test_it_gives_way_to_the_line(self) -> None:
        world = self.crowd(100)
        for number in range(99):
            world.state.withdraw(f"job-{number:04}")
        world.now += LOOK
        world.cycle()
        assert world.running == {"job-0099"}
        world.now += 2 * PATIENT.quantum
        waits(world, "in-line", gpus(8), 90 * HALF)
        assert world.plan().preemptions[0].evicted == ("job-0099",)

    def test_it_stays_there_also_when_others_have_had_more_since(self) -> None:
        """Else those who have had most would take turns at being last, and all of them would wait."""
        world = self.crowd(100)
        for number in range(100):
            waits(world, f"more-{number}", gpus(8), HALF / 2 if number < 99 else 1e6 * HALF)
        world.state.relevel(world.now + 2 * LOOK)
        assert world.state.ranking.last == {"job-0099", "more-99"}

    def test_nobody_does_who_has_had_no_more_than_many(self) -> None:
        world = world_of(seconds=[])
        for number in range(200):
            waits(world, f"job-{number}", gpus(8), 2 * HALF)
        world.state.relevel(world.now + LOOK)
        assert world.state.ranking.last == frozenset()

    @given(st.lists(st.floats(0, 1e9), min_size=1, max_size=300), st.sampled_from([0.01, 0.02, 0.1]))
    def test_they_are_never_more_than_that_part_of_all(self, had: list[float], part: float) -> None:
        world = world_of(seconds=[], policy=replace(PATIENT, last=part))
        for number, seconds in enumerate(had):
            waits(world, f"job-{number}", gpus(8), seconds)
            if number % 7 == 0:
                world.now += LOOK
                world.state.relevel(world.now)
            assert len(world.state.ranking.last) <= part * (number + 1)

    def test_what_had_ended_before_a_server_was_restarted_has_had_its_part(self) -> None:
        world = world_of(seconds=NORMAL * 100)
        waits(world, "most", gpus(8), 1000 * HALF)
        world.state.relevel(world.now + LOOK)
        assert world.state.ranking.last == frozenset()


def two_nodes_with_one_who_stays_and_one_who_gives_way() -> World:
    """And a job that wants a whole node: nowhere is one to be had by stopping alone."""
    world = world_of(2)
    for number in range(2):
        node = {"worker-0": f"node-{number}"}
        for uid, had in ((f"new-{number}", HALF / 100), (f"old-{number}", 60 * HALF)):
            job = world.runs_on(uid, gpus(4), node, saves=True)
            job.attained, job.checkpoint = had / 4, float("inf")
    world.now += 2 * PATIENT.quantum
    world.state.relevel(world.now)
    waits(world, "in-line", gpus(8), 2 * HALF)
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
        assert world.running == {"in-line", "new-0", "new-1"}
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
