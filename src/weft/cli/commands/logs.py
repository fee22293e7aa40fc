"""`weft logs`."""

from __future__ import annotations

from typing import Annotated

from cyclopts import Parameter

from weft.cli import terminal
from weft.cli.downloads import watched
from weft.cli.logprint import LogPrinter
from weft.client.api import Client
from weft.client.job import IDLE

BATCH = 2000


def logs(
    job: str,
    /,
    *,
    follow: Annotated[bool, Parameter(name=["--follow", "-f"])] = False,
    task: str | None = None,
    tail: int | None = None,
    offset: int | None = None,
    timestamps: bool = False,
) -> int:
    """Print or follow a job's logs. Lines of a job with several tasks begin with [task].

    For example:
      weft logs mnist-3
      weft logs -f mnist-3 --task worker-0
      weft logs mnist-3 --tail 20

    Parameters
    ----------
    job
        The job's name.
    follow
        Go on with new lines until the job has ended.
    task
        Only this task, such as worker-0.
    tail
        Only the last lines of each task.
    offset
        Begin at this byte of the task's log; needs --task.
    timestamps
        Put the time at which it was printed before each line.
    """
    client = Client()
    status = client.get(job).status
    tasks = [entry["name"] for entry in status.get("tasks") or ()]
    printer = LogPrinter(prefixed=task is None and len(tasks) > 1, timed=timestamps)
    if follow:
        with watched(client, job) as begun:
            for batch in client.follow_logs(job, task=task, tail=tail, offset=offset):
                begun.set()
                printer.print(batch)
        terminal.next_step(f"weft show {job}")
        return 0
    printed = 0
    batch = []
    for line in client.logs(job, task=task, tail=tail, offset=offset):
        batch.append(line)
        printed += 1
        if len(batch) == BATCH:
            printer.print(batch)
            batch = []
    printer.print(batch)
    state = status.get("state")
    if not printed:
        terminal.note(f"no log lines; job {job} is {state}")
        terminal.next_step(f"weft explain {job}")
    else:
        terminal.next_step(f"weft show {job}" if state in IDLE else f"weft logs -f {job}")
    return 0
