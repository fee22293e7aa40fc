"""What holds of every plan, whatever the cluster and the queue."""

from __future__ import annotations

from collections import Counter
from typing import Any

from hypothesis import assume, example, given
from hypothesis import strategies as st

from support.builders import GIB, a_gang, a_node, a_request
from weft.model.gang import Gang, Request, Within
from weft.model.node import Node
from weft.model.status import Binding
from weft.scheduler import schedule as module
from weft.scheduler.cluster import Cluster
from weft.scheduler.empty import could_ever_fit
from weft.scheduler.explain import explain
from weft.scheduler.feasible import place
from weft.scheduler.pending import Pending, Waiting
from weft.scheduler.plan import Plan
from weft.scheduler.schedule import Snapshot, schedule

TYPES = ["v100", "k80"]


@st.composite
def nodes(draw: Any) -> list[Node]:
    return [
        a_node(
            f"node-{i}",
            cpu=draw(st.integers(1, 6)),
            memory=draw(st.integers(1, 8)),
            gpus=draw(st.lists(st.sampled_from(TYPES), max_size=4)),
            labels={"zone": draw(st.sampled_from("ab"))},
            shared=draw(st.booleans()),
            closed=draw(st.integers(0, 9)) == 0,
        )
        for i in range(draw(st.integers(1, 4)))
    ]


requests = st.builds(
    lambda cpu, memory, gpu, kind: a_request(cpu, memory, gpu, kind if gpu else None),
    st.sampled_from([0, 0.5, 1, 1.5, 2, 4]),
    st.integers(0, 4),
    st.integers(0, 2),
    st.sampled_from([None, None, *TYPES]),
)
gangs = st.builds(
    lambda wanted, strategy, one_node, zone: a_gang(
        *wanted, strategy=strategy, one_node=one_node, selector={"zone": zone} if zone else {}
    ),
    st.lists(requests, min_size=1, max_size=4),
    st.sampled_from(["pack", "spread"]),
    st.booleans(),
    st.sampled_from([None, None, "a"]),
)
queues = st.lists(st.tuples(gangs, st.integers(-1, 1), st.floats(0, 400, width=16)), min_size=1, max_size=6)


def waiting(queue: list[tuple[Gang, int, float]]) -> Pending:
    pending = Pending()
    for i, (gang, priority, since) in enumerate(queue):
        pending.add(Waiting(f"uid-{i}", f"job-{i}", gang, priority, since))
    return pending


def picture(cluster: Cluster) -> dict[str, Any]:
    return {
        name: (room.cpu, room.memory, tuple(room.cpu_ids), tuple(room.gpus), room.tasks)
        for name, room in cluster.rooms.items()
    }


def requests_of(pending: Pending, plan: Plan) -> list[tuple[Binding, Request]]:
    return [
        (binding, pending[placement.uid].gang.task(binding.task).request)
        for placement in plan.placements
        for binding in placement.bindings
    ]


@given(nodes(), queues)
def test_no_node_gives_more_than_it_has(nodes: list[Node], queue: Any) -> None:
    pending = waiting(queue)
    plan = schedule(Snapshot(Cluster(nodes), pending, now=400.0))
    for node in nodes:
        here = [(b, r) for b, r in requests_of(pending, plan) if b.node == node.name]
        assert sum(r.cpu for _, r in here) <= node.cpu
        assert sum(r.memory for _, r in here) <= node.memory
        cpus = Counter(cpu for b, _ in here for cpu in b.cpus)
        gpus = Counter(gpu for b, _ in here for gpu in b.gpus)
        assert all(count == 1 for count in (*cpus.values(), *gpus.values()))
        assert set(cpus) <= set(node.cpu_ids)
        assert set(gpus) <= {gpu.index for gpu in node.gpus}
        assert not here or node.schedulable


@given(nodes(), queues)
def test_a_gang_is_placed_whole_or_not_at_all(nodes: list[Node], queue: Any) -> None:
    pending = waiting(queue)
    plan = schedule(Snapshot(Cluster(nodes), pending, now=400.0))
    for placement in plan.placements:
        assert [b.task for b in placement.bindings] == [t.name for t in pending[placement.uid].gang.tasks]
    assert len({placement.uid for placement in plan.placements}) == len(plan.placements)


@given(nodes(), queues)
def test_each_task_gets_what_it_asked_for(nodes: list[Node], queue: Any) -> None:
    pending = waiting(queue)
    plan = schedule(Snapshot(Cluster(nodes), pending, now=400.0))
    by_name = {node.name: node for node in nodes}
    for binding, request in requests_of(pending, plan):
        node = by_name[binding.node]
        types = [gpu.type for gpu in node.gpus if gpu.index in binding.gpus]
        assert len(types) == request.gpu
        assert request.gpu_type is None or set(types) <= {request.gpu_type}
        assert len(binding.cpus) == (request.whole_cpus if node.cpu_ids else 0)
    for placement in plan.placements:
        gang = pending[placement.uid].gang
        places = {binding.node for binding in placement.bindings}
        assert gang.within is not Within.NODE or len(places) == 1
        assert all(dict(gang.selector).items() <= dict(by_name[name].labels).items() for name in places)


@given(nodes(), queues)
def test_the_cluster_and_the_queue_come_back_as_they_were(nodes: list[Node], queue: Any) -> None:
    cluster, pending = Cluster(nodes), waiting(queue)
    before, order = picture(cluster), pending.in_order()
    first = schedule(Snapshot(cluster, pending, now=400.0))
    assert picture(cluster) == before
    assert pending.in_order() == order
    assert schedule(Snapshot(cluster, pending, now=400.0)) == first


@given(nodes(), queues, st.randoms(use_true_random=False))
def test_the_order_in_which_jobs_were_added_does_not_matter(
    nodes: list[Node], queue: Any, random: Any
) -> None:
    pending = waiting(queue)
    shuffled, other = list(pending), Pending()
    random.shuffle(shuffled)
    for job in shuffled:
        other.add(job)
    plan = schedule(Snapshot(Cluster(nodes), pending, now=0.0))
    assert schedule(Snapshot(Cluster(nodes), other, now=0.0)) == plan


@given(nodes(), queues)
def test_whoever_starts_passes_only_jobs_that_do_not_fit(nodes: list[Node], queue: Any) -> None:
    """Best first: when a job is placed, every better one was placed before it or did not fit then."""
    pending = waiting(queue)
    plan = schedule(Snapshot(Cluster(nodes), pending, now=0.0))
    placed = {placement.uid: placement for placement in plan.placements}
    cluster = Cluster(nodes)
    for job in pending.in_order():
        fits = place(cluster, job.gang, mix=pending.mix)
        assert (fits is not None) == (job.uid in placed)
        if fits is not None:
            assert placed[job.uid].bindings == fits
    assert [p.uid for p in plan.placements] == [j.uid for j in pending.in_order() if j.uid in placed]


@given(nodes(), gangs)
def test_undoing_gives_back_exactly_what_was_taken(nodes: list[Node], gang: Gang) -> None:
    cluster = Cluster(nodes)
    before = picture(cluster)
    mark = cluster.mark()
    bindings = place(cluster, gang)
    if bindings is None:
        assert picture(cluster) == before
        return
    cluster.revert(mark)
    assert picture(cluster) == before
    for binding in bindings:
        cluster.take(binding, gang.task(binding.task).request)
    for binding in reversed(bindings):
        cluster.release(binding, gang.task(binding.task).request)
    assert picture(cluster) == before


@given(nodes(), gangs)
def test_pack_uses_one_node_where_one_is_enough(nodes: list[Node], gang: Gang) -> None:
    assume(gang.strategy == "pack" and gang.within is not Within.NODE)
    bindings = place(Cluster(nodes), gang)
    alone = place(Cluster(nodes), a_gang(tasks=gang.tasks, one_node=True, selector=dict(gang.selector)))
    if alone is not None:
        assert bindings is not None
        assert len({b.node for b in bindings}) == 1


@given(st.integers(1, 5), st.integers(1, 5))
def test_spread_uses_every_node_before_any_twice(tasks: int, count: int) -> None:
    cluster = Cluster([a_node(f"node-{i}", cpu=8) for i in range(count)])
    bindings = place(cluster, a_gang(*[a_request(1)] * tasks, strategy="spread"))
    assert bindings is not None
    uses = Counter(b.node for b in bindings)
    assert len(uses) == min(tasks, count)
    assert max(uses.values()) - min(uses.get(f"node-{i}", 0) for i in range(count)) <= 1


@given(nodes(), gangs, gangs)
def test_an_explanation_agrees_with_the_scheduler(nodes: list[Node], running: Gang, gang: Gang) -> None:
    cluster = Cluster(nodes)
    place(cluster, running)
    before = picture(cluster)
    said = explain(cluster, gang)
    mark = cluster.mark()
    fits = place(cluster, gang) is not None
    cluster.revert(mark)
    assert (said.reason == "fits now and starts in its turn") == fits
    assert said.ever == could_ever_fit(cluster, gang)
    assert said.reason.startswith("can never start here") == (not said.ever)
    assert picture(cluster) == before


@example(kinds=["v100", "k80", "k80"])
@given(kinds=st.permutations(["v100", "k80", "k80"]))
def test_who_takes_any_gpu_leaves_the_rare_one_to_who_needs_it(kinds: list[str]) -> None:
    """The untyped task used to take GPU 0, whatever it was, and the job `could never start here`."""
    gang = a_gang(a_request(1, gpu=2), a_request(1, gpu=1, gpu_type="v100"))
    bindings = place(Cluster([a_node(gpus=kinds)]), gang)
    assert bindings is not None
    assert [kinds[i] for i in bindings[1].gpus] == ["v100"]


def test_equal_requests_are_asked_once_a_cycle(monkeypatch: Any) -> None:
    asked = []

    def counted(cluster: Cluster, gang: Gang, mix: Any) -> Any:
        asked.append(gang)
        return place(cluster, gang, mix=mix)

    monkeypatch.setattr(module, "place_elastic", counted)
    pending = waiting([(a_gang(a_request(4)), 0, float(i)) for i in range(1000)])
    plan = schedule(Snapshot(Cluster([a_node(cpu=8)]), pending, now=10.0))
    assert len(plan.placements) == 2
    assert len(asked) == 3
    assert [signature for signature, _ in plan.full] == [a_gang(a_request(4)).signature]


def test_memory_is_counted_in_bytes() -> None:
    cluster = Cluster([a_node(memory=2)])
    assert place(cluster, a_gang(Request(1000, 2 * GIB + 1))) is None
    assert place(cluster, a_gang(Request(1000, 2 * GIB))) is not None
