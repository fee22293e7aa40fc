"""Tasks that hang, as whole stories on virtual time."""

from __future__ import annotations

from typing import Any

import pytest

from support.machine import Machine, Tell, workers
from support.simulated import FOREVER, Run
from weft.model.failures import Code
from weft.model.status import Desire, State

HANGS = Run(seconds=1e9, speaks=60)
"""Prints for a minute, and then nothing more."""
ON_FAILURE = {"policy": "on-failure", "backoff": "2s"}
SILENT = "has been silent for 5m: no log, metric or heartbeat"


def gang(m: Machine, *scripts: list[Run]) -> dict[str, Any]:
    for index, runs in enumerate(scripts):
        m.world.script("demo", f"worker-{index}", *runs)
    return workers(len(scripts))


def test_a_silent_task_is_looked_into_and_fails(on_a_machine: Tell) -> None:
    async def story(m: Machine) -> None:
        m.world.script("demo", "worker-0", HANGS)
        await m.submit("demo", stallTimeout="5m")
        began = m.loop.time()
        status = await m.until("demo")
        assert status.state is State.FAILED
        assert status.failure is not None
        assert (status.failure.code, status.failure.task) == (Code.STALLED, "worker-0")
        assert status.failure.message == (
            f"worker-0 {SILENT} (stacks of all its tasks: stalls/worker-0-launch-1.txt in weft results demo)"
        )
        assert m.loop.time() - began == pytest.approx(360, abs=3)
        assert m.nothing_is_held()

    on_a_machine(story)


def test_every_rank_is_looked_into_before_any_is_killed(on_a_machine: Tell) -> None:
    async def story(m: Machine) -> None:
        roles = gang(m, [FOREVER], [HANGS], [FOREVER])
        await m.submit("demo", stallTimeout="5m", roles=roles)
        status = await m.until("demo")
        (dump,) = m.world.dumps
        assert dump[1:] == ("demo", "worker-1-launch-1.txt", ["worker-0", "worker-1", "worker-2"])
        assert all(time >= dump[0] for time, _, _ in m.world.signals)
        assert status.failure is not None
        assert status.failure.task == "worker-1"

    on_a_machine(story)


def test_who_speaks_runs_on(on_a_machine: Tell) -> None:
    async def story(m: Machine) -> None:
        m.world.script("demo", "worker-0", Run(seconds=700))
        await m.submit("demo", stallTimeout="5m")
        assert (await m.until("demo")).state is State.COMPLETED
        assert m.world.dumps == []

    on_a_machine(story)


@pytest.mark.parametrize("timeout", [{}, {"stallTimeout": 0}])
def test_without_a_stall_timeout_silence_is_golden(on_a_machine: Tell, timeout: dict[str, Any]) -> None:
    async def story(m: Machine) -> None:
        m.world.script("demo", "worker-0", Run(seconds=700, speaks=0))
        await m.submit("demo", **timeout)
        assert (await m.until("demo")).state is State.COMPLETED

    on_a_machine(story)


def test_a_heartbeat_is_enough(on_a_machine: Tell) -> None:
    async def story(m: Machine) -> None:
        m.world.script("demo", "worker-0", HANGS)
        job = await m.submit("demo", stallTimeout="5m")
        for _ in range(3):
            await m.passes(200)
            m.world.heartbeats[job.uid, "worker-0"] = m.loop.time()
        assert m.status("demo").state is State.PROCESSING
        status = await m.until("demo", within=310)
        assert status.failure is not None
        assert status.failure.code is Code.STALLED

    on_a_machine(story)


def test_the_restart_policy_applies_to_the_task_alone(on_a_machine: Tell) -> None:
    async def story(m: Machine) -> None:
        roles = gang(m, [Run(seconds=1000)], [HANGS, Run(seconds=100)])
        await m.submit("demo", stallTimeout="5m", roles=roles, restart=ON_FAILURE)
        status = await m.until("demo", within=2000)
        assert status.state is State.COMPLETED
        assert [task.restarts for task in status.tasks] == [0, 1]
        restarting = next(event for event in m.events("demo") if event.state == "RESTARTING")
        assert restarting.cause.startswith(f"worker-1 {SILENT}")
        assert restarting.cause.endswith("; restart 1 of at most 3")

    on_a_machine(story)


def test_a_gang_that_hangs_together_restarts_once_and_blames_who_fell_silent_first(
    on_a_machine: Tell,
) -> None:
    async def story(m: Machine) -> None:
        stubborn = Run(seconds=1e9, speaks=60.2, after_term=None)
        roles = gang(m, [stubborn, Run(seconds=10)], [HANGS, Run(seconds=10)], [stubborn, Run(seconds=10)])
        restart = {**ON_FAILURE, "max": 1, "scope": "gang"}
        await m.submit("demo", stallTimeout="5m", roles=roles, restart=restart, grace="20s")
        status = await m.until("demo")
        assert status.state is State.COMPLETED
        assert [task.restarts for task in status.tasks] == [0, 1, 0]
        assert [dump[2] for dump in m.world.dumps] == ["worker-1-launch-1.txt"]

    on_a_machine(story)


def test_tasks_that_start_again_alone_are_given_up_together(on_a_machine: Tell) -> None:
    async def story(m: Machine) -> None:
        roles = gang(m, *[[HANGS, Run(seconds=10)] for _ in range(4)])
        await m.submit("demo", stallTimeout="5m", roles=roles, restart=ON_FAILURE)
        status = await m.until("demo")
        assert status.state is State.COMPLETED
        assert [task.restarts for task in status.tasks] == [1, 1, 1, 1]
        assert len(m.world.dumps) == 1

    on_a_machine(story)


def test_restarts_run_out(on_a_machine: Tell) -> None:
    async def story(m: Machine) -> None:
        m.world.script("demo", "worker-0", HANGS)
        await m.submit("demo", stallTimeout="5m", restart={**ON_FAILURE, "max": 2})
        status = await m.until("demo", within=3000)
        assert status.failure is not None
        assert status.failure.code is Code.STALLED
        files = [dump[2] for dump in m.world.dumps]
        assert files == [f"worker-0-launch-{launch}.txt" for launch in (1, 2, 3)]

    on_a_machine(story)


def test_who_serves_the_others_may_be_silent(on_a_machine: Tell) -> None:
    async def story(m: Machine) -> None:
        m.world.script("demo", "ps-0", Run(seconds=1e9, speaks=0))
        m.world.script("demo", "worker-0", Run(seconds=700))
        roles = {"ps": {"service": True}, **workers(1)}
        await m.submit("demo", stallTimeout="5m", roles=roles)
        assert (await m.until("demo")).state is State.COMPLETED

    on_a_machine(story)


def test_who_speaks_while_stacks_are_taken_is_spared(on_a_machine: Tell) -> None:
    async def story(m: Machine) -> None:
        m.world.dump_seconds = 20
        m.world.script("demo", "worker-0", HANGS)
        job = await m.submit("demo", stallTimeout="5m")
        while not m.world.dumps:
            await m.passes(1)
        m.world.heartbeats[job.uid, "worker-0"] = m.loop.time()
        await m.passes(100)
        assert m.status("demo").state is State.PROCESSING
        assert m.world.signals == []

    on_a_machine(story)


def test_a_slow_look_into_one_job_does_not_keep_others_waiting(on_a_machine: Tell) -> None:
    async def story(m: Machine) -> None:
        m.world.dump_seconds = 100
        for name in ("first", "second"):
            m.world.script(name, "worker-0", HANGS)
            await m.submit(name, stallTimeout="5m")
        await m.until("first")
        assert [dump[1] for dump in m.world.dumps] == ["first", "second"]
        await m.until("second", within=5)

    on_a_machine(story)


def test_a_halt_during_the_look_is_a_halt(on_a_machine: Tell) -> None:
    async def story(m: Machine) -> None:
        m.world.dump_seconds = 20
        m.world.script("demo", "worker-0", HANGS)
        await m.submit("demo", stallTimeout="5m", grace="60s")
        while not m.world.dumps:
            await m.passes(1)
        await m.ask("demo", Desire.HALT)
        assert (await m.until("demo")).state is State.HALTED

    on_a_machine(story)


@pytest.mark.parametrize("moment", [100, 362])
def test_a_killed_server_finds_the_stall_again(on_a_machine: Tell, moment: float) -> None:
    async def story(m: Machine) -> None:
        m.world.dump_seconds = 10
        m.world.script("demo", "worker-0", HANGS, Run(seconds=10))
        await m.submit("demo", stallTimeout="5m", restart=ON_FAILURE)
        await m.passes(moment)
        m.kill()
        await m.passes(30)
        await m.up()
        status = await m.until("demo")
        assert status.state is State.COMPLETED
        assert status.restarts == 1

    on_a_machine(story)


def test_no_silence_counts_from_before_the_machine_slept(on_a_machine: Tell) -> None:
    async def story(m: Machine) -> None:
        m.world.script("demo", "worker-0", HANGS)
        await m.submit("demo", stallTimeout="5m")
        await m.passes(100)
        asleep = 10_000.0
        m.control.clock = lambda: m.loop.time() + asleep
        await m.passes(290)
        assert m.status("demo").state is State.PROCESSING
        await m.until("demo", State.FAILED, within=20)

    on_a_machine(story)


def test_what_goes_wrong_with_one_job_does_not_end_the_watch(
    on_a_machine: Tell, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def story(m: Machine) -> None:
        heard = m.backend.heard
        broken = await m.submit("broken", stallTimeout="5m")

        def failing(uid: str, tasks: Any) -> dict[str, float]:
            if uid == broken.uid:
                raise OSError("no such disk")
            return heard(uid, tasks)

        monkeypatch.setattr(m.backend, "heard", failing)
        for name in ("broken", "demo"):
            m.world.script(name, "worker-0", HANGS)
        await m.submit("demo", stallTimeout="5m")
        await m.until("demo", State.FAILED)

    on_a_machine(story)


def test_files_are_looked_at_only_when_a_task_could_have_stalled(
    on_a_machine: Tell, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def story(m: Machine) -> None:
        looks = []
        heard = m.backend.heard
        monkeypatch.setattr(m.backend, "heard", lambda *asked: looks.append(asked) or heard(*asked))
        m.world.script("demo", "worker-0", FOREVER)
        await m.submit("demo", stallTimeout="5m")
        await m.passes(1000)
        assert 3 <= len(looks) <= 5

    on_a_machine(story)
