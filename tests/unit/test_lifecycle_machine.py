"""The state machine against a world that answers, crashes, repeats itself and is late, in any order."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)

from support.builders import a_gang, a_task, restarts
from weft.model.events import (
    Admitted,
    Asked,
    Event,
    Exited,
    Fetched,
    Joined,
    Launched,
    Lost,
    Placed,
    Preempted,
    Provisioned,
    ResultsStored,
    Shrunk,
    StoringFailed,
    Undone,
    Woke,
)
from weft.model.failures import Code, Failure
from weft.model.gang import Gang, Span
from weft.model.instructions import (
    Dequeue,
    Enqueue,
    Fetch,
    Launch,
    Provision,
    Readmit,
    Regroup,
    Release,
    ReleaseTasks,
    Retire,
    Stop,
    Store,
)
from weft.model.job import Scope
from weft.model.lifecycle import EDGES, Refused, advance, next_wake, submitted
from weft.model.status import Binding, Desire, Exit, State, Stored, TaskState

BROKEN = Failure(Code.CANNOT_START, "it broke")
EXITS = [
    Exit(code=0),
    Exit(code=0),
    Exit(code=1),
    Exit(code=130),
    Exit(signal=9),
    Exit(failure=BROKEN),
]
STARTS = ["begins", "begins", "begins", "cannot", "supervisor dies"]
DESIRES = [Desire.HALT, Desire.HALT, Desire.RUN, Desire.RUN, Desire.CANCEL, Desire.DELETE]
SECONDS = [0.0, 0.5, 1.0, 4.0, 20.0]
PICKS = st.integers(0, 99)


@st.composite
def gangs(draw: Any) -> Gang:
    count = draw(st.integers(1, 4))
    policies = st.sampled_from(["never", "on-failure", "always", "exit-code"])
    scope = draw(st.sampled_from([None, *Scope]))
    tasks = tuple(
        a_task(
            f"worker-{i}",
            i,
            restart=restarts(
                draw(policies),
                max=draw(st.integers(0, 2)),
                backoff=draw(st.sampled_from([0, 1, 5])),
                scope=scope,
            ),
            service=i > 0 and draw(st.booleans()),
            chief=i == 0,
        )
        for i in range(count)
    )
    gang = a_gang(
        tasks=tasks,
        chief_decides=draw(st.booleans()),
        deadline=draw(st.sampled_from([None, 10.0])),
        max_wait=draw(st.sampled_from([None, 5.0])),
        needs_fetch=draw(st.booleans()),
    )
    if count > 1 and draw(st.booleans()) and not any(task.service for task in tasks):
        least = draw(st.integers(1, count - 1))
        spans = (Span("worker", least, draw(st.integers(least, count)), count),)
        gang = replace(gang, spans=spans, restart_to_resize=draw(st.booleans()))
    return gang


@dataclass
class LaunchRecord:
    """What the machine knows of a launch: ordered, then begun or undone."""

    tasks: tuple[str, ...]
    begun: bool = False
    undone: bool = False
    running: set[str] = field(default_factory=set)
    told_to_stop: set[str] = field(default_factory=set)
    world: set[str] = field(default_factory=set)
    """The tasks that these were told of as their partners."""

    @property
    def open(self) -> bool:
        return not self.begun and not self.undone


class Lifecycle(RuleBasedStateMachine):
    @initialize(gang=gangs())
    def submit(self, gang: Gang) -> None:
        self.gang = gang
        self.now = 1000.0
        self.status = submitted(gang)
        self.queued = self.provisioning = self.fetching = self.storing = False
        self.held: set[str] = set()
        """The tasks that have a place, as the scheduler's books have it."""
        self.group: set[str] = set()
        """Of whom those that run were last told."""
        self.retired = False
        self.halt_asked_while_running = False
        self.launches: dict[int, LaunchRecord] = {}
        self.told: list[Event] = []
        self.story = [State.PENDING]
        self.happens(Admitted())

    # ── one step ──

    def happens(self, event: Event) -> None:
        before = self.status
        outcome = advance(before, event, self.gang, self.now)
        self.status = outcome.status
        if self.status.state is not before.state:
            assert self.status.state in EDGES[before.state]
            self.story.append(self.status.state)
        assert self.status.launch >= before.launch
        assert self.status.launch - before.launch <= 1
        for instruction in outcome.instructions:
            self.obey(instruction)

    def obey(self, instruction: Any) -> None:
        match instruction:
            case Enqueue():
                assert not self.queued
                self.queued = True
            case Dequeue():
                self.queued = False
            case Provision():
                assert not self.provisioning
                self.provisioning = True
            case Fetch():
                assert not self.fetching
                self.fetching = True
            case Launch(number, tasks):
                assert tasks, "a launch of nothing"
                record = self.launches.setdefault(number, LaunchRecord(tasks))
                assert record.open, "a launch that has begun is ordered again"
                assert not self.processes() & set(tasks), "a task would run twice"
                for name in tasks:
                    others = self.gang.together(self.gang.task(name)) - {*tasks}
                    for other in (self.status.task(each) for each in others):
                        late = other.state in (TaskState.LOST, TaskState.BACKOFF) or other.again
                        assert not late, f"{name} starts, and would wait for {other.name} that does not"
                record.world = self.group = self.staying()
            case Regroup():
                self.group = self.staying()
            case Stop(tasks, _):
                if tasks and not self.staying() & {*tasks}:
                    self.group = self.staying()
                for record in self.launches.values():
                    record.told_to_stop |= record.running & set(tasks)
            case Release():
                self.held.clear()
            case ReleaseTasks(tasks, _):
                assert tasks, "a release of nothing"
                assert self.held >= set(tasks), "a place is given back twice"
                self.held -= set(tasks)
            case Readmit():
                assert not self.processes()
                self.happens(Admitted())
            case Store():
                assert not self.storing
                self.storing = True
            case Retire():
                self.retired = True

    def staying(self) -> set[str]:
        return {t.name for t in self.status.tasks if t.binding is not None and not t.leaving}

    def processes(self) -> set[str]:
        return {task for record in self.launches.values() for task in record.running}

    def tell(self, event: Event) -> None:
        self.told.append(event)
        self.happens(event)

    def open_launch(self) -> int | None:
        return next((number for number, record in self.launches.items() if record.open), None)

    # ── what can happen ──

    @precondition(lambda self: self.queued)
    @rule()
    def scheduler_places_it(self) -> None:
        assert not self.held
        self.queued = False
        self.held = {task.name for task in self.gang.preferred}
        self.retired = False
        self.happens(Placed(tuple(Binding(task.name, "node-0") for task in self.gang.preferred)))
        assert self.status.state is State.DEPLOYING

    @precondition(lambda self: bool(self.held))
    @rule()
    def the_scheduler_wants_its_room(self) -> None:
        self.happens(Preempted("urgent"))

    @precondition(lambda self: self.spare())
    @rule(pick=PICKS)
    def the_scheduler_wants_a_task_less(self, pick: int) -> None:
        spare = self.spare()
        self.happens(Shrunk((spare[pick % len(spare)],), "urgent"))

    def spare(self) -> list[str]:
        if not self.gang.spans or self.status.state.idle:
            return []
        staying = sorted(t.name for t in self.status.tasks if t.name in self.held and not t.leaving)
        return staying[self.gang.spans[0].minimum :]

    @precondition(lambda self: self.wanted())
    @rule()
    def the_scheduler_finds_more_room(self) -> None:
        joining = self.wanted()
        self.held |= set(joining)
        self.happens(Joined(tuple(Binding(name, "node-1") for name in joining)))

    def wanted(self) -> list[str]:
        """Lost tasks to be replaced, else those that an elastic job may grow by."""
        if not self.held and not any(t.state is TaskState.LOST for t in self.status.tasks):
            return []
        lost = [t.name for t in self.status.tasks if t.state is TaskState.LOST and t.name not in self.held]
        idle = [t.name for t in self.status.tasks if t.state is TaskState.WAITING and t.name not in self.held]
        return lost or idle

    @precondition(lambda self: bool(self.processes()))
    @rule(pick=PICKS)
    def a_node_is_lost(self, pick: int) -> None:
        running = sorted(self.processes())
        task = running[pick % len(running)]
        for record in self.launches.values():
            record.running.discard(task)
        self.happens(Lost((task,), "node-0"))

    @precondition(lambda self: self.provisioning)
    @rule(works=st.booleans())
    def folders_are_made(self, works: bool) -> None:
        self.provisioning = False
        self.happens(Provisioned() if works else Undone(self.status.launch, BROKEN))

    @precondition(lambda self: self.fetching)
    @rule(works=st.booleans())
    def code_is_fetched(self, works: bool) -> None:
        self.fetching = False
        self.happens(Fetched() if works else Undone(self.status.launch, BROKEN))

    @precondition(lambda self: self.open_launch() is not None)
    @rule(how=st.sampled_from(STARTS))
    def launch_goes_on(self, how: str) -> None:
        number = self.open_launch()
        assert number is not None
        record = self.launches[number]
        if how == "begins":
            assert not self.processes() & set(record.tasks)
            record.begun = True
            record.running = set(record.tasks)
            self.tell(Launched(number, tuple((task, 100 + i) for i, task in enumerate(record.tasks))))
        else:
            record.undone = True
            self.tell(Undone(number, BROKEN, temporary=how == "supervisor dies"))

    @precondition(lambda self: bool(self.processes()))
    @rule(pick=PICKS, exit=st.sampled_from(EXITS))
    def a_process_ends(self, pick: int, exit: Exit) -> None:
        running = sorted(self.processes())
        task = running[pick % len(running)]
        number = next(n for n, record in self.launches.items() if task in record.running)
        self.launches[number].running.discard(task)
        self.tell(Exited(task, number, exit))

    @precondition(lambda self: bool(self.told))
    @rule(pick=PICKS)
    def something_is_heard_again(self, pick: int) -> None:
        """Of any launch, however old: it changes nothing."""
        before = self.status
        self.happens(self.told[pick % len(self.told)])
        assert self.status == before

    @precondition(lambda self: self.storing)
    @rule(works=st.booleans())
    def results_are_stored(self, works: bool) -> None:
        self.storing = False
        self.happens(ResultsStored(Stored(1, 2)) if works else StoringFailed(BROKEN))

    @rule(desire=st.sampled_from(DESIRES))
    def a_person_asks(self, desire: Desire) -> None:
        before = self.status
        try:
            self.happens(Asked(desire))
        except Refused:
            refused = True
        else:
            refused = False
        if refused:
            assert self.status is before
            return
        if desire is Desire.RUN:
            assert before.state in (State.HALTED, State.FAILED)
            assert self.status.state is State.QUEUED

    @precondition(lambda self: not self.status.state.idle)
    @rule(seconds=st.sampled_from(SECONDS))
    def time_passes(self, seconds: float) -> None:
        wake = next_wake(self.status, self.gang)
        self.now += seconds
        if wake is not None and wake <= self.now:
            self.happens(Woke("no room"))
            later = next_wake(self.status, self.gang)
            assert later is None or later > self.now or later != wake, "it would wake for ever"

    @precondition(lambda self: not self.status.state.idle)
    @rule()
    def the_server_is_killed_and_restarted(self) -> None:
        """As `control.recovery` goes on: what was under way and not begun is ordered again."""
        self.provisioning = self.fetching = self.storing = False
        begun = any(record.begun and n == self.status.launch for n, record in self.launches.items())
        undone = any(record.undone and n == self.status.launch for n, record in self.launches.items())
        starting = any(t.state is TaskState.STARTING for t in self.status.tasks)
        if not begun and not undone and starting:
            self.provisioning = self.status.state is State.DEPLOYING
            self.fetching = self.status.state is State.DOWNLOADING
            self.launches.pop(self.status.launch, None)
        self.storing = self.status.state is State.STORING

    # ── what always holds ──

    @invariant()
    def the_status_tells_the_truth_about_processes(self) -> None:
        if not hasattr(self, "status"):
            return
        running = {t.name for t in self.status.tasks if t.state is TaskState.RUNNING}
        assert running == self.processes()
        if self.status.state.idle:
            assert not self.processes()
            assert self.open_launch() is None, "something may still start"

    @invariant()
    def the_place_is_held_exactly_while_it_is_needed(self) -> None:
        if hasattr(self, "status"):
            placed = {task.name for task in self.status.tasks if task.binding is not None}
            waiting = self.status.state in (State.PENDING, State.QUEUED)
            assert self.held == (set() if waiting or self.status.state.idle else placed)
            assert self.queued == (self.status.state is State.QUEUED)

    @invariant()
    def a_job_that_ends_stops_what_runs(self) -> None:
        if not hasattr(self, "status"):
            return
        ending = self.status.desire is not Desire.RUN or self.status.succeeded or self.status.failure
        ending = ending or self.status.giving_way
        told = {task for record in self.launches.values() for task in record.told_to_stop}
        leaving = {t.name for t in self.status.tasks if t.leaving and t.state is TaskState.RUNNING}
        assert leaving <= told
        under_way = self.provisioning or self.fetching or self.open_launch() is not None
        if ending and not under_way and not self.status.state.idle:
            for record in self.launches.values():
                assert record.running <= record.told_to_stop

    @invariant()
    def a_gang_that_restarts_to_resize_has_one_size(self) -> None:
        """Whoever runs, and is not on the way out, was started when the gang was as large as it is now."""
        if not hasattr(self, "status") or not self.gang.restart_to_resize:
            return
        if self.status.state is State.PROCESSING and not any(t.leaving for t in self.status.tasks):
            placed = {t.name for t in self.status.tasks if t.binding is not None}
            for record in self.launches.values():
                assert not record.running or record.world == placed

    @invariant()
    def whoever_runs_in_an_elastic_gang_knows_who_is_left(self) -> None:
        if hasattr(self, "status") and self.gang.spans and self.status.state is State.PROCESSING:
            assert self.group == self.staying()

    @invariant()
    def an_end_has_its_reason(self) -> None:
        if not hasattr(self, "status"):
            return
        status = self.status
        assert status.state.idle == (self.retired and not self.queued and status.state.idle)
        if status.state is State.FAILED:
            assert status.failure is not None
            assert status.reason == status.failure.message
        if status.state in (State.COMPLETED, State.HALTED, State.CANCELLED):
            assert status.failure is None
        assert (status.finished is not None) == status.state.finished

    @invariant()
    def nobody_restarts_more_often_than_granted(self) -> None:
        if hasattr(self, "status"):
            for task in self.status.tasks:
                assert task.restarts <= self.gang.task(task.name).restart.max

    def teardown(self) -> None:
        """Whatever state the story stopped in: with answers, every job comes to its end."""
        if not hasattr(self, "status"):
            return
        halting = self.status.desire is Desire.HALT and not self.status.succeeded
        for _ in range(200):
            if self.status.state.idle:
                break
            if self.queued:
                self.scheduler_places_it()
            elif self.provisioning:
                self.folders_are_made(works=True)
            elif self.fetching:
                self.code_is_fetched(works=True)
            elif self.open_launch() is not None:
                self.launch_goes_on(how="begins")
            elif self.storing:
                self.results_are_stored(works=True)
            elif self.processes():
                task = sorted(self.processes())[0]
                number = next(n for n, record in self.launches.items() if task in record.running)
                self.launches[number].running.discard(task)
                self.tell(Exited(task, number, Exit(code=0)))
            elif any(t.state is TaskState.LOST for t in self.status.tasks) and self.wanted():
                self.the_scheduler_finds_more_room()
            else:
                wake = next_wake(self.status, self.gang)
                assert wake is not None, f"stuck in {self.status}"
                self.now = max(self.now, wake)
                self.happens(Woke())
        assert self.status.state.idle, f"never ends: {self.story}"
        if halting:
            assert self.status.state is State.HALTED


TestLifecycle = Lifecycle.TestCase
TestLifecycle.settings = settings(max_examples=settings().max_examples // 2, stateful_step_count=40)


def walk(gang: Gang, seed: int, steps: int) -> None:
    """The same machine at many times the speed: every step a likely one, persons asking now and then."""
    random = Random(seed)
    job = Lifecycle()
    job.submit(gang)
    for _ in range(steps):
        likely: list[Callable[[], None]] = []
        if job.queued:
            likely.append(job.scheduler_places_it)
        if job.provisioning:
            likely.append(lambda: job.folders_are_made(works=random.random() < 0.95))
        if job.fetching:
            likely.append(lambda: job.code_is_fetched(works=random.random() < 0.95))
        if job.open_launch() is not None:
            likely.append(lambda: job.launch_goes_on(how=random.choice(STARTS)))
        if job.storing:
            likely.append(lambda: job.results_are_stored(works=random.random() < 0.8))
        if job.processes():
            likely.append(lambda: job.a_process_ends(pick=random.randrange(99), exit=random.choice(EXITS)))
            if random.random() < 0.3:
                likely.append(lambda: job.a_node_is_lost(pick=random.randrange(99)))
        if job.held and random.random() < 0.2:
            likely.append(job.the_scheduler_wants_its_room)
        if job.spare():
            likely.append(lambda: job.the_scheduler_wants_a_task_less(pick=random.randrange(99)))
        if job.wanted():
            likely.append(job.the_scheduler_finds_more_room)
        if job.told:
            likely.append(lambda: job.something_is_heard_again(pick=random.randrange(99)))
        if not job.status.state.idle:
            likely.append(lambda: job.time_passes(seconds=random.choice(SECONDS)))
            likely.append(job.the_server_is_killed_and_restarted)
        if random.random() < 0.2 or not likely:
            likely = [lambda: job.a_person_asks(desire=random.choice(DESIRES))]
        random.choice(likely)()
        job.the_status_tells_the_truth_about_processes()
        job.the_place_is_held_exactly_while_it_is_needed()
        job.a_job_that_ends_stops_what_runs()
        job.a_gang_that_restarts_to_resize_has_one_size()
        job.an_end_has_its_reason()
        job.nobody_restarts_more_often_than_granted()
    job.teardown()


@given(gang=gangs(), seed=st.integers(0, 2**32))
@settings(max_examples=settings().max_examples * 10)
def test_every_walk_through_the_states_keeps_the_promises_and_ends(gang: Gang, seed: int) -> None:
    walk(gang, seed, steps=40)
