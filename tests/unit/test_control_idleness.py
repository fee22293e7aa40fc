"""Jobs that nobody uses, as whole stories on virtual time."""

from __future__ import annotations

from typing import Any

import pytest

from support.machine import Machine, Tell, workers
from support.simulated import FOREVER, Run
from weft.model.status import Desire, State

IDLE = "halted: nothing was done in it for 10m (idleTimeout)"


async def started(m: Machine, **spec: Any) -> str:
    """A job `demo` that runs until it is stopped; its uid."""
    m.world.script("demo", "worker-0", FOREVER)
    m.world.script("demo", "worker-1", FOREVER)
    job = await m.submit("demo", **{"idleTimeout": "10m", **spec})
    await m.passes(5)
    assert m.status("demo").state is State.PROCESSING
    return job.uid


def test_a_job_that_nobody_uses_is_halted_and_says_why(on_a_machine: Tell) -> None:
    async def story(m: Machine) -> None:
        await started(m)
        began = m.loop.time()
        status = await m.until("demo", State.HALTED, within=4000)
        assert m.loop.time() - began == pytest.approx(605, abs=8)
        assert status.reason == f"{IDLE}; checkpoints are kept"
        last = m.events("demo")[-1]
        assert (last.state, last.cause, last.actor) == ("HALTED", IDLE, "weft")
        assert m.nothing_is_held()

    on_a_machine(story)


def test_it_can_be_resumed_and_begins_to_count_anew(on_a_machine: Tell) -> None:
    async def story(m: Machine) -> None:
        await started(m)
        await m.until("demo", State.HALTED, within=4000)
        await m.ask("demo", Desire.RUN)
        await m.passes(500)
        status = m.status("demo")
        assert (status.state, status.halted_for) == (State.PROCESSING, None)
        assert (await m.until("demo", State.HALTED, within=200)).reason == f"{IDLE}; checkpoints are kept"

    on_a_machine(story)


def test_one_active_task_is_enough(on_a_machine: Tell) -> None:
    async def story(m: Machine) -> None:
        uid = await started(m, roles=workers(2))
        for _ in range(5):
            await m.passes(500)
            m.world.activity[uid, "worker-1"] = m.loop.time()
        assert m.status("demo").state is State.PROCESSING
        await m.until("demo", State.HALTED, within=700)

    on_a_machine(story)


def test_who_says_so_a_little_late_is_spared(on_a_machine: Tell) -> None:
    async def story(m: Machine) -> None:
        uid = await started(m)
        m.world.activity[uid, "worker-0"] = m.loop.time()
        await m.passes(603)
        m.world.activity[uid, "worker-0"] = m.loop.time() - 9
        await m.passes(500)
        assert m.status("demo").state is State.PROCESSING

    on_a_machine(story)


@pytest.mark.parametrize("timeout", [None, 0])
def test_without_a_timeout_nobody_has_to_be_active(on_a_machine: Tell, timeout: int | None) -> None:
    async def story(m: Machine) -> None:
        await started(m, idleTimeout=timeout)
        await m.passes(2_000)
        assert m.status("demo").state is State.PROCESSING

    on_a_machine(story)


def test_a_start_counts_as_activity(on_a_machine: Tell) -> None:
    async def story(m: Machine) -> None:
        m.world.script("demo", "worker-0", Run(seconds=500, code=1), FOREVER)
        await m.submit("demo", idleTimeout="10m", restart={"policy": "on-failure"})
        await m.passes(1000)
        assert m.status("demo").state is State.PROCESSING
        await m.until("demo", State.HALTED, within=800)

    on_a_machine(story)


def test_a_person_who_cancels_it_meanwhile_has_the_last_word(on_a_machine: Tell) -> None:
    async def story(m: Machine) -> None:
        m.world.script("demo", "worker-0", Run(seconds=1e9, after_term=20))
        await m.submit("demo", idleTimeout="10m", grace="60s")
        while m.status("demo").desire is not Desire.HALT:
            await m.passes(10)
        assert m.status("demo").reason == "is being halted: nothing was done in it for 10m (idleTimeout)"
        await m.ask("demo", Desire.CANCEL)
        assert (await m.until("demo", within=60)).reason == "cancelled"

    on_a_machine(story)


def test_the_next_server_knows_since_when(on_a_machine: Tell) -> None:
    async def story(m: Machine) -> None:
        await started(m)
        await m.passes(500)
        m.kill()
        await m.passes(400)
        await m.up()
        await m.until("demo", State.HALTED, within=300)

    on_a_machine(story)


def test_idleness_from_before_the_machine_slept_does_not_count(on_a_machine: Tell) -> None:
    async def story(m: Machine) -> None:
        await started(m)
        m.control.clock = lambda: m.loop.time() + 50_000
        await m.passes(500)
        assert m.status("demo").state is State.PROCESSING
        await m.until("demo", State.HALTED, within=200)

    on_a_machine(story)


def test_what_goes_wrong_with_one_job_does_not_end_the_watch(
    on_a_machine: Tell, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def story(m: Machine) -> None:
        m.world.script("broken", "worker-0", FOREVER)
        broken = await m.submit("broken", idleTimeout="10m")
        active = m.backend.active

        def failing(uid: str, tasks: Any) -> dict[str, float]:
            if uid == broken.uid:
                raise OSError("the disk is gone")
            return active(uid, tasks)

        monkeypatch.setattr(m.backend, "active", failing)
        await started(m)
        await m.until("demo", State.HALTED, within=4000)
        assert m.status("broken").state is State.PROCESSING

    on_a_machine(story)
