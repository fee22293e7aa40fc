"""Kill the control plane at any effect it has: every job's story ends as it would have."""

from __future__ import annotations

import asyncio
import tempfile
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from support import virtual
from support.machine import STEP, Machine
from support.simulated import FOREVER, Refuse, Run
from weft.control.nosuch import NoJob
from weft.model.failures import Code
from weft.model.lifecycle import Refused
from weft.model.status import Desire, State

GIT = {"git": "https://example.org/x.git", "commit": "abcdef1"}
MEMORY = "/dev/shm" if Path("/dev/shm").is_dir() else None


@dataclass(frozen=True)
class Plan:
    """One job whose end does not depend on when things happen: what it does, and what must come of it."""

    tasks: tuple[tuple[int, ...], ...]
    """Of each task the exit codes of its starts."""
    fetch: bool
    ends: State
    refused: bool = False

    @property
    def starts(self) -> list[int]:
        return [0 if self.refused else len(codes) for codes in self.tasks]


@st.composite
def plans(draw: Any) -> Plan:
    fetch = draw(st.booleans())
    kind = draw(st.sampled_from(["good", "good", "bad", "refused"]))
    if kind == "refused":
        return Plan(((0,),), fetch, State.FAILED, refused=True)
    if kind == "bad":
        return Plan(((1, 1, 1),), fetch, State.FAILED)
    failures = draw(st.lists(st.integers(0, 2), min_size=1, max_size=3))
    return Plan(tuple((1,) * count + (0,) for count in failures), fetch, State.COMPLETED)


crashes = st.lists(
    st.tuples(st.integers(1, 25), st.booleans(), st.sampled_from([0.0, 0.3, 4.0])), min_size=1, max_size=4
)
"""(which effect, whether what was queued made it to the disk, seconds until the next server)"""


@dataclass
class Operator:
    """Restarts the server whenever it has died, and repeats what it had been asked and not answered."""

    machine: Machine
    crashes: list[tuple[int, bool, float]]
    downtime: float = field(default=0.0)

    def arm(self) -> None:
        if self.crashes:
            touches, keep, self.downtime = self.crashes.pop(0)
            self.machine.crash_after(touches, keep=keep)

    async def restart_if_dead(self) -> None:
        while self.machine.crashed:
            await asyncio.sleep(self.downtime)
            self.arm()
            await self.machine.up()

    async def insist(self, request: Any) -> None:
        """Ask until there is an answer."""
        while True:
            await self.restart_if_dead()
            asking = asyncio.ensure_future(request())
            while not asking.done() and not self.machine.crashed:
                await asyncio.sleep(STEP)
            if asking.done() and not self.machine.crashed:
                asking.result()
                return
            asking.cancel()
            await asyncio.gather(asking, return_exceptions=True)

    async def until_idle(self, names: list[str]) -> None:
        for _ in range(4000):
            await self.restart_if_dead()
            if all(self.machine.status(name).state.idle for name in names):
                await self.insist(lambda: self.machine.store.write(()))
                return
            await asyncio.sleep(STEP)
        raise AssertionError({name: self.machine.status(name) for name in names})


def spec_of(plan: Plan) -> dict[str, Any]:
    spec: dict[str, Any] = {
        "roles": {"worker": {"replicas": len(plan.tasks)}},
        "restart": {"policy": "on-failure", "max": 2, "backoff": "1s"},
    }
    return {**spec, "code": GIT} if plan.fetch else spec


def script(machine: Machine, name: str, plan: Plan) -> None:
    for index, codes in enumerate(plan.tasks):
        runs = [Run(seconds=0.5 + index / 4, code=code) for code in codes]
        steps = [Refuse(Code.COMMAND_NOT_FOUND, "no such command")] if plan.refused else runs
        machine.world.script(name, f"worker-{index}", *steps)


def in_a_folder(story: Any) -> None:
    with tempfile.TemporaryDirectory(prefix="weft-test-", dir=MEMORY) as folder:
        virtual.run(lambda: story(Path(folder)))


@given(st.lists(plans(), min_size=1, max_size=3), crashes)
@pytest.mark.slow
def test_every_job_ends_as_it_would_have(jobs: list[Plan], crashes: list[tuple[int, bool, float]]) -> None:
    async def story(folder: Path) -> None:
        machine = await Machine(folder).up()
        operator = Operator(machine, list(crashes))
        operator.arm()
        names = [f"job-{i}" for i in range(len(jobs))]
        for name, plan in zip(names, jobs, strict=True):
            script(machine, name, plan)
            await operator.insist(lambda name=name, plan=plan: machine.submit(name, **spec_of(plan)))
        await operator.until_idle(names)
        for name, plan in zip(names, jobs, strict=True):
            status = machine.status(name)
            assert status.state is plan.ends, f"{name}: {status}"
            begun = [task for _, task in machine.world.starts_of(name)]
            assert [begun.count(f"worker-{i}") for i in range(len(plan.tasks))] == plan.starts
            assert status.restarts == sum(max(0, count - 1) for count in plan.starts)
            history = machine.history(name)
            assert history[:2] == ["PENDING", "QUEUED"]
            assert history.count(plan.ends.value) == 1
        assert machine.nothing_is_held()
        assert machine.control.jobs == {}
        assert len(machine.store.uids()) == len(jobs)
        await machine.down()

    in_a_folder(story)


@given(
    crashes,
    st.lists(
        st.tuples(
            st.sampled_from([0.0, 0.4, 1.0, 2.5]), st.sampled_from([Desire.HALT, Desire.RUN, Desire.CANCEL])
        ),
        max_size=4,
    ),
)
@pytest.mark.slow
def test_whatever_a_person_asks_meanwhile_nothing_is_left_running(
    crashes: list[tuple[int, bool, float]], asks: list[tuple[float, Desire]]
) -> None:
    async def story(folder: Path) -> None:
        machine = await Machine(folder).up()
        operator = Operator(machine, list(crashes))
        operator.arm()
        machine.world.script("demo", "worker-0", Run(seconds=1, code=1), FOREVER)
        machine.world.script("demo", "worker-1", FOREVER)
        plan = Plan(((1, 0), (0,)), fetch=True, ends=State.CANCELLED)
        await operator.insist(lambda: machine.submit("demo", **spec_of(plan)))
        for wait, desire in [*asks, (1.0, Desire.CANCEL)]:
            await asyncio.sleep(wait)

            async def ask(desire: Desire = desire) -> None:
                with suppress(Refused):
                    await machine.ask("demo", desire)

            await operator.insist(ask)
        await operator.until_idle(["demo"])
        assert machine.status("demo").state is State.CANCELLED
        assert machine.history("demo")[-1] == "CANCELLED"
        assert machine.nothing_is_held()
        await machine.down()

    in_a_folder(story)


@given(crashes)
@pytest.mark.slow
def test_a_deleted_job_stays_deleted_with_all_its_files(crashes: list[tuple[int, bool, float]]) -> None:
    async def story(folder: Path) -> None:
        machine = await Machine(folder).up()
        machine.world.script("demo", "worker-0", FOREVER)
        await machine.submit("demo")
        await machine.until("demo", State.PROCESSING)
        operator = Operator(machine, list(crashes))
        operator.arm()

        async def delete() -> None:
            try:
                await machine.control.remove("demo", "ann")
            except NoJob:
                return

        await operator.insist(delete)
        for _ in range(20):
            await operator.restart_if_dead()
            await asyncio.sleep(1)
        assert machine.store.uids() == set()
        assert machine.world.folders == set()
        assert machine.nothing_is_held()
        await machine.down()

    in_a_folder(story)


@pytest.mark.parametrize("keep", [True, False])
def test_tasks_go_on_while_no_server_is_there(fast_folder: Path, keep: bool) -> None:
    async def story() -> None:
        machine = await Machine(fast_folder).up()
        machine.world.script("demo", "worker-0", Run(seconds=100))
        await machine.submit("demo")
        await machine.until("demo", State.PROCESSING)
        machine.kill(keep=keep)
        await asyncio.sleep(1000)
        assert not machine.world.processes
        await machine.up()
        status = await machine.until("demo")
        assert status.state is State.COMPLETED
        assert len(machine.world.starts) == 1
        await machine.down()

    virtual.run(story)
