"""Whole stories of jobs, from submitting to the end, on virtual time."""

from __future__ import annotations

import asyncio
import contextlib
import json
import sqlite3
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from support.builders import a_complete_job, a_node
from support.machine import Machine, Tell, workers
from support.simulated import FOREVER, Refuse, Run
from weft.control import live
from weft.control.control import NameTaken
from weft.control.copies import Copies
from weft.control.live import LiveJob
from weft.control.nosuch import NoJob
from weft.jobtypes.catalogue import catalogue
from weft.jobtypes.complete import read_job
from weft.model.failures import Code, Permanent, Temporary
from weft.model.lifecycle import Refused
from weft.model.status import Desire, State
from weft.store.database import StoreError, StoreFull

ON_FAILURE = {"policy": "on-failure", "max": 3, "backoff": "2s", "maxBackoff": "5s"}
GIT = {"git": "https://example.org/x.git", "commit": "abcdef1"}


class TestTheWholeWay:
    def test_submit_to_completed_with_its_history(self, on_a_machine: Tell) -> None:
        async def story(m: Machine) -> None:
            m.world.script("demo", "worker-0", Run(seconds=10))
            begun = m.loop.time()
            await m.submit("demo", code=GIT)
            status = await m.until("demo")
            assert m.history("demo") == [
                "PENDING", "QUEUED", "DEPLOYING", "DOWNLOADING", "PROCESSING", "STORING", "COMPLETED",
            ]  # fmt: skip
            causes = [event.cause for event in m.events("demo")]
            assert causes == [
                "submitted", "admitted", "placed on node-0", "folders made", "1 task started",
                "success rule met", "0 result files kept",
            ]  # fmt: skip
            assert [event.actor for event in m.events("demo")][:3] == ["ann", "weft", "scheduler"]
            assert status.finished == pytest.approx(begun + 10, abs=0.1)
            assert m.nothing_is_held()
            assert m.control.jobs == {}

        on_a_machine(story)

    def test_the_first_job_waits_for_nothing_to_be_read(self, on_a_machine: Tell) -> None:
        catalogue.cache_clear()

        async def story(m: Machine) -> None:
            assert catalogue.cache_info().currsize == 1

        on_a_machine(story)

    def test_a_job_is_shown_as_it_is_now_and_its_status_written_out_once(self, on_a_machine: Tell) -> None:
        async def story(m: Machine) -> None:
            m.world.script("demo", "worker-0", Run(seconds=10))
            job = await m.submit("demo")
            assert job.written_status() is job.written_status()
            await m.until("demo", State.PROCESSING)
            assert job.written_status() == job.status.dump()
            assert json.loads(live.document(job))["status"]["state"] == "PROCESSING"

        on_a_machine(story)

    def test_results_are_counted(self, on_a_machine: Tell) -> None:
        async def story(m: Machine) -> None:
            job = await m.submit("demo", results={"include": ["*.bin"]})
            folder = Path(m.backend.result_folder(job.uid))
            folder.mkdir(parents=True)
            (folder / "model.bin").write_bytes(b"x" * 100)
            (folder / "notes.txt").write_text("no result")
            status = await m.until("demo")
            assert status.results is not None
            assert (status.results.files, status.results.bytes) == (1, 100)

        on_a_machine(story)

    def test_metrics_arrive_while_it_runs_and_to_the_last_line(self, on_a_machine: Tell) -> None:
        async def story(m: Machine) -> None:
            m.world.script("demo", "worker-0", Run(seconds=5))
            job = await m.submit("demo")
            file = Path(m.backend.metrics_file(job.uid, "worker-0"))
            file.parent.mkdir(parents=True)

            def log(step: int) -> None:
                with file.open("a") as out:
                    out.write(json.dumps({"step": step, "time": 1.0, "values": {"loss": 1 / step}}) + "\n")

            log(1)
            await m.passes(2)
            await m.store.write(())
            assert [p["step"] for p in m.store.metrics(job.uid)] == [1]
            await m.passes(2.9)
            log(2)
            await m.until("demo")
            assert [p["step"] for p in m.store.metrics(job.uid)] == [1, 2]

        on_a_machine(story)


class TestGangs:
    def test_all_tasks_start_at_the_same_moment(self, on_a_machine: Tell) -> None:
        async def story(m: Machine) -> None:
            await m.submit("demo", roles=workers(4))
            await m.until("demo")
            starts = m.world.starts_of("demo")
            assert sorted(task for _, task in starts) == [f"worker-{i}" for i in range(4)]
            assert len({time for time, _ in starts}) == 1

        on_a_machine(story)

    def test_a_gang_waits_until_there_is_room_for_all_of_it(self, on_a_machine: Tell) -> None:
        async def story(m: Machine) -> None:
            m.world.script("first", "worker-0", Run(seconds=60))
            await m.submit("first")
            await m.submit("gang", roles=workers(4))
            await m.passes(30)
            assert m.status("gang").state is State.QUEUED
            assert m.world.starts_of("gang") == []
            reason = m.control.explain(m.control.find("gang")).reason
            assert reason.startswith("needs 4 × (1 cpu); free: 3 of 4 cpu, 16 GiB on 1 node")
            await m.until("gang")
            assert m.world.starts_of("gang")[0][0] >= m.world.starts_of("first")[0][0] + 60

        on_a_machine(story)

    def test_one_task_that_cannot_start_leaves_nothing_behind(self, on_a_machine: Tell) -> None:
        async def story(m: Machine) -> None:
            m.world.script("demo", "worker-1", Refuse(Code.COMMAND_NOT_FOUND, "no command 'trian' in PATH"))
            await m.submit("demo", roles=workers(3))
            status = await m.until("demo")
            assert m.history("demo") == ["PENDING", "QUEUED", "DEPLOYING", "FAILED"]
            assert status.failure is not None
            assert (status.failure.code, status.failure.task) == (Code.COMMAND_NOT_FOUND, "worker-1")
            assert m.world.starts == []
            assert m.nothing_is_held()

        on_a_machine(story)

    def test_a_failure_stops_the_rest_and_keeps_the_last_lines(self, on_a_machine: Tell) -> None:
        async def story(m: Machine) -> None:
            m.world.script("demo", "worker-0", FOREVER)
            m.world.script("demo", "worker-1", Run(seconds=5, code=3))
            await m.submit("demo", roles=workers(2))
            status = await m.until("demo")
            assert status.state is State.FAILED
            assert status.reason == "worker-1 exited with code 3"
            assert status.log_tail == ("last words of worker-1",)
            assert [(task, name) for _, task, name in m.world.signals] == [("worker-0", "SIGTERM")]

        on_a_machine(story)


class TestTime:
    def test_restarts_wait_longer_each_time_up_to_the_cap(self, on_a_machine: Tell) -> None:
        async def story(m: Machine) -> None:
            m.world.script("demo", "worker-0", *[Run(seconds=1, code=1)] * 3, Run(seconds=1))
            await m.submit("demo", restart=ON_FAILURE)
            status = await m.until("demo")
            times = [time for time, _ in m.world.starts_of("demo")]
            gaps = [after - before for before, after in pairwise(times)]
            assert gaps == [pytest.approx(1 + wait, abs=0.01) for wait in (2, 4, 5)]
            assert (status.state, status.restarts, status.launch) == (State.COMPLETED, 3, 4)
            assert m.history("demo")[4:10] == ["RESTARTING", "DEPLOYING", "PROCESSING"] * 2

        on_a_machine(story)

    def test_a_gang_that_starts_again_together_stops_first(self, on_a_machine: Tell) -> None:
        async def story(m: Machine) -> None:
            m.world.script("demo", "worker-0", Run(seconds=100, after_term=0.2), Run(seconds=20))
            m.world.script("demo", "worker-1", Run(seconds=10, code=1), Run(seconds=20))
            m.world.script("demo", "worker-2", Run(seconds=5), Run(seconds=20))
            await m.submit("demo", roles=workers(3), restart={**ON_FAILURE, "scope": "gang"})
            status = await m.until("demo")
            assert status.state is State.COMPLETED
            assert [task.restarts for task in status.tasks] == [0, 1, 0], "only who failed has used one up"
            again = [time for time, _ in m.world.starts_of("demo")][3:]
            assert len(again) == 3, "also the one that had succeeded"
            assert max(again) - min(again) < 0.01
            assert min(again) >= 10.2, "not before the last has stopped"
            assert [(task, name) for _, task, name in m.world.signals] == [("worker-0", "SIGTERM")]
            assert m.nothing_is_held()

        on_a_machine(story)

    def test_who_waits_for_a_partner_that_is_gone_is_not_given_the_whole_grace(
        self, on_a_machine: Tell
    ) -> None:
        """It hears no signal inside a collective operation; a gang used to stand still for the grace, 30 s."""

        async def story(m: Machine) -> None:
            m.world.script("demo", "worker-0", Run(seconds=1000, after_term=900), Run(seconds=20))
            m.world.script("demo", "worker-1", Run(seconds=10, code=1), Run(seconds=20))
            restart = {**ON_FAILURE, "backoff": "0s", "scope": "gang"}
            await m.submit("demo", roles=workers(2), restart=restart, grace="30s")
            status = await m.until("demo")
            assert status.state is State.COMPLETED
            assert [(task, name) for _, task, name in m.world.signals] == [
                ("worker-0", "SIGTERM"),
                ("worker-0", "SIGKILL"),
            ]
            first, again = m.world.starts_of("demo")[0][0], m.world.starts_of("demo")[2][0]
            assert again - first < 11

        on_a_machine(story)

    def test_a_gang_that_starts_again_together_survives_a_killed_server(self, on_a_machine: Tell) -> None:
        async def story(m: Machine) -> None:
            m.world.script("demo", "worker-0", Run(seconds=100, after_term=10), Run(seconds=20))
            m.world.script("demo", "worker-1", Run(seconds=10, code=1), Run(seconds=20))
            await m.submit("demo", roles=workers(2), restart={**ON_FAILURE, "scope": "gang"})
            await m.until("demo", State.RESTARTING)
            m.kill()
            await m.passes(1)
            await m.up()
            status = await m.until("demo")
            assert (status.state, len(m.world.starts)) == (State.COMPLETED, 4)

        on_a_machine(story)

    def test_the_last_restart_used_up_fails_the_job(self, on_a_machine: Tell) -> None:
        async def story(m: Machine) -> None:
            m.world.script("demo", "worker-0", Run(seconds=1, code=1))
            await m.submit("demo", restart=ON_FAILURE)
            status = await m.until("demo")
            assert status.state is State.FAILED
            assert status.reason == "worker-0 exited with code 1 after 3 restarts"
            assert len(m.world.starts) == 4

        on_a_machine(story)

    def test_a_deadline_counts_from_the_first_start(self, on_a_machine: Tell) -> None:
        async def story(m: Machine) -> None:
            m.world.script("demo", "worker-0", Run(seconds=1e6, after_term=None))
            await m.submit("demo", deadline="1m", grace="10s")
            status = await m.until("demo")
            begun = m.world.starts[0][0]
            assert status.failure is not None
            assert status.failure.code is Code.DEADLINE
            assert [(round(time - begun, 3), name) for time, _, name in m.world.signals] == [
                (60.0, "SIGTERM"),
                (70.0, "SIGKILL"),
            ]

        on_a_machine(story)

    def test_waiting_longer_than_max_wait_fails_with_numbers(self, on_a_machine: Tell) -> None:
        async def story(m: Machine) -> None:
            begun = m.loop.time()
            await m.submit("demo", maxWait="90s", roles=workers(1, resources={"gpu": 8}))
            status = await m.until("demo")
            assert status.failure is not None
            assert status.failure.code is Code.UNSCHEDULABLE
            assert status.failure.message == (
                "waited longer than maxWait (90 s) for a place: "
                "can never start here: needs 1 cpu, 8 gpu; the node has 4 cpu, 16 GiB, 4 gpu (v100)"
            )
            assert status.finished == pytest.approx(begun + 90, abs=0.01)
            assert len(m.control.books.pending) == 0

        on_a_machine(story, [a_node(gpus=4)])

    def test_a_job_goes_when_its_time_after_the_end_is_over(self, on_a_machine: Tell) -> None:
        async def story(m: Machine) -> None:
            job = await m.submit("demo", ttlAfterFinished="5m")
            await m.until("demo")
            await m.passes(290)
            assert m.exists("demo")
            assert job.uid in m.world.folders
            await m.passes(45)
            assert not m.exists("demo")
            assert job.uid not in m.world.folders
            assert m.store.events(uid=job.uid)[-1].type == "deleted"

        on_a_machine(story)

    def test_a_resumed_job_is_not_deleted_by_its_old_end(self, on_a_machine: Tell) -> None:
        async def story(m: Machine) -> None:
            m.world.script("demo", "worker-0", Run(code=1), FOREVER)
            await m.submit("demo", ttlAfterFinished="1m")
            await m.until("demo", State.FAILED)
            await m.ask("demo", Desire.RUN)
            await m.passes(300)
            assert m.status("demo").state is State.PROCESSING

        on_a_machine(story)


class TestOrder:
    def test_priority_first_then_first_come(self, on_a_machine: Tell) -> None:
        async def story(m: Machine) -> None:
            whole = {"roles": workers(1, resources={"cpu": 4})}
            await m.submit("now", priority="production", **whole)
            await m.until("now", State.PROCESSING)
            for name, priority in (("low", "low"), ("first", 0), ("second", 0), ("high", "high")):
                await m.submit(name, priority=priority, **whole)
                await m.passes(0.01)
            assert [w.name for w in m.control.waiting()] == ["high", "first", "second", "low"]
            await m.until("low")
            assert [job for _, job, _, _ in m.world.starts] == ["now", "high", "first", "second", "low"]

        on_a_machine(story)

    def test_after_five_minutes_nothing_overtakes_a_waiting_gang(self, on_a_machine: Tell) -> None:
        async def story(m: Machine) -> None:
            m.world.script("long", "worker-0", Run(seconds=1000))
            await m.submit("long")
            await m.submit("gang", roles=workers(4))
            await m.submit("early")
            await m.until("early", State.COMPLETED)
            await m.passes(310)
            await m.submit("late")
            await m.passes(10)
            assert m.status("late").state is State.QUEUED
            assert m.control.explain(m.control.find("late")).reason.startswith("waits behind gang")
            await m.until("late", within=2000)
            starts = {job: time for time, job, _, _ in m.world.starts}
            assert starts["gang"] < starts["late"]

        on_a_machine(story)

    def test_who_asks_for_the_impossible_does_not_stop_the_others(self, on_a_machine: Tell) -> None:
        async def story(m: Machine) -> None:
            await m.submit("monster", priority="high", roles=workers(1, resources={"cpu": 64}))
            await m.passes(400)
            await m.submit("small")
            assert (await m.until("small", within=10)).state is State.COMPLETED

        on_a_machine(story)


class TestHaltAndResume:
    @pytest.mark.parametrize("state", [State.QUEUED, State.DOWNLOADING, State.PROCESSING, State.RESTARTING])
    def test_a_halted_job_resumes_and_completes(self, on_a_machine: Tell, state: State) -> None:
        async def story(m: Machine) -> None:
            m.world.script("demo", "worker-0", Run(seconds=20, code=1), Run(seconds=20))
            m.world.fetches["demo"] = [10.0]
            if state is State.QUEUED:
                await m.submit("blocker", roles=workers(4))
                m.world.script("blocker", "worker-0", Run(seconds=3))
            await m.submit("demo", code=GIT, restart=ON_FAILURE)
            await m.until("demo", state)
            await m.ask("demo", Desire.HALT)
            assert (await m.until("demo")).state is State.HALTED
            held = [uid for uid, _ in m.world.processes if uid == m.control.find("demo").uid]
            assert held == []
            assert "demo" not in {job.name for job in m.control.jobs.values()}
            await m.ask("demo", Desire.RUN)
            assert (await m.until("demo")).state is State.COMPLETED
            assert m.history("demo").count("HALTED") == 1
            assert m.nothing_is_held()

        on_a_machine(story)

    def test_sigterm_then_the_grace_then_sigkill(self, on_a_machine: Tell) -> None:
        async def story(m: Machine) -> None:
            m.world.script("demo", "worker-0", Run(seconds=1e6, after_term=None))
            m.world.script("demo", "worker-1", Run(seconds=1e6, after_term=2.0, term_code=0))
            await m.submit("demo", roles=workers(2), grace="20s")
            await m.until("demo", State.PROCESSING)
            asked = m.loop.time()
            await m.ask("demo", Desire.HALT)
            status = await m.until("demo")
            assert status.state is State.HALTED
            assert [(round(time - asked, 1), task, name) for time, task, name in m.world.signals] == [
                (0.0, "worker-0", "SIGTERM"),
                (0.0, "worker-1", "SIGTERM"),
                (20.0, "worker-0", "SIGKILL"),
            ]

        on_a_machine(story)

    def test_what_does_not_fit_the_state_is_refused_by_name(self, on_a_machine: Tell) -> None:
        async def story(m: Machine) -> None:
            await m.submit("demo")
            await m.until("demo", State.COMPLETED)
            with pytest.raises(Refused, match="job demo is COMPLETED already"):
                await m.ask("demo", Desire.HALT)
            with pytest.raises(Refused, match="job demo is COMPLETED; only a HALTED or FAILED job"):
                await m.ask("demo", Desire.RUN)
            assert m.control.jobs == {}

        on_a_machine(story)


class TestCancelAndDelete:
    @pytest.mark.parametrize(
        "state", [State.QUEUED, State.DOWNLOADING, State.PROCESSING, State.RESTARTING, State.HALTED]
    )
    def test_cancel_ends_it_from_every_state(self, on_a_machine: Tell, state: State) -> None:
        async def story(m: Machine) -> None:
            await self.bring_to(m, state)
            await m.ask("demo", Desire.CANCEL)
            assert (await m.until("demo")).state is State.CANCELLED
            await m.until("blocker")
            assert m.nothing_is_held()

        on_a_machine(story)

    @pytest.mark.parametrize(
        "state",
        [State.QUEUED, State.DOWNLOADING, State.PROCESSING, State.RESTARTING, State.HALTED, State.FAILED],
    )
    def test_delete_removes_it_and_frees_its_name_from_every_state(
        self, on_a_machine: Tell, state: State
    ) -> None:
        async def story(m: Machine) -> None:
            await self.bring_to(m, state)
            uid = m.control.find("demo").uid
            await m.control.remove("demo", "ann")
            await m.passes(5)
            with pytest.raises(NoJob):
                m.control.find("demo")
            assert uid not in m.world.folders
            assert uid not in m.store.uids()
            await m.submit("demo")
            await m.until("demo", State.PROCESSING)

        on_a_machine(story)

    async def bring_to(self, m: Machine, state: State) -> None:
        m.world.script("blocker", "worker-0", Run(seconds=15))
        m.world.script("demo", "worker-0", Run(seconds=30, code=1))
        m.world.fetches["demo"] = [3.0]
        await m.submit("blocker", roles=workers(4 if state is State.QUEUED else 1))
        restart = (
            {} if state is State.FAILED else {"restart": {**ON_FAILURE, "backoff": "10s", "maxBackoff": "1h"}}
        )
        await m.submit("demo", code=GIT, **restart)
        if state is State.HALTED:
            await m.until("demo", State.PROCESSING)
            await m.ask("demo", Desire.HALT)
        await m.until("demo", state)

    def test_a_job_that_has_just_ended_can_be_deleted_at_once(self, on_a_machine: Tell) -> None:
        """Between the end and its commit the store still says STORING: nobody may act on that."""

        async def story(m: Machine) -> None:
            ended = m.loop.create_future()
            other = sqlite3.connect(m.path, isolation_level=None)

            def retire(_: Any) -> None:
                other.execute("BEGIN IMMEDIATE")  # the commit has to wait
                ended.set_result(None)

            m.backend.retire = retire  # type: ignore[method-assign]
            await m.submit("demo")
            await ended
            assert m.store.resource("TrainingJob", "demo").state != "COMPLETED"  # type: ignore[union-attr]
            assert m.control.find("demo").status.state is State.COMPLETED
            other.close()
            assert await m.control.remove("demo", "ann") is True
            await m.passes(1)
            assert not m.exists("demo")
            assert m.control.jobs == {}

        on_a_machine(story)

    def test_a_job_being_deleted_cannot_be_resumed(self, on_a_machine: Tell) -> None:
        async def story(m: Machine) -> None:
            m.world.script("demo", "worker-0", Run(seconds=1e6, after_term=5.0))
            await m.submit("demo")
            await m.until("demo", State.PROCESSING)
            assert await m.control.remove("demo", "ann") is False
            for desire in (Desire.HALT, Desire.RUN, Desire.CANCEL):
                with pytest.raises(Refused, match="job demo is being deleted"):
                    await m.ask("demo", desire)
            await m.passes(10)
            assert not m.exists("demo")

        on_a_machine(story)


class TestSubmitting:
    def test_the_same_key_is_the_same_job(self, on_a_machine: Tell) -> None:
        async def story(m: Machine) -> None:
            first = await m.submit("demo")
            again = await m.submit("demo")
            assert again.uid == first.uid
            await m.until("demo")
            assert (await m.submit("demo")).uid == first.uid
            assert len(m.world.starts) == 1

        on_a_machine(story)

    def test_a_name_is_taken_until_its_job_is_deleted(self, on_a_machine: Tell) -> None:
        async def story(m: Machine) -> None:
            await m.submit("demo")
            with pytest.raises(NameTaken, match="a job demo exists already"):
                await m.control.submit(a_complete_job("demo"), "bob")
            await m.until("demo")
            with pytest.raises(NameTaken):
                await m.control.submit(a_complete_job("demo"), "bob")
            await m.control.remove("demo", "ann")
            await m.control.submit(a_complete_job("demo"), "bob")
            assert m.control.find("demo").metadata.owner == "bob"

        on_a_machine(story)

    def test_a_job_is_seen_once_it_is_on_disk_and_its_name_is_taken_before(self, on_a_machine: Tell) -> None:
        async def story(m: Machine) -> None:
            with contextlib.closing(sqlite3.connect(m.path, isolation_level=None)) as elsewhere:
                elsewhere.execute("BEGIN IMMEDIATE")  # nobody else can write
                submitting = asyncio.ensure_future(m.control.submit(a_complete_job("demo"), "ann"))
                await asyncio.sleep(0)
                with pytest.raises(NoJob):
                    m.control.find("demo")
                with pytest.raises(NoJob):
                    await m.ask("demo", Desire.CANCEL)
                with pytest.raises(NameTaken):
                    await m.control.submit(a_complete_job("demo"), "bob")
                elsewhere.execute("COMMIT")
            while not m.exists("demo"):
                time.sleep(0.001)
            found = m.control.find("demo")  # on disk, though whoever submitted it has not heard so yet
            assert (await submitting)[0] is found
            assert len(m.store.events(uid=found.uid)) >= 2
            await m.until("demo")
            assert len(m.world.starts) == 1

        on_a_machine(story)

    def test_an_unknown_name_comes_with_the_nearest(self, on_a_machine: Tell) -> None:
        async def story(m: Machine) -> None:
            await m.submit("mnist-large")
            with pytest.raises(NoJob) as problem:
                m.control.find("minst-large")
            assert problem.value.near == ["mnist-large"]

        on_a_machine(story)


class TestFetching:
    def test_a_hiccup_is_tried_again(self, on_a_machine: Tell) -> None:
        async def story(m: Machine) -> None:
            m.world.fetches["demo"] = [Temporary("no answer", 2.0), Temporary("no answer", 2.0), 0.0]
            await m.submit("demo", code=GIT)
            assert (await m.until("demo")).state is State.COMPLETED

        on_a_machine(story)

    @pytest.mark.parametrize(
        "problems",
        [
            [Permanent(Code.BAD_CODE, "no such commit")],
            [Temporary("no answer", 1.0)] * 3,
            [RuntimeError("a bug")],
        ],
    )
    def test_what_does_not_pass_fails_the_job(self, on_a_machine: Tell, problems: list[Exception]) -> None:
        async def story(m: Machine) -> None:
            m.world.fetches["demo"] = list(problems)
            await m.submit("demo", code=GIT)
            status = await m.until("demo")
            assert m.history("demo")[-2:] == ["DOWNLOADING", "FAILED"]
            assert status.failure is not None
            assert status.failure.code is Code.BAD_CODE
            assert str(problems[-1]) in status.failure.message
            assert m.nothing_is_held()

        on_a_machine(story)

    @pytest.mark.parametrize(("asked", "state"), [("cancel", State.CANCELLED), ("halt", State.HALTED)])
    def test_it_can_be_called_off_between_two_tries(
        self, on_a_machine: Tell, asked: str, state: State
    ) -> None:
        async def story(m: Machine) -> None:
            m.world.fetches["demo"] = [Temporary("no answer", 100.0), 0.0]
            await m.submit("demo", code=GIT)
            await m.until("demo", State.DOWNLOADING)
            await m.passes(1)
            await m.ask("demo", Desire(asked))
            await m.passes(10)
            assert m.status("demo").state is state
            assert m.nothing_is_held()

        on_a_machine(story)


class TestStoring:
    """Outputs that cannot be kept: the job has an end all the same."""

    def test_whatever_fails_fails_the_job(self, on_a_machine: Tell, monkeypatch: pytest.MonkeyPatch) -> None:
        async def story(m: Machine) -> None:
            async def keep(job: object) -> None:
                raise RuntimeError("a bug")

            monkeypatch.setattr(m.control.guardian, "_keep_outputs", keep)
            m.world.script("demo", "worker-0", Run(seconds=1))
            await m.submit("demo", outputs=[{"dataset": "out"}])
            status = await m.until("demo")
            assert (status.state, status.failure.code) == (State.FAILED, Code.RESULTS)  # type: ignore[union-attr]
            assert m.nothing_is_held()

        on_a_machine(story)

    def test_they_wait_for_room(self, on_a_machine: Tell, monkeypatch: pytest.MonkeyPatch) -> None:
        tries: list[str] = []

        async def story(m: Machine) -> None:
            async def keep(job: LiveJob) -> None:
                tries.append(job.name)
                if len(tries) < 4:
                    raise StoreFull("no room")

            monkeypatch.setattr(m.control.guardian, "_keep_outputs", keep)
            m.world.script("demo", "worker-0", Run(seconds=1))
            await m.submit("demo", outputs=[{"dataset": "out"}])
            assert (await m.until("demo")).state is State.COMPLETED
            assert len(tries) == 4

        on_a_machine(story)


class TestResumingFromAResultsStore:
    """Which takes its time; others may ask for something meanwhile."""

    @staticmethod
    async def failed(m: Machine, monkeypatch: pytest.MonkeyPatch) -> asyncio.Event:
        """A job that failed, and what its resumes wait for."""
        come = asyncio.Event()

        async def bring_back(self: Copies, job: LiveJob, step: int | None = None) -> None:
            await come.wait()

        monkeypatch.setattr(Copies, "bring_back", bring_back)
        m.control.copies = Copies(m.control, m.world.folder / "store")
        m.world.script("demo", "worker-0", Run(seconds=1, code=1), Run(seconds=50))
        await m.submit("demo")
        await m.until("demo", State.FAILED)
        await m.passes(1)
        return come

    def test_it_is_resumed_once(self, on_a_machine: Tell, monkeypatch: pytest.MonkeyPatch) -> None:
        async def story(m: Machine) -> None:
            come = await self.failed(m, monkeypatch)
            asked = [asyncio.ensure_future(m.ask("demo", Desire.RUN)) for _ in range(2)]
            await m.passes(1)
            come.set()
            answers = await asyncio.gather(*asked, return_exceptions=True)
            assert [type(answer) for answer in answers if isinstance(answer, Exception)] == [Refused]
            assert (await m.until("demo")).state is State.COMPLETED
            assert m.history("demo").count("DEPLOYING") == 2
            assert m.nothing_is_held()

        on_a_machine(story)

    def test_a_job_that_was_deleted_meanwhile_does_not_run(
        self, on_a_machine: Tell, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        async def story(m: Machine) -> None:
            come = await self.failed(m, monkeypatch)
            asked = asyncio.ensure_future(m.ask("demo", Desire.RUN))
            await m.passes(1)
            await m.control.remove("demo", "ann")
            come.set()
            with pytest.raises(NoJob):
                await asked
            await m.passes(10)
            assert not m.control.jobs
            assert not m.world.processes

        on_a_machine(story)


def test_what_fails_in_the_background_begins_again(
    on_a_machine: Tell, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def story(m: Machine) -> None:
        m.world.script("demo", "worker-0", Run(seconds=1))
        expired, faults = m.control.store.expired, [StoreError("it is away")]

        def once_away(now: float) -> Any:
            if faults:
                raise faults.pop()
            return expired(now)

        monkeypatch.setattr(m.control.store, "expired", once_away)
        await m.submit("demo", ttlAfterFinished="10s")
        await m.until("demo", State.COMPLETED)
        await m.passes(100)
        assert not m.exists("demo")
        assert not faults

    on_a_machine(story)


def test_a_name_made_up_twice_is_made_up_again(on_a_machine: Tell, monkeypatch: pytest.MonkeyPatch) -> None:
    made = iter(["aaaaaa", "aaaaaa", "bbbbbb"])

    async def story(m: Machine) -> None:
        monkeypatch.setattr("weft.control.control.secrets.token_hex", lambda _: next(made))
        nameless = read_job({"spec": {"command": ["true"]}}, "the job")
        names = [(await m.control.submit(nameless, "me"))[0].name for _ in range(2)]
        assert names == ["command-aaaaaa", "command-bbbbbb"]

    on_a_machine(story)


def test_a_job_is_resumed_from_a_checkpoint_that_it_has_and_from_no_other(on_a_machine: Tell) -> None:
    async def story(m: Machine) -> None:
        m.world.script("demo", "worker-0", Run(seconds=100, after_term=1), Run(seconds=5))
        job = await m.submit("demo")
        await m.until("demo", State.PROCESSING)
        for step in (100, 200):
            (m.world.folder / job.uid / "checkpoints" / f"step-{step:012d}").mkdir(parents=True)
        await m.ask("demo", Desire.HALT)
        await m.until("demo", State.HALTED)
        with pytest.raises(Refused, match="has no checkpoint 150; there are 100, 200"):
            await m.control.ask("demo", Desire.RUN, "ann", 150)
        await m.control.ask("demo", Desire.RUN, "ann", 100)
        assert m.status("demo").checkpoint == "100@2"
        assert "resumed from checkpoint 100" in [event.cause for event in m.events("demo")]
        assert (await m.until("demo")).checkpoint == "100@2"

    on_a_machine(story)
