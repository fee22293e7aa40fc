"""Where a gang goes: fewest nodes, then fewest racks, the least broken up, near its data, CPUs and GPUs of one NUMA group."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from itertools import combinations
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.builders import GIB, a_gang, a_node, a_request
from support.clusters import some_gangs, some_nodes
from weft.model.gang import Gang, Request, Within
from weft.model.node import Gpu, Node
from weft.model.status import Binding
from weft.scheduler.cluster import Cluster
from weft.scheduler.explain import explain
from weft.scheduler.feasible import place
from weft.scheduler.fit import Ask, Fit, _fragments


def gpus(count: float, tasks: int = 1, **rules: Any) -> Gang:
    return a_gang(*[a_request(1, gpu=count)] * tasks, **rules)


def racked(free: list[tuple[int, str]]) -> list[Node]:
    return [
        a_node(f"n{i}", cpu=32, gpus=width, rack=rack, shared=True) for i, (width, rack) in enumerate(free)
    ]


clusters = st.lists(st.tuples(st.integers(0, 4), st.sampled_from(["r1", "r2", "r3"])), min_size=1, max_size=6)


def fewest(nodes: list[Node], tasks: int, width: int) -> tuple[int, int] | None:
    """Nodes and racks of the best of all ways, by trying every set of nodes."""
    room = {node.name: len(node.gpus) // width for node in nodes}
    for count in range(1, len(nodes) + 1):
        ways = [chosen for chosen in combinations(nodes, count) if sum(room[n.name] for n in chosen) >= tasks]
        if ways:
            return count, min(len({node.rack for node in chosen}) for chosen in ways)
    return None


@given(clusters, st.integers(1, 6), st.integers(1, 2))
def test_equal_tasks_are_packed_on_the_fewest_nodes_and_in_one_rack_where_that_takes_no_more(
    free: list[tuple[int, str]], tasks: int, width: int
) -> None:
    nodes = racked(free)
    bindings = place(Cluster(nodes), gpus(width, tasks))
    best = fewest(nodes, tasks, width)
    assert (bindings is None) == (best is None)
    if bindings is None or best is None:
        return
    rack = {node.name: node.rack for node in nodes}
    used = {binding.node for binding in bindings}
    assert len(used) == best[0]
    if best[1] == 1:
        assert len({rack[name] for name in used}) == 1


@given(clusters, st.integers(1, 6))
def test_spread_tasks_share_a_node_only_where_there_are_too_few(
    free: list[tuple[int, str]], tasks: int
) -> None:
    nodes = racked(free)
    bindings = place(Cluster(nodes), gpus(1, tasks, strategy="spread"))
    room = [len(node.gpus) for node in nodes]
    assert (bindings is not None) == (sum(room) >= tasks)
    if bindings is not None:
        uses = Counter(binding.node for binding in bindings)
        assert len(uses) == min(tasks, sum(1 for count in room if count))


@given(clusters, st.integers(1, 6))
def test_a_gang_of_one_rack_fits_exactly_where_one_rack_has_room(
    free: list[tuple[int, str]], tasks: int
) -> None:
    nodes = racked(free)
    room = Counter[str]()
    for node in nodes:
        room[node.rack] += len(node.gpus)
    bindings = place(Cluster(nodes), gpus(1, tasks, within=Within.RACK))
    assert (bindings is not None) == (max(room.values()) >= tasks)


@given(some_nodes(), some_gangs(alike=True, elastic=False))
def test_equal_tasks_anywhere_fit_exactly_where_the_nodes_have_room_for_all_of_them(
    nodes: list[Node], gang: Gang
) -> None:
    anywhere = replace(gang, within=Within.ANYWHERE)
    cluster = Cluster(nodes)
    request = gang.tasks[0].request
    fit = Fit(cluster, Ask(request, gang.selector, gang.tolerations), ()).refresh(())
    assert (place(cluster, anywhere) is not None) == (fit.count.sum() >= len(gang.tasks))


@given(some_nodes(), some_gangs(alike=True, elastic=False))
def test_the_standing_answer_for_all_nodes_is_what_each_node_says(nodes: list[Node], gang: Gang) -> None:
    cluster = Cluster(nodes)
    request = gang.tasks[0].request
    fit = Fit(cluster, Ask(request), ()).refresh(())
    for _ in range(3):
        open_to_all = [room.count(request) if room.tolerated(()) else 0 for room in cluster.rooms.values()]
        assert fit.refresh(()).count.tolist() == open_to_all
        assert np.array_equal(fit.counts_in(cluster.free), fit.count)
        node = fit.best()
        if node is None:
            break
        cluster.reserve("w", node, request)


# ── fragmentation ──


def test_a_small_task_goes_where_it_breaks_up_least_for_those_who_wait() -> None:
    """One node is whole, one has 3 free: with 8-GPU tasks waiting the 1-GPU task goes to the broken one."""
    cluster = Cluster([a_node("whole", cpu=16, gpus=8), a_node("broken", cpu=16, gpus=3)])
    bindings = place(cluster, gpus(1), mix=((8, 1.0),))
    assert bindings is not None
    assert bindings[0].node == "broken"


@pytest.mark.parametrize(
    ("free", "lost"), [(8, 7), (7, -1), (1, -1)], ids=["breaks 8", "uses waste", "uses the last of the waste"]
)
def test_the_table_counts_gpus_that_become_useless_to_those_who_wait(free: int, lost: int) -> None:
    table = _fragments(1, ((8, 1.0),))
    assert table[free] - table[1] == 64 * (lost + 1)


def test_without_anybody_waiting_nothing_is_broken_up() -> None:
    assert _fragments(1, ()).max() == 0


def test_a_pair_goes_to_the_pair_and_not_to_the_four() -> None:
    cluster = Cluster([a_node("four", cpu=16, gpus=4), a_node("two", cpu=16, gpus=2)])
    bindings = place(cluster, gpus(2), mix=((4, 0.5), (2, 0.5)))
    assert bindings is not None
    assert bindings[0].node == "two"


# ── places for tasks ──


@pytest.mark.parametrize("wide", [False, True])
def test_a_node_takes_only_so_many_tasks_however_little_they_ask_for(wide: bool) -> None:
    """Many nodes are asked at once, a few one by one; both count alike."""
    nodes = [a_node(f"n{i}", cpu=64, slots=2, shared=True) for i in range(300 if wide else 2)]
    cluster = Cluster(nodes)
    one = a_gang(a_request(0.1))
    for _ in range(2 * len(nodes)):
        assert place(cluster, one) is not None
    assert place(cluster, one) is None
    assert {room.slots for room in cluster.rooms.values()} == {0}


def test_what_asks_for_nothing_is_a_task_as_well_unless_it_is_counted_elsewhere() -> None:
    cluster = Cluster([a_node(slots=1, shared=True)])
    assert place(cluster, a_gang(Request(cpu=0, slots=0))) is not None
    cluster.take(Binding("somebody-s", "node-0"), Request(cpu=0))
    assert place(cluster, a_gang(a_request(0.1))) is None
    assert "1 of these nodes has as many as may be there" in explain(cluster, a_gang(a_request(0.1))).reason


# ── affinity ──


def test_a_job_goes_where_its_data_lies() -> None:
    nodes = [a_node("far"), a_node("near", holds={"imagenet": 150 * GIB}), a_node("farther")]
    bindings = place(Cluster(nodes), a_gang(a_request(1), wants={"imagenet": 150 * GIB}))
    assert bindings is not None
    assert bindings[0].node == "near"


def test_a_job_that_is_spread_still_goes_where_its_data_lies_one_task_a_node() -> None:
    holds = {"imagenet": 150 * GIB}
    nodes = [a_node("far"), a_node("near", holds=holds), a_node("farther"), a_node("nearby", holds=holds)]
    gang = a_gang(a_request(1), a_request(1), wants=holds, strategy="spread")
    bindings = place(Cluster(nodes), gang)
    assert bindings is not None
    assert {binding.node for binding in bindings} == {"near", "nearby"}
    plain = place(Cluster(nodes[:3]), a_gang(*[a_request(1)] * 3, wants=holds, strategy="spread"))
    assert plain is not None
    assert len({binding.node for binding in plain}) == 3, "data is no reason to crowd"


def test_less_than_a_gibibyte_counts_too_but_less_than_a_node_s_gpus() -> None:
    nodes = [a_node("far"), a_node("near", holds={"faces": 1 << 20})]
    gang = a_gang(a_request(1), wants={"faces": 1 << 20})
    bindings = place(Cluster(nodes), gang)
    assert bindings is not None
    assert bindings[0].node == "near"
    nodes = [a_node("far"), a_node("near", gpus=8, holds={"faces": 1 << 20})]
    bindings = place(Cluster(nodes), gang)  # a MiB is no reason to sit on GPUs
    assert bindings is not None
    assert bindings[0].node == "far"


@given(st.lists(st.tuples(st.integers(0, 5 << 30), st.integers(0, 3)), min_size=1, max_size=6))
def test_the_bytes_to_move_choose_the_node_but_never_whether_a_job_starts(
    nodes: list[tuple[int, int]],
) -> None:
    """Whatever nodes hold and however full they are, it starts now if it would without any data."""
    made = [a_node(f"n{i}", cpu=1 + free, holds={"faces": held}) for i, (held, free) in enumerate(nodes)]
    plain, wants = a_gang(a_request(2)), a_gang(a_request(2), wants={"faces": 5 << 30})
    without, bindings = place(Cluster(made), plain), place(Cluster(made), wants)
    assert (bindings is None) == (without is None)
    if bindings is not None:
        missing = {f"n{i}": ((5 << 30) - held) for i, (held, free) in enumerate(nodes) if free}
        assert missing[bindings[0].node] <= min(missing.values()) + (64 << 20)


def test_but_does_not_wait_for_that_node() -> None:
    nodes = [a_node("far"), a_node("near", cpu=1, holds={"imagenet": 150 * GIB})]
    bindings = place(Cluster(nodes), a_gang(a_request(2), wants={"imagenet": 150 * GIB}))
    assert bindings is not None
    assert bindings[0].node == "far"


# ── the very GPUs and CPUs ──


def test_gpus_and_cpus_of_a_task_come_of_one_numa_group() -> None:
    node = a_node(cpu=8, gpus=4, numa=2)
    bindings = place(Cluster([node]), a_gang(a_request(4, gpu=2), a_request(2, gpu=2)))
    assert bindings is not None
    for binding in bindings:
        groups = {gpu.numa for gpu in node.gpus if gpu.index in binding.gpus}
        assert len(groups) == 1
        assert {*binding.cpus} <= {*node.numa[groups.pop()]}


def test_shares_fill_a_split_gpu_before_another_is_split() -> None:
    cluster = Cluster([a_node("a", cpu=8, gpus=2), a_node("b", cpu=8, gpus=2)])
    places = []
    for _ in range(4):
        bindings = place(cluster, gpus(0.25))
        assert bindings is not None
        places.append((bindings[0].node, bindings[0].gpus))
    assert len({*places}) == 1
    assert cluster.idle[1] == 3


def test_a_split_gpu_that_nobody_uses_any_more_is_whole_again() -> None:
    cluster = Cluster([a_node(cpu=8, gpus=1)])
    bindings = place(cluster, gpus(0.5))
    assert bindings is not None
    assert place(cluster, gpus(1)) is None
    cluster.release(bindings[0], a_request(1, gpu=0.5))
    assert place(cluster, gpus(1)) is not None


def test_who_asks_for_memory_or_a_generation_gets_it_and_who_does_not_leaves_it() -> None:
    old = Gpu(0, "v100", memory=16 * GIB, generation=1)
    new = Gpu(0, "a100", memory=80 * GIB, generation=2)
    nodes = [replace(a_node("old"), gpus=(old,)), replace(a_node("new"), gpus=(new,))]
    for request, expected in (
        (a_request(1, gpu=1), "old"),
        (a_request(1, gpu=1, gpu_memory=40), "new"),
        (a_request(1, gpu=1, generation=2), "new"),
    ):
        bindings = place(Cluster(nodes), a_gang(request))
        assert bindings is not None
        assert bindings[0].node == expected


def test_counted_devices_run_out() -> None:
    cluster = Cluster([a_node(cpu=8, devices={"rdma": 2})])
    wants = a_gang(a_request(1, devices={"rdma": 1}))
    assert [place(cluster, wants) is not None for _ in range(3)] == [True, True, False]


def test_a_tainted_node_takes_only_who_tolerates_it() -> None:
    cluster = Cluster([a_node(taints=("spot",))])
    assert place(cluster, a_gang(a_request(1))) is None
    assert place(cluster, a_gang(a_request(1), tolerations=("spot",))) is not None
