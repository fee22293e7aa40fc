"""What a waiting job is told: who has what it needs, which nodes will never do, who gives way, what is promised."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from support.builders import a_gang, a_node, a_request
from support.world import World, known
from weft.model.gang import Gang
from weft.scheduler.explain import FITS, explain, explain_waiting
from weft.scheduler.policy import DEFAULT
from weft.scheduler.queues import QueueRule

CALM = replace(DEFAULT, time_share=False)


def gpus(count: int, tasks: int = 1, **rest: Any) -> Gang:
    return a_gang(*[a_request(1, gpu=count)] * tasks, **rest)


def said(world: World, uid: str) -> Any:
    return explain_waiting(world.state, world.state.pending[uid])


def test_how_many_nodes_could_and_who_uses_them_and_how_many_lack_what() -> None:
    nodes = [a_node(f"wide-{i}", cpu=16, gpus=8, devices={"rdma": 1}) for i in range(3)]
    nodes += [a_node(f"plain-{i}", cpu=16, gpus=8) for i in range(2)]
    world = World(nodes, [QueueRule("prod"), QueueRule("dev")])
    needs = a_gang(a_request(1, gpu=8, devices={"rdma": 1}))
    for number in range(3):
        world.runs(f"prod-{number}", needs, queue="prod")
    world.submit("waits", needs, queue="dev")
    found = said(world, "waits")
    assert found.reason == (
        "needs 1 cpu, 8 gpu, 1 rdma; free: 77 of 80 cpu, 80 GiB, 16 of 40 gpu on 5 nodes, used by 3 running tasks; "
        "3 of 5 nodes could take 1 cpu, 8 gpu, 1 rdma, all used by 3 jobs of queue prod; 2 of 5 nodes lack rdma"
    )
    assert found.numbers == {"nodes": 5, "able": 3, "devices": 2}
    assert found.ever


def test_every_cause_that_rules_a_node_out_is_counted() -> None:
    world = World(
        [
            a_node("closed", closed=True),
            a_node("tainted", taints=("spot",), labels={"disk": "ssd"}),
            a_node("unlabelled"),
            a_node("narrow", cpu=2, labels={"disk": "ssd"}),
            a_node("thin", cpu=8, memory=1, labels={"disk": "ssd"}),
        ]
    )
    found = explain(world.state.cluster, a_gang(a_request(4, memory=8), selector={"disk": "ssd"}))
    assert not found.ever
    assert found.numbers == {
        "closed": 1, "taints": 1, "labels": 1, "cpu": 1, "memory": 1, "nodes": 5, "able": 0,
    }  # fmt: skip


def test_the_limit_of_its_queue_with_numbers_and_whether_it_could_ever_do() -> None:
    world = World([a_node(cpu=16, gpus=8)], [QueueRule("a", limit={"gpu": 4000})])
    world.runs("first", gpus(3), queue="a")
    world.submit("waits", gpus(2), queue="a")
    world.submit("never", gpus(5), queue="a")
    assert said(world, "waits").reason == "queue a is limited to 4 gpu: 3 gpu in use, 2 gpu asked"
    assert said(world, "waits").ever
    assert said(world, "never").reason.startswith("can never start here: queue a is limited to 4 gpu")
    assert not said(world, "never").ever


def test_who_is_giving_way_to_it() -> None:
    world = World([a_node(cpu=16, gpus=8)], policy=CALM)
    world.runs("victim", gpus(8))
    world.submit("urgent", gpus(8), 10)
    world.cycle()
    assert said(world, "urgent").reason == "its room is being freed: victim gives way to it"
    assert said(world, "urgent").numbers == {"givingWay": 1}


def test_when_it_was_promised_to_start() -> None:
    world = World([a_node(cpu=16, gpus=8)], policy=CALM, history=known(("first", 8, 1000.0)))
    world.runs("first-1", gpus(8))
    world.submit("wide", gpus(8))
    world.now = 400.0
    (made,) = world.cycle().promises
    assert said(world, "wide").promised == made.start


def test_for_whom_the_free_room_is_kept() -> None:
    nodes = [a_node(f"n{i}", cpu=16, gpus=8) for i in range(2)]
    world = World(nodes, policy=CALM, history=known(("first", 8, 1000.0)))
    world.runs("first-1", gpus(8))
    world.submit("wide", gpus(8, 2))
    world.now = 400.0
    world.cycle()
    world.submit("late", gpus(8))
    world.cycle()
    assert said(world, "late").reason == (
        "waits behind wide, to which the free room is promised; it would still run when wide is to start"
    )


def test_nothing_keeps_it() -> None:
    world = World([a_node()])
    world.submit("next", a_gang(a_request(1)))
    assert said(world, "next").reason == FITS
