"""What holds of every plan, in the middle of any story: running jobs, queues, priorities, elastic gangs."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.clusters import some_gangs, some_nodes, some_worlds
from support.recount import amounts, books, check, over_limit, picture, usage
from support.world import World, audit, whole
from weft.model.gang import Gang
from weft.model.node import Node
from weft.scheduler.claim import Claim
from weft.scheduler.cluster import Cluster
from weft.scheduler.empty import could_ever_fit, shut_out
from weft.scheduler.feasible import place, place_elastic
from weft.scheduler.forecast import Picture
from weft.scheduler.plan import Plan
from weft.scheduler.policy import DEFAULT, Policy
from weft.scheduler.preempt import Preempting
from weft.scheduler.running import GROWN, Running, level_of
from weft.scheduler.schedule import schedule

CALM = [Policy(time_share=False)]


def added(world: World, plan: Plan) -> list[tuple[Gang, tuple[Any, ...]]]:
    """What a plan starts, and what it gives to jobs that run."""
    starts = [(world.state.pending[p.uid].gang, p.bindings) for p in plan.placements]
    more = {change.uid: change.bindings for change in (*plan.repairs, *plan.growths)}
    running = [(job.gang, (*job.tasks.values(), *more.get(job.uid, ()))) for job in world.state.running]
    return [*starts, *running]


def decided(plan: Plan) -> Plan:
    """A plan without what is only remembered to save work."""
    return replace(plan, full=())


@given(some_worlds())
def test_no_node_is_overdrawn_and_every_task_gets_what_it_asked_for(world: World) -> None:
    audit(world.nodes, added(world, world.plan()))


@given(some_worlds())
def test_no_gang_starts_in_part(world: World) -> None:
    plan = world.plan()
    for placement in plan.placements:
        assert whole(world.state.pending[placement.uid].gang, placement.bindings)
    for preemption in plan.preemptions:
        assert whole(world.state.pending[preemption.uid].gang, preemption.bindings)
    touched = [
        *(p.uid for p in plan.placements),
        *(p.uid for p in plan.preemptions),
        *(h.uid for h in plan.holds),
    ]
    assert len(touched) == len({*touched})


@given(some_worlds())
def test_no_gang_is_shrunk_below_its_least(world: World) -> None:
    for preemption in world.plan().preemptions:
        for shrink in preemption.shrunk:
            job = world.state.running[shrink.uid]
            left = [b for name, b in job.tasks.items() if name not in {*shrink.tasks, *job.shrinking}]
            assert whole(job.gang, left)
            assert shrink.uid not in preemption.evicted


@given(some_worlds())
def test_limits_hold_for_every_queue_above_and_for_every_user(world: World) -> None:
    plan = world.plan()
    held = [(job.queue, job.owner, job.held()) for job in world.state.running]
    for placement in plan.placements:
        job = world.state.pending[placement.uid]
        held.append((job.queue, job.owner, amounts(job.gang, [b.task for b in placement.bindings])))
    for growth in plan.growths:
        running = world.state.running[growth.uid]
        held.append((running.queue, running.owner, amounts(running.gang, [b.task for b in growth.bindings])))
    assert over_limit(world.state.queues, held) == []


@given(some_worlds())
def test_the_books_come_back_as_they_were_and_are_those_of_a_recount(world: World) -> None:
    world.state.snapshot(world.now)
    before = books(world.state)
    first = world.plan()
    assert books(world.state) == before
    assert world.plan() == first
    check(world.state)


@given(some_worlds(CALM))
def test_books_copied_afresh_lead_to_the_same_plan(world: World) -> None:
    """Nothing that was asked before, and nothing that is remembered, changes a plan."""
    fresh = Picture.of(world.state).books()
    assert decided(schedule(fresh.snapshot(world.now), fresh.policy)) == decided(world.plan())


@given(some_worlds(), st.lists(some_gangs(), max_size=4))
def test_other_questions_asked_before_change_nothing(world: World, others: list[Gang]) -> None:
    first = world.plan()
    for gang in others:
        mark = world.state.cluster.mark()
        place_elastic(world.state.cluster, gang)
        world.state.cluster.revert(mark)
    assert world.plan() == first


@given(some_worlds())
def test_who_gives_way_is_told_once_and_still_runs(world: World) -> None:
    plan = world.plan()
    evicted = [uid for p in plan.preemptions for uid in p.evicted]
    assert len(evicted) == len({*evicted})
    assert all(not world.state.running[uid].leaving for uid in evicted)
    shrunk = [(s.uid, task) for p in plan.preemptions for s in p.shrunk for task in s.tasks]
    assert len(shrunk) == len({*shrunk})
    assert not {*evicted} & {uid for uid, _ in shrunk}
    assert not {*evicted} & {change.uid for change in plan.growths}


# ── undo ──


@given(some_nodes(), st.lists(some_gangs(), min_size=1, max_size=4), st.data())
def test_undoing_restores_the_cluster_exactly_whatever_was_planned(
    nodes: list[Node], gangs: list[Gang], data: Any
) -> None:
    cluster = Cluster(nodes)
    pictures, placed = [], []
    for gang in gangs:
        pictures.append((cluster.mark(), picture(cluster)))
        if placed and data.draw(st.booleans()):
            other, bindings = placed.pop()
            for binding in bindings:
                cluster.vacate(binding, other.task(binding.task).request)
        elif (bindings := place_elastic(cluster, gang)) is not None:
            placed.append((gang, bindings))
    for mark, before in reversed(pictures):
        cluster.revert(mark)
        assert picture(cluster) == before


# ── giving way ──


def attempt(world: World, uid: str) -> Any:
    """A plan to make room for one waiting job, with nothing else decided."""
    state = world.state
    job = state.pending[uid]
    mark = state.cluster.mark()
    fits = place(state.cluster, job.gang, job.gang.least)
    state.cluster.revert(mark)
    if fits is not None:
        return None
    claim = Claim(
        state.cluster,
        state.running,
        state.queues,
        state.policy,
        world.now,
        job,
        level_of(job.rank, state.policy.factor),
    )
    return Preempting(claim).plan()


def without(world: World, evicted: Any, shrunk: Any) -> list[tuple[Gang, tuple[Any, ...]]]:
    """What is held once these have left."""
    gone = {shrink.uid: {*shrink.tasks} for shrink in shrunk}
    return [
        (job.gang, tuple(b for b in job.tasks.values() if b.task not in gone.get(job.uid, ())))
        for job in world.state.running
        if job.uid not in evicted
    ]


def would_fit(world: World, gang: Gang, held: list[tuple[Gang, tuple[Any, ...]]]) -> bool:
    cluster = Cluster(world.nodes)
    for other, bindings in held:
        for binding in bindings:
            cluster.take(binding, other.task(binding.task).request)
    return place(cluster, gang, gang.least) is not None


def attempts(world: World) -> list[tuple[Any, Any]]:
    world.state.snapshot(world.now)
    found = [(job, attempt(world, job.uid)) for job in list(world.state.pending)]
    return [(job, plan) for job, plan in found if plan is not None]


@given(some_worlds())
def test_once_the_named_have_left_the_job_fits_exactly_in_the_place_that_is_held(world: World) -> None:
    for job, plan in attempts(world):
        audit(world.nodes, [*without(world, plan.evicted, plan.shrunk), (job.gang, plan.bindings)])
        assert plan.evicted or plan.shrunk


@given(some_worlds())
def test_nobody_gives_way_who_could_have_stayed(world: World) -> None:
    for job, plan in attempts(world):
        for uid in plan.evicted:
            rest = tuple(other for other in plan.evicted if other != uid)
            assert not would_fit(world, job.gang, without(world, rest, plan.shrunk))
        for shrink in plan.shrunk:
            rest = tuple(other for other in plan.shrunk if other != shrink)
            assert not would_fit(world, job.gang, without(world, plan.evicted, rest))


@given(some_worlds())
def test_nobody_is_stopped_where_shrinking_is_enough(world: World) -> None:
    for job, plan in attempts(world):
        if not plan.evicted:
            continue
        shrunk = [
            _Shrunk(other.uid, tuple(other.spare()))
            for other in world.state.running
            if other.priority < job.priority
            and not other.leaving
            and guarantee_spares(world, other, job.queue)
        ]
        assert not would_fit(world, job.gang, without(world, (), shrunk))


def guarantee_spares(world: World, other: Running, queue: str) -> bool:
    """Nothing is taken from another queue that it is guaranteed."""
    return other.queue == queue or world.state.queues.borrows(other.queue, other.held(), queue)


class _Shrunk:
    def __init__(self, uid: str, tasks: tuple[str, ...]):
        self.uid, self.tasks = uid, tasks


@given(some_worlds(CALM))
def test_only_lower_priorities_borrowed_room_and_grown_tasks_give_way(world: World) -> None:
    for job, plan in attempts(world):
        owed = world.state.queues.guaranteed(job.queue, job.least)
        for uid in plan.evicted:
            victim = world.state.running[uid]
            assert victim.priority < job.priority or (owed and victim.queue != job.queue)
        for shrink in plan.shrunk:
            victim = world.state.running[shrink.uid]
            grown = all(victim.bands[task][2] == GROWN for task in shrink.tasks)
            assert (
                victim.priority < job.priority
                or (grown and victim.priority <= job.priority)
                or (owed and victim.queue != job.queue)
            )


@given(some_worlds(CALM))
def test_reclaiming_takes_no_queue_below_its_guarantee(world: World) -> None:
    for job, plan in attempts(world):
        gone: dict[str, Any] = {uid: world.state.running[uid].tasks for uid in plan.evicted}
        gone |= {shrink.uid: shrink.tasks for shrink in plan.shrunk}
        victims = [world.state.running[uid] for uid in gone]
        if any(victim.priority < job.priority for victim in victims):
            continue  # taken by right of priority
        for victim in victims:  # what has grown beyond its job's wish goes back to whoever asks for it
            gone[victim.uid] = [task for task in gone[victim.uid] if victim.bands[task][2] != GROWN]
        for name, account in world.state.queues.accounts.items():
            if (
                job.queue in world.state.queues.accounts
                and name in world.state.queues.accounts[job.queue].path
            ):
                continue  # what leaves comes back to it
            before = usage(world.state, name)
            taken = [
                amounts(victim.gang, gone[victim.uid])
                for victim in victims
                if name in world.state.queues.accounts[victim.queue].path
            ]
            for i, resource in enumerate(("cpu", "memory", "gpu")):
                lost = sum(amount[i] for amount in taken)
                guarantee = account.rule.guarantee.get(resource, 0)
                assert not lost or before[i] - lost >= min(guarantee, before[i])


@given(some_worlds())
def test_planning_to_make_room_leaves_the_books_alone(world: World) -> None:
    world.state.snapshot(world.now)
    before = books(world.state)
    attempts(world)
    assert books(world.state) == before


# ── the one question ──


@given(some_nodes(), some_gangs())
def test_what_fits_an_empty_cluster_can_fit_ever_and_affinity_is_no_reason_to_wait(
    nodes: list[Node], gang: Gang
) -> None:
    wanting = replace(gang, wants=(("imagenet", 200 << 30),))
    holding = [
        replace(node, holds=(("imagenet", 200 << 30),) if i == 0 else ()) for i, node in enumerate(nodes)
    ]
    plain = place(Cluster(nodes), gang, gang.least)
    opened = place(Cluster(replace(node, schedulable=True) for node in nodes), gang, gang.least)
    assert could_ever_fit(Cluster(nodes), gang) == (opened is not None)
    assert shut_out(Cluster(nodes), gang) == (plain is None and opened is not None)
    if len({task.request for task in gang.least}) == 1:
        assert (place(Cluster(holding), wanting, gang.least) is not None) == (plain is not None)


@given(some_worlds())
def test_who_waits_for_room_really_does_not_fit(world: World) -> None:
    """The planner and who carries it out ask the same question."""
    plan = world.plan()
    if plan.holds or plan.promises or plan.preemptions:
        return
    held = added(world, plan)
    for uid, why in plan.waiting:
        job = world.state.pending[uid]
        if why == "room" and len({task.request for task in job.gang.least}) == 1:
            assert not would_fit(world, job.gang, held)


@pytest.mark.parametrize("policy", [DEFAULT])
def test_an_empty_cluster_and_an_empty_queue_make_an_empty_plan(policy: Policy) -> None:
    assert World([], policy=policy).plan().empty
