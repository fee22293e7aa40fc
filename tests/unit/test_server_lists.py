"""What lists say of jobs that live: where they stand in the line, and how large elastic ones are."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from typing import Any, cast

import pytest

from support.builders import a_node
from support.machine import Machine, Tell, workers
from support.simulated import FOREVER
from weft.backends.local.machine import Shape, carve
from weft.model.status import Progress, State
from weft.scheduler.cluster import Cluster
from weft.scheduler.feasible import place
from weft.server.jobs import JobOperations
from weft.server.queues import QueueOperations
from weft.server.summaries import now_of


class Named:
    """A request that only names a job."""

    def __init__(self, name: str):
        self.path_params = {"name": name}


def operations(m: Machine) -> JobOperations:
    return JobOperations(m.control, cast(Any, None), cast(Any, None), "ann")


async def listed(m: Machine) -> dict[str, dict[str, Any]]:
    query = {"view": "summary", "state": None, "before": None, "limit": 100, "label": None}
    answer = await operations(m).list_jobs(cast(Any, None), query)
    return {item["name"]: item for item in json.loads(answer.body)["items"]}


async def explained(m: Machine, name: str) -> dict[str, Any]:
    answer = await operations(m).explain_job(cast(Any, Named(name)), {})
    return cast(dict[str, Any], json.loads(answer.body))


async def lined_up(m: Machine) -> list[dict[str, Any]]:
    answer = await QueueOperations(m.control, "ann").queue(cast(Any, None), {})
    return cast(list[dict[str, Any]], json.loads(answer.body)["items"])


def test_an_elastic_job_that_runs_says_how_large_it_is(on_a_machine: Tell) -> None:
    async def story(m: Machine) -> None:
        for task in range(8):
            m.world.script("grows", f"worker-{task}", FOREVER)
        m.world.script("plain", "worker-0", FOREVER)
        await m.submit("plain")
        await m.until("plain", State.PROCESSING)
        await m.submit("grows", roles=workers(4, minReplicas=2, maxReplicas=8))
        await m.until("grows", State.PROCESSING)
        found = await listed(m)
        assert found["grows"]["tasks"] == 4
        assert found["grows"]["size"] == {"now": 3, "least": 2, "most": 8}
        assert "size" not in found["plain"]

    on_a_machine(story)


def test_one_whose_data_is_on_its_way_says_how_far_it_is(on_a_machine: Tell) -> None:
    async def story(m: Machine) -> None:
        m.world.script("reads", "worker-0", FOREVER)
        await m.submit("reads")
        await m.until("reads", State.PROCESSING)
        (job,) = m.control.jobs.values()
        assert "progress" not in now_of(m.control, job, "PROCESSING")
        far = Progress("bringing dataset faces", 3 << 20, 12 << 20, 2 << 20)
        job.status = replace(job.status, state=State.DOWNLOADING, progress=far)
        found = now_of(m.control, job, "DOWNLOADING")
        assert found["progress"] == 0.25
        assert found["reason"] == "bringing dataset faces: 3 MiB of 12 MiB at 2 MiB/s"

    on_a_machine(story)


def test_one_that_waits_or_has_ended_has_the_size_it_asks_for(on_a_machine: Tell) -> None:
    async def story(m: Machine) -> None:
        await m.submit("ended", roles=workers(2, minReplicas=1))
        await m.until("ended")
        await m.submit("waits", roles=workers(8, minReplicas=6))
        await m.until("waits", State.QUEUED)
        assert not any("size" in item for item in (await listed(m)).values())

    on_a_machine(story)


def test_what_can_never_start_counts_in_nobodys_position(on_a_machine: Tell) -> None:
    async def story(m: Machine) -> None:
        m.world.script("first", "worker-0", FOREVER)
        await m.submit("first", roles=workers(1, resources={"cpu": 4}))
        await m.until("first", State.PROCESSING)
        await m.submit("huge", priority="high", roles=workers(1, resources={"gpu": 8}))
        await m.submit("next")
        await m.until("next", State.QUEUED)
        one, last = await lined_up(m)
        assert (one["name"], one["position"], one["possible"]) == ("next", 1, True)
        assert (last["name"], last["position"], last["possible"]) == ("huge", None, False)
        assert last["reason"].startswith("can never start here: ")
        assert set(last["estimatedStart"].values()) == {None}
        said = await explained(m, "next")
        assert (said["position"], said["ahead"]) == (1, [])
        said = await explained(m, "huge")
        assert (said["position"], said["ahead"], said["possible"]) == (None, [], False)

    on_a_machine(story, [a_node(cpu=4)])


@pytest.mark.parametrize(
    ("spec", "flag"),
    [
        ({"roles": workers(1, resources={"gpu": 16})}, "gpus"),
        ({"roles": workers(3, resources={"gpu": 3})}, "gpus"),
        ({"roles": workers(3, resources={"gpu": 4}), "placement": {"nodes": "one"}}, "gpus"),
        ({"roles": workers(1, resources={"cpu": 7})}, "cpu"),
    ],
)
def test_what_is_advised_to_be_declared_would_be_enough(
    on_a_machine: Tell, spec: dict[str, Any], flag: str
) -> None:
    """Once wrong: 16 GPUs over two nodes were advised for a task of 16 on one of them."""

    async def story(m: Machine) -> None:
        job = await m.submit("large", **spec)
        said = await explained(m, "large")
        advice = re.fullmatch(rf"weft down; weft up --nodes 2 --{flag} (\d+)", said["next"])
        assert said["advice"].startswith("ask for less, or ")
        assert advice is not None
        declared = int(advice[1]) * (1000 if flag == "cpu" else 1)
        nodes = carve(Shape(**{"nodes": 2, "cpu": 100_000, flag: declared}), [0, 1], 1 << 40, ())
        assert place(Cluster(nodes), job.gang) is not None

    on_a_machine(story, [a_node("a", cpu=4, gpus=4), a_node("b", cpu=4, gpus=4)])
