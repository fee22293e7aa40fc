"""Datasets and the jobs that read and make them: which version is the newest, which stay, and what ends a reading."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from support.machine import Machine
from support.simulated import FOREVER, Run
from weft.control import datasets
from weft.control.dataprocess import DataFailed
from weft.control.datasets import VERSION, OperatorDatasets
from weft.model.dataset import Dataset
from weft.model.failures import Permanent
from weft.model.lifecycle import Refused
from weft.model.status import Desire, State

Tell = Callable[[Callable[[Machine], Awaitable[None]]], None]
A, B, C = "a" * 32, "b" * 32, "c" * 32
MAKER = "data-made-abc123"


class Sources:
    """What sources have now, by dataset, and how long it takes to read them: instead of processes that do."""

    def __init__(self) -> None:
        self.has: dict[str, str] = {}
        self.seconds: dict[str, float] = {}
        self.dying = 0.0
        self.removed: list[str] = []
        self.refusal: str | None = None

    async def run(
        self, store: Path, asked: Mapping[str, Any], hear: Callable[[Mapping[str, Any]], None] | None = None
    ) -> Mapping[str, Any]:
        if asked["do"] == "remove":
            self.removed.append(asked["version"])
            if self.refusal is not None:
                raise DataFailed(self.refusal)
            return {"freed": 1}
        try:
            await asyncio.sleep(self.seconds.get(asked["key"], 0.0))
        finally:
            await asyncio.sleep(self.dying)
        return said(self.has[asked["key"]])


def said(version: str) -> dict[str, Any]:
    return {"version": version, "samples": 1, "bytes": 1, "parts": 1}


@pytest.fixture
def sources(monkeypatch: pytest.MonkeyPatch) -> Sources:
    made = Sources()
    monkeypatch.setattr(datasets, "run", made.run)
    monkeypatch.setattr("weft.control.control.secrets.token_hex", lambda _: "abc123")
    return made


def kept_by(m: Machine) -> OperatorDatasets:
    found = m.control.datasets
    found._folder = m.path.parent / "data"
    return found


async def declare(m: Machine, name: str, **spec: Any) -> None:
    given = {"metadata": {"name": name}, "spec": {"source": {"url": "file:///data"}, **spec}}
    await kept_by(m).put(name, Dataset.model_validate(given), "ann")


async def read(m: Machine, sources: Sources, name: str, *versions: str) -> None:
    for version in versions:
        sources.has[name] = version
        await kept_by(m).refresh(name).task
        await m.passes(1)


async def declared(m: Machine, sources: Sources, name: str, *versions: str, keep: int = 10) -> None:
    sources.has[name] = versions[0]
    await declare(m, name, keep=keep)
    await read(m, sources, name, *versions)


def versions(m: Machine, name: str) -> list[str]:
    return [each.version for each in kept_by(m).versions(name)]


def state(m: Machine, name: str) -> tuple[str, str]:
    about = kept_by(m).document(kept_by(m).get(name))["status"]
    return about["state"], about["reason"] or ""


# ── which versions stay ──


@pytest.mark.parametrize("halted", [False, True])
def test_a_version_that_a_waiting_job_names_stays(on_a_machine: Tell, sources: Sources, halted: bool) -> None:
    async def story(m: Machine) -> None:
        await declared(m, sources, "faces", A, keep=1)
        everything = {"worker": {"resources": {"cpu": 4}}}
        m.world.script("large", "worker-0", FOREVER)
        await m.submit("large", roles=everything, grace="1s")
        await m.until("large", State.PROCESSING)
        await m.submit("demo", roles=everything, datasets=[{"name": "faces", "version": A[:12]}])
        if halted:
            await m.ask("demo", Desire.HALT)
            await m.until("demo", State.HALTED)
            await m.passes(1)
        await read(m, sources, "faces", B, C)
        assert versions(m, "faces") == [C, A]
        assert kept_by(m).users("faces") == {A: ["demo"]}
        await m.ask("large", Desire.CANCEL)
        if halted:
            await m.ask("demo", Desire.RUN)
        status = await m.until("demo")
        assert (status.state, status.datasets) == (State.COMPLETED, (("faces", A),))
        await read(m, sources, "faces", B)
        assert versions(m, "faces") == [B]

    on_a_machine(story)


def test_versions_are_chosen_when_all_of_a_jobs_datasets_have_one(
    on_a_machine: Tell, sources: Sources
) -> None:
    async def story(m: Machine) -> None:
        await declared(m, sources, "faces", A, keep=1)
        sources.has["words"], sources.seconds["words"] = C, 3600
        await declare(m, "words")
        await m.submit("demo", datasets=[{"name": "faces"}, {"name": "words"}])
        await m.until("demo", State.DOWNLOADING)
        await read(m, sources, "faces", B)
        assert versions(m, "faces") == [B]
        status = await m.until("demo", within=4000)
        assert (status.state, status.datasets) == (State.COMPLETED, (("faces", B), ("words", C)))

    on_a_machine(story)


def test_a_new_version_is_kept_also_if_an_old_ones_bytes_cannot_be_freed_now(
    on_a_machine: Tell, sources: Sources
) -> None:
    async def story(m: Machine) -> None:
        await declared(m, sources, "faces", A, keep=1)
        sources.refusal = "data is being added; collect when that is done"
        await read(m, sources, "faces", B)
        assert sources.removed == [A]
        assert (versions(m, "faces"), state(m, "faces")) == ([B], ("READY", ""))

    on_a_machine(story)


# ── which is the newest ──


@pytest.mark.parametrize("apart", [1.0, 0.0, -5.0])
def test_what_a_source_went_back_to_is_the_newest_also_after_a_restart(
    on_a_machine: Tell, sources: Sources, monkeypatch: pytest.MonkeyPatch, apart: float
) -> None:
    async def story(m: Machine) -> None:
        await declared(m, sources, "faces", A)
        now = m.loop.time()
        for number, version in enumerate((B, A, C), 1):
            moment = now + number * apart
            monkeypatch.setattr(m.control, "clock", lambda moment=moment: moment)
            await kept_by(m)._keep("faces", said(version), {})
        assert versions(m, "faces") == [C, A, B]
        await m.down()
        await m.up()
        assert versions(m, "faces") == [C, A, B]

    on_a_machine(story)


def test_a_version_that_is_found_twice_at_once_is_one(on_a_machine: Tell, sources: Sources) -> None:
    async def story(m: Machine) -> None:
        await declared(m, sources, "faces", A)
        found = await asyncio.gather(*(kept_by(m)._keep("faces", said(B), {}) for _ in range(3)))
        assert len({each.uid for each in found}) == 1
        assert versions(m, "faces") == [B, A]
        await m.down()
        await m.up()
        assert versions(m, "faces") == [B, A]

    on_a_machine(story)


# ── data that a command makes ──


async def made_by_a_command(m: Machine, sources: Sources) -> None:
    """A dataset whose command runs, and a job that waits for it."""
    m.world.script(MAKER, "worker-0", Run(seconds=50))
    sources.has["made"] = A
    await declare(m, "made", source={"code": {"command": ["make"]}})
    await m.passes(1)
    await m.submit("demo", datasets=[{"name": "made"}])
    await m.until(MAKER, State.PROCESSING)
    await m.until("demo", State.DOWNLOADING)


async def halt(m: Machine) -> None:
    await m.ask(MAKER, Desire.HALT)
    await m.until(MAKER, State.HALTED)
    await m.passes(1)


def test_a_command_that_was_halted_and_resumed_makes_its_data(on_a_machine: Tell, sources: Sources) -> None:
    async def story(m: Machine) -> None:
        await made_by_a_command(m, sources)
        await halt(m)
        assert state(m, "made") == ("READING", f"its command is job {MAKER}, which is HALTED")
        await m.ask(MAKER, Desire.RUN)
        assert (await m.until("demo")).state is State.COMPLETED
        assert state(m, "made") == ("READY", "")

    on_a_machine(story)


@pytest.mark.parametrize("halted", [False, True])
def test_a_command_that_is_deleted_makes_no_data(on_a_machine: Tell, sources: Sources, halted: bool) -> None:
    async def story(m: Machine) -> None:
        await made_by_a_command(m, sources)
        if halted:
            await halt(m)
        await m.control.remove(MAKER, "ann")
        status = await m.until("demo")
        assert status.state is State.FAILED
        assert MAKER in str(status.failure)
        assert state(m, "made")[0] == "FAILED"

    on_a_machine(story)


# ── removing ──


def test_a_dataset_that_a_job_stores_its_output_in_cannot_be_removed(
    on_a_machine: Tell, sources: Sources
) -> None:
    async def story(m: Machine) -> None:
        sources.has["out"], sources.seconds["out"] = A, 20
        kept = kept_by(m)
        await m.submit("demo", outputs=[{"dataset": "out"}])
        await m.until("demo", State.STORING)
        await m.passes(5)
        with pytest.raises(Refused, match="job demo stores its output in it"):
            await kept.remove("out", "ann")
        assert (await m.until("demo")).state is State.COMPLETED
        assert versions(m, "out") == [A]
        await kept.remove("out", "ann")
        assert sources.removed == [A]

    on_a_machine(story)


def test_an_output_whose_dataset_is_gone_is_a_failure_with_its_name(
    on_a_machine: Tell, sources: Sources, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def story(m: Machine) -> None:
        sources.has["out"], sources.seconds["out"] = A, 20
        m.world.script("demo", "worker-0", FOREVER)
        job = await m.submit("demo", outputs=[{"dataset": "out"}])
        await m.until("demo", State.PROCESSING)
        monkeypatch.setattr(kept_by(m), "_results_of", lambda *_: {"url": "file:///results"})
        storing = asyncio.ensure_future(kept_by(m).keep_outputs(job))
        await m.passes(5)
        await kept_by(m).remove("out", "ann")
        with pytest.raises(
            Permanent, match="its output out cannot be kept: the dataset was deleted meanwhile"
        ):
            await storing
        assert m.store.page(VERSION) == []

    on_a_machine(story)


def test_a_dataset_that_is_removed_while_it_is_read_leaves_no_version(
    on_a_machine: Tell, sources: Sources
) -> None:
    async def story(m: Machine) -> None:
        sources.has["faces"] = A
        for turns in range(12):
            await declare(m, "faces")
            for _ in range(turns):
                await asyncio.sleep(0)
            await kept_by(m).remove("faces", "ann")
            await m.passes(1)
            assert (turns, m.store.page(VERSION), versions(m, "faces")) == (turns, [], [])

    on_a_machine(story)


def test_a_dataset_that_is_declared_again_after_its_removal_is_read(
    on_a_machine: Tell, sources: Sources
) -> None:
    async def story(m: Machine) -> None:
        sources.has["faces"], sources.seconds["faces"] = A, 3600
        await declare(m, "faces")
        await m.passes(1)
        sources.seconds["faces"], sources.dying = 1, 1
        await kept_by(m).remove("faces", "ann")
        await declare(m, "faces")
        await m.passes(3)
        assert (versions(m, "faces"), state(m, "faces")) == ([A], ("READY", ""))

    on_a_machine(story)
