"""Nodes that an operator cordons or declares lost, as whole stories on virtual time."""

from __future__ import annotations

import pytest

from support.builders import a_node
from support.machine import Machine, Tell, workers
from support.simulated import FOREVER, Run
from weft.control.nosuch import NoNode
from weft.model.status import State, TaskState

TWO = [a_node("node-0"), a_node("node-1")]
SPREAD = {"placement": {"strategy": "spread"}}


def nodes_of(m: Machine, name: str) -> dict[str, str]:
    return {task.name: task.binding.node for task in m.status(name).tasks if task.binding is not None}


async def spread_gang(m: Machine, cpu: int = 2, **spec: object) -> None:
    """A gang of two tasks on two nodes, that takes 100 seconds."""
    for number in range(2):
        m.world.script("gang", f"worker-{number}", Run(seconds=100))
    await m.submit("gang", roles=workers(2, resources={"cpu": cpu}), **SPREAD, **spec)
    await m.until("gang", State.PROCESSING)
    assert {*nodes_of(m, "gang").values()} == {"node-0", "node-1"}
    await m.passes(10)


def on(m: Machine, node: str) -> str:
    return next(task for task, place in nodes_of(m, "gang").items() if place == node)


# ── cordons ──


def test_nothing_new_comes_to_a_cordoned_node_until_it_is_uncordoned(on_a_machine: Tell) -> None:
    async def story(m: Machine) -> None:
        m.world.script("before", "worker-0", FOREVER)
        await m.submit("before", roles=workers(1, resources={"cpu": 1}))
        await m.until("before", State.PROCESSING)
        await m.control.cordons.cordon("node-0", "ann", "new disk")
        await m.submit("after", roles=workers(1, resources={"cpu": 1}))
        await m.passes(60)
        assert m.status("before").state is State.PROCESSING
        assert m.status("after").state is State.QUEUED
        explained = m.control.explain(m.control.find("after"))
        assert explained.closed
        assert "while the node is closed to new tasks" in explained.reason
        assert explained.details == ("node-0: closed to new tasks",)
        assert m.control.why_waiting(m.control.find("after")) == explained.reason
        await m.control.cordons.uncordon("node-0", "ann")
        await m.until("after", State.COMPLETED)

    on_a_machine(story, [a_node("node-0")])


def test_cordons_survive_a_killed_server(on_a_machine: Tell) -> None:
    async def story(m: Machine) -> None:
        await m.control.cordons.cordon("node-0", "ann", "new disk")
        await m.control.cordons.cordon("node-0", "bob")
        await m.control.cordons.cordon("node-1", "ann")
        await m.control.cordons.uncordon("node-1", "ann")
        m.kill()
        await m.up()
        kept = m.control.cordons.of("node-0")
        assert kept is not None
        assert (kept.by, kept.reason, kept.lost) == ("bob", "new disk", False)
        assert m.control.cordons.of("node-1") is None
        rooms = m.control.books.cluster.rooms
        assert [room.node.schedulable for room in rooms.values()] == [False, True]
        m.world.script("gang", "worker-0", FOREVER)
        await m.submit("gang", roles=workers(1, resources={"cpu": 1}))
        await m.until("gang", State.PROCESSING)
        assert nodes_of(m, "gang") == {"worker-0": "node-1"}

    on_a_machine(story, TWO)


def test_a_cordon_of_a_node_that_is_gone_waits_for_it(on_a_machine: Tell) -> None:
    async def story(m: Machine) -> None:
        await m.control.cordons.cordon("node-1", "ann")
        m.kill()
        m.world.nodes = (a_node("node-0"),)
        await m.up()
        with pytest.raises(NoNode):
            await m.control.cordons.uncordon("node-1", "ann")
        m.kill()
        m.world.nodes = tuple(TWO)
        await m.up()
        assert not m.control.books.cluster.rooms["node-1"].node.schedulable

    on_a_machine(story, TWO)


def test_a_node_that_does_not_exist_is_named_with_those_near(on_a_machine: Tell) -> None:
    async def story(m: Machine) -> None:
        for ask in (m.control.cordons.cordon, m.control.cordons.uncordon, m.control.cordons.lose):
            with pytest.raises(NoNode, match="there is no node nod-1") as refused:
                await ask("nod-1", "ann")
            assert refused.value.near[0] == "node-1"

    on_a_machine(story, TWO)


def test_a_promise_on_a_node_that_is_cordoned_is_void(on_a_machine: Tell) -> None:
    async def story(m: Machine) -> None:
        m.world.script("first", "worker-0", FOREVER)
        await m.submit("first", deadline="1h", roles=workers(1, resources={"cpu": 3}))
        await m.submit("wide", roles=workers(2, resources={"cpu": 2}))
        await m.passes(600)
        uid = m.control.find("wide").uid
        assert uid in m.control.books.promises
        await m.control.cordons.cordon("node-0", "ann")
        assert uid not in m.control.books.promises
        await m.passes(10)
        assert uid not in m.control.books.promises

    on_a_machine(story, [a_node("node-0", cpu=4)])


# ── lost nodes ──


def test_the_tasks_of_a_lost_node_are_killed_and_run_again_elsewhere(on_a_machine: Tell) -> None:
    async def story(m: Machine) -> None:
        await spread_gang(m)
        gone = on(m, "node-1")
        await m.control.cordons.lose("node-1", "ann", "smoke")
        assert m.world.signals[-1][1:] == (gone, "SIGKILL")
        await m.passes(1)
        assert nodes_of(m, "gang") == {"worker-0": "node-0", "worker-1": "node-0"}
        assert any("lost with node node-1" in event.cause for event in m.events("gang"))
        finished = await m.until("gang", State.COMPLETED)
        assert finished.restarts == 0
        assert [task for _, task in m.world.starts_of("gang")].count(gone) == 2
        assert m.nothing_is_held()
        assert not m.control.books.cluster.rooms["node-1"].node.schedulable
        await m.control.cordons.uncordon("node-1", "ann")
        assert m.control.books.cluster.rooms["node-1"].node.schedulable

    on_a_machine(story, TWO)


def test_several_tasks_of_a_job_are_lost_at_once(on_a_machine: Tell) -> None:
    async def story(m: Machine) -> None:
        for number in range(2):
            m.world.script("gang", f"worker-{number}", Run(seconds=100))
        await m.submit("gang", roles=workers(2, resources={"cpu": 2}))
        await m.until("gang", State.PROCESSING)
        (node,) = {*nodes_of(m, "gang").values()}
        await m.control.cordons.lose(node, "ann")
        await m.until("gang", State.COMPLETED)
        lost = [event.cause for event in m.events("gang") if "lost with node" in event.cause]
        assert lost == [f"worker-0, worker-1 lost with node {node}; waiting to be replaced"]
        assert m.nothing_is_held()

    on_a_machine(story, TWO)


def test_a_gang_without_room_for_what_it_lost_is_repaired_when_the_node_is_back(on_a_machine: Tell) -> None:
    async def story(m: Machine) -> None:
        await spread_gang(m, cpu=4)
        await m.control.cordons.lose("node-1", "ann")
        await m.passes(1)
        assert m.status("gang").state is State.RESTARTING
        await m.control.cordons.uncordon("node-1", "ann")
        await m.until("gang", State.COMPLETED)
        assert m.nothing_is_held()

    on_a_machine(story, TWO)


def test_a_gang_without_room_for_what_it_lost_keeps_the_rest_over_a_killed_server(on_a_machine: Tell) -> None:
    """The new server took the loss for one of long ago, and stopped the gang at once."""

    async def story(m: Machine) -> None:
        await m.passes(1000)
        for number in range(2):
            m.world.script("gang", f"worker-{number}", Run(seconds=2000))
        await m.submit("gang", roles=workers(2, resources={"cpu": 4}), **SPREAD)
        await m.until("gang", State.PROCESSING)
        kept = on(m, "node-0")
        await m.control.cordons.lose("node-1", "ann")
        await m.passes(1)
        m.kill(keep=True)
        await m.up()
        await m.passes(600)
        assert m.status("gang").state is State.RESTARTING
        assert m.status("gang").giving_way is None
        await m.control.cordons.uncordon("node-1", "ann")
        await m.until("gang", State.COMPLETED, within=3000)
        assert [task.restarts for task in m.status("gang").tasks if task.name == kept] == [0]
        assert m.nothing_is_held()

    on_a_machine(story, TWO)


def test_a_gang_that_gave_up_is_not_repaired_while_it_stops(on_a_machine: Tell) -> None:
    """Its node came back in that time: each cycle offered it, the job declined, and that woke the next cycle."""

    async def story(m: Machine) -> None:
        for number in range(2):
            m.world.script("gang", f"worker-{number}", Run(seconds=1e5, after_term=20), Run(seconds=5))
        await m.submit("gang", grace="60s", roles=workers(2, resources={"cpu": 4}))
        await m.until("gang", State.PROCESSING)
        await m.control.cordons.lose("node-1", "ann")
        await m.passes(905)
        assert m.status("gang").giving_way
        await m.control.cordons.uncordon("node-1", "ann")
        await m.until("gang", State.COMPLETED)
        assert m.nothing_is_held()

    on_a_machine(story, TWO)


def test_a_start_that_is_under_way_on_a_lost_node_is_made_anew_elsewhere(on_a_machine: Tell) -> None:
    async def story(m: Machine) -> None:
        m.world.fetches["gang"] = [20.0]
        await m.submit(
            "gang", roles=workers(1, resources={"cpu": 2}), code={"git": "https://x/y", "commit": "a" * 40}
        )
        await m.until("gang", State.DOWNLOADING)
        (node,) = nodes_of(m, "gang").values()
        await m.control.cordons.lose(node, "ann")
        await m.until("gang", State.COMPLETED)
        assert len(m.world.starts_of("gang")) == 1
        assert f"placed on {node}" not in [event.cause for event in m.events("gang")][4:]
        assert m.nothing_is_held()

    on_a_machine(story, TWO)


def test_a_task_that_is_due_again_on_a_lost_node_comes_back_elsewhere(on_a_machine: Tell) -> None:
    async def story(m: Machine) -> None:
        for number in range(2):
            m.world.script("gang", f"worker-{number}", Run(seconds=100))
        m.world.script("gang", "worker-1", Run(seconds=5, code=1), Run(seconds=5))
        restart = {"policy": "on-failure", "backoff": "60s"}
        await m.submit("gang", roles=workers(2, resources={"cpu": 2}, restart=restart), **SPREAD)
        await m.until("gang", State.RESTARTING)
        node = nodes_of(m, "gang")["worker-1"]
        await m.control.cordons.lose(node, "ann")
        await m.until("gang", State.PROCESSING)
        assert node not in nodes_of(m, "gang").values()
        finished = await m.until("gang", State.COMPLETED)
        assert finished.restarts == 1
        assert m.nothing_is_held()

    on_a_machine(story, TWO)


def test_a_job_that_is_being_cancelled_ends_when_its_node_is_lost(on_a_machine: Tell) -> None:
    from weft.model.status import Desire

    async def story(m: Machine) -> None:
        m.world.script("stubborn", "worker-0", Run(seconds=1e6, after_term=None))
        await m.submit("stubborn", grace="1h", roles=workers(1, resources={"cpu": 1}))
        await m.until("stubborn", State.PROCESSING)
        await m.ask("stubborn", Desire.CANCEL)
        await m.passes(5)
        (node,) = nodes_of(m, "stubborn").values()
        await m.control.cordons.lose(node, "ann")
        assert (await m.until("stubborn", within=5)).state is State.CANCELLED
        assert m.nothing_is_held()

    on_a_machine(story, TWO)


@pytest.mark.parametrize("keep", [False, True])
@pytest.mark.parametrize("touches", range(1, 9))
def test_a_server_killed_while_a_node_is_given_up_ends_the_story_all_the_same(
    on_a_machine: Tell, touches: int, keep: bool
) -> None:
    async def story(m: Machine) -> None:
        await spread_gang(m)
        m.crash_after(touches, keep=keep)
        losing = m.loop.create_task(m.control.cordons.lose("node-1", "ann"))
        await m.passes(5)
        losing.cancel()
        if not m.crashed:
            m.kill(keep=True)
        await m.up()
        lost = m.control.cordons.of("node-1") is not None
        await m.passes(5)
        if lost:
            assert not [p for p in m.world.processes if nodes_of(m, "gang").get(p[1]) == "node-1"]
        finished = await m.until("gang", State.COMPLETED)
        assert finished.restarts == 0
        assert all(task.state is TaskState.SUCCEEDED for task in finished.tasks)
        assert m.nothing_is_held()

    on_a_machine(story, TWO)
