"""Following a job to its end: state changes on standard error, logs on standard output, one outcome line.

Two threads read the job's events and logs from the server; the main thread prints them in the order in
which they come and is the only one that a Ctrl-C interrupts.
"""

from __future__ import annotations

import contextlib
import queue
import threading
import time
from collections.abc import Iterable
from typing import Any

from weft.cli import moments, terminal
from weft.cli.downloads import LOOK_EVERY as DOWNLOAD_EVERY
from weft.cli.downloads import Download
from weft.cli.logprint import LogPrinter
from weft.client.api import Client
from weft.client.errors import ApiError, WeftError
from weft.client.job import FINISHED, IDLE, Job

INTERRUPTED = 130
LOOK_EVERY = 1.0
"""Seconds between two looks at why a job still waits."""
FIRST_LOOK_FOR_URLS = 0.5
LAST_LINES = {"COMPLETED": 10.0, "FAILED": 10.0, "CANCELLED": 10.0, "HALTED": 1.0}
"""How long to wait for the end of the logs once the job is idle."""

Item = tuple[str, Any]


def follow(client: Client, job: Job) -> int:
    """Show the job until it has ended; the exit code for the shell."""
    follower = _Follower(client, job)
    while True:
        try:
            follower.run()
            return _outcome(job)
        except KeyboardInterrupt:
            if not _interrupted(client, job):
                return INTERRUPTED


class _Follower:
    def __init__(self, client: Client, job: Job):
        self._client = client
        self._name = job.name
        self._state = ""
        self._idle_since: float | None = None
        self._logs_ended = False
        self._printer = LogPrinter(prefixed=len(job.status.get("tasks") or ()) > 1)
        self._inbox: queue.Queue[Item] = queue.Queue(maxsize=256)
        self._waiting_reason = ""
        self._next_look = time.monotonic() + 0.3
        self._urls: list[str] = []
        self._url_pause = FIRST_LOOK_FOR_URLS
        self._started = False
        self._download = Download()

    def run(self) -> None:
        if not self._started:
            self._started = True
            self._read("event", self._client.follow_events(self._name))
            self._read("lines", self._client.follow_logs(self._name))
        while not self._done():
            try:
                kind, value = self._inbox.get(timeout=0.1 if self._idle_since else 0.3)
            except queue.Empty:
                self._look()
                continue
            self._take(kind, value)

    def _done(self) -> bool:
        if self._idle_since is None:
            return False
        waited = time.monotonic() - self._idle_since
        return self._inbox.empty() and (self._logs_ended or waited > LAST_LINES[self._state])

    def _read(self, kind: str, source: Iterable[Any]) -> None:
        def pump() -> None:
            try:
                for value in source:
                    if value is not None:
                        self._inbox.put((kind, value))
                self._inbox.put((f"{kind} end", None))
            except WeftError as problem:
                self._inbox.put(("problem", problem))

        threading.Thread(target=pump, name=f"follow-{kind}", daemon=True).start()

    def _take(self, kind: str, value: Any) -> None:
        self._download.erase()
        if kind == "lines":
            self._printer.print(value)
        elif kind == "lines end":
            self._logs_ended = True
        elif kind == "event" and value.get("state"):
            self._enter(value["state"], value.get("cause") or "")
        elif kind == "event end":
            self._enter(self._client.get(self._name).status.get("state", ""), "")
        elif kind == "problem":
            raise value

    def _enter(self, state: str, cause: str) -> None:
        if state == self._state:
            return
        self._state = state
        self._idle_since = time.monotonic() if state in IDLE else None
        self._waiting_reason = ""
        self._url_pause = FIRST_LOOK_FOR_URLS
        self._next_look = min(self._next_look, time.monotonic() + LOOK_EVERY)
        if state not in FINISHED and state != "PENDING":  # the first line and the outcome line say those
            terminal.note(f"{state}{f': {cause}' if cause else ''}")

    def _look(self) -> None:
        """A job that waits says why, once and whenever it changes; one that runs where it can be reached."""
        if time.monotonic() < self._next_look:
            return
        if self._state == "PROCESSING":
            self._look_for_urls()
        if self._state == "DOWNLOADING":
            self._look_at_download()
        if self._state != "QUEUED":
            return
        self._next_look = time.monotonic() + LOOK_EVERY
        try:
            found = self._client.explain(self._name)
        except WeftError:
            return
        reason = found.get("reason") or ""
        if reason and reason != self._waiting_reason:
            self._waiting_reason = reason
            terminal.note(f"waiting: {reason}", "yellow")
            terminal.advise(found)

    def _look_at_download(self) -> None:
        self._next_look = time.monotonic() + DOWNLOAD_EVERY
        with contextlib.suppress(WeftError):
            self._download.show(self._client.get(self._name).status.get("progress"))

    def _look_for_urls(self) -> None:
        """Ever more rarely: most jobs have none, and those that do say so soon after their start."""
        self._next_look = time.monotonic() + self._url_pause
        self._url_pause *= 1.5
        try:
            status = self._client.get(self._name).status
        except WeftError:
            return
        urls, forwards = status.get("urls") or {}, status.get("forwards") or {}
        for task, url in urls.items():
            if url not in self._urls:
                terminal.note(f"open {url}", "green")
                if task in forwards:
                    terminal.note(f"after {forwards[task]}", "green")
        self._urls = [*urls.values()]


def _outcome(job: Job) -> int:
    status = job.refresh().status
    state = status.get("state", "")
    began, ended = status.get("started"), status.get("finished")
    took = f" after {moments.span(ended - began)}" if began and ended else ""
    if state == "COMPLETED":
        terminal.note(f"job {job.name} COMPLETED{took}", "green")
        stored = status.get("results") or {}
        steps = [f"weft results {job.name} --get DIR"] if stored.get("files") else [f"weft show {job.name}"]
        terminal.next_step(*steps)
        return 0
    sentence = (status.get("failure") or {}).get("message") or status.get("reason") or ""
    terminal.note(
        f"job {job.name} {state}{took}{f': {sentence}' if sentence else ''}",
        "magenta" if state == "HALTED" else "red",
    )
    if state == "HALTED":
        terminal.next_step(f"weft resume {job.name}")
    else:
        terminal.next_step(f"weft show {job.name}", f"weft logs {job.name}")
    return 1


def _interrupted(client: Client, job: Job) -> bool:
    """Ctrl-C: ask what to do with the job. True: go on following."""
    answer = "l"
    if terminal.interactive():
        try:
            answer = terminal.ask("\n[l]eave it running, [h]alt it, [c]ancel it, or go on (Enter)?")
        except KeyboardInterrupt:
            answer = "l"
    if answer[:1] not in ("l", "h", "c"):
        return True
    try:
        if answer[:1] == "h":
            client.halt(job.name)
            terminal.note(f"job {job.name} is being halted")
            terminal.next_step(f"weft resume {job.name}", f"weft show {job.name}")
        elif answer[:1] == "c":
            client.cancel(job.name)
            terminal.note(f"job {job.name} is being cancelled")
            terminal.next_step(f"weft show {job.name}")
        else:
            terminal.note(f"job {job.name} goes on")
            terminal.next_step(f"weft logs -f {job.name}", f"weft halt {job.name}", f"weft cancel {job.name}")
    except ApiError as problem:  # it has ended in the meantime
        terminal.error(str(problem), next=problem.next)
    return False
