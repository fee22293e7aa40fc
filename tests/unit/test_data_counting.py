"""How much of what readers read was on their node: told by them, of each epoch, without their waiting for it."""

from __future__ import annotations

import asyncio
import multiprocessing
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import closing
from pathlib import Path
from random import Random
from typing import Any

import pytest

from support.datasets import Agent, Here, OriginServer, Store, agent, until
from weft.backends.local.agents import Agent as LocalAgent
from weft.data.agent.origins import Server
from weft.runtime.data import counting
from weft.runtime.data.link import DataError, Link, _frame
from weft.runtime.data.parts import AgentParts
from weft.runtime.data.reader import Dataset

CHANCE = Random(5)
CONTENT = {f"{number:03}": CHANCE.randbytes(200 + CHANCE.randrange(1800)) for number in range(600)}
BYTES = sum(map(len, CONTENT.values()))


@pytest.fixture(autouse=True)
def turns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(counting, "_turns", {})


@pytest.fixture
def version(store: Store) -> str:
    return store.add(CONTENT, pack=2)


def when_told(node: Here | Agent, samples: int, job: str = "job-1") -> dict[str, Any]:
    """What the agent has counted once it has heard of so many samples of the newest epoch."""

    def heard() -> dict[str, Any] | None:
        lines = [line for line in node.control(do="status")["counts"] if line["job"] == job]
        return next((line for line in lines if line["hits"] + line["misses"] == samples), None)

    return until(heard)


@pytest.mark.slow
@pytest.mark.parametrize("anew", [False, True], ids=["one-dataset", "a-dataset-an-epoch"])
def test_from_the_second_epoch_on_the_hit_ratio_is_what_the_cache_holds(
    fast_folder: Path, origin: OriginServer, version: str, anew: bool
) -> None:
    """A loop keeps its parts open, looks ahead, and asks twice for what is not there: none of that counts."""
    with Here(fast_folder, Server(origin.url)) as node:
        parts = AgentParts(node.grant(version, quota=BYTES * 65 // 100))
        data = Dataset(parts, version, shuffle=True)
        for epoch in range(4):
            if anew:
                data = Dataset(parts, version)
            assert sum(len(sample.data) for sample in data) == BYTES
            told = when_told(node, 600)
            assert told["hitBytes"] + told["missBytes"] == BYTES
            assert told["ratio"] == (0 if epoch == 0 else pytest.approx(0.65, abs=0.005))


def test_what_was_brought_before_or_by_another_reader_is_there(
    fast_folder: Path, origin: OriginServer, version: str
) -> None:
    with Here(fast_folder, Server(origin.url)) as node:
        for job, hits in (("job-1", 0), ("job-2", 600)):
            list(Dataset(AgentParts(node.grant(version, job, job)), version))
            told = when_told(node, 600, job)
            assert (told["hits"], told["misses"]) == (hits, 600 - hits)


@pytest.fixture
def beside(fast_folder: Path, origin: OriginServer, version: str) -> Iterator[Agent]:
    """In a process of its own."""
    with agent(fast_folder, "--origin-url", origin.url) as made:
        made.grant("job-1", "t", version)
        yield made


@pytest.fixture
def data(beside: Agent, version: str) -> Iterator[Dataset]:
    with closing(Link(str(beside.socket), "t", patience=1)) as link:
        yield Dataset(AgentParts(link), version)


def test_samples_by_number_are_counted_and_told_by_the_end_of_their_process(
    beside: Agent, data: Dataset
) -> None:
    """As workers of torch read: forked, with the parts that their parent has open."""
    assert data[0].data == CONTENT["000"]
    worker = multiprocessing.get_context("fork").Process(target=lambda: [data[n] for n in (0, 1, 2, 3)])
    worker.start()
    worker.join(60)
    told = when_told(beside, 4)
    assert (told["hits"], told["misses"]) == (3, 1), (
        "its second part came for it; what the parent read is its own"
    )
    data._files.counting.tell()
    assert when_told(beside, 5)["misses"] == 2


def test_a_loop_over_open_parts_does_not_wait_for_an_agent_that_does_not_answer(
    beside: Agent, data: Dataset
) -> None:
    assert dict(data) == CONTENT
    beside.process.send_signal(signal.SIGSTOP)
    try:
        for _ in range(3):
            assert dict(data) == CONTENT
    finally:
        beside.process.send_signal(signal.SIGCONT)
    assert when_told(beside, 600)["hits"] == 600


def test_the_last_words_of_a_reader_are_heard_before_its_lease_ends(beside: Agent, version: str) -> None:
    """Nobody answers them: its process may be over, and its job, while they are on their way."""
    told = {"turn": 0, "hits": 3, "misses": 1, "hitBytes": 30, "missBytes": 10}
    frame = _frame({"do": "got", "version": version, "quiet": True, **told})
    with closing(Link(str(beside.socket), "t", patience=1)) as link, ThreadPoolExecutor(1) as aside:
        link.counts()
        assert link._socket is not None
        link._socket.sendall(frame[:10])
        ending = aside.submit(beside.control, do="revoke", job="job-1")
        wait([ending], 0.1)
        link._socket.sendall(frame[10:])
        link.close()
        (line,) = ending.result()["counts"]
    assert {name: line[name] for name in told} == told


def test_a_reader_that_goes_on_does_not_keep_its_lease(beside: Agent, version: str) -> None:
    with closing(Link(str(beside.socket), "t", patience=1)) as link:
        link.counts()
        assert beside.control(do="revoke", job="job-1")["known"] is True
        with pytest.raises(DataError, match="may not read data on this node any more"):
            link.counts()


def test_what_an_engine_last_saw_of_a_job_gives_way_to_what_it_got_in_all(
    fast_folder: Path, origin: OriginServer, version: str
) -> None:
    async def story() -> None:
        kept = LocalAgent("one", fast_folder / "cache", ["--origin-url", origin.url, "--reserve", "0"])
        await kept.grant("job-1", "t", {version: {"dataset": "faces", "bytes": 0}})
        with closing(Link(kept.socket, "t", patience=1)) as link:
            for turn, hits in enumerate((0, 7)):
                got = {
                    "turn": turn,
                    "hits": hits,
                    "misses": 7 - hits,
                    "hitBytes": hits,
                    "missBytes": 7 - hits,
                }
                assert link.tell({"do": "got", "version": version, **got})
                link.counts()
                if turn == 0:
                    await kept.look()
                    assert (kept.cached().reads["faces"].hits, kept.cached().reads["faces"].misses) == (0, 7)
        await kept.revoke("job-1")
        assert (kept.cached().reads["faces"].hits, kept.cached().reads["faces"].misses) == (7, 0)

    asyncio.run(story())
