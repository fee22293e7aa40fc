"""`weft show`, `explain` and `events`: what a job is, was, and waits for."""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Annotated, Any

from cyclopts import Parameter

from weft.cli import moments, terminal
from weft.cli.output import ListForm, PageForm, print_table, print_whole
from weft.cli.table import Column, render
from weft.client.api import Client
from weft.client.errors import WeftError
from weft.client.job import FINISHED

TASKS = (
    Column("TASK"),
    Column("STATE", styles=terminal.STATE_STYLES),
    Column("NODE"),
    Column("CPUS"),
    Column("GPUS"),
    Column("RESTARTS", right=True),
    Column("EXIT"),
    Column("PEAK MEMORY", right=True),
)
EVENTS = (
    Column("TIME"),
    Column("EVENT"),
    Column("STATE", styles=terminal.STATE_STYLES),
    Column("CAUSE", flexible=True),
    Column("BY"),
)
MOST_TASKS = 50
MOST_NOTES = 10
MOST_RESULTS = 10

Json = dict[str, Any]


def show(job: str, name: str | None = None, /, *, output: PageForm = None) -> int:
    """Everything about a job on one page: its state and why, its history, tasks, failure and results.

    For example:
      weft show mnist-3
      weft show mnist-3 -o yaml
      weft show jobtype pytorch

    Parameters
    ----------
    job
        The job's name; or `jobtype`, and then the name of a job type.
    name
        The name of the job type.
    output
        json or yaml: the whole resource.
    """
    client = Client()
    if name is not None:
        if job != "jobtype":
            raise WeftError(f"weft show {job} {name}", "two names were given", f"weft show {job}")
        return _show_type(client.job_type(name), output)
    document = client.document(job)
    if output is not None:
        print_whole(document, output)
        return 0
    colour = terminal.colours(sys.stdout)
    parts = [
        heading(document, colour),
        _waiting(client, job, document["status"]),
        timeline(client.events(job), time.time(), colour),
        tasks_table(document["status"].get("tasks") or [], terminal.width(), colour),
        notes_part(document["status"].get("tasks") or []),
        failure_part(document["status"], colour),
        _results_part(client, job),
    ]
    terminal.say("\n\n".join(part for part in parts if part))
    terminal.next_step(*next_commands(client, job, document["status"]))
    return 0


def _show_type(document: Json, output: PageForm) -> int:
    """A job type as the file that makes it: what one would write to have another like it."""
    own = {key: document[key] for key in ("apiVersion", "kind", "spec")}
    own["metadata"] = {"name": document["metadata"]["name"]}
    kept = ("apiVersion", "kind", "metadata", "spec")
    print_whole(document if output == "json" else {key: own[key] for key in kept}, output or "yaml")
    if output is None:
        terminal.next_step(f"weft run --type {own['metadata']['name']} ...", "weft apply -f mytype.yaml")
    return 0


def heading(document: Json, colour: bool) -> str:
    metadata, spec, status = document["metadata"], document["spec"], document["status"]
    state = status.get("state", "PENDING")
    painted = terminal.paint(state, terminal.STATE_STYLES.get(state), colour)
    reason = status.get("reason") or (status.get("failure") or {}).get("message") or ""
    command = " ".join([*(spec.get("command") or ()), *(spec.get("args") or ())])
    rows = (
        ("state", f"{painted}{f': {reason}' if reason else ''}"),
        ("url", _below(_urls(status.get("urls") or {}))),
        ("forward", _below([*(status.get("forwards") or {}).values()])),
        ("type", spec.get("type")),
        ("command", command if len(command) <= 300 else command[:299] + "…"),
        ("size", sizes(spec.get("roles") or {}, status.get("tasks") or ())),
        ("gave way", _times(status.get("preemptions") or 0)),
        ("asks for", _below(asked(spec.get("roles") or {}))),
        ("code", _code(spec.get("code") or {})),
        ("queue", f"{spec.get('queue', 'default')}, priority {spec.get('priority', 0)}"),
        ("owner", metadata.get("owner")),
        ("created", f"{moments.clock(metadata.get('created'))} ({moments.age(metadata.get('created'))} ago)"),
        ("labels", ", ".join(f"{name}={value}" for name, value in (metadata.get("labels") or {}).items())),
        ("uid", metadata.get("uid")),
    )
    lines = [terminal.paint(f"job {metadata['name']}", "bold", colour)]
    return "\n".join([*lines, *(f"  {name:<9}{value}" for name, value in rows if value)])


def _below(lines: Sequence[str]) -> str:
    """Several values of one name, one under the other."""
    return f"\n{'':11}".join(lines)


def _urls(urls: dict[str, str]) -> list[str]:
    """Where its tasks can be reached; which is which, if several can."""
    return [*urls.values()] if len(urls) == 1 else [f"{task}: {url}" for task, url in urls.items()]


def asked(roles: Json) -> list[str]:
    """What the tasks of each role ask for: `4 × worker: 1 cpu, 2Gi memory, 1 v100 gpu`."""
    lines = []
    for name, role in roles.items():
        wanted = role.get("resources") or {}
        parts = [
            f"{wanted.get('cpu', 1)} cpu",
            f"{wanted['memory']} memory" if wanted.get("memory") else "",
            _gpus(wanted),
            *(f"{count} {device}" for device, count in (wanted.get("devices") or {}).items()),
        ]
        size = f" (size {wanted['size']})" if wanted.get("size") else ""
        span = f" ({_span(role)})" if _elastic(role) else ""
        lines.append(f"{role.get('replicas', 1)} × {name}{span}: {', '.join(filter(None, parts))}{size}")
    return lines


def _gpus(wanted: Json) -> str:
    if not wanted.get("gpu"):
        return ""
    memory = f"with {wanted['gpuMemory']}" if wanted.get("gpuMemory") else ""
    generation = f"of generation {wanted['gpuGeneration']} or later" if wanted.get("gpuGeneration") else ""
    return " ".join(filter(None, (str(wanted["gpu"]), wanted.get("gpuType"), "gpu", memory, generation)))


def sizes(roles: Json, tasks: Sequence[Json]) -> str:
    """How large elastic roles are now: `worker 3 of 2–8`. Nothing while none has a place."""
    here = Counter(task["name"].rpartition("-")[0] for task in tasks if task.get("binding"))
    return ", ".join(
        f"{name} {here[name]} of {_span(role)}" for name, role in roles.items() if here and _elastic(role)
    )


def _bounds(role: Json) -> tuple[int, int]:
    count = role.get("replicas") or 1
    least = role.get("minReplicas")
    return count if least is None else least, role.get("maxReplicas") or count


def _elastic(role: Json) -> bool:
    least, most = _bounds(role)
    return least < most


def _span(role: Json) -> str:
    return "{}–{}".format(*_bounds(role))


def _times(count: int) -> str:
    return "" if not count else "once" if count == 1 else f"{count} times"


def _code(code: Json) -> str:
    if package := code.get("package"):
        return f"package {package[:19]}…"
    return f"{code['git']} at {code.get('commit')}" if code.get("git") else ""


def timeline(events: Sequence[Json], now: float, colour: bool) -> str:
    """Each state with the time it was entered and how long it lasted."""
    entered = [event for event in events if event.get("state") and event["state"] != event.get("previous")]
    lines = []
    for event, following in zip(entered, [*entered[1:], None], strict=False):
        state = event["state"]
        last = following is None
        lasted = (
            ""
            if last and state in FINISHED
            else moments.span((now if following is None else following["time"]) - event["time"])
        )
        painted = terminal.paint(state.ljust(12), terminal.STATE_STYLES.get(state), colour)
        line = f"  {moments.clock(event['time'])}  {painted} {lasted:>8}  {event.get('cause') or ''}"
        lines.append(line.rstrip())
    return "\n".join(["history", *lines]) if lines else ""


def tasks_table(tasks: Sequence[Json], width: int | None, colour: bool) -> str:
    rows = []
    for task in tasks[:MOST_TASKS]:
        place, end = task.get("binding") or {}, task.get("exit") or {}
        rows.append(
            [
                task["name"],
                task.get("state") or "",
                place.get("node") or "-",
                _numbers(place.get("cpus")),
                _numbers(place.get("gpus")),
                str(task.get("restarts") or 0),
                exit_text(end),
                moments.size(end.get("peakMemory")),
            ]
        )
    if not rows:
        return ""
    more = f"\nand {len(tasks) - MOST_TASKS} more tasks" if len(tasks) > MOST_TASKS else ""
    return render(TASKS, rows, width=width, colour=colour) + more


def notes_part(tasks: Sequence[Json]) -> str:
    """What could not be done for tasks as asked: a limit, a line of their log, a file of theirs."""
    by_note: dict[str, list[str]] = {}
    for task in tasks:
        for note in (task.get("exit") or {}).get("notes") or ():
            by_note.setdefault(note, []).append(task["name"])
    lines = [f"  {few(names)}: {note}" for note, names in by_note.items()]
    more = [f"  and {len(lines) - MOST_NOTES} more"] if len(lines) > MOST_NOTES else []
    return "\n".join(["notes", *lines[:MOST_NOTES], *more]) if lines else ""


def few(names: Sequence[str]) -> str:
    return ", ".join(names) if len(names) <= 3 else f"{', '.join(names[:3])} and {len(names) - 3} more"


def exit_text(end: Json) -> str:
    if end.get("signal") is not None:
        return f"signal {end['signal']}"
    return "-" if end.get("code") is None else f"code {end['code']}"


def _numbers(values: Sequence[int] | None) -> str:
    """CPU numbers as ranges: 0-3,8."""
    if not values:
        return "-"
    runs: list[list[int]] = []
    for value in sorted(values):
        if runs and value == runs[-1][1] + 1:
            runs[-1][1] = value
        else:
            runs.append([value, value])
    return ",".join(str(low) if low == high else f"{low}-{high}" for low, high in runs)


def failure_part(status: Json, colour: bool) -> str:
    failure = status.get("failure")
    if not failure:
        return ""
    head = terminal.paint(f"failure {failure.get('code')}", "red", colour)
    tail = status.get("logTail") or ()
    lines = [f"{head}: {failure.get('message')}"]
    if tail:
        of = f" of {failure['task']}" if failure.get("task") else ""
        lines += [f"last log lines{of}:", *(f"  | {line}" for line in tail)]
    return "\n".join(lines)


def _waiting(client: Client, job: str, status: Json) -> str:
    if status.get("state") not in ("PENDING", "QUEUED"):
        return ""
    try:
        return explanation(client.explain(job))
    except WeftError:
        return ""


def _results_part(client: Client, job: str) -> str:
    try:
        found = client.results(job)
    except WeftError:
        return ""
    items = found["items"]
    if not items:
        return ""
    lines = [f"results: {len(items)} file{'s' * (len(items) != 1)}, {moments.size(found.get('bytes'))}"]
    lines += [f"  {moments.size(item['size']):>9}  {item['path']}" for item in items[:MOST_RESULTS]]
    if len(items) > MOST_RESULTS:
        lines.append(f"  and {len(items) - MOST_RESULTS} more (weft results {job})")
    return "\n".join(lines)


def next_commands(client: Client, job: str, status: Json) -> list[str]:
    """What makes sense now: no results where there are none, no curves of what was never measured."""
    match status.get("state"):
        case "PENDING" | "QUEUED" | "PREEMPTED":
            return [f"weft explain {job}", "weft queue", f"weft cancel {job}"]
        case "COMPLETED":
            files = (status.get("results") or {}).get("files")
            fetch = [f"weft results {job} --get DIR"] if files else []
            return [*fetch, *_curves(client, job)] or [f"weft logs {job}", f"weft delete {job}"]
        case "FAILED":
            return [f"weft logs {job}", f"weft resume {job}", f"weft delete {job}"]
        case "HALTED":
            return [f"weft resume {job}", f"weft delete {job}"]
        case "CANCELLED":
            return [f"weft logs {job}", f"weft delete {job}"]
        case _:
            return [f"weft logs -f {job}", *_curves(client, job), f"weft halt {job}"]


def _curves(client: Client, job: str) -> list[str]:
    try:
        return [f"weft metrics {job} --plot"] if client.has_metrics(job) else []
    except WeftError:
        return []


def explain(job: str, /, *, output: PageForm = None) -> int:
    """Why a job is in its state: what it waits for, what is ahead of it, and when it may start.

    For example:
      weft explain mnist-3

    Parameters
    ----------
    job
        The job's name.
    output
        json or yaml.
    """
    client = Client()
    found = client.explain(job)
    if output is not None:
        print_whole(found, output)
        return 0
    terminal.say(f"job {job} is {terminal.state(found.get('state') or '')}\n{explanation(found)}".rstrip())
    if not terminal.advise(found):
        steps = next_commands(client, job, client.get(job).status)
        terminal.next_step(*(step for step in steps if step != f"weft explain {job}"))
    return 0


def explanation(found: Json) -> str:
    lines = [str(found["reason"])] if found.get("reason") else []
    ahead = found.get("ahead")
    if found.get("position") is not None:
        before = ", ".join(map(_name, ahead[:5])) if isinstance(ahead, list) else str(ahead or "")
        lines.append(f"place in the queue: {found['position']}" + (f" (ahead: {before})" if before else ""))
    lines += [
        f"  - {detail if isinstance(detail, str) else _name(detail)}" for detail in found.get("details") or ()
    ]
    if found.get("possible", True):
        lines += _start(found, time.time())
    return "\n".join(lines)


def _start(found: Json, now: float) -> Iterator[str]:
    """When it should start: as likely as can be said, the range, and what is promised."""
    estimate = found.get("estimatedStart") or {}
    likely, earliest, latest = (estimate.get(name) for name in ("likely", "earliest", "latest"))
    if likely is not None:
        about, first = moments.about(likely - now), moments.about((earliest or likely) - now)
        last = moments.about(latest - now) if latest is not None else "longer than can be foreseen"
        between = f" (between {first} and {last})" if {first, last} != {about} else ""
        yield f"should start in about {about}{between}"
    elif earliest is not None:
        yield f"should start in {moments.about(earliest - now)} at the earliest"
    elif estimate:
        yield "when it will start cannot be foreseen"
    if (promised := found.get("promisedStart")) is not None:
        yield f"promised to start by {moments.clock(promised)}; nothing behind it may delay that"


def _name(thing: Any) -> str:
    if isinstance(thing, dict):
        return str(
            thing.get("name") or thing.get("message") or ", ".join(f"{k}: {v}" for k, v in thing.items())
        )
    return str(thing)


def events(
    job: str,
    /,
    *,
    follow: Annotated[bool, Parameter(name=["--follow", "-f"])] = False,
    output: ListForm = None,
) -> int:
    """A job's history: what happened, when, why and by whom.

    For example:
      weft events mnist-3
      weft events -f mnist-3

    Parameters
    ----------
    job
        The job's name.
    follow
        Go on with new events until the job has ended or is halted.
    output
        json or yaml.
    """
    client = Client()
    if follow:
        return _follow(client, job, output)
    items = client.events(job)
    if output in ("json", "yaml"):
        print_whole({"items": items}, str(output))
    else:
        print_table(EVENTS, [_event(item) for item in items])
        terminal.next_step(f"weft show {job}")
    return 0


def _follow(client: Client, job: str, output: str | None) -> int:
    import json

    for item in client.follow_events(job):
        if item is not None:
            if output == "json":
                print(json.dumps(item), flush=True)
            else:
                terminal.say("  ".join(part for part in _event(item) if part))
                sys.stdout.flush()
    if output is None:
        terminal.next_step(f"weft show {job}")
    return 0


def _event(item: Json) -> list[str]:
    return [
        moments.clock(item.get("time")),
        item.get("type") or "",
        item.get("state") or "",
        item.get("cause") or "",
        item.get("actor") or "",
    ]
