"""The one state machine of every job: event in, new status and instructions out, no I/O.

`EDGES` is the whole map of states. `advance` takes a status and an event and gives the next status and
what must now be done; the guardian writes the one and carries out the other. Every event may arrive
twice or late (a crash replays them), so a handler that no longer applies changes nothing.
"""

from __future__ import annotations

import signal
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from weft.model.changed import changed
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
    Scaled,
    Shrunk,
    StoringFailed,
    Undone,
    Woke,
)
from weft.model.failures import Code, Failure
from weft.model.gang import Gang, Task
from weft.model.instructions import (
    Dequeue,
    Enqueue,
    Fetch,
    Instruction,
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
from weft.model.status import Desire, Exit, JobStatus, State, TaskState, TaskStatus
from weft.model.words import few

S = State

PARTNERS_GRACE = 0.3
"""Seconds from SIGTERM to SIGKILL, at most, for tasks that start again because a partner failed. Most of them wait in a
collective operation for one that is gone and could not hear the signal in any grace; all go back to a checkpoint."""

EDGES: dict[State, frozenset[State]] = {
    S.PENDING: frozenset({S.QUEUED, S.FAILED, S.HALTED, S.CANCELLED}),
    S.QUEUED: frozenset({S.DEPLOYING, S.FAILED, S.HALTED, S.CANCELLED}),
    S.DEPLOYING: frozenset(
        {
            S.DOWNLOADING,
            S.PROCESSING,
            S.RESTARTING,
            S.STORING,
            S.PREEMPTED,
            S.QUEUED,
            S.FAILED,
            S.HALTED,
            S.CANCELLED,
        }
    ),
    S.DOWNLOADING: frozenset(
        {S.PROCESSING, S.RESTARTING, S.STORING, S.PREEMPTED, S.QUEUED, S.FAILED, S.HALTED, S.CANCELLED}
    ),
    S.PROCESSING: frozenset(
        {S.DEPLOYING, S.STORING, S.RESTARTING, S.PREEMPTED, S.FAILED, S.HALTED, S.CANCELLED}
    ),
    S.RESTARTING: frozenset(
        {S.DEPLOYING, S.PROCESSING, S.QUEUED, S.PREEMPTED, S.STORING, S.FAILED, S.HALTED, S.CANCELLED}
    ),
    S.PREEMPTED: frozenset({S.QUEUED, S.FAILED, S.HALTED, S.CANCELLED}),
    S.STORING: frozenset({S.COMPLETED, S.FAILED, S.CANCELLED}),
    S.HALTED: frozenset({S.QUEUED, S.CANCELLED}),
    S.FAILED: frozenset({S.QUEUED}),
    S.COMPLETED: frozenset(),
    S.CANCELLED: frozenset(),
}


class Refused(Exception):
    """What was asked does not fit the job's state."""


@dataclass(frozen=True)
class Outcome:
    status: JobStatus
    instructions: tuple[Instruction, ...] = ()
    cause: str = ""
    """For the history: what led here, in a few words."""
    code: Code | None = None
    """The same for programs, where something is wrong; it goes with the status's reason."""


def submitted(gang: Gang) -> JobStatus:
    return JobStatus(State.PENDING, tuple(TaskStatus(task.name) for task in gang.tasks))


def advance(status: JobStatus, event: Event, gang: Gang, now: float) -> Outcome:
    """The next status and what to do. Pure; an event that no longer applies changes nothing."""
    outcome = _HANDLERS[type(event)](status, event, gang, now)
    before, after = status.state, outcome.status.state
    assert before is after or after in EDGES[before], f"{before} → {after} is not in the table ({event})"
    if outcome.status.progress is not None and after is not S.DOWNLOADING:
        outcome = replace(outcome, status=changed(outcome.status, progress=None))
    return _coded(outcome, status.reason)


def _coded(outcome: Outcome, reason: str | None) -> Outcome:
    """A code stays for as long as its sentence does."""
    now = outcome.status
    if now.reason == reason and outcome.code is None:
        return outcome
    code = outcome.code if now.reason is not None else None
    return outcome if now.reason_code is code else replace(outcome, status=changed(now, reason_code=code))


def _unchanged(status: JobStatus) -> Outcome:
    return Outcome(status)


# ── from the queue to running ────────────────────────────────────────────────────────────────────


def _admitted(status: JobStatus, event: Admitted, gang: Gang, now: float) -> Outcome:
    if status.state is S.PREEMPTED:
        return _enqueue(status, gang, now, "waits for its turn again")
    if status.state is not S.PENDING:
        return _unchanged(status)
    return _enqueue(status, gang, now, "admitted")


def _enqueue(status: JobStatus, gang: Gang, now: float, cause: str) -> Outcome:
    queued = changed(status, state=S.QUEUED, queued=now, reason=None)
    return Outcome(queued, (Enqueue(),), cause)


def _placed(status: JobStatus, event: Placed, gang: Gang, now: float) -> Outcome:
    if status.state is not S.QUEUED:
        return _unchanged(status)
    launch = status.launch + 1
    places = {binding.task: binding for binding in event.bindings}
    tasks = tuple(
        changed(
            task, state=TaskState.STARTING, binding=places[task.name], launch=launch, exit=None, finished=None
        )
        if task.name in places
        else task
        for task in status.tasks
    )
    nodes = sorted({binding.node for binding in event.bindings})
    waited = status.waited + (now - status.queued if status.queued is not None else 0.0)
    deploying = changed(status, state=S.DEPLOYING, launch=launch, tasks=tasks, reason=None, waited=waited)
    return Outcome(deploying, (Provision(),), f"placed on {few(nodes)}")


def _provisioned(status: JobStatus, event: Provisioned, gang: Gang, now: float) -> Outcome:
    if status.state is not S.DEPLOYING:
        return _unchanged(status)
    if ending(status):
        return _settle(_none_started(status), gang, now, stop=True)
    if gang.needs_fetch and (status.started is None or status.datasets):  # data, wherever tasks come to be
        return Outcome(changed(status, state=S.DOWNLOADING), (Fetch(),), "folders made")
    return _start(status, gang, now)


def _fetched(status: JobStatus, event: Fetched, gang: Gang, now: float) -> Outcome:
    if status.state is not S.DOWNLOADING:
        return _unchanged(status)
    if ending(status):
        return _settle(_none_started(status), gang, now, stop=True)
    arrived = changed(status, reason=None, progress=None) if status.reason else status
    return _start(arrived, gang, now)


def _pinned(status: JobStatus, event: Pinned, gang: Gang, now: float) -> Outcome:
    if status.state is not S.DOWNLOADING or event.datasets == status.datasets:
        return _unchanged(status)
    return Outcome(changed(status, datasets=event.datasets), (), "versions of its datasets chosen")


def _start(status: JobStatus, gang: Gang, now: float) -> Outcome:
    """All of the launch; unless a partner has ended meanwhile that these start with: then they wait for that one."""
    starting = tuple(t.name for t in status.tasks if t.launch == status.launch and t.state.alive)
    late = {t.name for t in status.tasks if t.again or t.state in (TaskState.BACKOFF, TaskState.LOST)}
    late -= {*starting}
    if not any(gang.together(gang.task(name)) & late for name in starting):
        return Outcome(status, (Launch(status.launch, starting),))
    return _start_later(status, dict.fromkeys(starting, now), "a partner ended first", None, gang, now)


def _start_later(
    status: JobStatus, due: dict[str, float], cause: str, code: Code | None, gang: Gang, now: float
) -> Outcome:
    """These do not start now; those of them that were told to leave do not start at all."""
    gone = tuple(name for name in due if status.task(name).leaving)
    tasks = tuple(
        t
        if t.name not in due
        else _parked(t)
        if t.leaving
        else changed(t, state=TaskState.BACKOFF, again=False, due=due[t.name])
        for t in status.tasks
    )
    waiting = changed(status, state=_pace(tasks), tasks=tasks, reason=cause)
    on = _check_success(waiting, gang, now) if gone else Outcome(waiting)
    left = (ReleaseTasks(gone), Regroup()) if gone else ()
    return Outcome(on.status, (*left, *on.instructions), cause, code)


def _launched(status: JobStatus, event: Launched, gang: Gang, now: float) -> Outcome:
    pids = dict(event.pids)
    then = now if event.time is None else event.time
    if status.state not in (S.DEPLOYING, S.DOWNLOADING) or status.launch != event.launch:
        return _unchanged(status)
    tasks = tuple(
        changed(task, state=TaskState.RUNNING, pid=pids[task.name], started=then, due=None)
        if task.launch == event.launch and task.state is TaskState.STARTING
        else task
        for task in status.tasks
    )
    running = changed(
        status,
        state=_pace(tasks),
        tasks=tasks,
        reason=None,
        started=then if status.started is None else status.started,
    )
    leaving = tuple(t.name for t in tasks if (t.leaving or t.again) and t.state is TaskState.RUNNING)
    stop: tuple[Instruction, ...] = (Stop(leaving, gang.grace),) if leaving else ()
    if ending(running):
        stop = (_stop_all(running, gang),)
    return Outcome(running, stop, f"{len(pids)} task{'s' * (len(pids) != 1)} started")


def _undone(status: JobStatus, event: Undone, gang: Gang, now: float) -> Outcome:
    if status.state not in (S.DEPLOYING, S.DOWNLOADING) or status.launch != event.launch:
        return _unchanged(status)
    tasks = tuple(
        changed(task, state=TaskState.STOPPED, pid=None)
        if task.launch == event.launch and task.state.alive
        else task
        for task in status.tasks
    )
    status = changed(status, tasks=tasks)
    if ending(status):
        return _settle(status, gang, now, stop=True)
    if joining := _joining(status, event.launch):
        return _without(status, joining, event.failure, gang, now)
    if event.temporary:
        return _try_again(status, event, gang, now)
    return _fail(changed(status, failure=event.failure), gang, now)


def _hindered(status: JobStatus, event: Hindered, gang: Gang, now: float) -> Outcome:
    starting = status.state in (S.DEPLOYING, S.DOWNLOADING) and status.launch == event.launch
    if not starting or ending(status) or status.reason == event.why:
        return _unchanged(status)
    return Outcome(changed(status, reason=event.why), (), event.why, event.code)


def _progressed(status: JobStatus, event: Progressed, gang: Gang, now: float) -> Outcome:
    if status.state is not S.DOWNLOADING or status.launch != event.launch or ending(status):
        return _unchanged(status)
    return Outcome(changed(status, reason=str(event.far), progress=event.far))


def _disturbed(status: JobStatus, event: Disturbed, gang: Gang, now: float) -> Outcome:
    task = status.task(event.task)
    there = task.launch == event.launch and task.state is TaskState.RUNNING
    why = f"{event.task}: {event.why}"
    if not there or ending(status) or status.reason == why:
        return _unchanged(status)
    return Outcome(changed(status, reason=why), (), why, event.code)


def _try_again(status: JobStatus, event: Undone, gang: Gang, now: float) -> Outcome:
    """A start that vanished through no fault of the job: a gang queues anew, part of one waits a moment.

    Restarts that were used up stay used up, and a task that succeeded is not run a second time.
    """
    if all(task.launch == event.launch or task.binding is None for task in status.tasks):
        fresh = _fresh(status)
        tasks = tuple(changed(t, restarts=status.task(t.name).restarts) for t in fresh.tasks)
        fresh = changed(
            fresh,
            tasks=tasks,
            restarts=status.restarts,
            started=status.started,
            preemptions=status.preemptions,
            ran=status.ran,
            waited=status.waited,
        )
        again = _enqueue(fresh, gang, now, event.failure.message)
        return changed(again, instructions=(Release(), *again.instructions), code=event.failure.code)
    undone = [t for t in status.tasks if t.launch == event.launch]
    due = {t.name: now + gang.task(t.name).backoff(t.restarts) for t in undone}
    return _start_later(status, due, event.failure.message, event.failure.code, gang, now)


# ── giving way, shrinking and growing ────────────────────────────────────────────────────────────


def _preempted(status: JobStatus, event: Preempted, gang: Gang, now: float) -> Outcome:
    running = (S.DEPLOYING, S.DOWNLOADING, S.PROCESSING, S.RESTARTING)
    if status.state not in running or ending(status):
        return _unchanged(status)
    asked = changed(status, giving_way=event.by, reason=f"gives way to {event.by}")
    if status.state in (S.PROCESSING, S.RESTARTING):
        settled = _settle(asked, gang, now, stop=True)
        said = settled.cause or f"gives way to {event.by}"
        return changed(settled, cause=said, code=Code.PREEMPTED)
    return Outcome(asked, (_give_up(gang),), f"gives way to {event.by}", Code.PREEMPTED)


def _shrunk(status: JobStatus, event: Shrunk, gang: Gang, now: float) -> Outcome:
    if status.state not in (S.PROCESSING, S.RESTARTING, S.DEPLOYING, S.DOWNLOADING) or ending(status):
        return _unchanged(status)
    going = tuple(
        t for t in status.tasks if t.name in event.tasks and not t.leaving and t.binding is not None
    )
    if not going:
        return _unchanged(status)
    running = tuple(t.name for t in going if t.state is TaskState.RUNNING)
    gone = tuple(t.name for t in going if not t.state.alive)
    for task in going:
        status = _with(status, _parked(task) if task.name in gone else changed(task, leaving=True))
    tasks, one = f"{len(going)} task{'s' * (len(going) != 1)}", len(going) == 1
    if event.by is None:
        cause = f"{tasks} leave{'s' * one}: it was scaled down"
    else:
        cause = f"{tasks} give{'s' * one} way to {event.by}"
    stop: tuple[Instruction, ...] = (Stop(running, gang.grace),) if running else ()
    free = (ReleaseTasks(gone), Regroup()) if gone else ()
    status = changed(status, reason=cause)
    if gang.restart_to_resize:
        status, others = _restart_others(status, frozenset(task.name for task in going), gang, now)
        stop = (*stop, *others)
    on = Outcome(status)
    if gone:
        if status.state in (S.PROCESSING, S.RESTARTING):
            status = changed(status, state=_pace(status.tasks))
        on = _check_success(status, gang, now)
    code = None if event.by is None else Code.PREEMPTED
    return Outcome(on.status, (*stop, *free, *on.instructions), cause, code)


def _restart_others(
    status: JobStatus, but: frozenset[str], gang: Gang, now: float
) -> tuple[JobStatus, tuple[Instruction, ...]]:
    """The tasks that stay save, stop, and start again at the new size."""
    others = frozenset(task.name for task in status.tasks if task.binding is not None) - but
    status, stop = _stop_together(status, others, gang, now, gang.grace)
    again = any(t.again or t.state is TaskState.BACKOFF for t in status.tasks)
    return changed(status, state=S.RESTARTING) if again and status.state is S.PROCESSING else status, stop


def _settle_size(status: JobStatus, gone: tuple[str, ...], gang: Gang, now: float) -> Outcome:
    """A task has left as it was told; what remains may be all that was still to be done."""
    left = _check_success(status, gang, now)
    size = sum(task.binding is not None for task in left.status.tasks)
    cause = left.cause or f"goes on with {size} task{'s' * (size != 1)}"
    instructions = (ReleaseTasks(gone), *left.instructions)
    status = left.status if left.cause else changed(left.status, reason=None)
    return Outcome(status, instructions, cause)


def _joined(status: JobStatus, event: Joined, gang: Gang, now: float) -> Outcome:
    if status.state not in (S.PROCESSING, S.RESTARTING) or ending(status):
        lost = {task.name for task in status.tasks if task.state is TaskState.LOST}
        names = [binding.task for binding in event.bindings]
        back = ReleaseTasks(tuple(name for name in names if name in lost), replace=True)
        extra = ReleaseTasks(tuple(name for name in names if name not in lost))
        return Outcome(status, tuple(release for release in (back, extra) if release.tasks))
    launch = status.launch + 1
    places = {binding.task: binding for binding in event.bindings}
    count = len(places)
    cause = f"{count} more task{'s' * (count != 1)} on {few(sorted({b.node for b in event.bindings}))}"
    due = max([now, *(t.due for t in status.tasks if t.state is TaskState.BACKOFF and t.due is not None)])
    waits = {"state": TaskState.BACKOFF, "due": due, "exit": None, "finished": None}
    starts = {"state": TaskState.STARTING, "launch": launch, "exit": None, "finished": None}
    late = {t.name for t in status.tasks if t.again or t.state in (TaskState.BACKOFF, TaskState.LOST)}
    tasks = tuple(
        changed(
            task,
            binding=places[task.name],
            started=task.started if task.state is TaskState.LOST else None,
            **(waits if gang.restart_to_resize or gang.together(gang.task(task.name)) & late else starts),
        )
        if task.name in places
        else task
        for task in status.tasks
    )
    joined = changed(status, tasks=tasks, reason=cause)
    if gang.restart_to_resize:
        joined, stop = _restart_others(joined, frozenset(places), gang, now)
        return Outcome(changed(joined, state=S.RESTARTING), stop, cause)
    if not any(task.state is TaskState.STARTING for task in tasks):
        return Outcome(changed(joined, state=S.RESTARTING), (), cause)
    return Outcome(changed(joined, state=S.DEPLOYING, launch=launch, reason=None), (Provision(),), cause)


def _lost(status: JobStatus, event: Lost, gang: Gang, now: float) -> Outcome:
    gone = tuple(t.name for t in status.tasks if t.name in event.tasks and t.state.alive)
    if not gone:
        return _unchanged(status)
    if ending(status):
        tasks = tuple(
            changed(t, state=TaskState.STOPPED, pid=None) if t.name in gone else t for t in status.tasks
        )
        return _settle(changed(status, tasks=tasks), gang, now)
    spare = _can_spare(status, gone, gang)
    tasks = tuple(
        t
        if t.name not in gone
        else _parked(t)
        if spare
        else changed(t, state=TaskState.LOST, binding=None, pid=None, leaving=False, again=False, due=None)
        for t in status.tasks
    )
    left = sum(task.binding is not None for task in tasks)
    next_ = f"goes on with {left} task{'s' * (left != 1)}" if spare else "waiting to be replaced"
    where = f"on {event.node}: {event.why}" if event.why else f"with node {event.node}"
    cause = f"{few(list(gone))} lost {where}; {next_}"
    others = frozenset().union(*(gang.together(gang.task(name)) for name in gone))
    if gang.restart_to_resize:
        others = frozenset(task.name for task in gang.tasks)
    waiting = changed(status, tasks=tasks, reason=cause)
    waiting, stop = _stop_together(waiting, others - {*gone}, gang, now, min(gang.grace, PARTNERS_GRACE))
    if status.state is S.PROCESSING:
        waiting = changed(waiting, state=_pace(waiting.tasks))
    smaller = (Regroup(),) if spare else ()
    return Outcome(waiting, (*stop, ReleaseTasks(gone, replace=not spare), *smaller), cause, event.code)


def _can_spare(status: JobStatus, gone: tuple[str, ...], gang: Gang) -> bool:
    """Whether an elastic job can do without these tasks, and without waiting for others that it has lost."""
    if any(gang.task(name).chief for name in gone) or any(t.state is TaskState.LOST for t in status.tasks):
        return False
    least = {span.role: span.minimum for span in gang.spans}
    work = [t for t in status.tasks if t.state.alive or t.state is TaskState.BACKOFF]
    staying = [gang.task(t.name).role for t in work if not t.leaving and t.name not in gone]
    roles = {gang.task(name).role for name in gone}
    return all(role in least and staying.count(role) >= least[role] for role in roles)


def _joining(status: JobStatus, launch: int) -> tuple[str, ...]:
    """The tasks of a launch that was to make a running job larger; none if it was any other."""
    of_it = [task for task in status.tasks if task.launch == launch]
    others = (TaskState.SUCCEEDED, TaskState.BACKOFF, TaskState.LOST)
    on = status.alive or any(task.state in others for task in status.tasks if task.launch != launch)
    return tuple(t.name for t in of_it) if on and all(t.started is None for t in of_it) else ()


def _without(status: JobStatus, late: tuple[str, ...], failure: Failure, gang: Gang, now: float) -> Outcome:
    """Tasks that were to join could not start: the job goes on without them."""
    tasks = tuple(TaskStatus(t.name, launch=t.launch) if t.name in late else t for t in status.tasks)
    on = _check_success(changed(status, state=_pace(tasks), tasks=tasks, reason=None), gang, now)
    instructions = (ReleaseTasks(late), Regroup(), *on.instructions)
    return Outcome(on.status, instructions, f"could not grow: {failure.message}", failure.code)


def _pace(tasks: tuple[TaskStatus, ...]) -> State:
    """Whether all that should run does."""
    waiting = any(task.state in (TaskState.BACKOFF, TaskState.LOST) or task.again for task in tasks)
    return S.RESTARTING if waiting else S.PROCESSING


# ── running ──────────────────────────────────────────────────────────────────────────────────────


def _exited(status: JobStatus, event: Exited, gang: Gang, now: float) -> Outcome:
    before = next((task for task in status.tasks if task.name == event.task), None)
    if before is None or before.launch != event.launch or before.state is not TaskState.RUNNING:
        return _unchanged(status)
    task = gang.task(event.task)
    ended = changed(before, pid=None, finished=now if event.time is None else event.time, exit=event.exit)
    good = event.exit.failure is None and event.exit.code == 0

    if before.leaving and not ending(status):
        return _settle_size(_with(status, _parked(before)), (before.name,), gang, now)
    if before.again and not ending(status):
        due = now if before.due is None else before.due
        return Outcome(_with(status, changed(ended, state=TaskState.BACKOFF, again=False, due=due)))
    if ending(status):
        state = TaskState.SUCCEEDED if good else TaskState.STOPPED
        return _settle(_with(status, changed(ended, state=state)), gang, now)
    if task.may_restart(before.restarts, good, event.exit.code, event.exit.signal):
        return _back_off(status, ended, task, event.exit, gang, now)
    if good:
        return _check_success(_with(status, changed(ended, state=TaskState.SUCCEEDED)), gang, now)
    failed = _with(status, changed(ended, state=TaskState.FAILED))
    return _fail(changed(failed, failure=_blame(event, before)), gang, now)


def _back_off(
    status: JobStatus, ended: TaskStatus, task: Task, exit: Exit, gang: Gang, now: float
) -> Outcome:
    due = now + task.backoff(ended.restarts)
    waiting = changed(ended, state=TaskState.BACKOFF, restarts=ended.restarts + 1, due=due)
    said = describe(exit).removeprefix(f"{task.name} ")
    cause = f"{task.name} {said}; restart {waiting.restarts} of at most {task.restart.max}"
    status = _with(changed(status, restarts=status.restarts + 1, reason=cause), waiting)
    if status.state is S.PROCESSING:
        status = changed(status, state=S.RESTARTING)
    others = gang.together(task) - {task.name}
    status, stop = _stop_together(status, others, gang, due, min(gang.grace, PARTNERS_GRACE))
    return Outcome(status, stop, cause, _code_of(exit))


def _stop_together(
    status: JobStatus, names: frozenset[str], gang: Gang, due: float, grace: float
) -> tuple[JobStatus, tuple[Instruction, ...]]:
    """What starts again with others stops first; what had succeeded is done again."""
    running = []
    for task in status.tasks:
        if task.name not in names or task.leaving:
            continue
        if task.state.alive and not task.again:
            status = _with(status, changed(task, again=True, due=due))
            if task.state is TaskState.RUNNING:
                running.append(task.name)
        elif task.state is TaskState.SUCCEEDED:
            status = _with(status, changed(task, state=TaskState.BACKOFF, due=due))
    return status, (Stop(tuple(running), grace),) if running else ()


def _check_success(status: JobStatus, gang: Gang, now: float) -> Outcome:
    states = {task.name: task.state for task in status.tasks}
    if gang.chief_decides:
        done = any(t.chief and states[t.name] is TaskState.SUCCEEDED for t in gang.tasks)
    else:
        counted = [states[t.name] for t in gang.tasks if not t.service]
        done = all(state in (TaskState.SUCCEEDED, TaskState.WAITING) for state in counted)
    if not done:
        return Outcome(status)
    return _settle(changed(status, succeeded=True), gang, now, stop=True)


def _fail(status: JobStatus, gang: Gang, now: float) -> Outcome:
    return _settle(status, gang, now, stop=True)


def _blame(event: Exited, task: TaskStatus) -> Failure:
    if event.exit.failure is not None:
        return changed(event.exit.failure, task=event.task)
    after = f" after {task.restarts} restart{'s' * (task.restarts != 1)}" if task.restarts else ""
    return Failure(_code_of(event.exit), f"{event.task} {describe(event.exit)}{after}", event.task)


def _code_of(exit: Exit) -> Code:
    if exit.failure is not None:
        return exit.failure.code
    return Code.SIGNAL if exit.signal is not None else Code.EXIT_CODE


def _woke(status: JobStatus, event: Woke, gang: Gang, now: float) -> Outcome:
    if status.state is S.QUEUED and gang.max_wait is not None and status.queued is not None:
        if now >= status.queued + gang.max_wait:
            why = f": {event.explanation}" if event.explanation else ""
            message = f"waited longer than maxWait ({gang.max_wait:g} s) for a place{why}"
            failed = changed(status, failure=Failure(Code.UNSCHEDULABLE, message))
            settled = _settle(failed, gang, now)
            return changed(settled, instructions=(Dequeue(), *settled.instructions))
        return _unchanged(status)
    if status.state not in (S.PROCESSING, S.RESTARTING) or ending(status):
        return _unchanged(status)
    if (end := _deadline(status, gang)) is not None and now >= end:
        late = Failure(Code.DEADLINE, f"ran longer than its deadline of {gang.deadline:g} s")
        return _fail(changed(status, failure=late), gang, now)
    return _restart_due(status, gang, now)


def _restart_due(status: JobStatus, gang: Gang, now: float) -> Outcome:
    if status.state is not S.RESTARTING:
        return _unchanged(status)
    due = {name for name, then in _moments(status, gang).items() if then <= now}
    if not due:
        return _unchanged(status)
    launch = status.launch + 1
    tasks = tuple(
        changed(t, state=TaskState.STARTING, launch=launch, due=None, exit=None, finished=None)
        if t.name in due
        else t
        for t in status.tasks
    )
    again = changed(status, state=S.DEPLOYING, launch=launch, tasks=tasks)
    return Outcome(again, (Provision(),), f"restarting {few(sorted(due))}")


def _moments(status: JobStatus, gang: Gang) -> dict[str, float]:
    """When tasks start again that wait for that: with those that start with them, when the last of these may. Who waits for
    a partner to stop or to be replaced has no moment yet; nor has anyone while a gang that restarts as a whole changes."""
    waiting = {t.name: t.due for t in status.tasks if t.state is TaskState.BACKOFF and t.due is not None}
    missing = {t.name for t in status.tasks if t.again or t.state is TaskState.LOST}
    if gang.restart_to_resize:
        if missing or any(task.leaving for task in status.tasks):
            return {}
        return dict.fromkeys(waiting, max(waiting.values(), default=0.0))
    found = {}
    for name, due in waiting.items():
        others = gang.together(gang.task(name))
        if not others & missing:
            found[name] = max([due, *(waiting[other] for other in others & waiting.keys())])
    return found


# ── the end ──────────────────────────────────────────────────────────────────────────────────────


def _settle(status: JobStatus, gang: Gang, now: float, *, stop: bool = False) -> Outcome:
    """Bring the job to its end, once nothing of it runs any more."""
    if status.alive:
        return Outcome(status, (_stop_all(status, gang),) if stop else ())
    idle = (TaskState.BACKOFF, TaskState.LOST)
    if any(task.state in idle for task in status.tasks):
        tasks = (
            changed(t, state=TaskState.STOPPED, due=None) if t.state in idle else t for t in status.tasks
        )
        status = changed(status, tasks=tuple(tasks))
    match status.desire:
        case Desire.HALT if not status.succeeded:
            cause = "halted" if status.halted_for is None else f"halted: {status.halted_for}"
            halted = changed(status, state=S.HALTED, failure=None, reason=f"{cause}; checkpoints are kept")
            return Outcome(halted, (Release(), Retire()), cause)
        case Desire.CANCEL | Desire.DELETE:
            cancelled = changed(status, state=S.CANCELLED, failure=None, reason="cancelled", finished=now)
            return Outcome(cancelled, (Release(), Retire()), "cancelled")
        case _:
            pass
    if status.succeeded:
        return Outcome(changed(status, state=S.STORING), (Store(),), "success rule met")
    if status.giving_way is not None and status.failure is None:
        return _gave_way(status, now)
    assert status.failure is not None
    failed = changed(status, state=S.FAILED, reason=status.failure.message, finished=now)
    return Outcome(failed, (Release(), Retire()), status.failure.message, status.failure.code)


def _gave_way(status: JobStatus, now: float) -> Outcome:
    """Nothing of it runs any more: it waits again, and what it has used up stays used up."""
    fresh = _fresh(status)
    preempted = changed(
        fresh,
        state=S.PREEMPTED,
        tasks=tuple(changed(t, restarts=status.task(t.name).restarts) for t in fresh.tasks),
        restarts=status.restarts,
        preemptions=status.preemptions + 1,
        waited=status.waited,
        ran=status.ran + (now - status.started if status.started is not None else 0.0),
        reason=f"gave way to {status.giving_way}",
    )
    return Outcome(preempted, (Release(), Readmit()), f"gave way to {status.giving_way}", Code.PREEMPTED)


def _stored(status: JobStatus, event: ResultsStored, gang: Gang, now: float) -> Outcome:
    if status.state is not S.STORING:
        return _unchanged(status)
    if status.desire in (Desire.CANCEL, Desire.DELETE):
        return _settle(changed(status, results=event.stored), gang, now)
    completed = changed(
        status, state=S.COMPLETED, results=event.stored, finished=now, reason=None, desire=Desire.RUN
    )
    return Outcome(
        completed,
        (Release(), Retire()),
        f"{event.stored.files} result file{'s' * (event.stored.files != 1)} kept",
    )


def _storing_failed(status: JobStatus, event: StoringFailed, gang: Gang, now: float) -> Outcome:
    if status.state is not S.STORING:
        return _unchanged(status)
    desire = Desire.RUN if status.desire is Desire.HALT else status.desire
    return _settle(changed(status, succeeded=False, failure=event.failure, desire=desire), gang, now)


# ── what a person asks ───────────────────────────────────────────────────────────────────────────


def _asked(status: JobStatus, event: Asked, gang: Gang, now: float) -> Outcome:
    if event.desire is Desire.RUN:
        return _resume(status, event.checkpoint, gang, now)
    if event.desire is Desire.DELETE and status.state.idle:
        return Outcome(changed(status, desire=Desire.DELETE), (Retire(),), "deleted")
    if status.state.finished:
        raise Refused(f"is {status.state} already")
    if event.desire is Desire.HALT and status.state is S.HALTED:
        return _unchanged(status)
    if event.desire is Desire.HALT and status.desire is not Desire.RUN:
        if status.desire is Desire.HALT:
            return _unchanged(status)
        raise Refused("is being cancelled already")
    if event.desire is Desire.CANCEL and status.desire is Desire.DELETE:
        return _unchanged(status)
    if event.desire is Desire.HALT and status.state is S.STORING:
        raise Refused("is storing its results and will be COMPLETED in a moment")
    reason = f"{event.desire} asked" if event.why is None else f"is being halted: {event.why}"
    wanted = changed(status, desire=event.desire, reason=reason, halted_for=event.why)
    match status.state:
        case S.PENDING | S.QUEUED | S.PREEMPTED:
            settled = _settle(wanted, gang, now)
            return changed(settled, instructions=(Dequeue(), *settled.instructions))
        case S.HALTED:
            return _settle(wanted, gang, now)
        case S.PROCESSING | S.RESTARTING:
            return _settle(wanted, gang, now, stop=True)
        case S.DEPLOYING | S.DOWNLOADING:
            return Outcome(wanted, (_give_up(gang),), f"{event.desire} asked")
        case _:  # STORING: what is under way ends first and then sees the wish
            return Outcome(wanted, (), f"{event.desire} asked")


def _scaled(status: JobStatus, event: Scaled, gang: Gang, now: float) -> Outcome:
    """What it takes to be of that size is the scheduler's to say; this is only the wish."""
    if status.state.idle:
        raise Refused(f"is {status.state}; only a job that waits or runs can be scaled")
    if ending(status):
        raise Refused("is being stopped")
    sizes = tuple(sorted({**dict(status.sizes), **dict(event.sizes)}.items()))
    said = ", ".join(f"{role}={size}" for role, size in event.sizes)
    return Outcome(changed(status, sizes=sizes), (), f"scaled to {said}")


def _resume(status: JobStatus, checkpoint: int | None, gang: Gang, now: float) -> Outcome:
    if status.state not in (S.HALTED, S.FAILED):
        if status.desire is Desire.HALT:
            raise Refused("is still being halted; resume it when it is HALTED")
        raise Refused(f"is {status.state}; only a HALTED or FAILED job can be resumed")
    asked = None if checkpoint is None else f"{checkpoint}@{status.launch + 1}"
    cause = "resumed" if checkpoint is None else f"resumed from checkpoint {checkpoint}"
    return _enqueue(changed(_fresh(status), checkpoint=asked), gang, now, cause)


def _fresh(status: JobStatus) -> JobStatus:
    """The same job about to run anew: history and counters of launches stay, the last run's traces go."""
    tasks = tuple(TaskStatus(task.name, launch=task.launch) for task in status.tasks)
    return JobStatus(
        status.state,
        tasks,
        launch=status.launch,
        checkpoint=status.checkpoint,
        sizes=status.sizes,
        datasets=status.datasets,
    )


# ── small parts ──────────────────────────────────────────────────────────────────────────────────


def describe(exit: Exit) -> str:
    """`exited with code 3`, `was killed by SIGKILL`."""
    if exit.failure is not None:
        return exit.failure.message
    if exit.signal is not None:
        try:
            name = signal.Signals(exit.signal).name
        except ValueError:
            name = f"signal {exit.signal}"
        return f"was killed by {name}"
    return f"exited with code {exit.code}"


def next_wake(status: JobStatus, gang: Gang) -> float | None:
    """When the job wants `Woke` next, whatever the time is now; None while it waits for events alone."""
    if status.state is S.QUEUED and gang.max_wait is not None and status.queued is not None:
        return status.queued + gang.max_wait
    if status.state not in (S.PROCESSING, S.RESTARTING) or ending(status):
        return None
    times = list(_moments(status, gang).values())
    if (end := _deadline(status, gang)) is not None:
        times.append(end)
    return min(times, default=None)


def _deadline(status: JobStatus, gang: Gang) -> float | None:
    """When the job has run for too long. Time that it waited for others does not count."""
    if gang.deadline is None or status.started is None:
        return None
    return status.started + gang.deadline - status.ran


def ending(status: JobStatus) -> bool:
    """The job is on its way to an end; what still runs is being stopped."""
    wanted = status.desire is not Desire.RUN or status.giving_way is not None
    return wanted or status.succeeded or status.failure is not None


def _with(status: JobStatus, task: TaskStatus) -> JobStatus:
    return changed(status, tasks=tuple(task if t.name == task.name else t for t in status.tasks))


def _parked(task: TaskStatus) -> TaskStatus:
    """Without a place: the gang is smaller by it, and may grow again."""
    return TaskStatus(task.name, launch=task.launch, restarts=task.restarts)


def _none_started(status: JobStatus) -> JobStatus:
    tasks = tuple(
        changed(t, state=TaskState.STOPPED) if t.state is TaskState.STARTING else t for t in status.tasks
    )
    return changed(status, tasks=tasks)


def _stop_all(status: JobStatus, gang: Gang) -> Stop:
    return Stop(tuple(task.name for task in status.tasks if task.state is TaskState.RUNNING), gang.grace)


def _give_up(gang: Gang) -> Stop:
    """A start that is under way ends first, and then sees the wish; this is for one that might take for ever."""
    return Stop((), gang.grace)


_HANDLERS: dict[type[Any], Callable[[JobStatus, Any, Gang, float], Outcome]] = {
    Admitted: _admitted,
    Placed: _placed,
    Preempted: _preempted,
    Shrunk: _shrunk,
    Joined: _joined,
    Lost: _lost,
    Provisioned: _provisioned,
    Fetched: _fetched,
    Pinned: _pinned,
    Launched: _launched,
    Undone: _undone,
    Hindered: _hindered,
    Progressed: _progressed,
    Disturbed: _disturbed,
    Exited: _exited,
    ResultsStored: _stored,
    StoringFailed: _storing_failed,
    Asked: _asked,
    Scaled: _scaled,
    Woke: _woke,
}
