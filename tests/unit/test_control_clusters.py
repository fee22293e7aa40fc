"""Several clusters beside the server's own engine: where jobs go, and what happens while one is away."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.builders import a_complete_job, a_node
from support.machine import Machine, Tell, workers
from support.simulated import FOREVER, Run, World
from weft.control.nosuch import NoCluster
from weft.model.cluster import CLUSTER, Cluster, ClusterSpec, cluster_of, node_name
from weft.model.gang import Within, gang_of
from weft.model.lifecycle import Refused
from weft.model.node import Node
from weft.model.problems import Invalid
from weft.model.status import Desire, State

PROD = {"cluster": "prod"}


def nodes_in(cluster: str, count: int = 2, cpu: int = 4) -> list[Node]:
    """As an engine reports those of a cluster that was added."""
    return [
        replace(
            a_node(f"{cluster}:n{n}", cpu=cpu, memory=16),
            cluster=cluster,
            labels=((CLUSTER, cluster),),
            taints=(CLUSTER,),
        )
        for n in range(count)
    ]


async def add(m: Machine, *names: str, cpu: int = 4) -> None:
    for name in names:
        m.clusters[name] = World(nodes_in(name, cpu=cpu), m.path.parent)
        await m.control.clusters.put(name, Cluster(spec=ClusterSpec(context=name)), "ann")


def places(m: Machine, name: str) -> set[str]:
    return {cluster_of(task.binding.node) for task in m.status(name).tasks if task.binding is not None}


class TestWhereJobsGo:
    def test_to_the_servers_own_engine_unless_they_ask_for_another(self, on_a_machine: Tell) -> None:
        async def story(m: Machine) -> None:
            await add(m, "prod")
            for name in ("here", "there"):
                m.world.script(name, "worker-0", FOREVER)
                m.clusters["prod"].script(name, "worker-0", FOREVER)
            await m.submit("here")
            await m.submit("there", placement=PROD)
            await m.until("here", State.PROCESSING)
            await m.until("there", State.PROCESSING)
            assert places(m, "here") == {""}
            assert places(m, "there") == {"prod"}
            assert len(m.world.starts) == len(m.clusters["prod"].starts) == 1

        on_a_machine(story)

    def test_who_does_not_ask_waits_rather_than_go_elsewhere(self, on_a_machine: Tell) -> None:
        async def story(m: Machine) -> None:
            await add(m, "prod")
            await m.submit("large", roles=workers(2, resources={"cpu": 3}))
            await m.passes(60)
            assert m.status("large").state is State.QUEUED
            assert "2 of 3 nodes lack tolerance" in m.control.why_waiting(m.control.find("large"))

        on_a_machine(story)

    def test_any_is_whichever_has_room_and_all_of_a_gang_in_one(self, on_a_machine: Tell) -> None:
        async def story(m: Machine) -> None:
            await add(m, "prod", "lab")
            for cluster in (m.world, *m.clusters.values()):
                for name in ("a", "b", "c"):
                    for task in ("worker-0", "worker-1"):
                        cluster.script(name, task, FOREVER)
            for name in ("a", "b", "c"):  # two nodes of 4 CPUs in each cluster, one at home
                await m.submit(name, placement={"cluster": "any"}, roles=workers(2, resources={"cpu": 4}))
            await m.until("a", State.PROCESSING)
            await m.until("b", State.PROCESSING)
            assert {*places(m, "a"), *places(m, "b")} == {"prod", "lab"}
            await m.passes(60)
            assert m.status("c").state is State.QUEUED
            assert "in one cluster" in m.control.why_waiting(m.control.find("c"))

        on_a_machine(story)

    def test_a_gang_that_may_go_anywhere_need_only_be_in_one_cluster(self) -> None:
        spec = a_complete_job("x", placement={"cluster": "any"}).spec
        assert gang_of(spec).within is Within.CLUSTER
        asked = a_complete_job("x", placement={"cluster": "any", "nodes": "same-rack"}).spec
        assert gang_of(asked).within is Within.RACK
        named = gang_of(a_complete_job("x", placement=PROD).spec)
        assert (CLUSTER, "prod") in named.selector
        assert named.within is Within.ANYWHERE


class TestAddingAndRemoving:
    def test_a_cluster_must_answer(self, on_a_machine: Tell) -> None:
        async def story(m: Machine) -> None:
            with pytest.raises(Invalid, match="prod does not answer"):
                await m.control.clusters.put("prod", Cluster(), "ann")
            assert "prod" not in m.control.clusters
            assert m.control.backend.notes() == ()

        on_a_machine(story)

    @pytest.mark.parametrize("name", ["any", "home"])
    def test_words_with_a_meaning_are_no_names(self, on_a_machine: Tell, name: str) -> None:
        async def story(m: Machine) -> None:
            with pytest.raises(Invalid, match="has a meaning of its own"):
                await m.control.clusters.put(name, Cluster(), "ann")

        on_a_machine(story)

    def test_one_that_is_used_stays_and_one_that_is_not_goes(self, on_a_machine: Tell) -> None:
        async def story(m: Machine) -> None:
            await add(m, "prod")
            m.clusters["prod"].script("there", "worker-0", Run(seconds=100))
            await m.submit("there", placement=PROD)
            await m.until("there", State.PROCESSING)
            with pytest.raises(Refused, match="cannot be removed while jobs wait for it or run there: there"):
                await m.control.clusters.remove("prod", "ann")
            with pytest.raises(Refused, match="cannot be changed"):
                await m.control.clusters.put("prod", Cluster(spec=ClusterSpec(context="x")), "ann")
            await m.until("there")
            await m.control.clusters.remove("prod", "ann")
            assert len(m.control.books.cluster.nodes) == 1
            with pytest.raises(NoCluster):
                m.control.clusters.get("prod")

        on_a_machine(story)

    def test_a_change_that_does_not_answer_leaves_it_as_it_was(self, on_a_machine: Tell) -> None:
        async def story(m: Machine) -> None:
            await add(m, "prod")
            there = m.clusters.pop("prod")
            with pytest.raises(Invalid, match="prod does not answer"):
                await m.control.clusters.put("prod", Cluster(spec=ClusterSpec(context="x")), "ann")
            m.clusters["prod"] = there
            await m.passes(60)
            assert m.control.clusters.get("prod").spec.context == "prod"
            assert m.control.backend.problem("prod") is None
            assert len(m.control.books.cluster.nodes) == 3

        on_a_machine(story)


class TestAway:
    def test_what_runs_in_a_cluster_that_is_away_is_left_alone_until_it_answers(
        self, on_a_machine: Tell
    ) -> None:
        async def story(m: Machine) -> None:
            await add(m, "prod")
            m.clusters["prod"].script("there", "worker-0", Run(seconds=300))
            m.clusters["prod"].script("stopped", "worker-0", Run(seconds=1e9, after_term=1))
            for name in ("there", "stopped"):
                await m.submit(name, placement=PROD)
                await m.until(name, State.PROCESSING)
            m.kill()
            there = m.clusters.pop("prod")
            await m.up()
            assert any(
                "cluster prod is away: prod does not answer" in note for note in m.control.backend.notes()
            )
            await m.submit("waits", placement=PROD)
            await m.submit("here")
            await m.until("here")
            await m.ask("stopped", Desire.HALT)
            await m.passes(100)
            assert m.status("there").state is State.PROCESSING
            assert m.status("waits").state is State.QUEUED
            m.clusters["prod"] = there
            await m.until("waits")
            assert (await m.until("stopped")).state is State.HALTED
            assert (await m.until("there")).state is State.COMPLETED
            assert m.history("there").count("PROCESSING") == 1
            assert len(there.starts) == 3

        on_a_machine(story)

    def test_a_server_that_is_killed_finds_its_clusters_again(self, on_a_machine: Tell) -> None:
        async def story(m: Machine) -> None:
            await add(m, "prod")
            m.clusters["prod"].script("there", "worker-0", Run(seconds=100))
            await m.submit("there", placement=PROD)
            await m.until("there", State.PROCESSING)
            m.kill()
            await m.up()
            assert m.control.backend.problem("prod") is None
            assert (await m.until("there")).state is State.COMPLETED
            assert len(m.clusters["prod"].starts) == 1
            assert m.nothing_is_held()

        on_a_machine(story)


@given(
    st.from_regex(r"[a-z0-9]([a-z0-9-]{0,10}[a-z0-9])?", fullmatch=True),
    st.from_regex(r"[a-z0-9.-]{1,20}", fullmatch=True),
)
def test_a_nodes_name_says_its_cluster(cluster: str, node: str) -> None:
    assert cluster_of(node_name(cluster, node)) == cluster
    assert cluster_of(node_name("", node)) == ""
