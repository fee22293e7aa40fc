"""The server's side of the supervisors: a pool of channels, and the journals of launches it adopts."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import select
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

from pydantic_core import from_json

from weft.runtime import launcher
from weft.runtime.identity import boot_id, start_time
from weft.runtime.regularfile import open_to_read

LEAST_SPARE = 4
KEEP_IDLE = 16
ADOPTED_POLL = 0.1
UNCLAIMED_PATIENCE = 5.0
EARFUL = 1 << 11
"""Read at once: some ten exits, so that when thousands of tasks end together others are served in between."""

log = logging.getLogger("weft.local")

Heard = Callable[[dict[str, Any]], None]
"""Called with each line that a launch's supervisor wrote; {"event": "lost"} if it died with work to do."""


class Channel:
    """One supervisor process, seen through its socket."""

    def __init__(self, pool: Pool, sock: socket.socket):
        self.pool = pool
        self.sock = sock
        self.buffer = b""
        self.heard: Heard | None = None
        self.busy = False
        sock.setblocking(False)
        pool.loop.add_reader(sock.fileno(), self._readable)

    def launch(self, data: bytes, heard: Heard) -> None:
        self.heard = heard
        self.busy = True
        try:
            sent = self.sock.send(data)
        except BlockingIOError:
            sent = 0
        except OSError:
            self._lost()
            return
        if sent < len(data):
            self.pool.keep(asyncio.ensure_future(self._send_rest(memoryview(data)[sent:])))

    async def _send_rest(self, data: memoryview) -> None:
        with contextlib.suppress(OSError):  # a dead supervisor is noticed by the reader
            await self.pool.loop.sock_sendall(self.sock, data)

    def _readable(self) -> None:
        try:
            data = self.sock.recv(EARFUL)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self._lost()
            return
        self.buffer += data
        *lines, self.buffer = self.buffer.split(b"\n")
        for line in lines:
            event = from_json(line)
            heard = self.heard
            if event["event"] in ("idle", "taken"):
                self.busy = False
                self.heard = None
                self.pool.returned(self)
            if heard is not None and event["event"] != "idle":
                heard(event)

    def _lost(self) -> None:
        self.close()
        self.pool.gone(self)
        if self.heard is not None:
            heard, self.heard = self.heard, None
            heard({"event": "lost"})

    def close(self) -> None:
        if self.sock.fileno() >= 0:
            self.pool.loop.remove_reader(self.sock.fileno())
            self.sock.close()


class Pool:
    """Starts supervisors through the launcher and reuses those that are idle."""

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self.idle: list[Channel] = []
        self.all: set[Channel] = set()
        self._tasks: set[asyncio.Future[Any]] = set()
        self._control: socket.socket | None = None
        self._process: subprocess.Popen[bytes] | None = None

    def start(self, cpus: int) -> None:
        """With a supervisor ready for each CPU: so many short jobs may start at once."""
        self._start_launcher()
        for _ in range(min(max(cpus, LEAST_SPARE), KEEP_IDLE)):
            self.idle.append(self._fork())

    def _start_launcher(self) -> None:
        ours, theirs = socket.socketpair()
        with theirs:
            os.set_inheritable(theirs.fileno(), True)
            self._process = subprocess.Popen(
                [sys.executable, "-I", "-S", launcher.__file__, str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                start_new_session=True,
                cwd="/",
            )
        self._control = ours

    def _fork(self) -> Channel:
        ours, theirs = socket.socketpair()
        with theirs:
            assert self._control is not None
            try:
                socket.send_fds(self._control, [b"f"], [theirs.fileno()])
            except OSError:  # the launcher was killed: start another, nothing else depends on it
                self._control.close()
                self._start_launcher()
                socket.send_fds(self._control, [b"f"], [theirs.fileno()])
        channel = Channel(self, ours)
        self.all.add(channel)
        return channel

    def launch(self, message: bytes, heard: Heard) -> None:
        """Hand a launch, one line of JSON, to a supervisor."""
        channel = self.idle.pop() if self.idle else self._fork()
        channel.launch(message, heard)

    def returned(self, channel: Channel) -> None:
        if len(self.idle) < KEEP_IDLE:
            self.idle.append(channel)
        else:
            channel.close()
            self.all.discard(channel)

    def gone(self, channel: Channel) -> None:
        self.all.discard(channel)
        if channel in self.idle:
            self.idle.remove(channel)

    def keep(self, task: asyncio.Future[Any]) -> None:
        self._tasks.add(task)
        task.add_done_callback(self._done)

    def _done(self, task: asyncio.Future[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (problem := task.exception()) is not None:
            log.error("what was to be done for a launch failed", exc_info=problem)

    def close(self) -> None:
        """Let go: idle supervisors and the launcher end, busy ones finish their launch alone."""
        for channel in list(self.all):
            channel.close()
        if self._control is not None:
            self._control.close()
        if self._process is not None:
            self._process.wait(timeout=5)


class Adopted:
    """A launch whose supervisor lost its server: its journal is read on as it grows."""

    def __init__(self, journal: str, heard: Heard):
        self.path = journal
        self.heard = heard
        self.offset = 0
        self.pidfd = -1
        self.finished = False
        self._left: set[str] = set()
        self._started = False
        self._claimed = False
        self._patience = time.monotonic() + UNCLAIMED_PATIENCE

    def read(self) -> None:
        """Report what is new. Death is looked at before the journal, so that no last line is missed."""
        dead = self.dead() if self._claimed else time.monotonic() > self._patience
        for event in self._new_lines():
            match event["event"]:
                case "claimed":
                    self._claimed = True
                    self._watch(event)
                case "started":
                    self._started = True
                    self._left = set(event["pids"])
                case "exited":
                    self._left.discard(event["task"])
                case "undone":
                    self.finished = True
            self.heard(event)
        if self._started and not self._left:
            self.finished = True
        if dead and not self.finished:
            self.finished = True
            self.heard({"event": "lost"})
        if self.finished and self.pidfd >= 0:
            os.close(self.pidfd)
            self.pidfd = -1

    def _watch(self, claimed: dict[str, Any]) -> None:
        if claimed["boot"] != boot_id():
            return
        try:
            pidfd = os.pidfd_open(claimed["pid"])
        except OSError:
            return
        if start_time(claimed["pid"]) == claimed["birth"]:
            self.pidfd = pidfd
        else:
            os.close(pidfd)

    def dead(self) -> bool:
        if self.pidfd < 0:
            return True
        poller = select.poll()  # select() knows no descriptor above 1023
        poller.register(self.pidfd, select.POLLIN)
        return bool(poller.poll(0))

    def _new_lines(self) -> list[dict[str, Any]]:
        events = []
        try:
            with open_to_read(self.path) as file:
                file.seek(self.offset)
                data = file.read()
        except OSError:
            return []
        whole, _, _ = data.rpartition(b"\n")
        if whole:
            self.offset += len(whole) + 1
            for line in whole.split(b"\n"):
                with contextlib.suppress(ValueError):
                    events.append(json.loads(line))
        return events


def is_over(journal: str) -> bool:
    """Whether nobody watches a launch any more: its tasks have ended, or its supervisor has."""
    launch = Adopted(journal, lambda line: None)
    launch.read()
    try:
        return launch.finished or launch.dead()
    finally:
        if launch.pidfd >= 0:
            os.close(launch.pidfd)


def processes_of(uid: str, launch: int) -> list[int]:
    """Every process that carries a launch's mark in its environment: the last resort after a crash."""
    mark = {f"WEFT_JOB_UID={uid}".encode(), f"WEFT_LAUNCH={launch}".encode()}
    found = []
    for entry in os.scandir("/proc"):
        if not entry.name.isdigit():
            continue
        try:
            with open(f"/proc/{entry.name}/environ", "rb") as file:  # noqa: PTH123
                if mark <= set(file.read().split(b"\0")):
                    found.append(int(entry.name))
        except OSError:
            continue
    return found
