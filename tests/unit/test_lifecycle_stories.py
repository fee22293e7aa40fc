"""What happens to a job, told one story at a time."""

from __future__ import annotations

from dataclasses import replace

import pytest

from support.builders import a_gang, a_request, a_task, an_elastic_gang, restarts
from support.stories import Story
from weft.model.events import (
    Admitted,
    Asked,
    Disturbed,
    Event,
    Exited,
    Fetched,
    Hindered,
    Joined,
    Launched,
    Lost,
    Pinned,
    Placed,
    Preempted,
    Progressed,
    Provisioned,
    ResultsStored,
    Shrunk,
    StoringFailed,
    Undone,
    Woke,
)
from weft.model.failures import Code, Failure
from weft.model.gang import Gang
from weft.model.instructions import (
    Dequeue,
    Enqueue,
    Fetch,
    Launch,
    Provision,
    Regroup,
    Release,
    ReleaseTasks,
    Retire,
    Stop,
    Store,
)
from weft.model.job import Scope
from weft.model.lifecycle import EDGES, PARTNERS_GRACE, Refused, advance, next_wake, submitted
from weft.model.status import Binding, Desire, Exit, Progress, State, Stored, TaskState

BROKEN = Failure(Code.COMMAND_NOT_FOUND, "worker-0: no command 'trian'", "worker-0")
LOST = Failure(Code.SUPERVISOR_LOST, "the process that watched it was killed")
NOTHING = ResultsStored(Stored(0, 0))


def pair(policy: str = "never", **gang: object) -> Gang:
    restart = restarts(policy, max=2, backoff=1.0)
    tasks = (
        a_task("worker-0", 0, restart=restart, chief=True),
        a_task("worker-1", 1, restart=restart),
    )
    return a_gang(tasks=tasks, **gang)  # type: ignore[arg-type]


def with_service(**gang: object) -> Gang:
    tasks = (a_task("ps-0", 0, service=True), a_task("worker-0", 1, chief=True))
    return a_gang(tasks=tasks, **gang)  # type: ignore[arg-type]


def states(story: Story) -> list[str]:
    return [state.value for state in story.states]


class TestData:
    FAR = Progress("reading dataset faces", 3 << 20, 12 << 20, 1 << 20)

    def test_how_far_it_is_is_told_while_it_comes_and_not_later(self) -> None:
        story = Story(a_gang(needs_fetch=True)).downloading()
        story.hears(Progressed(story.status.launch, self.FAR))
        assert story.status.progress == self.FAR
        assert story.status.reason == "reading dataset faces: 3 MiB of 12 MiB at 1 MiB/s"
        assert b'"allBytes":12582912' in story.status.dump()
        assert story.hears(Fetched()).status.progress is None
        story.hears(Progressed(story.status.launch, self.FAR))
        assert story.hears(story.launched()).status.progress is None
        assert story.status.reason is None

    def test_it_is_forgotten_when_the_job_is_stopped(self) -> None:
        story = Story(a_gang(needs_fetch=True)).downloading()
        story.hears(Progressed(story.status.launch, self.FAR), Asked(Desire.CANCEL))
        story.hears(Undone(story.status.launch, BROKEN))
        assert story.status.state is State.CANCELLED
        assert story.status.progress is None

    def test_it_is_brought_again_wherever_tasks_start_again_but_code_is_not(self) -> None:
        for datasets, again in (((("faces", "0" * 32),), True), ((), False)):
            story = Story(pair("on-failure", needs_fetch=True)).downloading()
            story.hears(Pinned(datasets), Fetched()).hears(story.launched()).ends("worker-0", 1)
            story.now += 60
            story.instructions.clear()
            story.hears(Woke(), Provisioned())
            assert (Fetch() in story.instructions) is again
            if again:
                assert story.status.state is State.DOWNLOADING
                assert story.status.task("worker-1").state is TaskState.RUNNING


class TestTheWayToTheEnd:
    def test_a_job_with_code_passes_every_state_in_order(self) -> None:
        story = Story(a_gang(needs_fetch=True)).running().ends("worker-0").hears(NOTHING)
        assert states(story) == [
            "PENDING", "QUEUED", "DEPLOYING", "DOWNLOADING", "PROCESSING", "STORING", "COMPLETED",
        ]  # fmt: skip
        assert story.instructions == [
            Enqueue(), Provision(), Fetch(), Launch(1, ("worker-0",)), Store(), Release(), Retire(),
        ]  # fmt: skip

    def test_a_job_without_code_downloads_nothing(self) -> None:
        story = Story(a_gang()).running().ends("worker-0").hears(NOTHING)
        assert "DOWNLOADING" not in states(story)
        assert story.status.state is State.COMPLETED

    def test_a_gang_is_launched_with_one_instruction(self) -> None:
        story = Story(a_gang(a_request(), a_request(), a_request())).running()
        launches = [i for i in story.instructions if isinstance(i, Launch)]
        assert launches == [Launch(1, ("worker-0", "worker-1", "worker-2"))]

    def test_times_are_those_of_the_events(self) -> None:
        story = Story(a_gang(), now=10).queued()
        story.now = 20
        story.hears(story.place(), Provisioned())
        story.now = 30
        story.hears(story.launched())
        story.now = 40
        story.ends("worker-0").hears(NOTHING)
        assert (story.status.queued, story.status.started, story.status.finished) == (10, 30, 40)

    def test_every_state_but_the_final_ones_leads_somewhere(self) -> None:
        assert {state for state, after in EDGES.items() if not after} == {State.COMPLETED, State.CANCELLED}
        reachable = {State.PENDING} | {state for after in EDGES.values() for state in after}
        assert reachable == set(State)


class TestSuccess:
    def test_all_tasks_must_succeed(self) -> None:
        story = Story(pair()).running().ends("worker-0")
        assert story.status.state is State.PROCESSING
        assert story.ends("worker-1").status.state is State.STORING

    def test_the_chief_decides_and_the_rest_is_stopped(self) -> None:
        story = Story(pair(chief_decides=True)).running()
        assert story.told_now(story.exit("worker-0")) == [Stop(("worker-1",), 30.0)]
        story.ends("worker-1", signal=15).hears(NOTHING)
        assert story.status.state is State.COMPLETED
        assert story.task_states() == {"worker-0": "SUCCEEDED", "worker-1": "STOPPED"}

    def test_another_task_than_the_chief_does_not_decide(self) -> None:
        story = Story(pair(chief_decides=True)).running().ends("worker-1")
        assert story.status.state is State.PROCESSING

    def test_services_are_not_waited_for(self) -> None:
        story = Story(with_service()).running()
        assert story.told_now(story.exit("worker-0")) == [Stop(("ps-0",), 30.0)]
        assert story.ends("ps-0", signal=15).hears(NOTHING).status.state is State.COMPLETED

    def test_a_service_that_fails_fails_the_job(self) -> None:
        story = Story(with_service()).running().ends("ps-0", code=3).ends("worker-0", signal=15)
        assert story.status.state is State.FAILED
        assert story.status.failure == Failure(Code.EXIT_CODE, "ps-0 exited with code 3", "ps-0")

    def test_a_chief_that_succeeds_during_anothers_restart_ends_the_job(self) -> None:
        story = Story(pair("on-failure", chief_decides=True)).running()
        story.ends("worker-1", code=1).ends("worker-0").hears(NOTHING)
        assert story.status.state is State.COMPLETED
        assert story.task_states() == {"worker-0": "SUCCEEDED", "worker-1": "STOPPED"}

    @pytest.mark.parametrize("temporary", [True, False])
    def test_success_stands_even_if_a_restart_under_way_then_fails(self, temporary: bool) -> None:
        """It used to run the whole job again when a supervisor was lost just then."""
        story = Story(pair("on-failure", chief_decides=True)).running().ends("worker-1", code=1)
        story.wakes().hears(Provisioned()).ends("worker-0").hears(Undone(2, LOST, temporary), NOTHING)
        assert story.status.state is State.COMPLETED
        assert story.status.failure is None


class TestFailure:
    @pytest.mark.parametrize(
        ("code", "signal", "failure"),
        [
            (3, None, Failure(Code.EXIT_CODE, "worker-0 exited with code 3", "worker-0")),
            (None, 9, Failure(Code.SIGNAL, "worker-0 was killed by SIGKILL", "worker-0")),
            (None, 250, Failure(Code.SIGNAL, "worker-0 was killed by signal 250", "worker-0")),
        ],
    )
    def test_it_says_how_the_task_ended(self, code: int | None, signal: int | None, failure: Failure) -> None:
        story = Story(a_gang()).running().ends("worker-0", code, signal)
        assert story.status.state is State.FAILED
        assert story.status.failure == failure
        assert story.status.reason == failure.message

    def test_one_failed_task_stops_the_others_and_is_the_one_blamed(self) -> None:
        story = Story(pair()).running()
        assert story.told_now(story.exit("worker-1", code=5)) == [Stop(("worker-0",), 30.0)]
        story.ends("worker-0", signal=9)
        assert states(story)[-2:] == ["PROCESSING", "FAILED"]
        assert story.status.failure is not None
        assert story.status.failure.task == "worker-1"
        assert story.task_states() == {"worker-0": "STOPPED", "worker-1": "FAILED"}

    def test_what_the_backend_found_out_is_kept(self) -> None:
        oom = Failure(Code.OUT_OF_MEMORY, "worker-0 ran out of memory: limit 1 GiB, peak 1 GiB")
        story = Story(a_gang()).running().hears(Exited("worker-0", 1, Exit(signal=9, failure=oom)))
        assert story.status.failure == Failure(Code.OUT_OF_MEMORY, oom.message, "worker-0")

    @pytest.mark.parametrize("needs_fetch", [True, False])
    def test_a_gang_that_cannot_start_leaves_nothing_behind(self, needs_fetch: bool) -> None:
        story = Story(pair(needs_fetch=needs_fetch)).deploying().hears(Provisioned())
        assert story.told_now(Undone(1, BROKEN)) == [Release(), Retire()]
        assert story.status.state is State.FAILED
        assert story.status.failure == BROKEN
        assert set(story.task_states().values()) == {"STOPPED"}

    def test_the_first_failure_is_the_one_reported(self) -> None:
        """A restart that cannot start afterwards does not hide why the job failed."""
        tasks = (a_task("worker-0", 0), a_task("worker-1", 1, restart=restarts()))
        story = Story(a_gang(tasks=tasks)).running().ends("worker-1", code=1).wakes()
        story.ends("worker-0", code=7).hears(Undone(2, BROKEN))
        assert story.status.failure == Failure(Code.EXIT_CODE, "worker-0 exited with code 7", "worker-0")

    def test_results_that_cannot_be_kept_fail_the_job(self) -> None:
        story = Story(a_gang()).running().ends("worker-0").hears(StoringFailed(Failure(Code.RESULTS, "disk")))
        assert states(story)[-2:] == ["STORING", "FAILED"]
        assert story.status.reason == "disk"


class TestALostStart:
    """The supervisor died before its tasks began: nobody's fault, so nobody pays for it."""

    def test_a_gang_queues_again_and_gives_its_place_back(self) -> None:
        story = Story(pair()).deploying().hears(Provisioned())
        assert story.told_now(Undone(1, LOST, temporary=True)) == [Release(), Enqueue()]
        assert story.status.state is State.QUEUED
        assert story.hears(story.place()).status.launch == 2

    def test_one_task_waits_and_starts_again_beside_those_that_run(self) -> None:
        story = Story(pair("on-failure")).running().ends("worker-1", code=1).wakes()
        story.hears(Provisioned(), Undone(2, LOST, temporary=True))
        assert story.status.state is State.RESTARTING
        assert story.task_states() == {"worker-0": "RUNNING", "worker-1": "BACKOFF"}
        story.restarts().ends("worker-0").ends("worker-1").hears(NOTHING)
        assert story.status.state is State.COMPLETED

    def test_a_task_that_had_succeeded_is_not_run_again(self) -> None:
        story = Story(pair("on-failure")).running().ends("worker-0").ends("worker-1", code=1).wakes()
        story.hears(Provisioned(), Undone(2, LOST, temporary=True))
        story.restarts()
        assert [i.tasks for i in story.instructions if isinstance(i, Launch)][-1] == ("worker-1",)

    def test_restarts_that_were_used_stay_used(self) -> None:
        one = a_gang(tasks=(a_task(restart=restarts(max=1)),))
        story = Story(one).running().ends("worker-0", code=1).wakes()
        story.hears(Provisioned(), Undone(2, LOST, temporary=True), story.place(), Provisioned())
        story.hears(story.launched()).ends("worker-0", code=1)
        assert story.status.state is State.FAILED
        assert story.status.restarts == 1


class TestRestarts:
    def run(self, policy: str, code: int | None = None, signal: int | None = None, **options: int) -> State:
        gang = a_gang(tasks=(a_task(restart=restarts(policy, **options)),))
        return Story(gang).running().ends("worker-0", code, signal).status.state

    @pytest.mark.parametrize(
        ("policy", "code", "signal", "then"),
        [
            ("never", 1, None, State.FAILED),
            ("never", None, 9, State.FAILED),
            ("never", 0, None, State.STORING),
            ("on-failure", 1, None, State.RESTARTING),
            ("on-failure", None, 9, State.RESTARTING),
            ("on-failure", 0, None, State.STORING),
            ("always", 0, None, State.RESTARTING),
            ("always", 1, None, State.RESTARTING),
            ("exit-code", 0, None, State.STORING),
            ("exit-code", 1, None, State.FAILED),
            ("exit-code", 127, None, State.FAILED),
            ("exit-code", 128, None, State.RESTARTING),
            ("exit-code", 143, None, State.RESTARTING),
            ("exit-code", None, 9, State.RESTARTING),
        ],
    )
    def test_the_policy_decides(self, policy: str, code: int | None, signal: int | None, then: State) -> None:
        assert self.run(policy, code, signal) is then

    def test_no_restart_is_left_at_zero(self) -> None:
        assert self.run("on-failure", 1, max=0) is State.FAILED
        assert self.run("always", 0, max=0) is State.STORING

    def test_waits_double_up_to_the_cap_and_then_it_fails(self) -> None:
        gang = a_gang(tasks=(a_task(restart=restarts(max=5, backoff=2, max_backoff=10)),))
        story = Story(gang).running()
        waits = []
        for _ in range(5):
            story.ends("worker-0", code=1)
            waits.append(next_wake(story.status, gang) - story.now)  # type: ignore[operator]
            story.restarts()
        story.ends("worker-0", code=1)
        assert waits == [2, 4, 8, 10, 10]
        assert story.status.state is State.FAILED
        assert story.status.reason == "worker-0 exited with code 1 after 5 restarts"
        assert (story.status.restarts, story.status.launch) == (5, 6)

    def test_only_the_failed_task_starts_again(self) -> None:
        story = Story(pair("on-failure")).running().ends("worker-1", code=1)
        assert story.status.reason == "worker-1 exited with code 1; restart 1 of at most 2"
        story.restarts()
        assert story.task_states() == {"worker-0": "RUNNING", "worker-1": "RUNNING"}
        assert [i for i in story.instructions if isinstance(i, Launch)][-1] == Launch(2, ("worker-1",))
        assert states(story)[-4:] == ["PROCESSING", "RESTARTING", "DEPLOYING", "PROCESSING"]

    def test_a_second_failure_during_the_first_restart_gets_its_own(self) -> None:
        story = Story(pair("on-failure")).running().ends("worker-1", code=1).wakes()
        story.ends("worker-0", code=1).hears(Provisioned(), story.launched())
        assert story.status.state is State.RESTARTING
        assert story.task_states() == {"worker-0": "BACKOFF", "worker-1": "RUNNING"}
        story.restarts()
        assert story.task_states() == {"worker-0": "RUNNING", "worker-1": "RUNNING"}
        assert story.status.state is State.PROCESSING

    def test_a_final_failure_during_anothers_restart_stops_both(self) -> None:
        tasks = (a_task("worker-0", 0), a_task("worker-1", 1, restart=restarts()))
        story = Story(a_gang(tasks=tasks)).running().ends("worker-1", code=1).wakes()
        story.ends("worker-0", code=9)
        assert story.told_now(Provisioned()) == [Release(), Retire()]
        assert story.status.state is State.FAILED

    def test_a_restart_that_cannot_start_fails_the_job_and_stops_the_rest(self) -> None:
        story = Story(pair("on-failure")).running().ends("worker-1", code=1).wakes().hears(Provisioned())
        assert story.told_now(Undone(2, BROKEN)) == [Stop(("worker-0",), 30.0)]
        assert story.ends("worker-0", signal=15).status.failure == BROKEN

    def test_waking_early_changes_nothing(self) -> None:
        story = Story(pair("on-failure")).running().ends("worker-1", code=1)
        before = story.status
        assert story.hears(Woke()).status is before


class TestLimitsOfTime:
    def test_a_deadline_stops_the_tasks_and_fails_the_job(self) -> None:
        story = Story(a_gang(deadline=60, grace=5)).running()
        assert next_wake(story.status, story.gang) == story.now + 60
        story.now += 60
        assert story.told_now(Woke()) == [Stop(("worker-0",), 5)]
        story.ends("worker-0", signal=15)
        assert story.status.failure == Failure(Code.DEADLINE, "ran longer than its deadline of 60 s")

    def test_a_deadline_counts_across_restarts_and_ends_a_backoff_at_once(self) -> None:
        gang = a_gang(tasks=(a_task(restart=restarts(backoff=100)),), deadline=60)
        story = Story(gang).running()
        story.now += 50
        story.ends("worker-0", code=1)
        assert next_wake(story.status, gang) == story.now + 10
        story.wakes()
        assert story.status.state is State.FAILED
        assert story.status.failure is not None
        assert story.status.failure.code is Code.DEADLINE

    def test_a_job_that_ends_in_time_is_not_late(self) -> None:
        story = Story(a_gang(deadline=60)).running().ends("worker-0")
        story.now += 100
        assert story.hears(Woke(), NOTHING).status.state is State.COMPLETED

    def test_waiting_too_long_fails_with_the_schedulers_reason(self) -> None:
        story = Story(a_gang(max_wait=30)).queued()
        story.now += 30
        assert story.told_now(Woke("needs 8 gpu; the node has 4")) == [Dequeue(), Release(), Retire()]
        message = "waited longer than maxWait (30 s) for a place: needs 8 gpu; the node has 4"
        assert story.status.failure == Failure(Code.UNSCHEDULABLE, message)

    def test_waiting_does_not_count_once_it_runs(self) -> None:
        story = Story(a_gang(max_wait=30)).running()
        story.now += 100
        assert story.hears(Woke()).status.state is State.PROCESSING


class TestHalt:
    @pytest.mark.parametrize("how", ["queued", "deploying", "downloading", "running"])
    def test_it_ends_halted_from_every_state(self, how: str) -> None:
        story = getattr(Story(pair(needs_fetch=True)), how)().hears(Asked(Desire.HALT))
        if how == "deploying":
            story.hears(Provisioned())
        if how == "downloading":
            story.hears(Fetched())
        if how == "running":
            story.ends("worker-0", signal=15).ends("worker-1", code=0)
        assert story.status.state is State.HALTED
        assert story.instructions[-2:] == [Release(), Retire()]
        assert (story.status.failure, story.status.finished) == (None, None)

    def test_one_that_no_person_asked_for_says_why_until_it_runs_again(self) -> None:
        story = Story(a_gang()).running().hears(Asked(Desire.HALT, why="nobody is there"))
        assert story.status.reason == "is being halted: nobody is there"
        story.ends("worker-0", signal=15)
        assert story.status.reason == "halted: nobody is there; checkpoints are kept"
        story.hears(Asked(Desire.RUN))
        assert (story.status.state, story.status.halted_for) == (State.QUEUED, None)

    def test_tasks_that_are_just_starting_are_stopped_once_they_run(self) -> None:
        story = Story(pair()).deploying().hears(Provisioned(), Asked(Desire.HALT))
        assert story.told_now(story.launched()) == [Stop(("worker-0", "worker-1"), 30.0)]

    @pytest.mark.parametrize(
        "wish", [Asked(Desire.HALT), Asked(Desire.CANCEL), Asked(Desire.DELETE), Preempted("big")]
    )
    def test_a_start_that_may_take_for_ever_is_told_at_once_that_it_need_not_go_on(self, wish: Event) -> None:
        story = Story(pair()).deploying().hears(Provisioned())
        assert story.told_now(wish) == [Stop((), 30.0)]
        story.hears(Undone(1, BROKEN))
        assert story.status.state not in (State.DEPLOYING, State.FAILED)

    def test_during_a_restart_the_tasks_that_run_are_stopped(self) -> None:
        """They used to run on for ever when the halt came between the restart's commit and its start."""
        story = Story(pair("on-failure")).running().ends("worker-1", code=1).wakes().hears(Asked(Desire.HALT))
        assert story.told_now(Provisioned()) == [Stop(("worker-0",), 30.0)]
        assert story.ends("worker-0", signal=15).status.state is State.HALTED

    def test_during_a_restart_that_cannot_start_the_tasks_that_run_are_stopped(self) -> None:
        story = Story(pair("on-failure")).running().ends("worker-1", code=1).wakes()
        story.hears(Provisioned(), Asked(Desire.HALT))
        assert story.told_now(Undone(2, BROKEN)) == [Stop(("worker-0",), 30.0)]
        assert story.ends("worker-0", signal=15).status.state is State.HALTED

    def test_in_backoff_there_is_nothing_to_wait_for(self) -> None:
        gang = a_gang(tasks=(a_task(restart=restarts()),))
        story = Story(gang).running().ends("worker-0", code=1).hears(Asked(Desire.HALT))
        assert story.status.state is State.HALTED
        assert story.task_states() == {"worker-0": "STOPPED"}

    def test_asking_twice_is_asking_once(self) -> None:
        story = Story(pair()).running().hears(Asked(Desire.HALT))
        assert story.told_now(Asked(Desire.HALT)) == []

    def test_a_job_about_to_complete_says_so(self) -> None:
        story = Story(a_gang()).running().ends("worker-0")
        with pytest.raises(Refused, match="storing its results and will be COMPLETED"):
            story.hears(Asked(Desire.HALT))

    def test_success_that_came_first_wins(self) -> None:
        story = Story(pair(chief_decides=True)).running().ends("worker-0").hears(Asked(Desire.HALT))
        story.ends("worker-1", signal=15).hears(NOTHING)
        assert (story.status.state, story.status.desire) == (State.COMPLETED, Desire.RUN)


class TestResume:
    def test_it_runs_again_in_the_same_job_under_a_new_launch(self) -> None:
        story = (
            Story(a_gang(needs_fetch=True)).running().hears(Asked(Desire.HALT)).ends("worker-0", signal=15)
        )
        story.hears(Asked(Desire.RUN), story.place(), Provisioned(), Fetched())
        story.hears(story.launched()).ends("worker-0").hears(NOTHING)
        assert [i.launch for i in story.instructions if isinstance(i, Launch)] == [1, 2]
        assert story.status.state is State.COMPLETED

    def test_a_failed_job_starts_with_fresh_counters(self) -> None:
        gang = a_gang(tasks=(a_task(restart=restarts(max=1)),))
        story = Story(gang).running().ends("worker-0", code=1).restarts().ends("worker-0", code=1)
        assert story.status.state is State.FAILED
        story.hears(Asked(Desire.RUN))
        assert story.status.state is State.QUEUED
        assert (story.status.failure, story.status.restarts, story.status.finished) == (None, 0, None)
        assert story.status.task("worker-0").restarts == 0
        assert story.status.launch == 2

    @pytest.mark.parametrize("how", ["queued", "deploying", "running"])
    def test_only_what_rests_can_be_resumed(self, how: str) -> None:
        with pytest.raises(Refused, match="only a HALTED or FAILED job can be resumed"):
            getattr(Story(a_gang()), how)().hears(Asked(Desire.RUN))

    def test_a_job_still_halting_says_so(self) -> None:
        story = Story(a_gang()).running().hears(Asked(Desire.HALT))
        with pytest.raises(Refused, match="still being halted"):
            story.hears(Asked(Desire.RUN))

    def test_late_news_of_the_run_before_changes_nothing(self) -> None:
        story = Story(a_gang()).running().hears(Asked(Desire.HALT))
        old_start, old_exit = story.exit("worker-0", code=1), story.exit("worker-0", signal=15)
        story.hears(old_exit, Asked(Desire.RUN), story.place(), Provisioned(), story.launched())
        before = story.status
        assert story.hears(old_start, old_exit, Undone(1, BROKEN)).status is before


class TestCancelAndDelete:
    @pytest.mark.parametrize("desire", [Desire.CANCEL, Desire.DELETE])
    @pytest.mark.parametrize("how", ["queued", "deploying", "downloading", "running", "storing", "halted"])
    def test_it_ends_cancelled_from_every_state(self, how: str, desire: Desire) -> None:
        story = Story(a_gang(needs_fetch=True))
        match how:
            case "storing":
                story.running().ends("worker-0")
            case "halted":
                story.queued().hears(Asked(Desire.HALT))
            case _:
                getattr(story, how)()
        if how == "halted" and desire is Desire.DELETE:
            assert story.told_now(Asked(desire)) == [Retire()]
            return
        story.hears(Asked(desire))
        match how:
            case "deploying":
                story.hears(Provisioned())
            case "downloading":
                story.hears(Fetched())
            case "running":
                story.ends("worker-0", signal=15)
            case "storing":
                story.hears(NOTHING)
        assert story.status.state is State.CANCELLED
        assert story.status.desire is desire
        assert story.instructions[-2:] == [Release(), Retire()]

    def test_cancel_overrides_halt(self) -> None:
        story = Story(a_gang()).running().hears(Asked(Desire.HALT), Asked(Desire.CANCEL))
        assert story.ends("worker-0", signal=15).status.state is State.CANCELLED

    def test_cancel_does_not_take_a_delete_back(self) -> None:
        story = Story(a_gang()).running().hears(Asked(Desire.DELETE), Asked(Desire.CANCEL))
        assert story.status.desire is Desire.DELETE

    def test_halt_does_not_take_a_cancel_back(self) -> None:
        story = Story(a_gang()).running().hears(Asked(Desire.CANCEL))
        with pytest.raises(Refused, match="being cancelled already"):
            story.hears(Asked(Desire.HALT))

    def test_a_delete_is_kept_when_the_results_cannot_be(self) -> None:
        story = Story(a_gang()).running().ends("worker-0").hears(Asked(Desire.DELETE))
        story.hears(StoringFailed(Failure(Code.RESULTS, "disk")))
        assert (story.status.state, story.status.desire) == (State.CANCELLED, Desire.DELETE)

    @pytest.mark.parametrize("desire", [Desire.HALT, Desire.CANCEL])
    def test_a_finished_job_stays_finished(self, desire: Desire) -> None:
        story = Story(a_gang()).running().ends("worker-0").hears(NOTHING)
        with pytest.raises(Refused, match="is COMPLETED already"):
            story.hears(Asked(desire))
        assert story.status.task("worker-0").state is TaskState.SUCCEEDED


def test_what_happened_while_no_server_was_there_keeps_its_own_time() -> None:
    gang = a_gang(a_request(1))
    status = submitted(gang)
    for event in (Admitted(), Placed((Binding(gang.tasks[0].name, "n"),)), Provisioned()):
        status = advance(status, event, gang, now=10.0).status
    status = advance(status, Launched(1, ((gang.tasks[0].name, 7),), time=11.0), gang, now=50.0).status
    status = advance(status, Exited(gang.tasks[0].name, 1, Exit(code=0), time=12.0), gang, now=50.0).status
    assert (status.started, status.tasks[0].started, status.tasks[0].finished) == (11.0, 11.0, 12.0)


class TestAStartThatDoesNotGetOn:
    def test_why_is_told_once_and_forgotten_when_it_has_started(self) -> None:
        story = Story(a_gang()).deploying().hears(Provisioned())
        before = story.status
        outcome = advance(before, Hindered(1, "its image is slow to come"), story.gang, story.now)
        assert outcome.status.reason == outcome.cause == "its image is slow to come"
        assert outcome.status.state is State.DEPLOYING
        assert not outcome.instructions
        story.hears(Hindered(1, "its image is slow to come"))
        again = advance(story.status, Hindered(1, "its image is slow to come"), story.gang, story.now)
        assert again.status is story.status, "the same words are no news"
        assert story.hears(story.launched()).status.reason is None

    def test_of_an_earlier_start_or_a_job_that_is_to_end_nothing_is_told(self) -> None:
        story = Story(a_gang()).deploying().hears(Provisioned())
        assert story.hears(Hindered(7, "old")).status.reason != "old"
        story.hears(Asked(Desire.CANCEL), Hindered(1, "late"))
        assert story.status.reason != "late"


class TestALostTask:
    """What was lost with its node, or taken away, is replaced; what starts again with it waits for it."""

    def together(self, count: int = 2, **more: object) -> Gang:
        scope = restarts("never", scope=Scope.GANG)
        tasks = tuple(a_task(f"worker-{i}", i, restart=scope, chief=i == 0) for i in range(count))
        return a_gang(tasks=tasks, **more)  # type: ignore[arg-type]

    def test_its_partners_stop_and_start_again_with_it_in_one_launch(self) -> None:
        """On a cluster the pods of a launch wait for each other: two launches would wait for ever."""
        story = Story(self.together()).running()
        assert story.told_now(Lost(("worker-1",), "node-0"))[0] == Stop(("worker-0",), PARTNERS_GRACE)
        assert story.told_now(Joined((Binding("worker-1", "node-1"),))) == []
        assert story.status.state is State.RESTARTING
        story.ends("worker-0", signal=15)
        assert story.wakes().status.state is State.DEPLOYING
        launches = [each for each in story.told_now(Provisioned()) if isinstance(each, Launch)]
        assert launches == [Launch(2, ("worker-0", "worker-1"))]
        story.hears(story.launched())
        assert story.status.state is State.PROCESSING
        assert story.status.restarts == 0

    def test_its_partners_wait_until_it_has_a_place(self) -> None:
        story = Story(self.together()).running().hears(Lost(("worker-1",), "node-0"))
        story.ends("worker-0", signal=15)
        assert next_wake(story.status, story.gang) is None
        story.now += 60
        assert story.told_now(Woke()) == []
        assert story.status.state is State.RESTARTING
        story.hears(Joined((Binding("worker-1", "node-1"),)))
        launches = [each for each in story.wakes().told_now(Provisioned()) if isinstance(each, Launch)]
        assert launches == [Launch(2, ("worker-0", "worker-1"))]

    def test_what_starts_again_alone_does_not_wait(self) -> None:
        story = Story(pair()).running().hears(Lost(("worker-1",), "node-0"))
        assert story.task_states() == {"worker-0": "RUNNING", "worker-1": "LOST"}
        told = story.told_now(Joined((Binding("worker-1", "node-1"),)), Provisioned())
        assert told == [Provision(), Launch(2, ("worker-1",))]

    @pytest.mark.parametrize("by_restart", [True, False])
    def test_an_elastic_job_that_can_do_without_it_goes_on_smaller(self, by_restart: bool) -> None:
        gang = replace(an_elastic_gang(1, 3, 3), restart_to_resize=by_restart)
        story = Story(gang).running()
        told = story.told_now(Lost(("worker-2",), "node-0"))
        assert ReleaseTasks(("worker-2",)) in told
        assert story.status.reason == "worker-2 lost with node node-0; goes on with 2 tasks"
        assert story.task_states()["worker-2"] == "WAITING"
        if not by_restart:
            assert story.status.state is State.PROCESSING
            return
        story.ends("worker-0", signal=15).ends("worker-1", signal=15)
        launches = [each for each in story.wakes().told_now(Provisioned()) if isinstance(each, Launch)]
        assert launches == [Launch(2, ("worker-0", "worker-1"))]

    @pytest.mark.parametrize("gone", [("worker-0",), ("worker-1", "worker-2")])
    def test_one_that_cannot_waits_for_a_replacement(self, gone: tuple[str, ...]) -> None:
        """Its chief, or more than it can spare."""
        story = Story(an_elastic_gang(2, 3, 3)).running()
        assert ReleaseTasks(gone, replace=True) in story.told_now(Lost(gone, "node-0"))
        assert all(story.task_states()[name] == "LOST" for name in gone)

    def test_who_has_succeeded_does_no_work_for_it(self) -> None:
        story = Story(an_elastic_gang(1, 2, 2)).running().ends("worker-0")
        assert ReleaseTasks(("worker-1",), replace=True) in story.told_now(Lost(("worker-1",), "node-1"))

    def test_nor_does_who_is_leaving(self) -> None:
        story = Story(an_elastic_gang(2, 3, 3)).running().hears(Shrunk(("worker-2",), "urgent"))
        assert ReleaseTasks(("worker-1",), replace=True) in story.told_now(Lost(("worker-1",), "node-1"))

    def test_those_that_are_left_are_told(self) -> None:
        """Or nobody would read the share of the one that is gone."""
        story = Story(an_elastic_gang(1, 3, 3)).running()
        assert Regroup() in story.told_now(Lost(("worker-2",), "node-1"))

    def test_a_partner_that_ends_before_a_launch_starts_with_it(self) -> None:
        scope = restarts("on-failure", max=3, backoff=1.0, scope=Scope.GANG)
        gang = an_elastic_gang(1, 2, 3)
        gang = replace(gang, tasks=tuple(replace(task, restart=scope) for task in gang.tasks))
        two = Placed(tuple(Binding(name, "node-0") for name in ("worker-0", "worker-1")))
        story = Story(gang).queued().hears(two, Provisioned())
        story.hears(story.launched(), Joined((Binding("worker-2", "node-1"),)))
        assert story.status.state is State.DEPLOYING
        story.ends("worker-1", 1)
        assert story.told_now(Provisioned()) == []
        assert story.task_states()["worker-2"] == "BACKOFF"
        story.ends("worker-0", signal=15)
        launches = [each for each in story.wakes().told_now(Provisioned()) if isinstance(each, Launch)]
        assert [launch.tasks for launch in launches] == [("worker-0", "worker-1", "worker-2")]


class TestATaskThatLeaves:
    def test_before_it_started_again_it_does_not_start(self) -> None:
        gang = an_elastic_gang(1, 3, 3)
        restart = restarts("on-failure", max=3, backoff=1.0)
        tasks = tuple(replace(task, restart=restart) for task in gang.tasks)
        story = Story(replace(gang, tasks=tasks, restart_to_resize=True)).running().ends("worker-2", 1)
        story.wakes().hears(Provisioned(), Shrunk(("worker-2",), "urgent"))
        undone = Undone(story.status.launch, Failure(Code.SUPERVISOR_LOST, "it vanished"), temporary=True)
        assert ReleaseTasks(("worker-2",)) in story.told_now(undone)
        story.ends("worker-0", signal=15).ends("worker-1", signal=15)
        launches = [each for each in story.wakes().told_now(Provisioned()) if isinstance(each, Launch)]
        assert [launch.tasks for launch in launches] == [("worker-0", "worker-1")]

    def test_if_all_others_have_succeeded_that_was_all(self) -> None:
        gang = an_elastic_gang(1, 2, 2)
        restart = restarts("on-failure", max=3, backoff=60.0)
        tasks = tuple(replace(task, restart=restart) for task in gang.tasks)
        story = Story(replace(gang, tasks=tasks)).running().ends("worker-1", 1).ends("worker-0")
        assert story.status.state is State.RESTARTING
        assert story.hears(Shrunk(("worker-1",), "urgent")).status.state is State.STORING


class TestCodes:
    """What is wrong is a word for programs beside the sentence, for as long as the sentence holds."""

    def test_what_hinders_a_start(self) -> None:
        story = Story(a_gang()).deploying().hears(Provisioned())
        story.hears(Hindered(1, "worker-0: image x cannot be pulled", Code.IMAGE_PULL))
        assert story.status.reason_code is Code.IMAGE_PULL
        assert b'"reasonCode":"IMAGE_PULL"' in story.status.dump()
        assert story.hears(story.launched()).status.reason_code is None

    def test_who_takes_a_task_away_and_that_it_is_gone(self) -> None:
        story = Story(a_gang()).running()
        story.hears(Disturbed("worker-0", 1, "preempting to accommodate another", Code.PREEMPTED))
        assert story.status.reason_code is Code.PREEMPTED
        assert story.hears(Lost(("worker-0",), "node-0")).status.reason_code is Code.NODE_LOST
        evicted = Lost(("worker-0",), "node-0", "evicted", Code.EVICTED)
        assert Story(a_gang()).running().hears(evicted).status.reason_code is Code.EVICTED

    def test_giving_way_and_waiting_again(self) -> None:
        story = Story(a_gang()).running().hears(Preempted("other"))
        assert story.status.reason_code is Code.PREEMPTED
        story.ends("worker-0", 1)
        assert (story.status.state, story.status.reason_code) == (State.PREEMPTED, Code.PREEMPTED)
        assert story.hears(Admitted()).status.reason_code is None

    def test_restarts_and_the_end(self) -> None:
        story = Story(pair("on-failure")).running().ends("worker-0", 3)
        assert (story.status.state, story.status.reason_code) == (State.RESTARTING, Code.EXIT_CODE)
        broken = Story(a_gang()).running().ends("worker-0", 3)
        assert (broken.status.state, broken.status.reason_code) == (State.FAILED, Code.EXIT_CODE)

    def test_a_start_that_is_tried_again_is_told_with_its_code_in_the_history(self) -> None:
        story = Story(a_gang()).deploying().hears(Provisioned())
        full = Failure(Code.CANNOT_START, "worker-0: node n did not take it", "worker-0")
        outcome = advance(story.status, Undone(1, full, temporary=True), story.gang, story.now)
        assert (outcome.code, outcome.status.state) == (Code.CANNOT_START, State.QUEUED)
        assert outcome.status.reason_code is None
