"""Books that went through any story are those of a recount, and lead to the same plans as fresh ones."""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from support.clusters import make_gang, make_nodes, make_rules, seeds
from support.recount import check
from support.world import World, audit, whole
from weft.scheduler.forecast import Picture
from weft.scheduler.policy import DEFAULT
from weft.scheduler.schedule import schedule

CALM = replace(DEFAULT, time_share=False, patience=50.0, grow_after=5.0)


class Books(RuleBasedStateMachine):
    """A server's life: jobs are submitted, withdrawn, started, stopped, resized, lost and repaired."""

    @initialize(seed=seeds, count=st.integers(1, 5), timed=st.booleans())
    def begin(self, seed: int, count: int, timed: bool) -> None:
        self.random = Random(seed)
        policy = replace(CALM, time_share=True, quantum=20.0) if timed else CALM
        self.world = World(make_nodes(self.random, count), make_rules(self.random), policy)
        self.number = 0

    @rule(count=st.integers(1, 4))
    def submit(self, count: int) -> None:
        r = self.random
        for _ in range(count):
            queues = [name for name in self.world.state.queues.accounts if name != "default"] or ["default"]
            self.world.submit(
                f"job-{self.number}",
                make_gang(r),
                r.choice([0, 0, 5]),
                queue=r.choice(queues),
                owner=r.choice(["ann", "bob"]),
                saves=r.random() < 0.5,
            )
            self.number += 1

    @rule()
    def cycle(self) -> None:
        self.world.cycle()

    @rule(seconds=st.sampled_from([1.0, 10.0, 100.0]))
    def time_passes(self, seconds: float) -> None:
        self.world.now += seconds

    @precondition(lambda self: any(job.leaving or job.shrinking for job in self.world.state.running))
    @rule()
    def those_told_to_go_leave(self) -> None:
        self.world.let_go()

    def _one_of(self, uids: Any) -> str:
        return self.random.choice(sorted(uids))

    @precondition(lambda self: len(self.world.state.running))
    @rule()
    def a_job_ends(self) -> None:
        self.world.finish(self._one_of(self.world.running))

    @precondition(lambda self: len(self.world.state.running))
    @rule()
    def a_job_is_stopped(self) -> None:
        self.world.stop(self._one_of(self.world.running))

    @precondition(lambda self: len(self.world.state.pending))
    @rule()
    def a_waiting_job_is_withdrawn(self) -> None:
        self.world.state.withdraw(self._one_of(job.uid for job in self.world.state.pending))

    @precondition(lambda self: len(self.world.state.running))
    @rule()
    def tasks_are_lost(self) -> None:
        job = self.world.state.running[self._one_of(self.world.running)]
        if not job.leaving and job.tasks:
            self.world.state.leave_tasks(job.uid, [self._one_of(job.tasks)], self.world.now, missing=True)

    @rule(number=st.integers(0, 4))
    def the_operator_closes_a_node_or_opens_it_again(self, number: int) -> None:
        declared = [node.name for node in self.world.nodes if node.schedulable]
        if declared:
            cluster = self.world.state.cluster
            name = declared[number % len(declared)]
            cluster.set_open(name, not cluster.rooms[name].node.schedulable)

    @rule(seed=seeds)
    def the_operator_changes_the_queues(self, seed: int) -> None:
        names = {*self.world.state.queues.accounts} - {"default"}
        rules = make_rules(Random(seed))
        if not names or rules:  # jobs of queues that are gone are another story
            self.world.state.rules(rules, self.world.now)

    @invariant()
    def the_kept_books_are_those_of_a_recount(self) -> None:
        check(self.world.state)

    @invariant()
    def no_node_is_overdrawn(self) -> None:
        audit(self.world.nodes, self.world.held())

    @invariant()
    def nothing_comes_to_a_closed_node(self) -> None:
        rooms, plan = self.world.state.cluster.rooms, self.world.plan()
        for change in (*plan.placements, *plan.repairs, *plan.growths):
            assert all(rooms[binding.node].node.schedulable for binding in change.bindings)

    @invariant()
    def nobody_runs_with_less_than_it_needs_unless_tasks_were_lost(self) -> None:
        for job in self.world.state.running:
            assert job.missing or whole(job.gang, job.tasks.values())

    @invariant()
    def fresh_books_lead_to_the_same_plan(self) -> None:
        if self.world.state.policy.time_share:
            return  # levels are looked at now and then, and a copy looks at once
        fresh = Picture.of(self.world.state).books()
        plan = schedule(fresh.snapshot(self.world.now), fresh.policy)
        assert replace(plan, full=()) == replace(self.world.plan(), full=())


Books.TestCase.settings = settings(
    max_examples=max(15, settings.default.max_examples // 2), stateful_step_count=20, deadline=None
)
TestBooks = Books.TestCase
