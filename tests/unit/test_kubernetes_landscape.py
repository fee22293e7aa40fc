"""Which nodes are given up, and when: on virtual time, with what the API server would tell."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, cast

from support import virtual
from support.builders import a_gang, a_request
from weft.backends.kubernetes.client import Client
from weft.backends.kubernetes.landscape import LONGEST_SHUNNED, NOT_READY, SHUNNED, Landscape
from weft.backends.kubernetes.settings import Settings
from weft.model.gang import Request


class Heard:
    """What the books are told."""

    def __init__(self) -> None:
        self.told: list[str] = []
        self.used: dict[str, Request] = {}
        self.where: dict[str, str] = {}

    def nodes_changed(self) -> None:
        self.told.append("nodes")

    def occupied(self, who: str, node: str, request: Request) -> None:
        self.used[who], self.where[who] = request, node

    def vacated(self, who: str) -> None:
        self.used.pop(who, None)

    def node_lost(self, node: str, reason: str) -> None:
        self.told.append(f"lost {node}: {reason}")


def tell(story: Callable[[Landscape, Heard], Awaitable[None]], cluster: str = "") -> None:
    async def whole() -> None:
        land, heard = Landscape(cast(Client, None), Settings(cluster=cluster)), Heard()
        land.begin(heard)
        land._node_changed(a_node("True"))
        land.complete()
        heard.told.clear()
        await story(land, heard)
        land.end()

    virtual.run(whole)


def a_node(ready: str, cpu: str = "4") -> dict[str, Any]:
    condition = {"type": "Ready", "status": ready, "message": f"it is {ready}"}
    status = {"allocatable": {"cpu": cpu, "memory": "8Gi", "pods": "110"}, "conditions": [condition]}
    return {"metadata": {"name": "n", "uid": "n"}, "spec": {}, "status": status}


def test_a_node_that_says_nothing_any_more_is_given_up_at_once_after_the_books_know() -> None:
    async def story(land: Landscape, heard: Heard) -> None:
        land._node_changed(a_node("Unknown"))
        assert heard.told == ["nodes", "lost n: it is Unknown"]
        assert land.trouble("n") == "it is Unknown"
        land._node_changed(a_node("Unknown"))
        assert heard.told == ["nodes", "lost n: it is Unknown"], "once"

    tell(story)


def test_a_kubelet_that_was_started_again_costs_nobody_a_task() -> None:
    async def story(land: Landscape, heard: Heard) -> None:
        land._node_changed(a_node("False"))
        assert not land.nodes["n"].schedulable
        await asyncio.sleep(NOT_READY / 2)
        land._node_changed(a_node("True"))
        await asyncio.sleep(2 * NOT_READY)
        assert not any("lost" in told for told in heard.told)
        assert land.trouble("n") is None
        assert land.nodes["n"].schedulable

    tell(story)


def test_a_node_that_stays_unready_is_given_up_in_the_end() -> None:
    async def story(land: Landscape, heard: Heard) -> None:
        land._node_changed(a_node("False"))
        await asyncio.sleep(NOT_READY + 1)
        assert heard.told[-1] == "lost n: it is False"

    tell(story)


def test_a_node_that_is_taken_out_of_the_cluster_is_given_up() -> None:
    async def story(land: Landscape, heard: Heard) -> None:
        land._node_gone(a_node("True"))
        assert heard.told == ["nodes", "lost n: it is no longer part of the cluster"]
        assert land.trouble("n") == "it is no longer part of the cluster"

    tell(story)


def test_a_node_that_refuses_again_and_again_is_left_alone_for_longer_until_it_has_taken_something() -> None:
    """So every other node has its turn before it."""

    async def story(land: Landscape, heard: Heard) -> None:
        async def closed_for() -> float:
            begun = asyncio.get_running_loop().time()
            land.shun("n")
            assert not land.nodes["n"].schedulable
            while not land.nodes["n"].schedulable:
                await asyncio.sleep(1)
            return asyncio.get_running_loop().time() - begun

        assert [await closed_for() for _ in range(6)] == [5, 10, 20, 40, LONGEST_SHUNNED, LONGEST_SHUNNED]
        land.welcomed("n")
        assert await closed_for() == SHUNNED

    tell(story)


def test_another_node_will_do_if_it_is_open_and_large_enough() -> None:
    async def story(land: Landscape, heard: Heard) -> None:
        gang = a_gang(a_request(1))
        small, large = Request(cpu=4000), Request(cpu=5000)
        assert land.open_to(gang, [small])
        assert not land.open_to(gang, [small, large])
        assert not land.open_to(a_gang(a_request(1), selector={"disk": "ssd"}), [small])
        land.shun("n")
        assert not land.open_to(gang, [small])

    tell(story)


def test_heartbeats_are_no_news_and_changes_are_gathered() -> None:
    async def story(land: Landscape, heard: Heard) -> None:
        for cpu in ("4", "5", "6", "7"):
            land._node_changed(a_node("True", cpu))
        await asyncio.sleep(1)
        assert heard.told == ["nodes"]
        land._node_changed(a_node("True", "7"))
        await asyncio.sleep(1)
        assert heard.told == ["nodes"]

    tell(story)


def test_pods_of_others_count_while_they_are_on_a_node_and_unfinished() -> None:
    async def story(land: Landscape, heard: Heard) -> None:
        container = {"resources": {"requests": {"cpu": "2"}}}
        pod = {"metadata": {"uid": "p"}, "spec": {"containers": [container]}, "status": {"phase": "Pending"}}
        land._other_changed(pod)
        assert heard.used == {}
        pod["spec"]["nodeName"] = "n"
        land._other_changed(pod)
        assert heard.used["p"].cpu == 2000
        land._other_changed({**pod, "status": {"phase": "Succeeded"}})
        assert heard.used == {}

    tell(story)


def test_room_that_others_use_or_were_promised_is_counted_at_the_node_as_it_is_called_here() -> None:
    """In a cluster that was added, nodes are called by its name, too."""

    async def story(land: Landscape, heard: Heard) -> None:
        spec = {"containers": [{"resources": {"requests": {"cpu": "2"}}}]}
        there = {"metadata": {"uid": "there"}, "spec": {**spec, "nodeName": "n"}, "status": {}}
        comes = {"metadata": {"uid": "comes"}, "spec": spec, "status": {"nominatedNodeName": "n"}}
        land._other_changed(there)
        land._promised(comes)
        assert set(land.nodes) == {"prod:n"}
        assert heard.where == {"there": "prod:n", "comes-to-come": "prod:n"}

    tell(story, cluster="prod")
