"""One stream for every open page: what it says, when, and that it costs nothing while nobody listens."""

from __future__ import annotations

import asyncio
import gc
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, cast

import pytest

from support.machine import Machine, Tell, workers
from support.simulated import FOREVER
from weft.control.utilization import Utilization
from weft.model.queue import QueueSpec
from weft.model.resource import Metadata
from weft.model.status import Desire, State
from weft.server import watch as module
from weft.server.nodes import NodeOperations
from weft.server.watch import BEHIND, Watch

Said = tuple[str, Any, str | None]


def watch_of(m: Machine) -> Watch:
    utilization = Utilization(m.control, Path(m.path).with_name("utilization.bin"))
    nodes = NodeOperations(m.control, "ann")

    def status() -> dict[str, Any]:
        return {"started": 1.0, "jobs": m.store.counts("TrainingJob")}

    return Watch(m.control, utilization, nodes.document, status)


def parsed(data: bytes) -> list[Said]:
    found: list[Said] = []
    for block in data.decode().split("\n\n"):
        fields = dict(line.split(": ", 1) for line in block.splitlines() if not line.startswith(":"))
        if fields:
            found.append((fields["event"], json.loads(fields["data"]), fields.get("id")))
    return found


class Reader:
    """A page that is open."""

    def __init__(self, watch: Watch, seen: int | None = None):
        self._messages: AsyncIterator[bytes] = watch._listen(seen)
        self._left: list[Said] = []

    async def next(self, *events: str, within: float = 20.0) -> Said:
        async with asyncio.timeout(within):
            while True:
                while self._left:
                    said = self._left.pop(0)
                    if said[0] in events:
                        return said
                self._left += parsed(await anext(self._messages))

    async def job(self, name: str, state: State) -> dict[str, Any]:
        """Read on until a job is told to be in this state."""
        while True:
            _, data, _ = await self.next("jobs")
            for item in data["items"]:
                if item["name"] == name and item["state"] == state:
                    return cast(dict[str, Any], item)

    async def close(self) -> None:
        await cast(Any, self._messages).aclose()


def test_a_page_hears_of_jobs_nodes_and_numbers_within_a_second(on_a_machine: Tell) -> None:
    async def story(m: Machine) -> None:
        m.world.script("train", "worker-0", FOREVER)
        page = Reader(watch_of(m))
        event, hello, _ = await page.next("hello")
        assert (event, hello["seq"]) == ("hello", m.store.last_seq)
        assert (await page.next("nodes"))[1]["items"][0]["tasks"] == []
        begun = m.loop.time()
        await m.submit("train")
        running = await page.job("train", State.PROCESSING)
        assert running["nodes"] == [m.control.books.cluster.nodes[0].name]
        assert (running["running"], running["cpus"], running["gpus"]) == (1, 1.0, 0.0)
        _, nodes, _ = await page.next("nodes")
        assert [(t["job"], t["task"]) for t in nodes["items"][0]["tasks"]] == [("train", "worker-0")]
        assert (await page.next("status"))[1]["jobs"]["PROCESSING"] == 1
        assert m.loop.time() - begun < 2.0
        await page.close()

    on_a_machine(story)


def test_progress_is_told_though_nothing_happened(on_a_machine: Tell) -> None:
    async def story(m: Machine) -> None:
        m.world.script("train", "worker-0", FOREVER)
        job = await m.submit("train")
        await m.until("train", State.PROCESSING)
        page = Reader(watch_of(m))
        await page.next("status")
        job.step, job.progress = 7, 0.25
        _, data, _ = await page.next("jobs")
        assert [(item["step"], item["progress"]) for item in data["items"]] == [(7, 0.25)]
        await page.close()

    on_a_machine(story)


def test_what_changes_without_an_event_is_told_within_half_a_second(on_a_machine: Tell) -> None:
    async def story(m: Machine) -> None:
        m.world.script("train", "worker-0", FOREVER)
        job = await m.submit("train")
        await m.until("train", State.PROCESSING)
        page = Reader(watch_of(m))
        await page.next("status")
        for step in range(1, 4):
            await m.passes(0.11)
            job.step = step
            begun = m.loop.time()
            _, data, _ = await page.next("jobs")
            assert [item["step"] for item in data["items"]] == [step]
            assert m.loop.time() - begun <= 0.51
        await page.close()

    on_a_machine(story)


def test_what_is_declared_is_no_job_and_is_told_by_its_kind(on_a_machine: Tell) -> None:
    async def story(m: Machine) -> None:
        watch = watch_of(m)
        page = Reader(watch)
        _, _, seen = await page.next("hello")
        await m.control.queues.put("vision", QueueSpec(weight=2), Metadata(), "ann")
        assert await page.next("jobs", "declared") == ("declared", {"kinds": ["queue"]}, None)
        await page.close()
        again = Reader(watch, int(seen or 0))
        assert (await again.next("jobs", "declared"))[:2] == ("declared", {"kinds": ["queue"]})
        assert (await again.next("jobs", "declared"))[:2] == ("jobs", {"items": [], "gone": []})
        await again.close()

    on_a_machine(story)


def test_a_job_that_is_gone_is_told_to_be(on_a_machine: Tell) -> None:
    async def story(m: Machine) -> None:
        job = await m.submit("train")
        await m.until("train")
        page = Reader(watch_of(m))
        await page.next("hello")
        await m.control.remove("train", "ann")
        assert (await page.next("jobs"))[1] == {"items": [], "gone": [job.uid]}
        await page.close()

    on_a_machine(story)


def test_a_page_that_comes_back_is_told_what_it_missed(on_a_machine: Tell) -> None:
    async def story(m: Machine) -> None:
        watch = watch_of(m)
        page = Reader(watch)
        _, _, seen = await page.next("hello")
        await page.close()
        await m.submit("missed")
        await m.until("missed")
        again = Reader(watch, int(seen or 0))
        _, data, newest = await again.next("jobs")
        assert [(item["name"], item["state"]) for item in data["items"]] == [("missed", State.COMPLETED)]
        assert newest == str(m.store.last_seq)
        await again.close()

    on_a_machine(story)


def test_a_page_that_missed_too_much_or_knew_another_server_begins_anew(
    on_a_machine: Tell, monkeypatch: Any
) -> None:
    monkeypatch.setattr(module, "CATCH_UP", 3)

    async def story(m: Machine) -> None:
        await m.submit("missed")
        await m.until("missed")
        for seen in (0, m.store.last_seq + 1):
            page = Reader(watch_of(m), seen)
            assert await page.next("reset", "jobs") == ("reset", {}, None)
            await page.close()

    on_a_machine(story)


def test_a_page_that_does_not_read_has_to_begin_anew_and_keeps_nothing_waiting(on_a_machine: Tell) -> None:
    async def story(m: Machine) -> None:
        watch = watch_of(m)
        slow = Reader(watch)
        await slow.next("hello")
        for _ in range(2 * BEHIND + 10):
            watch._tell(b"event: sample\ndata: 1\n\n")
        (listener,) = watch._listeners
        assert len(listener.left) <= BEHIND + 1
        assert (await slow.next("reset"))[0] == "reset"
        await slow.close()

    on_a_machine(story)


def test_everybody_is_sent_the_very_same_bytes_made_once(on_a_machine: Tell) -> None:
    async def story(m: Machine) -> None:
        watch = watch_of(m)
        pages = [Reader(watch) for _ in range(5)]
        for page in pages:
            await page.next("hello")
        made = 0
        words = watch._jobs

        def counted(uids: set[str], seq: int) -> bytes:
            nonlocal made
            made += 1
            return words(uids, seq)

        watch._jobs = counted  # type: ignore[method-assign]
        await m.submit("one")
        told = [await page.next("jobs") for page in pages]
        assert all(said == told[0] for said in told)
        assert made == 1
        for page in pages:
            await page.close()

    on_a_machine(story)


def test_when_the_last_page_is_closed_nothing_is_left_to_complain(
    on_a_machine: Tell, caplog: pytest.LogCaptureFixture
) -> None:
    async def story(m: Machine) -> None:
        watch = watch_of(m)
        reader = Reader(watch)
        await reader.next("hello")
        await asyncio.sleep(1)
        await reader.close()
        await asyncio.sleep(1)
        gc.collect()
        assert caplog.text == ""

    on_a_machine(story)


def test_without_a_listener_nothing_is_looked_at(on_a_machine: Tell) -> None:
    async def story(m: Machine) -> None:
        watch = watch_of(m)
        page = Reader(watch)
        await page.next("hello")
        assert watch._working
        watchers = len(m.store._watchers)
        await page.close()
        assert not watch._working
        assert len(m.store._watchers) == watchers - 1
        again = Reader(watch)
        await again.next("status")
        await again.close()

    on_a_machine(story)


def test_who_waits_for_a_node_is_named_there_with_the_promised_start_and_room(on_a_machine: Tell) -> None:
    from support.builders import a_node

    async def story(m: Machine) -> None:
        m.world.script("first", "worker-0", FOREVER)
        await m.submit("first", deadline="1h", roles=workers(1, resources={"cpu": 1, "gpu": 2}))
        await m.until("first", State.PROCESSING)
        wide = await m.submit("wide", roles=workers(1, resources={"cpu": 2, "gpu": 3}))
        await m.passes(400.0)
        (node,) = NodeOperations(m.control, "ann").document()["items"]
        (promised,) = node["promised"]
        (task,) = node["tasks"]
        assert (promised["job"], promised["uid"], promised["cpu"]) == ("wide", wide.uid, 2)
        assert promised["start"] > m.control.clock()
        assert len(promised["gpus"]) == 3, "three of four are for it, one is for whoever comes"
        assert {gpu["index"] for gpu in node["gpus"] if gpu["free"]} & {*promised["gpus"]}
        assert {*task["gpus"]} & {*promised["gpus"]}, "the others it gets when they are free"
        await m.ask("first", Desire.CANCEL)

    on_a_machine(story, nodes=[a_node(cpu=4, memory=16, gpus=4)])


def test_a_page_hears_how_full_the_cluster_is_as_it_changes_and_of_measured_use(on_a_machine: Tell) -> None:
    async def story(m: Machine) -> None:
        m.world.script("train", "worker-0", FOREVER)
        watch = watch_of(m)
        page = Reader(watch)
        _, empty, _ = await page.next("sample")
        assert (empty["cpu"]["used"], empty["running"]) == (0, 0)
        await m.submit("train", roles=workers(1, resources={"cpu": 2}))
        await page.job("train", State.PROCESSING)
        begun = m.loop.time()
        _, full, _ = await page.next("sample")
        while full["running"] == 0 or full["cpu"]["used"] == 0:
            _, full, _ = await page.next("sample")
        assert (full["cpu"]["used"], full["running"], full["waiting"]) == (2, 1, 0)
        assert m.loop.time() - begun < 1.0
        watch.measured(12.5)
        assert (await page.next("measured"))[1] == {"time": 12.5}
        await page.close()
        await m.ask("train", Desire.CANCEL)

    on_a_machine(story)


def test_which_gpus_are_whose(on_a_machine: Tell) -> None:
    from support.builders import a_node

    async def story(m: Machine) -> None:
        for task in ("worker-0", "worker-1"):
            m.world.script("train", task, FOREVER)
        await m.submit("train", roles=workers(2, resources={"gpu": 1}))
        await m.until("train", State.PROCESSING)
        (node,) = NodeOperations(m.control, "ann").document()["items"]
        taken = sorted(index for task in node["tasks"] for index in task["gpus"])
        assert len(taken) == 2
        assert [gpu["index"] for gpu in node["gpus"] if gpu["free"] == 0] == taken
        assert [gpu["free"] for gpu in node["gpus"]].count(1) == 2
        await m.ask("train", Desire.CANCEL)

    on_a_machine(story, nodes=[a_node(cpu=4, memory=16, gpus=4)])
