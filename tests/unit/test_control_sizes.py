"""Sizes and job types that an operator declares, over REST and over restarts of the server."""

from __future__ import annotations

from typing import Any

import pytest

from support.builders import GIB, job_document
from support.machine import Machine, Tell, workers
from support.rest import call
from support.simulated import FOREVER
from weft.control.nosuch import NoSize
from weft.jobtypes.complete import read_job
from weft.model.changed import changed
from weft.model.jobtype import JobType
from weft.model.lifecycle import Refused
from weft.model.problems import Invalid
from weft.model.sizes import BUILT_IN, Size
from weft.model.status import Exit, State
from weft.store.changes import Update


def a_size(**spec: Any) -> Size:
    return Size.model_validate({"spec": spec})


# ── what an operator declares ──


def test_sizes_are_declared_changed_deleted_and_outlive_the_server(on_a_machine: Tell) -> None:
    async def story(m: Machine) -> None:
        sizes = m.control.sizes
        _, new = await sizes.put("a100", a_size(cpu=10, gpuType="a100", perGpu=True), "ann")
        first, again = await sizes.put("a100", a_size(cpu=12, gpuType="a100", perGpu=True), "bob")
        assert (new, again) == (True, False)
        await sizes.put("tiny", a_size(cpu=0.1), "ann")
        await sizes.remove("tiny", "ann")
        events = [(e.job, e.cause, e.actor) for e in m.store.events() if e.type == "size"]
        assert events == [
            ("a100", "declared", "ann"),
            ("a100", "changed", "bob"),
            ("tiny", "deleted", "ann"),
        ]
        m.kill()
        await m.up()
        kept = m.control.sizes.get("a100")
        assert kept == first
        assert (kept.metadata.owner, kept.spec.cpu) == ("bob", 12_000)
        assert [*m.control.sizes.specs] == [*BUILT_IN, "a100"]
        with pytest.raises(NoSize) as missing:
            m.control.sizes.get("a10")
        assert missing.value.near == ["a100"]

    on_a_machine(story)


def test_one_that_comes_with_weft_can_be_changed_and_comes_back(on_a_machine: Tell) -> None:
    async def story(m: Machine) -> None:
        _, new = await m.control.sizes.put("small", a_size(cpu=2, memory="4Gi"), "ann")
        assert not new
        m.kill()
        await m.up()
        assert m.control.sizes.specs["small"].memory == 4 * GIB
        await m.control.sizes.remove("small", "ann")
        assert m.control.sizes.specs["small"] == BUILT_IN["small"]
        with pytest.raises(Refused, match="comes with Weft as it is; it can be changed, not deleted"):
            await m.control.sizes.remove("small", "ann")
        m.kill()
        await m.up()
        assert m.control.sizes.specs == BUILT_IN
        with pytest.raises(Invalid, match="says nothing"):
            await m.control.sizes.put("small", a_size(), "ann")

    on_a_machine(story)


def test_a_job_keeps_its_numbers_when_its_size_changes(on_a_machine: Tell) -> None:
    async def story(m: Machine) -> None:
        m.world.script("demo", "worker-0", FOREVER)
        await m.control.sizes.put("mine", a_size(cpu=2, memory="4Gi"), "ann")
        document = job_document("demo", roles=workers(1, resources={"size": "mine"}))
        job = read_job(document, "demo", table=m.control.sizes.specs)
        await m.control.submit(job, "ann")
        await m.until("demo", State.PROCESSING)
        await m.control.sizes.put("mine", a_size(cpu=3, memory="8Gi"), "ann")
        await m.control.sizes.remove("mine", "ann")
        m.kill()
        await m.up()
        found = m.control.find("demo")
        assert found.spec.roles["worker"].resources.size == "mine"
        [task] = found.gang.tasks
        assert (task.request.cpu, task.request.memory) == (2000, 4 * GIB)
        assert m.control.books.cluster.rooms["node-0"].cpu == 2000, "as much is taken as before"

    on_a_machine(story)


def test_job_types_outlive_the_server_too(on_a_machine: Tell) -> None:
    async def story(m: Machine) -> None:
        mine = JobType.model_validate({"spec": {"description": "mine", "roles": {"worker": {"replicas": 3}}}})
        kept, new = await m.control.job_types.put("mine", mine, "ann")
        await m.control.job_types.put("other", mine, "ann")
        await m.control.job_types.remove("other", "ann")
        m.kill()
        await m.up()
        assert new
        assert m.control.job_types.get("mine") == kept
        assert "other" not in m.control.job_types.specs
        with pytest.raises(Refused):
            await m.control.job_types.put("pytorch", mine, "ann")

    on_a_machine(story)


# ── REST ──


def test_sizes_over_rest(on_a_machine: Tell) -> None:
    async def story(m: Machine) -> None:
        spec = {"cpu": 12, "memory": "96Gi", "gpuType": "a100", "perGpu": True}
        status, kept = await call(m, "PUT", "/v1/sizes/a100", {"kind": "Size", "spec": spec})
        assert (status, kept["spec"]) == (201, {"description": "", **spec})
        assert kept["status"] == {"builtIn": False, "overrides": False}
        assert await call(m, "PUT", "/v1/sizes/a100", kept) == (200, kept)
        status, small = await call(m, "PUT", "/v1/sizes/small", {"spec": {"cpu": 2}})
        assert (status, small["status"]) == (200, {"builtIn": False, "overrides": True})
        _, found = await call(m, "GET", "/v1/sizes")
        assert [item["metadata"]["name"] for item in found["items"]] == [
            "small", "medium", "large", "a100", "k80-1", "k80-2", "k80-4", "p100-1", "p100-2", "v100-1", "v100-2",
        ]  # fmt: skip
        assert [item["status"]["builtIn"] for item in found["items"]][:4] == [False, True, True, False]
        assert (await call(m, "DELETE", "/v1/sizes/small"))[0] == 204
        assert (await call(m, "GET", "/v1/sizes/small"))[1]["spec"]["cpu"] == 1

    on_a_machine(story)


@pytest.mark.parametrize(
    ("method", "path", "body", "status", "told", "next"),
    [
        ("GET", "/v1/sizes/smal", None, 404, "there is no size smal; did you mean small", "weft sizes"),
        ("DELETE", "/v1/sizes/nothing", None, 404, "there is no size nothing", "weft sizes"),
        ("DELETE", "/v1/sizes/small", None, 409, "can be changed, not deleted", "weft sizes"),
        ("PUT", "/v1/sizes/x", {"spec": {}}, 422, "says nothing", "weft schema Size"),
        ("PUT", "/v1/sizes/x", {"spec": {"cpus": 1}}, 422, "did you mean cpu?", "weft schema Size"),
        ("PUT", "/v1/sizes/x", {"metadata": {"name": "y"}}, 422, "must be x, as in the address", "weft schema Size"),
        ("GET", "/v1/jobs/nobody/suggestion", None, 404, "there is no job nobody", "weft ls"),
    ],
)  # fmt: skip
def test_refusals_say_what_would_be_right(
    on_a_machine: Tell, method: str, path: str, body: Any, status: int, told: str, next: str
) -> None:
    async def story(m: Machine) -> None:
        got, problem = await call(m, method, path, body)
        assert (got, problem["next"]) == (status, next)
        assert told in problem["detail"]

    on_a_machine(story)


def test_a_dry_run_is_completed_from_what_is_declared(on_a_machine: Tell) -> None:
    async def story(m: Machine) -> None:
        await m.control.sizes.put("small", a_size(cpu=3), "ann")
        document = job_document(roles=workers(1, resources={"size": "small"}))
        status, kept = await call(m, "POST", "/v1/jobs", document)
        assert status == 201
        assert kept["spec"]["roles"]["worker"]["resources"]["cpu"] == 3

    on_a_machine(story)


# ── what would have been enough ──


async def measured(m: Machine, name: str, exit: Exit) -> None:
    """As if the machine had measured the job's only task."""
    job = m.control.find(name)
    [task] = job.status.tasks
    status = changed(job.status, tasks=(changed(task, exit=exit),))
    await m.store.write([Update(job.uid, lambda: {"status": status.dump().decode()})])


def test_a_finished_job_is_told_what_would_have_been_enough(on_a_machine: Tell) -> None:
    async def story(m: Machine) -> None:
        await m.submit("demo", roles=workers(1, resources={"cpu": 4, "memory": "8Gi"}))
        await m.until("demo")
        await m.passes(1)
        await measured(m, "demo", Exit(0, peak_memory=GIB, cpu_seconds=0.5))
        await m.control.sizes.put("tiny", a_size(cpu=0.5, memory="1536Mi"), "ann")
        status, found = await call(m, "GET", "/v1/jobs/demo/suggestion")
        assert (status, found["job"], found["state"], found["memoryHeadroom"]) == (
            200,
            "demo",
            "COMPLETED",
            1.25,
        )
        [item] = found["items"]
        assert item["asked"] == {"cpu": 4, "memory": "8Gi", "gpu": 0}
        assert item["used"] == {"measured": 1, "seconds": 1.0, "cpu": 0.5, "memory": GIB}
        assert (item["suggested"], item["size"]) == ({"cpu": 0.5, "memory": "1280Mi"}, "tiny")
        assert item["changes"]
        m.kill()
        await m.up()
        assert await call(m, "GET", "/v1/jobs/demo/suggestion") == (status, found)

    on_a_machine(story)


def test_where_nothing_can_be_said_the_reason_is(on_a_machine: Tell) -> None:
    async def story(m: Machine) -> None:
        m.world.script("runs", "worker-0", FOREVER)
        await m.submit("runs", roles=workers(1, resources={"cpu": 1}))
        await m.until("runs", State.PROCESSING)
        status, problem = await call(m, "GET", "/v1/jobs/runs/suggestion")
        assert (status, problem["title"], problem["next"]) == (409, "Not finished", "weft top")
        assert "job runs is PROCESSING" in problem["detail"]
        for name, spec, why in (
            ("plain", {}, "none of its tasks ran to an end that was seen"),
            ("boxed", {"image": "python:3"}, "of containers no peak is known"),
        ):
            await m.submit(name, **spec)
            await m.until(name)
            await m.passes(1)
            await measured(m, name, Exit(0, cpu_seconds=0.1))
            status, problem = await call(m, "GET", f"/v1/jobs/{name}/suggestion")
            assert (status, problem["title"]) == (409, "Nothing measured")
            assert problem["detail"] == f"job {name}: nothing was measured, {why}"

    on_a_machine(story)
