"""After a crash: every live job goes on from where it was, none lost, none run twice.

A launch is claimed by making its journal, which succeeds once. So a launch that was ordered but never
begun is simply ordered again under its old number, and one that was begun is adopted: its journal tells,
as events, everything that happened while no server was there.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from weft.control import live
from weft.control.live import KIND, LiveJob
from weft.model.events import Exited
from weft.model.failures import Code, Failure
from weft.model.instructions import Fetch, Provision, Readmit, Regroup, Stop, Store
from weft.model.lifecycle import ending
from weft.model.status import Exit, State, TaskState

if TYPE_CHECKING:
    from weft.control.control import Control

log = logging.getLogger("weft.control")
LIVE = [state.value for state in State if not state.idle]


def recover(control: Control) -> None:
    control.queues.load()
    control.shares.load()
    control.job_types.load()
    control.sizes.load()
    control.datasets.load()
    control.cordons.load()
    rows = control.store.with_states(KIND, LIVE)
    for row in rows:
        job = live.from_row(row)
        control.track(job)
        job.metric_offsets = control.store.metric_offsets(job.uid) if job.status.launch else {}
        if job.status.state not in (State.PENDING, State.QUEUED, State.PREEMPTED):
            control.take(job)
    _go_on(control, [job for job in control.jobs.values() if _away(control, job) is None])
    if rows:
        log.info("took over %d jobs", len(rows))
    _sweep(control)


def resume_in(control: Control, cluster: str) -> None:
    """A cluster that was away when the server started has answered: what ran there is taken over now."""
    _go_on(control, [job for job in control.jobs.values() if control.backend.cluster_of(job) == cluster])


def _away(control: Control, job: LiveJob) -> str | None:
    """The cluster that a job is in, if it cannot be asked: nothing is concluded from that."""
    cluster = control.backend.cluster_of(job)
    return cluster if cluster and control.backend.problem(cluster) is not None else None


def _go_on(control: Control, jobs: list[LiveJob]) -> None:
    for job in jobs:
        control.cordons.leave_lost(job)
        _resume(control, job)
        control.resize(job, "weft")
        control.guardian.set_timer(job)


def _resume(control: Control, job: LiveJob) -> None:
    match job.status.state:
        case State.PENDING | State.QUEUED:
            control.enqueue(job)
        case State.PREEMPTED:
            control.guardian.carry_out(job, Readmit(), None)
        case State.STORING:
            control.guardian.carry_out(job, Store(), None)
        case _:
            _resume_launches(control, job)


def _resume_launches(control: Control, job: LiveJob) -> None:
    guardian = control.guardian
    deploying = job.status.state in (State.DEPLOYING, State.DOWNLOADING)
    for launch in sorted({task.launch for task in job.status.tasks if task.state.alive}):
        if control.backend.adopt(job, launch):
            continue
        if deploying and launch == job.status.launch:
            if ending(job.status) and not control.backend.forbid(job, launch):
                control.backend.adopt(
                    job, launch
                )  # begun this very moment, by a supervisor of the old server
                continue
            again = Fetch() if job.status.state is State.DOWNLOADING else Provision()
            guardian.carry_out(job, again, None)
            continue
        lost = Failure(
            Code.SUPERVISOR_LOST, "its launch left no trace on this machine; its exit code is unknown"
        )
        for task in job.status.tasks:
            if task.launch == launch and task.state.alive:
                guardian.handle(job, Exited(task.name, launch, Exit(failure=lost)))
    running = [task for task in job.status.tasks if task.state is TaskState.RUNNING]
    stopping = tuple(task.name for task in running if task.leaving or task.again or ending(job.status))
    if stopping or ending(job.status):
        guardian.carry_out(job, Stop(stopping, job.gang.grace), None)
    elif running and job.gang.elastic:
        guardian.carry_out(job, Regroup(), None)  # perhaps it was not said any more


def _sweep(control: Control) -> None:
    """Remove folders whose job was deleted while its files were still being removed."""
    known = control.store.uids()
    for uid in control.backend.kept_folders():
        if uid not in known:
            control.remove_files(uid)
