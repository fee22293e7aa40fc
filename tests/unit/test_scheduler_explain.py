"""What a waiting job is told: who has what it needs, which nodes will never do, who gives way, what is promised."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from support.builders import a_gang, a_node, a_request
from support.world import World, known
from weft.model.gang import Gang, Within
from weft.scheduler.empty import emptied
from weft.scheduler.explain import FITS, describe, explain, explain_waiting
from weft.scheduler.forecast import Picture, forecast
from weft.scheduler.line import line, startable
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


# ── which GPUs ──


def test_gpus_of_too_little_memory_are_no_missing_gpus() -> None:
    nodes = [a_node(f"large-{i}", cpu=16, gpus=1, gpu_memory=80) for i in range(3)]
    nodes += [a_node(f"small-{i}", cpu=16, gpus=8, gpu_memory=16) for i in range(9)]
    world = World(nodes, [QueueRule("prod")])
    needs = a_gang(a_request(1, gpu=1, gpu_memory=40))
    for number in range(3):
        world.runs(f"prod-{number}", needs, queue="prod")
    world.submit("waits", needs)
    found = said(world, "waits")
    assert found.reason == (
        "needs 1 cpu, 1 gpu of 40 GiB or more; free: 189 of 192 cpu, 192 GiB, 0 of 3 gpu of 40 GiB or more "
        "on 12 nodes, used by 3 running tasks; 3 of 12 nodes could take 1 cpu, 1 gpu of 40 GiB or more, "
        "all used by 3 jobs of queue prod; 9 of 12 nodes have no GPU of 40 GiB or more"
    )
    assert found.numbers == {"nodes": 12, "able": 3, "gpuMemory": 9}


def test_gpus_that_are_too_old() -> None:
    cluster = World([a_node(f"n{i}", gpus=8, generation=7) for i in range(12)]).state.cluster
    found = explain(cluster, a_gang(a_request(1, gpu=1, generation=8)))
    assert found.reason.endswith("; 12 of 12 nodes have no GPU of generation 8 or later")
    assert found.numbers == {"nodes": 12, "able": 0, "gpuGeneration": 12}
    assert not found.ever


def test_too_few_gpus_of_that_kind_on_a_node() -> None:
    old, new = (a_node(name, gpus=4, gpu_memory=80, generation=n) for name, n in (("old", 7), ("new", 8)))
    nodes = [replace(new, gpus=(*new.gpus[:2], *old.gpus[2:])), old]
    wanted = a_gang(a_request(1, gpu=4, gpu_memory=40, generation=8))
    reason = explain(World(nodes).state.cluster, wanted).reason
    assert "1 of 2 nodes has fewer than 4 GPUs of 40 GiB or more and generation 8 or later" in reason
    assert "1 of 2 nodes has no GPU of 40 GiB or more and generation 8 or later" in reason


def test_a_single_node_says_so_too() -> None:
    cluster = World([a_node(gpus=4, generation=7)]).state.cluster
    assert explain(cluster, a_gang(a_request(1, gpu=1, generation=8))).reason == (
        "can never start here: needs 1 cpu, 1 gpu of generation 8 or later; "
        "the node has 4 cpu, 16 GiB, 4 gpu (v100); it has no GPU of generation 8 or later"
    )


def test_free_room_behind_a_taint_is_not_told_as_free() -> None:
    world = World([a_node("open", cpu=4), a_node("spot", cpu=4, taints=("spot",))])
    world.runs("first", a_gang(a_request(4)))
    assert "free: 0 of 4 cpu" in explain(world.state.cluster, a_gang(a_request(1))).reason


# ── in one rack ──


def racks(*sizes: int, per_node: int = 8, zone: str = "rack") -> list[Any]:
    """Racks r0, r1, … of so many nodes."""
    return [
        a_node(f"r{rack}-{i}", cpu=64, memory=512, gpus=per_node, **{zone: f"r{rack}"})
        for rack, size in enumerate(sizes)
        for i in range(size)
    ]


def test_no_rack_is_large_enough() -> None:
    cluster = World(racks(1, 2, 1, 4)).state.cluster
    found = explain(cluster, gpus(1, 64, within=Within.RACK))
    assert found.reason == (
        "can never start here: needs 64 gpu in one rack: the largest of 4 racks, r3, has 32; "
        "8 of 8 nodes could take 1 cpu, 1 gpu"
    )
    assert not found.ever
    assert found.numbers == {"nodes": 8, "able": 8, "racks": 4, "largeRacks": 0}


def test_the_largest_is_that_of_what_is_short() -> None:
    nodes = [a_node("a", cpu=64, gpus=2, rack="r0"), a_node("b", cpu=8, gpus=8, rack="r1")]
    cluster = World(nodes).state.cluster
    assert "needs 10 gpu in one rack: the largest of 2 racks, r1, has 8" in (
        explain(cluster, gpus(1, 10, within=Within.RACK)).reason
    )
    assert "needs 66 cpu in one rack: the largest of 2 racks, r0, has 64" in (
        explain(cluster, a_gang(*[a_request(6)] * 11, within=Within.RACK)).reason
    )


def test_gpus_of_the_kind_that_is_asked_are_counted() -> None:
    nodes = [
        a_node("a", cpu=64, gpus=8, gpu_memory=16, rack="r0"),
        a_node("b", cpu=64, gpus=2, gpu_memory=80, rack="r1"),
    ]
    wanted = a_gang(*[a_request(1, gpu=1, gpu_memory=40)] * 4, within=Within.RACK)
    assert explain(World(nodes).state.cluster, wanted).reason.startswith(
        "can never start here: needs 4 gpu of 40 GiB or more in one rack: the largest of 2 racks, r1, has 2"
    )


def test_a_rack_with_enough_of_everything_in_too_small_pieces() -> None:
    cluster = World(racks(3, 1, per_node=6)).state.cluster
    assert explain(cluster, gpus(4, 4, within=Within.RACK)).reason.startswith(
        "can never start here: needs 4 × (1 cpu, 4 gpu) in one rack; the largest of 2 racks, r0, takes 3 of the 4 tasks"
    )


def test_a_fabric_alike() -> None:
    cluster = World(racks(1, 2, zone="fabric")).state.cluster
    assert "needs 32 gpu on one fabric: the largest of 2 fabrics, r1, has 16" in (
        explain(cluster, gpus(1, 32, within=Within.FABRIC)).reason
    )


def test_a_rack_that_is_only_full_now_is_told_from_one_that_is_too_small() -> None:
    world = World(racks(1, 2, 4))
    world.runs_on("first", gpus(8), {"worker-0": "r2-0"})
    world.submit("waits", gpus(8, 4, within=Within.RACK))
    found = said(world, "waits")
    assert found.ever
    assert (
        "; 1 of 3 racks is large enough, but too full now: r2 has room for 3 of the 4 tasks" in found.reason
    )
    assert (found.numbers["racks"], found.numbers["largeRacks"]) == (3, 1)


def test_of_several_racks_that_are_full_the_emptiest_is_named() -> None:
    world = World(racks(2, 2, 1))
    world.runs_on("a", gpus(8, 2), {"worker-0": "r0-0", "worker-1": "r0-1"})
    world.runs_on("b", gpus(8), {"worker-0": "r1-0"})
    world.submit("waits", gpus(8, 2, within=Within.RACK))
    assert "; 2 of 3 racks are large enough, but too full now: r1 has room for 1 of the 2 tasks" in (
        said(world, "waits").reason
    )


def test_what_no_node_takes_is_not_blamed_on_racks() -> None:
    reason = explain(World(racks(2, 2)).state.cluster, gpus(16, 2, within=Within.RACK)).reason
    assert "4 of 4 nodes lack 16 gpu" in reason
    assert "largest of 2 racks" not in reason


def test_where_no_rack_has_a_name_there_are_none_to_compare() -> None:
    reason = explain(World([a_node(), a_node("b")]).state.cluster, gpus(1, 2, within=Within.RACK)).reason
    assert "largest of 1 racks" not in reason


def test_a_single_task_is_in_one_rack_wherever_it_is() -> None:
    world = World([*racks(1), a_node("no-rack", gpus=8)])
    for number, node in enumerate(("r0-0", "no-rack")):
        world.runs_on(f"first-{number}", gpus(8), {"worker-0": node})
    assert "rack" not in explain(world.state.cluster, gpus(8, within=Within.RACK)).reason


# ── what can never start ──


def test_what_can_never_start_stands_last_and_takes_nobodys_turn() -> None:
    world = World([a_node(cpu=16, gpus=8)], [QueueRule("a"), QueueRule("b", limit={"gpu": 4000})])
    world.runs("first", gpus(8), queue="a")
    world.submit("huge", gpus(9), 10, queue="a")
    world.submit("over", gpus(5), 10, queue="b")
    world.submit("b1", gpus(4), queue="b", since=2.0)
    world.submit("a1", gpus(8), queue="a", since=1.0)
    order = [job.uid for job in line(world.state, 10.0)]
    assert sorted(order[:2]) == ["a1", "b1"]
    assert sorted(order[2:]) == ["huge", "over"]
    assert [startable(world.state, world.state.pending[uid]) for uid in order] == [True, True, False, False]
    for uid in order[2:]:
        assert said(world, uid).reason.startswith("can never start here: ")
        assert forecast(Picture.of(world.state), 10.0)[uid].earliest is None


def test_asking_what_can_never_start_leaves_the_books_as_they_are() -> None:
    world = World(racks(2, 2))
    world.submit("rack", gpus(8, 3, within=Within.RACK))
    world.submit("one", gpus(8))
    before = world.state.cluster.free.copy()
    for _ in range(2):
        assert [job.uid for job in line(world.state, 0.0)] == ["one", "rack"]
    assert (world.state.cluster.free == before).all()
    assert describe(gpus(8, 3, within=Within.RACK)) == "3 × (1 cpu, 8 gpu) in one rack"


def test_the_empty_cluster_is_made_once_and_anew_when_a_node_changes() -> None:
    cluster = World([a_node(), a_node("b")]).state.cluster
    twin = emptied(cluster)
    assert emptied(cluster) is twin
    cluster.nodes[1] = replace(cluster.nodes[1], schedulable=False)
    assert emptied(cluster).nodes == cluster.nodes


def test_a_node_that_is_closed_is_no_node_that_is_too_small() -> None:
    cluster = World([a_node("a", cpu=2), a_node("b", cpu=8, closed=True)]).state.cluster
    found = explain(cluster, a_gang(a_request(4)))
    assert found.reason.startswith("cannot start while 1 of 2 nodes is closed to new tasks: needs 4 cpu; ")
    assert (found.ever, found.closed) == (True, True)
    found = explain(cluster, a_gang(a_request(9)))
    assert found.reason.startswith("can never start here: needs 9 cpu; ")
    assert (found.ever, found.closed) == (False, False)
    alone = World([a_node(closed=True)]).state.cluster
    assert explain(alone, a_gang(a_request(1))).reason.startswith(
        "cannot start while the node is closed to new tasks: needs 1 cpu; "
    )
