"""`weft halt`, `resume`, `cancel` and `delete`: each takes several jobs, and one refusal stops no other."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Annotated

from cyclopts import Parameter

from weft.cli import terminal
from weft.client.api import Client
from weft.client.errors import ApiError
from weft.client.jobspec import BadOption

QUEUE, TYPE, SIZE = "queue/", "jobtype/", "size/"
Jobs = Annotated[tuple[str, ...], Parameter(show=True)]


def halt(*jobs: str) -> int:
    """Stop jobs so that they can be resumed. Their processes get SIGTERM, then SIGKILL after the grace.

    For example:
      weft halt mnist-3

    Parameters
    ----------
    jobs
        Names of jobs.
    """
    client = Client()
    return _each(jobs, lambda job: f"{job} is {_ing(client.halt(job).status, 'halted')}", "weft resume")


def resume(*jobs: str, from_checkpoint: int | None = None) -> int:
    """Queue halted or failed jobs again. They find their checkpoints in CHECKPOINT_DIR.

    For example:
      weft resume mnist-3
      weft resume mnist-3 --from-checkpoint 1200

    Parameters
    ----------
    jobs
        Names of jobs.
    from_checkpoint
        The step of a checkpoint that `weft.checkpoint` saved, to go on from that instead of the newest.
    """
    client = Client()

    def resumed(job: str) -> str:
        return f"{job} is {client.resume(job, from_checkpoint).status.get('state', 'QUEUED')}"

    return _each(jobs, resumed, "weft logs -f")


def scale(job: str, /, *sizes: str) -> int:
    """Change how many tasks of a role a job has, within the limits that it was submitted with.

    Tasks that go get SIGTERM and the grace; tasks that come start as soon as there is room for them.

    For example:
      weft scale mnist-3 worker=2

    Parameters
    ----------
    job
        The name of a job that waits or runs.
    sizes
        ROLE=COUNT, for one role or several.
    """
    roles: dict[str, int] = {}
    for given in sizes:
        role, equals, count = given.partition("=")
        if not (role and equals and count.isdecimal()):
            raise BadOption(f"{given}: write ROLE=COUNT, such as worker=2")
        roles[role] = int(count)
    if not roles:
        raise BadOption(f"no size was given: weft scale {job} worker=2")
    state = Client().scale(job, **roles).status.get("state")
    print(f"{job} is {state}, scaled to {', '.join(f'{role}={count}' for role, count in roles.items())}")
    terminal.next_step(f"weft show {job}", f"weft events {job}")
    return 0


def cancel(*jobs: str) -> int:
    """Stop jobs for good. Their logs and results stay until they are deleted.

    For example:
      weft cancel mnist-3 mnist-4

    Parameters
    ----------
    jobs
        Names of jobs.
    """
    client = Client()
    return _each(jobs, lambda job: f"{job} is {_ing(client.cancel(job).status, 'cancelled')}", "weft show")


def delete(*jobs: str, yes: Annotated[bool, Parameter(name=["--yes", "-y"])] = False) -> int:
    """Remove jobs with their logs, metrics and results, or queues and job types. A running job is stopped first.

    A queue that jobs wait or run in, or that has queues in it, is not removed. Jobs of a type that is removed go on.

    For example:
      weft delete mnist-3
      weft delete mnist-3 mnist-4 --yes
      weft delete queue/research
      weft delete jobtype/my-framework

    Parameters
    ----------
    jobs
        Names of jobs; queue/NAME is a queue, jobtype/NAME a job type.
    yes
        Do not ask.
    """
    if sizes := [name.removeprefix(SIZE) for name in jobs if name.startswith(SIZE)]:
        raise BadOption(f"sizes have a command of their own: weft sizes rm {' '.join(sizes)}")
    losing = [name for name in jobs if not name.startswith((QUEUE, TYPE))]
    if losing and not yes and terminal.interactive():
        what = losing[0] if len(losing) == 1 else f"{len(losing)} jobs"
        if terminal.ask(f"delete {what} with all logs, metrics and results? [y/N]") not in ("y", "yes"):
            terminal.note("nothing deleted")
            terminal.next_step(f"weft show {losing[0]}")
            return 1
    client = Client()
    return _each(jobs, lambda name: _deleted(client, name), None)


def _deleted(client: Client, name: str) -> str:
    if name.startswith(QUEUE):
        client.delete_queue(name.removeprefix(QUEUE))
        return f"{name} deleted"
    if name.startswith(TYPE):
        client.delete_job_type(name.removeprefix(TYPE))
        return f"{name} deleted"
    return f"{name} {'deleted' if client.delete(name) else 'is being stopped, then deleted'}"


def _each(jobs: Sequence[str], act: Callable[[str], str], then: str | None) -> int:
    if not jobs:
        raise BadOption("name at least one job (weft ls)")
    if len(jobs) == 1:
        print(act(jobs[0]))
    else:
        failed = [job for job in jobs if not _tried(job, act)]
        if failed:
            return 1
    terminal.next_step(f"{then} {jobs[0]}" if then else "weft ls")
    return 0


def _tried(job: str, act: Callable[[str], str]) -> bool:
    try:
        print(act(job))
    except ApiError as problem:
        terminal.error(f"{job}: {problem}", next=problem.next)
        return False
    return True


def _ing(status: dict[str, object], done: str) -> str:
    state = status.get("state")
    return str(state) if state == done.upper() else f"being {done} (now {state})"
