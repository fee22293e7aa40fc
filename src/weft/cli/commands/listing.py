"""`weft ls`."""

from __future__ import annotations

import time
from typing import Any

from weft.cli import moments, terminal
from weft.cli.output import ListForm, print_table, print_whole
from weft.cli.table import Column
from weft.client.api import Client
from weft.client.jobspec import key_values

UNFINISHED = (
    "PENDING",
    "QUEUED",
    "DEPLOYING",
    "DOWNLOADING",
    "PROCESSING",
    "STORING",
    "RESTARTING",
    "PREEMPTED",
    "HALTED",
)
FINISHED = ("COMPLETED", "FAILED", "CANCELLED")
NEWEST = 50

COLUMNS = (
    Column("NAME"),
    Column("STATE", styles=terminal.STATE_STYLES),
    Column("TYPE"),
    Column("TASKS", right=True),
    Column("RESTARTS", right=True),
    Column("AGE", right=True),
    Column("RAN", right=True),
    Column("REASON", flexible=True),
)
WIDE = (
    *COLUMNS[:-1],
    Column("PROJECT"),
    Column("QUEUE"),
    Column("PRIORITY", right=True),
    Column("OWNER"),
    Column("CREATED"),
    Column("UID"),
    COLUMNS[-1],
)


def ls(
    *,
    all: bool = False,
    state: list[str] | None = None,
    label: str | None = None,
    limit: int | None = None,
    output: ListForm = None,
) -> int:
    """List jobs: all that are not finished, and the newest 50 that are.

    TASKS is what the job asks for; of an elastic job that runs, how many it has now of how few and how many
    it may have: 3 of 2–8.

    For example:
      weft ls
      weft ls --all --state FAILED
      weft ls --label team=vision -o json

    Parameters
    ----------
    all
        Every job.
    state
        Only jobs in this state. Repeatable.
    label
        Only jobs with this label, NAME=VALUE.
    limit
        At most so many, newest first.
    output
        json or yaml: the full resources; wide: more columns.
    """
    client = Client()
    if label is not None:
        key_values([label], "--label")
    states = [s.upper() for text in state or () for s in text.split(",")]
    view = "full" if output in ("json", "yaml") else "summary"
    if all or states or limit is not None:
        items, more = _all(client, states=states, label=label, limit=limit, view=view)
    else:
        items, _ = _all(client, states=UNFINISHED, label=label, limit=None, view=view)
        finished, more = _all(client, states=FINISHED, label=label, limit=NEWEST, view=view)
        items += finished
    if output in ("json", "yaml"):
        print_whole({"items": items}, str(output))
        return 0
    columns = WIDE if output == "wide" else COLUMNS
    now = time.time()
    print_table(columns, [[_cell(item, column.title, now) for column in columns] for item in items])
    if not items:
        terminal.note("no jobs" + (" that match" if states or label else ""))
        terminal.next_step("weft ls --all" if states or label else "weft run train.py")
    elif more:
        terminal.note(f"and {more} more")
        terminal.next_step("weft ls --all", f"weft show {items[0]['name']}")
    else:
        terminal.next_step(f"weft show {items[0]['name']}")
    return 0


def _all(
    client: Client, *, states: Any, label: str | None, limit: int | None, view: str
) -> tuple[list[dict[str, Any]], int]:
    """The jobs, and how many there are beyond the limit."""
    items: list[dict[str, Any]] = []
    total = 0
    for page in client.pages(state=states, label=label, limit=limit, view=view):
        items += page["items"]
        total = page.get("total") or 0
    return items, max(total - len(items), 0) if limit is not None else 0


def _cell(item: dict[str, Any], title: str, now: float) -> str:
    match title:
        case "AGE":
            return moments.age(item.get("created"), now)
        case "RAN":
            began = item.get("started")
            return moments.span((item.get("finished") or now) - began) if began else "-"
        case "CREATED":
            return moments.clock(item.get("created"))
        case "TASKS" if size := item.get("size"):
            return f"{size['now']} of {size['least']}–{size['most']}"
        case _:
            value = item.get(title.lower())
            return "" if value is None else str(value)
