"""Random clusters, gangs, queues and whole books for properties of the scheduler.

Hypothesis draws the sizes and a seed, and shrinks those; the rest comes of the seed, as drawing every
field of every job would take longer than the scheduler.
"""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import Any

from hypothesis import strategies as st

from support.builders import GIB, a_gang, a_node, a_request, an_elastic_gang
from support.world import World
from weft.model.gang import Gang, Request, Within
from weft.model.node import Gpu, Node
from weft.scheduler.policy import DEFAULT, Policy
from weft.scheduler.queues import QueueRule

KINDS = [("k80", 12, 1), ("v100", 16, 2), ("v100", 32, 2), ("a100", 80, 3)]
ANYWHERE = [Within.ANYWHERE] * 3
POLICIES = [
    DEFAULT,
    replace(DEFAULT, patience=10.0, quantum=50.0),
    replace(DEFAULT, time_share=False),
    Policy(backfill=False, preempt=False, time_share=False),
]
seeds = st.integers(0, 1 << 32)


def make_nodes(r: Random, count: int) -> list[Node]:
    racked, islands = r.random() < 0.5, r.random() < 0.5
    return [make_node(r, i, racked, islands) for i in range(count)]


def make_node(r: Random, number: int, racked: bool, islands: bool) -> Node:
    node = a_node(
        f"node-{number}",
        cpu=r.choice([2, 4, 8]),
        memory=r.choice([2, 8, 16]),
        labels={"zone": r.choice("ab")},
        shared=r.random() < 0.4,
        closed=r.random() < 0.08,
        rack=r.choice(["", "r1", "r2"]) if racked else "",
        fabric=r.choice(["f1", "f2"]) if islands else "",
        taints=r.choice([(), (), (), ("spot",)]),
        devices=r.choice([{}, {}, {"rdma": 1}, {"rdma": 2, "fpga": 1}]),
        numa=r.choice([1, 1, 2]),
    )
    gpus = [
        Gpu(i, type, memory=memory * GIB, generation=generation, numa=i % 2 if node.numa else 0)
        for i, (type, memory, generation) in enumerate(r.choices(KINDS, k=r.randrange(5)))
    ]
    return replace(node, gpus=tuple(gpus))


def make_request(r: Random) -> Request:
    gpu = r.choice([0, 0, 0.25, 0.5, 0.6, 1, 1, 2])
    choosy = r.randrange(5) if gpu else 9
    return a_request(
        r.choice([0, 0.5, 1, 1, 1.5, 2, 4]),
        r.choice([0, 0, 1, 4]),
        gpu,
        r.choice(["k80", "v100"]) if choosy == 0 else None,
        gpu_memory=r.choice([16, 32]) if choosy == 1 else 0,
        generation=r.randrange(1, 4) if choosy == 2 else 0,
        devices=r.choice([{}, {}, {}, {}, {"rdma": 1}]),
    )


def make_gang(r: Random, elastic: bool = True, alike: bool = False) -> Gang:
    rules: dict[str, Any] = {
        "strategy": r.choice(["pack", "pack", "spread"]),
        "within": r.choice([*ANYWHERE, Within.NODE, Within.RACK, Within.FABRIC]),
        "selector": r.choice([{}, {}, {}, {"zone": "a"}]),
        "tolerations": r.choice([(), ("spot",)]),
        "grace": 1.0,
    }
    if elastic and r.random() < 0.33:
        least = r.randrange(1, 3)
        wish = r.randrange(least, 5)
        return an_elastic_gang(least, wish, r.randrange(wish, 6), make_request(r), **rules)
    kinds = [make_request(r) for _ in range(1 if alike else r.choice([1, 1, 2]))]
    return a_gang(*r.choices(kinds, k=r.choice([1, 1, 2, 3, 4])), **rules)


def make_rules(r: Random) -> list[QueueRule]:
    """Queue `a`, queue `b`, and `c` under `a`; any of them may have a guarantee and limits."""
    if r.random() < 0.5:
        return []

    def rule(name: str, parent: str = "") -> QueueRule:
        gpus = r.choice([1000, 2000, 3000])
        return QueueRule(
            name,
            parent,
            r.choice([1.0, 1.0, 3.0]),
            r.choice([{}, {}, {"gpu": gpus}, {"cpu": 2000, "gpu": 1000}]),
            r.choice([{}, {}, {}, {"gpu": gpus}, {"cpu": 4000}]),
            r.choice([{}, {}, {}, {"gpu": 2000}, {"cpu": 3000}]),
        )

    return [rule("a"), rule("b"), rule("c", "a")]


def submit_some(r: Random, world: World, count: int, prefix: str, more: int = 0) -> None:
    queues = [name for name in world.state.queues.accounts if name != "default"] or ["default"]
    for number in range(count):
        world.submit(
            f"{prefix}-{number}",
            make_gang(r),
            r.choice([0, 0, 0, 5]) + more,
            queue=r.choice(queues),
            owner=r.choice(["ann", "bob"]),
            saves=r.random() < 0.5,
            lasts=r.choice([30.0, 100.0, 400.0]),
        )


def make_world(seed: int, nodes: int, jobs: list[int], policy: Policy) -> World:
    """Books in the middle of a story: jobs came, ran, ended, and more wait."""
    r = Random(seed)
    world = World(make_nodes(r, nodes), make_rules(r), policy)
    for moment, count in enumerate(jobs):
        submit_some(r, world, count, f"j{moment}", more=moment == len(jobs) - 1)
        if moment == len(jobs) - 1:
            break
        world.cycle()
        if r.random() < 0.6:
            world.let_go()
        world.now += r.choice([1.0, 100.0, 1000.0])
        for uid in sorted(world.running):
            if r.random() < 0.2:
                world.finish(uid)
    return world


def some_nodes(most: int = 5) -> Any:
    return st.builds(lambda seed, count: make_nodes(Random(seed), count), seeds, st.integers(1, most))


def some_gangs(elastic: bool = True, alike: bool = False) -> Any:
    return st.builds(lambda seed: make_gang(Random(seed), elastic, alike), seeds)


def some_worlds(policies: list[Policy] = POLICIES, most: int = 5) -> Any:
    counts = st.lists(st.integers(1, 5), min_size=2, max_size=4)
    return st.builds(make_world, seeds, st.integers(1, most), counts, st.sampled_from(policies))
