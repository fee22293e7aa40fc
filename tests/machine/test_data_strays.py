"""What a server that died left lent and mounted on its machine: the next one ends it when it has taken over all jobs that run."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from harness import until

from support.builders import a_complete_job
from support.datasets import SAMPLES, Store, files_below
from weft.backends.api import Assignment, Lent
from weft.backends.folders import JobFolder
from weft.backends.local import datasets
from weft.backends.local.datasets import NodeData
from weft.model.failures import Temporary
from weft.model.gang import gang_of
from weft.model.lifecycle import submitted
from weft.model.status import Binding

pytestmark = [pytest.mark.machine, pytest.mark.filterwarnings("ignore:subprocess .* is still running")]
NODE = "local"
MODE = "mount" if os.access("/dev/fuse", os.R_OK | os.W_OK) and os.geteuid() == 0 else "replicate"


class Home:
    """Of one server after the other."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch):
        self.folder = folder
        self.version = Store(folder / "datasets").add(SAMPLES)
        self.looks = 0
        self._patch = monkeypatch
        look = NodeData._look_at_store

        def counted(data: NodeData) -> None:
            self.looks += 1
            look(data)

        monkeypatch.setattr(NodeData, "_look_at_store", counted)
        monkeypatch.setattr(datasets, "LOOK", 0.02)

    def sweeps_after(self, seconds: float) -> None:
        self._patch.setattr(datasets, "FORGOTTEN", seconds)

    def job(self, uid: str) -> Assignment:
        job = a_complete_job(uid, datasets=[{"name": "faces", "mode": MODE}])
        gang = gang_of(job.spec)
        status = submitted(gang)
        tasks = tuple(replace(task, binding=Binding(task.name, NODE)) for task in status.tasks)
        status = replace(status, tasks=tasks, datasets=(("faces", self.version),))
        return Assignment(uid, uid, job.spec, gang, status)

    def of(self, uid: str) -> JobFolder:
        return JobFolder(str(self.folder / "jobs"), uid)

    def server(self) -> NodeData:
        data = NodeData(str(self.folder), [NODE])
        data.start(lambda name: Lent("nr", None, {"url": "file:///nowhere"}, {}), lambda: None)
        return data

    def run(self, story: Callable[[], Awaitable[None]]) -> None:
        async def bounded() -> None:
            async with asyncio.timeout(120):
                await story()

        asyncio.run(bounded())

    async def tidy(self) -> None:
        """Also after a test that failed."""
        data = NodeData(str(self.folder), [NODE])
        for uid in data._mounts.jobs():
            await data._mounts.end(uid)
        for agent in data._each:
            await agent.end()

    def mounts(self) -> list[str]:
        return [line for line in Path("/proc/mounts").read_text().splitlines() if str(self.folder) in line]


async def die(data: NodeData) -> None:
    """As by kill -9: nothing is told to anybody."""
    assert data._looking is not None
    data._looking.cancel()
    with suppress(asyncio.CancelledError):
        await data._looking


async def lent_to(data: NodeData) -> list[str]:
    return sorted((await data._each[0].look())["jobs"])


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Home]:
    made = Home(tmp_path, monkeypatch)
    yield made
    asyncio.run(made.tidy())


async def true(fact: Callable[[], Any]) -> None:
    while not fact():
        await asyncio.sleep(0.02)


def test_what_belongs_to_no_job_any_more_ends_and_what_is_read_goes_on(home: Home) -> None:
    home.sweeps_after(1e9)

    async def story() -> None:
        before = home.server()
        for uid in ("over", "runs"):
            await before.bring(home.job(uid), home.of(uid), lambda far: None)
        await die(before)
        after = home.server()
        after.adopt(home.job("runs"), home.of("runs"))
        seen = home.looks
        await true(lambda: home.looks > seen + 3)
        assert await lent_to(after) == ["over", "runs"], "its server may not have taken it over yet"
        assert len(home.mounts()) == (2 if MODE == "mount" else 0)
        home.sweeps_after(0)
        while await lent_to(after) != ["runs"]:
            await asyncio.sleep(0.02)
        await true(lambda: len(home.mounts()) <= 1)
        assert files_below(Path(home.of("runs").data, "faces")) == SAMPLES
        releasing = after.release("runs")
        assert releasing is not None
        await releasing
        await after.close()

    home.run(story)
    until(lambda: home.mounts() == [], "no mount")


def test_where_nobody_reads_any_more_the_agent_goes_with_its_last_lease(home: Home) -> None:
    home.sweeps_after(1e9)

    async def story() -> None:
        before = home.server()
        await before.bring(home.job("over"), home.of("over"), lambda far: None)
        await die(before)
        after = home.server()
        (agent,) = after._each
        pid = await asyncio.to_thread(agent._pid)
        home.sweeps_after(0)
        await true(lambda: gone(pid))
        await true(lambda: home.mounts() == [])
        with pytest.raises(Temporary, match="does not answer"):
            await agent.look()
        await after.close()

    home.run(story)


def gone(pid: int) -> bool:
    """Also if nobody has asked yet how it ended: it is this process's child."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True
