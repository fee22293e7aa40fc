"""The simulation loses no job, does every job's work exactly once, and never uses more than there is."""

from __future__ import annotations

from dataclasses import replace

import pytest

from weft.model.gang import Request, Span
from weft.scheduler.policy import NAMED
from weft.scheduler.state import State
from weft.sim.clusterfile import equal_nodes
from weft.sim.compare import simulate
from weft.sim.engine import Simulation
from weft.sim.failures import Failure, failures
from weft.sim.generate import GANGS, generate
from weft.sim.metrics import measure
from weft.sim.oracle import Oracle
from weft.sim.outcome import Outcome
from weft.sim.workload import Arrival, by_owner, gang_of_gpus, nodes_for, workers

WORKLOAD = generate(GANGS, 150, seed=5)
NODES = equal_nodes(nodes_for(WORKLOAD, 1.3))
DAY = 86400.0


def records_of(outcome: Outcome) -> list[tuple[object, ...]]:
    return [(r.arrival.name, r.started, r.finished, r.waited, r.preemptions, r.lost) for r in outcome.records]


def holds_no_more_than_there_is(when: float, state: State) -> None:
    assert (state.cluster.free >= 0).all()
    assert (state.cluster.free <= state.cluster.total).all()


@pytest.mark.slow
@pytest.mark.parametrize("mtbf", [None, DAY])
@pytest.mark.parametrize("name", NAMED)
def test_every_policy_finishes_every_job_and_every_gpu_second_is_accounted_for(
    name: str, mtbf: float | None
) -> None:
    arrivals, rules = by_owner(WORKLOAD)
    lost = failures(NODES, mtbf, seed=2) if mtbf else ()
    outcome = Simulation(
        NODES, arrivals, NAMED[name], rules, failures=lost, watch=holds_no_more_than_there_is
    ).run()
    assert sorted(r.arrival.name for r in outcome.records) == sorted(a.name for a in arrivals)
    for record in outcome.records:
        assert record.started is not None
        assert record.finished is not None
        assert record.arrival.time <= record.started
        assert record.finished - record.arrival.time >= record.arrival.seconds - 1e-3
        assert record.waited + record.arrival.seconds <= record.completion + 1e-3  # type: ignore[operator]
    assert outcome.endless == 0
    usage = outcome.usage
    work = sum(arrival.work for arrival in arrivals)
    assert usage.allocated == pytest.approx(work + usage.lost + usage.deadlocked, rel=1e-9)
    assert usage.held == pytest.approx(0.0, abs=1e-6)
    assert usage.wanted == pytest.approx(0.0, abs=1e-6)
    assert all(0 <= sample.gpus_used <= outcome.gpus for sample in outcome.samples)
    if mtbf:
        assert sum(record.failures for record in outcome.records) > 5
    elif not NAMED[name].time_share:
        assert usage.lost == 0.0


@pytest.mark.slow
def test_the_same_arguments_give_the_same_outcome() -> None:
    def once() -> Outcome:
        return Simulation(NODES, WORKLOAD, failures=failures(NODES, DAY, seed=1)).run()

    assert records_of(once()) == records_of(once())


def test_the_order_in_which_jobs_are_given_does_not_matter() -> None:
    outcome = Simulation(NODES, WORKLOAD).run()
    assert records_of(Simulation(NODES, WORKLOAD[::-1]).run()) == records_of(outcome)


def test_under_strict_fifo_nobody_starts_before_who_came_earlier() -> None:
    """Once they had waited for a day, small jobs passed large ones: what all others are compared with was not FIFO."""
    outcome = simulate("fifo", NODES, WORKLOAD)
    records = sorted(outcome.records, key=lambda record: record.arrival.time)
    starts = [record.started or 0.0 for record in records]
    assert max(record.first_wait or 0.0 for record in records) > 2 * NAMED["fifo"].bound
    assert starts == sorted(starts)


def test_an_oracle_knows_jobs_by_name_and_beats_fifo() -> None:
    known = measure(simulate("shortest+oracle", NODES, WORKLOAD))
    blind = measure(simulate("fifo", NODES, WORKLOAD))
    assert known.completion.mean < blind.completion.mean
    oracle = Oracle(WORKLOAD)
    job = WORKLOAD[12]
    like = (("", Oracle.name_of(job), 1),)
    assert oracle.remaining(like, 0.0) == max(job.seconds, 1.0)
    assert oracle.remaining(like, 1e9) == 1.0


def test_a_job_that_never_fits_is_left_over_and_the_rest_goes_on() -> None:
    arrivals = [Arrival("huge", 0.0, 60.0, gang_of_gpus(64)), Arrival("small", 1.0, 60.0, gang_of_gpus(1))]
    outcome = Simulation(equal_nodes(2), arrivals, failures=failures(equal_nodes(2), DAY)).run()
    assert {r.arrival.name: r.finished is not None for r in outcome.records} == {"huge": False, "small": True}
    assert measure(outcome).unfinished == 1


# ── nodes that fail ──


def two_tasks(name: str = "gang", seconds: float = 3 * 3600.0, **more: object) -> Arrival:
    return Arrival(name, 0.0, seconds, gang_of_gpus(16), **more)  # type: ignore[arg-type]


def test_a_gang_that_lost_a_node_is_repaired_in_place_and_goes_on_from_its_last_checkpoint() -> None:
    nodes = equal_nodes(3)
    used: list[set[str]] = []

    def watch(when: float, state: State) -> None:
        if "gang" in state.running:
            used.append({binding.node for binding in state.running["gang"].tasks.values()})

    first = Simulation(nodes, [two_tasks()], until=10.0)
    first.run()
    struck = sorted(binding.node for binding in first.state.running["gang"].tasks.values())[0]
    outcome = Simulation(
        nodes, [two_tasks()], failures=[Failure(4000.0, struck, 1800.0)], sample=600.0, watch=watch
    ).run()
    (record,) = outcome.records
    assert (record.failures, record.preemptions, record.waited) == (1, 0, 1.0)
    assert len(used[0] & used[-1]) == 1, "the task that was not lost stayed where it was"
    assert struck not in used[-1]
    redone = 4000.0 % 1800.0  # since its last checkpoint; then a minute to start again
    assert record.completion == pytest.approx(3 * 3600 + redone + 60, abs=5)
    assert outcome.usage.deadlocked == 0.0


def test_a_gang_that_cannot_be_repaired_stands_still_then_gives_its_room_to_others() -> None:
    nodes = equal_nodes(2)
    other = Arrival("other", 100.0, 600.0, gang_of_gpus(8))
    lost = [Failure(4000.0, "node-00001", 7200.0)]
    outcome = Simulation(nodes, [two_tasks(), other], NAMED["fifo"], failures=lost, mend=900.0).run()
    gang, small = outcome.records
    assert outcome.usage.deadlocked == pytest.approx(8 * 900.0, abs=20)
    assert small.started == pytest.approx(4000.0 + 900.0, abs=5), (
        "it starts on the node that the gang gave up"
    )
    assert gang.waited == pytest.approx(7200.0 - 900.0, abs=5), "until its node was back"
    assert gang.finished is not None


def test_without_checkpoints_a_failure_costs_all_that_was_done() -> None:
    lost = [Failure(4000.0, "node-00001", 60.0)]
    outcome = Simulation(equal_nodes(2), [two_tasks(checkpoints=False)], failures=lost).run()
    assert outcome.records[0].lost == pytest.approx(4000 * 16, rel=0.02)


def test_an_elastic_job_goes_on_smaller_and_grows_again_when_the_node_is_back() -> None:
    gang = replace(workers([Request(1000, 0, 8)] * 3), spans=(Span("worker", 1, 3, 3),))
    sizes: list[int] = []

    def watch(when: float, state: State) -> None:
        if "e" in state.running:
            sizes.append(len(state.running["e"].tasks))

    nodes = equal_nodes(3)
    first = Simulation(nodes, [Arrival("e", 0.0, 7200.0, gang)], until=10.0)
    first.run()
    last = first.state.running["e"].tasks["worker-2"].node
    lost = [Failure(1000.0, last, 1000.0)]
    outcome = Simulation(
        nodes, [Arrival("e", 0.0, 7200.0, gang)], failures=lost, sample=100.0, watch=watch
    ).run()
    assert [size for place, size in enumerate(sizes) if not place or sizes[place - 1] != size] == [3, 2, 3]
    assert outcome.usage.deadlocked == 0.0


def test_an_elastic_job_started_small_grows_although_nothing_else_happens() -> None:
    gang = replace(workers([Request(1000, 0, 1)] * 8), spans=(Span("worker", 1, 2, 8),))
    outcome = Simulation(equal_nodes(1), [Arrival("e", 0.0, 7200.0, gang)]).run()
    (record,) = outcome.records
    assert record.resizes >= 1
    assert record.completion == pytest.approx(60 + (7200 - 60) / 4, rel=0.05)


def test_failures_come_in_order_and_no_node_fails_while_it_is_gone() -> None:
    coming = failures(equal_nodes(5), mtbf=DAY, repair=3600.0, seed=1)
    found = [next(coming) for _ in range(2000)]
    assert found == sorted(found, key=lambda failure: failure.time)
    back: dict[str, float] = {}
    for failure in found:
        assert failure.time >= back.get(failure.node, 0.0)
        back[failure.node] = failure.time + failure.seconds
    up = found[-1].time * 5 - sum(failure.seconds for failure in found)
    assert up / len(found) == pytest.approx(DAY, rel=0.1)


# ── numbers ──


def test_the_metrics_of_a_story_that_can_be_worked_out_by_hand() -> None:
    whole = gang_of_gpus(8)
    arrivals = [
        Arrival("a", 0.0, 3600.0, whole),
        Arrival("b", 0.0, 3600.0, whole),
        Arrival("c", 3600.0, 60.0, gang_of_gpus(1)),
    ]
    found = measure(Simulation(equal_nodes(1), arrivals, NAMED["fifo"], sample=60.0).run())
    assert found.jobs == 3
    assert found.completion.most == pytest.approx(7200, abs=5)
    assert found.makespan == pytest.approx(7260, abs=10)
    assert found.queued_long == pytest.approx(2 / 3)
    assert found.queueing["8 GPUs"].jobs == 2
    assert found.queueing["8 GPUs"].first.most == pytest.approx(3600, abs=5)
    assert found.allocated == pytest.approx(1.0, abs=0.01)
    assert found.fairness.mean > 0.5
    assert found.preemptions == 0


def test_free_gpus_that_no_waiting_job_can_use_are_stranded() -> None:
    arrivals = [Arrival(f"small-{n}", 0.0, 7200.0, gang_of_gpus(5)) for n in range(2)]
    arrivals += [Arrival("large", 10.0, 60.0, gang_of_gpus(8))]
    outcome = Simulation(equal_nodes(2), arrivals, NAMED["fifo-backfill"], sample=600.0).run()
    assert [sample.stranded for sample in outcome.samples[1:5]] == [6.0] * 4
    assert outcome.samples[0].stranded == 0.0
