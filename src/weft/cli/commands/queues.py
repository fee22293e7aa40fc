"""`weft queue` and `weft queues`: what waits, and who may have how much."""

from __future__ import annotations

import time
from typing import Any

from weft.cli import moments, terminal
from weft.cli.output import ListForm, print_table, print_whole
from weft.cli.table import Column
from weft.client.api import Client

LINE = (
    Column("#", right=True),
    Column("JOB"),
    Column("QUEUE"),
    Column("PRIORITY", right=True),
    Column("WAITED", right=True),
    Column("STARTS"),
    Column("NEEDS"),
    Column("REASON", flexible=True),
)
LINE_WIDE = (*LINE[:5], Column("OWNER"), LINE[5], Column("PROMISED"), *LINE[6:])
QUEUES = (
    Column("QUEUE"),
    Column("RUNNING", right=True),
    Column("WAITING", right=True),
    Column("USED"),
    Column("GUARANTEED"),
    Column("LIMIT"),
    Column("BORROWED"),
    Column("NOTES", flexible=True),
)
QUEUES_WIDE = (
    *QUEUES[:-1],
    Column("USER LIMIT"),
    Column("WEIGHT", right=True),
    Column("SHARE", right=True),
    Column("PARENT"),
    QUEUES[-1],
)

Json = dict[str, Any]


def queue(*, output: ListForm = None) -> int:
    """What waits, in the order in which it should start, when that should be, and why it waits.

    What can never start here comes last, without a place in the line.

    Parameters
    ----------
    output
        json, yaml or wide (with the range of the start, and who submitted it).
    """
    items = Client().queue()
    if output in ("json", "yaml"):
        print_whole({"items": items}, str(output))
        return 0
    now = time.time()
    wide = output == "wide"
    print_table(LINE_WIDE if wide else LINE, [_waiting(item, now, wide) for item in items])
    if items:
        terminal.next_step(f"weft explain {items[0]['name']}", "weft queues")
    else:
        terminal.note("nothing waits")
        terminal.next_step("weft ls", "weft top")
    return 0


def _waiting(item: Json, now: float, wide: bool) -> list[str]:
    row = [
        str(item.get("position") or "-"),
        item["name"],
        item.get("queue") or "",
        str(item.get("priority", 0)),
        moments.span(item.get("waited")),
        starts(item.get("estimatedStart") or {}, now, wide),
        item.get("needs") or "",
        item.get("reason") or "",
    ]
    if wide:
        promised = item.get("promisedStart")
        row[6:6] = [moments.clock(promised)]
        row[5:5] = [item.get("owner") or ""]
    return row


def starts(estimate: Json, now: float, wide: bool) -> str:
    """`≈ 12m`, with its range where there is room for it; a dash where nothing can be said."""
    likely, earliest, latest = (
        None if (moment := estimate.get(name)) is None else moments.rough(moment - now)
        for name in ("likely", "earliest", "latest")
    )
    text = f"≈ {likely}" if likely else f"> {earliest}" if earliest else "-"
    return f"{text} ({earliest}–{latest or '?'})" if wide and earliest else text


def queues(*, output: ListForm = None) -> int:
    """The queues: what each uses, is guaranteed and limited to, and what it has borrowed.

    Declare or change one with weft apply -f queue.yaml, delete one with weft delete queue/NAME.

    Parameters
    ----------
    output
        json, yaml or wide (with weights, limits of users, and the share of late).
    """
    items = Client().queues()
    if output in ("json", "yaml"):
        print_whole({"items": items}, str(output))
        return 0
    wide = output == "wide"
    depths: dict[str | None, int] = {None: 0}
    rows = []
    for item in items:
        name, parent = item["metadata"]["name"], item["spec"].get("parent")
        depths[name] = depths[parent] + 1
        rows.append(_queue(item, "  " * depths[parent], wide))
    print_table(QUEUES_WIDE if wide else QUEUES, rows)
    for note in dict.fromkeys(note for item in items for note in item["status"].get("notes") or ()):
        terminal.note(f"note: {note}", "yellow")
    terminal.next_step("weft queue", "weft apply -f queue.yaml")
    return 0


def _queue(item: Json, indent: str, wide: bool) -> list[str]:
    spec, status = item["spec"], item["status"]
    row = [
        f"{indent}{item['metadata']['name']}",
        str(status["running"]),
        str(status["waiting"]),
        amounts(status["used"]),
        amounts(status["guaranteed"]),
        amounts(status["limit"]),
        amounts(status["borrowed"]) if status["guaranteed"] else "-",
    ]
    if wide:
        row += [
            ", ".join(f"{value} {name}" for name, value in (spec.get("userLimit") or {}).items()) or "-",
            f"{spec.get('weight', 1):g}",
            f"{100 * status['share']:.1f}%",
            spec.get("parent") or "-",
        ]
    return [*row, "closed" if spec.get("closed") else ""]


def amounts(given: Json) -> str:
    """`4 gpu, 16 cpu, 64 GiB`; a zero that was said is shown only where nothing else is."""
    shown = [
        f"{moments.size(value)}" if name == "memory" else f"{value:g} {name}"
        for name in ("gpu", "cpu", "memory")
        if (value := given.get(name))
    ]
    return ", ".join(shown) or ("0" if given else "-")
