"""Giving way, shrinking, growing and being repaired, as whole stories on virtual time."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from support.builders import a_node
from support.machine import Machine, Tell, workers
from support.simulated import FOREVER, Run
from weft.model.events import Lost
from weft.model.lifecycle import Refused
from weft.model.node import Gpu, Node
from weft.model.status import State, TaskState


def sizes(machine: Machine, name: str) -> int:
    return sum(task.state is TaskState.RUNNING for task in machine.status(name).tasks)


def test_production_stops_an_experiment_which_then_goes_on(on_a_machine: Tell) -> None:
    async def story(m: Machine) -> None:
        m.world.script("experiment", "worker-0", Run(seconds=100, after_term=5), Run(seconds=40))
        await m.submit("experiment", roles=workers(1, resources={"cpu": 4}))
        await m.until("experiment", State.PROCESSING)
        await m.passes(60)
        await m.submit("urgent", priority="production", roles=workers(1, resources={"cpu": 4}))
        await m.passes(1)
        experiment = m.status("experiment")
        assert (experiment.state, experiment.giving_way) == (State.PROCESSING, "urgent")
        assert m.status("urgent").state is State.QUEUED
        assert "experiment gives way to it" in m.control.explain(m.control.find("urgent")).reason
        await m.until("urgent", State.COMPLETED)
        finished = await m.until("experiment", State.COMPLETED)
        assert m.history("experiment") == [
            "PENDING", "QUEUED", "DEPLOYING", "PROCESSING", "PREEMPTED", "QUEUED",
            "DEPLOYING", "PROCESSING", "STORING", "COMPLETED",
        ]  # fmt: skip
        assert finished.preemptions == 1
        assert finished.ran == pytest.approx(66, abs=1)
        assert m.nothing_is_held()

    on_a_machine(story)


def test_nobody_else_takes_the_room_that_was_freed(on_a_machine: Tell) -> None:
    async def story(m: Machine) -> None:
        m.world.script("experiment", "worker-0", Run(seconds=1e6, after_term=20))
        await m.submit("experiment", roles=workers(1, resources={"cpu": 4}))
        await m.until("experiment", State.PROCESSING)
        await m.submit("urgent", priority="production", roles=workers(1, resources={"cpu": 3}))
        await m.passes(5)
        await m.submit("sly", roles=workers(1, resources={"cpu": 4}))
        await m.until("urgent", State.PROCESSING)
        assert m.status("sly").state is State.QUEUED
        assert [job for _, job, _, _ in m.world.starts] == ["experiment", "urgent"]

    on_a_machine(story)


def test_a_job_that_cannot_fit_stops_nobody(on_a_machine: Tell) -> None:
    async def story(m: Machine) -> None:
        m.world.script("experiment", "worker-0", FOREVER)
        await m.submit("experiment", roles=workers(1, resources={"cpu": 4}))
        await m.until("experiment", State.PROCESSING)
        await m.submit("monster", priority="production", roles=workers(1, resources={"cpu": 64}))
        await m.passes(600)
        assert m.status("experiment").state is State.PROCESSING
        assert m.world.signals == []

    on_a_machine(story)


def test_a_person_may_cancel_a_job_that_is_giving_way(on_a_machine: Tell) -> None:
    async def story(m: Machine) -> None:
        from weft.model.status import Desire

        m.world.script("experiment", "worker-0", Run(seconds=1e6, after_term=20))
        await m.submit("experiment", roles=workers(1, resources={"cpu": 4}))
        await m.until("experiment", State.PROCESSING)
        await m.submit("urgent", priority="production", roles=workers(1, resources={"cpu": 4}))
        await m.passes(5)
        await m.ask("experiment", Desire.CANCEL)
        await m.until("urgent", State.COMPLETED)
        assert (await m.until("experiment")).state is State.CANCELLED
        assert m.nothing_is_held()

    on_a_machine(story)


def test_a_server_killed_while_a_job_gives_way_ends_the_story_all_the_same(on_a_machine: Tell) -> None:
    async def story(m: Machine) -> None:
        m.world.script("experiment", "worker-0", Run(seconds=1e6, after_term=20), Run(seconds=5))
        await m.submit("experiment", roles=workers(1, resources={"cpu": 4}))
        await m.until("experiment", State.PROCESSING)
        await m.submit("urgent", priority="production", roles=workers(1, resources={"cpu": 4}))
        await m.passes(5)
        m.kill()
        await m.passes(60)
        await m.up()
        await m.until("urgent", State.COMPLETED)
        await m.until("experiment", State.COMPLETED)
        assert "PREEMPTED" in m.history("experiment")
        assert m.nothing_is_held()

    on_a_machine(story)


def test_a_server_that_comes_back_stops_no_second_job_for_the_same_room(on_a_machine: Tell) -> None:
    async def story(m: Machine) -> None:
        for name in ("first", "second"):
            m.world.script(name, "worker-0", Run(seconds=300, after_term=20), Run(seconds=5))
            await m.submit(name, roles=workers(1, resources={"cpu": 2}))
            await m.until(name, State.PROCESSING)
        await m.submit("urgent", priority="production", roles=workers(1, resources={"cpu": 2}))
        await m.passes(5)
        m.kill()
        await m.passes(2)
        await m.up()
        await m.until("urgent", State.COMPLETED)
        for name in ("first", "second"):
            await m.until(name, State.COMPLETED)
        preempted = [m.status(name).preemptions for name in ("first", "second")]
        assert sorted(preempted) == [0, 1]

    on_a_machine(story)


ELASTIC = {"worker": {"replicas": 4, "minReplicas": 2, "maxReplicas": 8, "resources": {"cpu": 1}}}


@pytest.mark.slow
def test_an_elastic_job_shrinks_for_production_and_grows_back(on_a_machine: Tell) -> None:
    async def story(m: Machine) -> None:
        for number in range(8):
            m.world.script("experiment", f"worker-{number}", Run(seconds=4000))
        m.world.script("urgent", "worker-0", Run(seconds=300))
        await m.submit("experiment", roles=ELASTIC)
        await m.until("experiment", State.PROCESSING)
        assert sizes(m, "experiment") == 4
        await m.passes(5)
        await m.submit("urgent", priority="production", roles=workers(1, resources={"cpu": 2}))
        await m.until("urgent", State.PROCESSING)
        assert sizes(m, "experiment") == 2
        assert m.status("experiment").state is State.PROCESSING
        await m.until("urgent", State.COMPLETED)
        await m.passes(120)
        assert sizes(m, "experiment") == 4
        await m.until("experiment", State.COMPLETED, within=10_000)
        assert "PREEMPTED" not in m.history("experiment")
        assert m.nothing_is_held()

    on_a_machine(story)


@pytest.mark.slow
def test_an_elastic_job_grows_into_idle_room_and_gives_it_back_to_anyone(on_a_machine: Tell) -> None:
    async def story(m: Machine) -> None:
        for number in range(8):
            m.world.script("experiment", f"worker-{number}", Run(seconds=4000))
        m.world.script("small", "worker-0", Run(seconds=30))
        await m.submit("experiment", roles=ELASTIC)
        await m.until("experiment", State.PROCESSING)
        await m.passes(30)
        assert sizes(m, "experiment") == 4
        await m.passes(60)
        assert sizes(m, "experiment") == 8
        await m.submit("small", roles=workers(1, resources={"cpu": 3}))
        await m.until("small", State.PROCESSING)
        assert sizes(m, "experiment") == 5
        await m.until("experiment", State.COMPLETED, within=10_000)
        assert m.nothing_is_held()

    on_a_machine(story, [a_node("node-0"), a_node("node-1")])


def test_a_task_lost_with_its_node_is_replaced_and_the_rest_goes_on(on_a_machine: Tell) -> None:
    async def story(m: Machine) -> None:
        for number in range(2):
            m.world.script("gang", f"worker-{number}", Run(seconds=500))
        job = await m.submit("gang", roles=workers(2, resources={"cpu": 2}))
        await m.until("gang", State.PROCESSING)
        await m.passes(10)
        process = m.world.processes.pop((job.uid, "worker-1"))
        assert process.timer is not None
        process.timer.cancel()
        m.control._heard(job.uid, Lost(("worker-1",), "node-0"))
        assert m.status("gang").state is State.RESTARTING
        await m.until("gang", State.PROCESSING)
        assert [task for _, task in m.world.starts_of("gang")] == ["worker-0", "worker-1", "worker-1"]
        await m.until("gang", State.COMPLETED)
        assert m.nothing_is_held()

    on_a_machine(story)


def test_gpus_of_a_task_that_runs_on_are_not_given_away_when_the_machine_is_carved_anew(
    on_a_machine: Tell,
) -> None:
    """Four nodes became two, on which the GPUs have other owners: they were handed out a second time."""

    def carved(count: int) -> list[Node]:
        each = 8 // count
        gpus = [tuple(Gpu(i, "v100") for i in range(n * each, (n + 1) * each)) for n in range(count)]
        return [replace(a_node(f"local-{n}", cpu=16), gpus=gpus[n]) for n in range(count)]

    async def story(m: Machine) -> None:
        for number in range(3):
            m.world.script("first", f"worker-{number}", Run(seconds=100))
        await m.submit("first", roles=workers(3, resources={"gpu": 2}))
        await m.until("first", State.PROCESSING)
        m.kill(keep=True)
        m.world.nodes = tuple(carved(2))
        await m.up()
        await m.submit("second", roles=workers(1, resources={"gpu": 2}))
        await m.submit("third", roles=workers(1, resources={"gpu": 1}))
        await m.until("second", State.PROCESSING)
        of = {
            name: {gpu for t in m.status(name).tasks if t.binding for gpu in t.binding.gpus}
            for name in ("first", "second")
        }
        assert of["first"] | of["second"] == set(range(8))
        assert not of["first"] & of["second"]
        assert m.status("third").state is State.QUEUED
        await m.until("third", State.COMPLETED)
        await m.until("first", State.COMPLETED)
        assert m.nothing_is_held()

    on_a_machine(story, carved(4))


# ── scaled by a person ──


def test_a_running_job_is_scaled_down_and_up_without_stopping_the_rest(on_a_machine: Tell) -> None:
    async def story(m: Machine) -> None:
        for number in range(8):
            m.world.script("job", f"worker-{number}", *[Run(seconds=4000, after_term=5)] * 3)
        await m.submit("job", roles={"worker": {**ELASTIC["worker"], "maxReplicas": 4}})
        await m.until("job", State.PROCESSING)
        assert sizes(m, "job") == 4
        await m.control.scale("job", {"worker": 2}, "ann")
        await m.passes(10)
        assert sizes(m, "job") == 2
        await m.passes(300)
        assert sizes(m, "job") == 2, "idle room is not what was asked for"
        assert "2 tasks leave: it was scaled down" in [event.cause for event in m.events("job")]
        await m.control.scale("job", {"worker": 3}, "ann")
        await m.passes(10)
        assert sizes(m, "job") == 3
        starts = [name for _, _, name, _ in m.world.starts]
        assert [starts.count(f"worker-{number}") for number in range(2)] == [1, 1]
        assert "scaled to worker=3" in [event.cause for event in m.events("job")]

    on_a_machine(story)


def test_a_job_that_cannot_change_its_size_as_it_runs_saves_and_starts_again(on_a_machine: Tell) -> None:
    async def story(m: Machine) -> None:
        for number in range(4):
            m.world.script("job", f"worker-{number}", *[Run(seconds=4000, after_term=5)] * 3)
        elastic = {"worker": {**ELASTIC["worker"], "maxReplicas": 4}}
        await m.submit("job", roles=elastic, resize="restart", grace="10s")
        await m.until("job", State.PROCESSING)
        await m.control.scale("job", {"worker": 2}, "ann")
        await m.passes(4)
        assert (m.status("job").state, len(m.world.starts)) == (State.RESTARTING, 4), "all are saving"
        await m.passes(4)
        assert (m.status("job").state, sizes(m, "job")) == (State.PROCESSING, 2)
        assert {name for _, _, name in m.world.signals} == {"SIGTERM"}
        await m.control.scale("job", {"worker": 3}, "ann")
        await m.passes(20)
        assert (m.status("job").state, sizes(m, "job")) == (State.PROCESSING, 3)
        starts = [name for _, _, name, _ in m.world.starts]
        assert [starts.count(f"worker-{number}") for number in range(4)] == [3, 3, 2, 1]
        together = [when for when, _, _, _ in m.world.starts][-3:]
        assert max(together) - min(together) < 0.01
        assert m.status("job").restarts == 0, "none of its restarts is used up"

    on_a_machine(story)


def test_a_restart_for_a_new_size_survives_a_killed_server(on_a_machine: Tell) -> None:
    async def story(m: Machine) -> None:
        for number in range(4):
            m.world.script("job", f"worker-{number}", *[Run(seconds=100, after_term=5)] * 3)
        await m.submit("job", roles={"worker": {**ELASTIC["worker"], "maxReplicas": 4}}, resize="restart")
        await m.until("job", State.PROCESSING)
        await m.control.scale("job", {"worker": 2}, "ann")
        await m.passes(2)
        m.kill(keep=True)
        await m.passes(10)
        await m.up()
        assert (await m.until("job")).state is State.COMPLETED
        assert [name for _, _, name, _ in m.world.starts][4:] == ["worker-0", "worker-1"]
        assert m.nothing_is_held()

    on_a_machine(story)


def test_a_size_survives_a_killed_server_and_a_preemption(on_a_machine: Tell) -> None:
    async def story(m: Machine) -> None:
        for number in range(8):
            m.world.script("job", f"worker-{number}", *[Run(seconds=4000, after_term=5)] * 4)
        m.world.script("urgent", "worker-0", Run(seconds=30))
        await m.submit("job", roles=ELASTIC)
        await m.until("job", State.PROCESSING)
        await m.control.scale("job", {"worker": 2}, "ann")
        m.kill(keep=True)
        await m.passes(1)
        await m.up()
        await m.passes(20)
        assert sizes(m, "job") == 2
        await m.submit("urgent", priority="production", roles=workers(1, resources={"cpu": 4}))
        await m.until("urgent", State.COMPLETED)
        await m.until("job", State.PROCESSING)
        await m.passes(100)
        assert sizes(m, "job") == 2
        assert dict(m.status("job").sizes) == {"worker": 2}

    on_a_machine(story)


def test_a_job_that_waits_is_scaled_too(on_a_machine: Tell) -> None:
    async def story(m: Machine) -> None:
        m.world.script("first", "worker-0", Run(seconds=100))
        await m.submit("first", roles=workers(1, resources={"cpu": 4}))
        await m.submit("job", roles=ELASTIC)
        await m.control.scale("job", {"worker": 3}, "ann")
        await m.until("job", State.PROCESSING)
        assert sizes(m, "job") == 3

    on_a_machine(story)


@pytest.mark.parametrize(
    ("asked", "told"),
    [
        ({"worker": 1}, "role worker has 2 to 8 tasks, not 1"),
        ({"worker": 9}, "role worker has 2 to 8 tasks, not 9"),
        ({"wroker": 3}, "there is no role wroker; did you mean worker?"),
    ],
)
def test_a_size_that_cannot_be_is_refused(on_a_machine: Tell, asked: dict[str, int], told: str) -> None:
    async def story(m: Machine) -> None:
        await m.submit("job", roles=ELASTIC)
        with pytest.raises(Refused, match=re.escape(told)):
            await m.control.scale("job", asked, "ann")

    on_a_machine(story)


def test_neither_a_fixed_nor_a_finished_job_can_be_scaled(on_a_machine: Tell) -> None:
    async def story(m: Machine) -> None:
        await m.submit("fixed", roles=workers(2, resources={"cpu": 1}))
        with pytest.raises(Refused, match="role worker is always 2"):
            await m.control.scale("fixed", {"worker": 1}, "ann")
        await m.submit("job", roles=ELASTIC)
        await m.until("job", State.COMPLETED)
        with pytest.raises(Refused, match="job job is COMPLETED; only a job that waits or runs"):
            await m.control.scale("job", {"worker": 3}, "ann")

    on_a_machine(story)
