"""Who starts where and when, and what those who wait are told."""

from __future__ import annotations

from support.builders import a_gang, a_node, a_request
from weft.model.gang import Gang, Request, Task
from weft.model.job import Restart
from weft.model.node import Node
from weft.model.status import Binding
from weft.scheduler.cluster import Cluster
from weft.scheduler.explain import describe, explain
from weft.scheduler.feasible import place
from weft.scheduler.pending import Pending, Waiting
from weft.scheduler.plan import Plan
from weft.scheduler.schedule import Snapshot, schedule


def plan(nodes: list[Node], *jobs: tuple[str, Gang, int, float], now: float = 0.0) -> Plan:
    pending = Pending()
    for name, gang, priority, since in jobs:
        pending.add(Waiting(name, name, gang, priority, since))
    return schedule(Snapshot(Cluster(nodes), pending, now))


def started(*arguments, **options) -> list[str]:  # type: ignore[no-untyped-def]
    return [placement.uid for placement in plan(*arguments, **options).placements]


BIG, SMALL = a_gang(a_request(4)), a_gang(a_request(1))


class TestOrder:
    def test_higher_priority_first(self) -> None:
        jobs = [("low", BIG, -100, 0.0), ("high", BIG, 100, 9.0), ("normal", BIG, 0, 5.0)]
        assert started([a_node(cpu=4)], *jobs) == ["high"]

    def test_then_who_has_waited_longer(self) -> None:
        assert started([a_node(cpu=4)], ("b", BIG, 0, 2.0), ("a", BIG, 0, 1.0)) == ["a"]

    def test_then_the_uid_so_that_everybody_agrees(self) -> None:
        assert started([a_node(cpu=4)], ("b", BIG, 0, 1.0), ("a", BIG, 0, 1.0)) == ["a"]

    def test_small_jobs_go_around_a_big_one_that_does_not_fit(self) -> None:
        jobs = [("big", BIG, 0, 0.0), ("small", SMALL, 0, 1.0)]
        assert started([a_node(cpu=2)], *jobs) == ["small"]


class TestPlaces:
    def test_whole_cpus_are_numbered_and_fractions_share(self) -> None:
        cluster = Cluster([a_node(cpu=4)])
        bindings = place(cluster, a_gang(a_request(2), a_request(0.5), a_request(1)))
        assert bindings == (
            Binding("worker-0", "node-0", (0, 1)),
            Binding("worker-1", "node-0"),
            Binding("worker-2", "node-0", (2,)),
        )

    def test_pack_fills_the_fullest_node_first(self) -> None:
        cluster = Cluster([a_node("a", cpu=8), a_node("b", cpu=2)])
        bindings = place(cluster, a_gang(a_request(1), a_request(1)))
        assert bindings is not None
        assert {b.node for b in bindings} == {"b"}

    def test_jobs_without_gpus_stay_off_gpu_nodes_while_there_are_others(self) -> None:
        cluster = Cluster([a_node("gpu", gpus=4), a_node("plain")])
        bindings = place(cluster, a_gang(a_request(1)))
        assert bindings is not None
        assert bindings[0].node == "plain"

    def test_a_place_on_a_node_that_is_gone_takes_and_gives_nothing(self) -> None:
        cluster = Cluster([a_node()])
        gone = Binding("worker-0", "local-7", (1,), (0,))
        cluster.take(gone, a_request(1))
        cluster.release(gone, a_request(1))
        assert cluster.rooms["node-0"].cpu == 4000

    def test_a_closed_node_takes_nothing(self) -> None:
        assert place(Cluster([a_node(closed=True)]), SMALL) is None


class TestExplanations:
    def test_a_job_that_could_never_start_hears_the_largest_node(self) -> None:
        cluster = Cluster([a_node("a", cpu=16, memory=64, gpus=4), a_node("b", cpu=8, memory=32, gpus=2)])
        said = explain(cluster, a_gang(a_request(1, gpu=8)))
        assert said.ever is False
        assert said.reason == (
            "can never start here: needs 1 cpu, 8 gpu; "
            "the largest of 2 nodes has 16 cpu, 64 GiB, 4 gpu (v100); all together 24 cpu; "
            "2 of 2 nodes lack 8 gpu"
        )

    def test_on_a_single_node_it_is_the_node(self) -> None:
        said = explain(Cluster([a_node(cpu=2, memory=4)]), a_gang(a_request(1, gpu=1, gpu_type="a100")))
        assert (
            said.reason == "can never start here: needs 1 cpu, 1 a100 gpu; the node has 2 cpu, 4 GiB, no gpu"
        )

    def test_a_label_that_no_node_has(self) -> None:
        said = explain(Cluster([a_node()]), a_gang(a_request(1), selector={"disk": "ssd"}))
        assert said.reason == (
            "can never start here: needs 1 cpu with disk=ssd; no node has the labels {'disk': 'ssd'}"
        )
        assert said.details == ("node-0: lacks the labels {'disk': 'ssd'}",)

    def test_a_job_that_waits_hears_what_is_free_and_who_uses_it(self) -> None:
        cluster = Cluster([a_node(cpu=4, memory=8, gpus=2)])
        place(cluster, a_gang(a_request(3, memory=2, gpu=1)))
        said = explain(cluster, a_gang(a_request(1, memory=1), a_request(1, memory=1), one_node=True))
        assert said.ever is True
        assert said.reason == (
            "needs 2 × (1 cpu, 1 GiB) on one node; "
            "free: 1 of 4 cpu, 6 GiB, 1 of 2 gpu on 1 node, used by 1 running task"
        )
        assert said.details == ("node-0: 1 of 4 cpu, 6 GiB, 1 gpu free; room for 1 of the 2 tasks",)

    def test_a_closed_node_says_so(self) -> None:
        said = explain(Cluster([a_node(closed=True)]), SMALL)
        assert said.details == ("node-0: closed to new tasks",)

    def test_a_gang_is_described_by_its_kinds_of_tasks(self) -> None:
        gang = a_gang(a_request(0.5), a_request(1, memory=2), a_request(1, memory=2))
        assert describe(gang) == "0.5 cpu + 2 × (1 cpu, 2 GiB)"


class TestTheQueue:
    def test_removing_what_is_not_there_is_nothing(self) -> None:
        pending = Pending()
        pending.remove("nobody")
        assert len(pending) == 0

    def test_a_group_goes_with_its_last_job(self) -> None:
        pending = Pending()
        for uid in ("a", "b"):
            pending.add(Waiting(uid, uid, SMALL, 0, 0.0))
        pending.remove("a")
        assert list(pending.groups) == [(0, "default", "", SMALL.signature)]
        pending.remove("b")
        assert pending.groups == {}
        assert "b" not in pending


def test_unlike_tasks_are_tried_in_other_ways_when_the_greedy_one_fails():
    cluster = Cluster([Node("a", 5000, 8 << 30), Node("b", 7000, 2 << 30)])
    requests = [Request(1000, 4 << 30), Request(1000, 4 << 30), Request(4000, 1 << 30)]
    tasks = tuple(Task(f"w-{i}", "w", i, i, request, Restart()) for i, request in enumerate(requests))
    gang = Gang(tasks, chief_decides=False, grace=1, deadline=None, max_wait=None, needs_fetch=False)
    bindings = place(cluster, gang)
    assert bindings is not None
    assert {binding.task: binding.node for binding in bindings} == {"w-0": "a", "w-1": "a", "w-2": "b"}
