"""Supervisors: the small processes that stand between the server and the tasks.

A supervisor starts the tasks of one launch together or not at all, keeps their logs and notes how each
ended, whether or not a server is alive to hear it: everything it does is first a line in the launch's
journal and then, if anyone listens, the same line on its socket. A supervisor whose launch is over waits for
the next one, so that a short task costs one spawn and no fork at all.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import socket
import time
from typing import Any

from weft.runtime.identity import Births, boot_id, start_time
from weft.runtime.taskprocess import COLLECT_INTERVAL, CannotStart, TaskProcess
from weft.runtime.workfolders import TemporaryFolders, make_folders

EARFUL = 1 << 16
"""Read at once. A larger buffer is mapped and unmapped for each launch, though most are a few kilobytes."""

MOMENT = 0.003
"""So long is a start not told, in seconds: of what ends at once the server hears both in one message. It is in the
journal at once."""


class Supervisor:
    """Carries out one launch after another until its server goes away and its last task has ended."""

    def __init__(self, channel: socket.socket):
        self.channel: socket.socket | None = channel
        self.buffer = bytearray()
        self._outbox = b""
        """For the server; what others would miss is in the journal, too."""
        self._quiet_until = 0.0
        self.tasks: list[TaskProcess] = []
        self.journal = -1
        self.devnull = os.open("/dev/null", os.O_RDWR | os.O_CLOEXEC)
        self.boot = boot_id()
        self.birth = start_time(os.getpid())
        self.births = Births()
        self._claimed = _line(
            {"event": "claimed", "pid": os.getpid(), "birth": self.birth, "boot": self.boot}
        )
        self._idle = _line({"event": "idle"})
        self.temporary = TemporaryFolders(f"{os.getpid()}-{self.birth}")

    def run(self) -> None:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        os.umask(0o022)
        _yield_to_the_server()
        while self.channel is not None or self.tasks:
            self._wait()
            self._send()
        self.temporary.remove()

    # ── launching ──

    def launch(self, message: dict[str, Any]) -> None:
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        try:
            make_folders(message["folders"])
            self.journal = os.open(message["journal"], flags, 0o600)  # whoever makes it owns the launch
        except FileExistsError:
            self._outbox += _line({"event": "taken"})
            return
        except OSError as problem:
            undone = _undone("CANNOT_START", f"{problem.strerror}: {problem.filename}", None)
            self._outbox += _line(undone) + self._idle
            return
        self._write(self._claimed)
        tasks = [TaskProcess(spec) for spec in message["tasks"]]
        try:
            for task in tasks:
                self._give_tmp(task, message["tmpRoot"])
                task.prepare()
            births = {}
            for task in tasks:
                before = self.births.now()
                task.start(self.devnull)
                births[task.name] = [task.pid, self.births.of(task.pid, before)]
        except CannotStart as problem:
            for task in tasks:
                task.kill()
                self._take_tmp(task)
            self._note(_undone(problem.code, str(problem), problem.task))
            self._end_launch()
            return
        self.tasks = tasks
        self._note({"event": "started", "time": time.time(), "pids": births})
        self._quiet_until = time.monotonic() + MOMENT

    def _give_tmp(self, task: TaskProcess, root: str) -> None:
        if "TMPDIR" in task.spec["env"]:
            return
        try:
            task.tmp = self.temporary.take(root)
        except OSError as problem:
            raise CannotStart("CANNOT_START", f"{task.name}: {problem.strerror}: {root}", task.name) from None
        task.spec["env"]["TMPDIR"] = task.tmp

    def _take_tmp(self, task: TaskProcess) -> None:
        if task.tmp:
            with contextlib.suppress(OSError):
                self.temporary.give_back(task.tmp)

    def _end_launch(self) -> None:
        os.close(self.journal)
        self.journal = -1
        self._outbox += self._idle

    # ── waiting ──

    def _wait(self) -> None:
        now = time.time()
        poller = select.poll()
        timeout: float | None = None
        if self.channel is not None:
            poller.register(self.channel.fileno(), select.POLLIN)
        for task in self.tasks:
            poller.register(task.pidfd, select.POLLIN)
            if task.pipe >= 0:
                if task.throttled(now):
                    timeout = 50.0
                else:
                    poller.register(task.pipe, select.POLLIN)
            if task.collector is not None:
                timeout = min(timeout or 1000.0, 1000.0 * COLLECT_INTERVAL)
        if self._outbox:
            left = 1000.0 * (self._quiet_until - time.monotonic())
            timeout = min(timeout or 1000.0, max(left, 0.0))
        ready = {fd for fd, _ in poller.poll(timeout)}
        now = time.time()
        for task in list(self.tasks):
            if task.pipe in ready and not task.pump(now):
                os.close(task.pipe)
                task.pipe = -1
            task.collect(now)
            if task.pidfd in ready:
                self.tasks.remove(task)
                ended = task.reap()
                self._take_tmp(task)
                self._note(ended)
                if not self.tasks:
                    self._end_launch()
        if self.channel is not None and self.channel.fileno() in ready:
            self._read()

    def _read(self) -> None:
        assert self.channel is not None
        try:
            data = self.channel.recv(EARFUL)
        except OSError:  # reset: the server was killed before it had read everything
            data = b""
        if not data:
            self.channel = None
            return
        looked = len(self.buffer)  # a launch of thousands of tasks comes in many pieces
        self.buffer += data
        while (end := self.buffer.find(b"\n", looked)) >= 0:
            line = bytes(self.buffer[:end])
            del self.buffer[: end + 1]
            looked = 0
            self.launch(json.loads(line))

    # ── telling ──

    def _note(self, event: dict[str, Any]) -> None:
        """First on disk, then to whoever listens."""
        line = _line(event)
        self._write(line)
        self._outbox += line

    def _write(self, line: bytes) -> None:
        rest = line
        for _ in range(600):
            try:
                written = os.write(self.journal, rest)
            except OSError:  # a full disk: an exit code is worth waiting for
                written = 0
            if written == len(rest):
                break
            rest = b"\n" + line if written else rest  # readers skip the torn line
            time.sleep(0.1)

    def _send(self) -> None:
        if self.tasks and time.monotonic() < self._quiet_until:
            return
        lines, self._outbox = self._outbox, b""
        if lines and self.channel is not None:
            try:
                self.channel.sendall(lines)
            except OSError:
                self.channel = None


def _yield_to_the_server() -> None:
    """A supervisor that is woken by the server does not push it off its CPU; tasks are scheduled as ever."""
    with contextlib.suppress(OSError, AttributeError):
        os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))


def _line(event: dict[str, Any]) -> bytes:
    return json.dumps(event).encode() + b"\n"


def _undone(code: str, message: str, task: str | None) -> dict[str, Any]:
    return {"event": "undone", "code": code, "message": message, "task": task}
