"""One task: a user's process, prepared, started, pumped, and cleaned up after."""

from __future__ import annotations

import errno
import os
import select
import signal
import subprocess
import time
from typing import Any

from weft.runtime.tasklog import TaskLog

JOIN_CGROUPS = (
    'n=$1; shift; while [ "$n" -gt 0 ]; do echo $$ > "$1" || { echo "$1" > "$0"; exit 125; }; '
    'shift; n=$((n-1)); done; exec "$@"'
)
"""Runs as the task before it is the task. A group that refuses it is named in the file $0: 125 may be the task's own."""
READ_SIZE = 1 << 16
COLLECT_INTERVAL = 1.0
BURST_SECONDS = 1.0


class CannotStart(Exception):
    def __init__(self, code: str, message: str, task: str):
        super().__init__(message)
        self.code = code
        self.task = task


_FOUND: dict[tuple[str, str], str] = {}
"""Where commands were found, by PATH and name; looked at again before each use."""


class TaskProcess:
    """A user's process: prepared, started, pumped, and cleaned up after."""

    def __init__(self, spec: dict[str, Any]):
        self.spec = spec
        self.name: str = spec["name"]
        self.pid = -1
        self.pidfd = -1
        self.pipe = -1
        self.log: TaskLog | None = None
        self.collector: Any = None
        self.collected = 0.0
        self.allowance = float(spec["log"]["rate"]) * BURST_SECONDS
        self.refilled = 0.0
        self.notes: list[str] = list(spec.get("notes", ()))
        self._made: list[str] = []
        self._command = ""
        self._refusal = f"{spec['dir']}/refusal"
        self.tmp = ""

    def prepare(self) -> None:
        """Everything that can fail before the process exists."""
        spec = self.spec
        if not os.path.isdir(spec["cwd"]):
            raise CannotStart("CANNOT_START", f"{self.name}: its folder {spec['cwd']} is missing", self.name)
        self._find_command(spec["argv"][0])
        try:
            self.log = TaskLog(spec["dir"], spec["log"]["segment"], spec["log"]["keep"])
            self._make_cgroups()
        except OSError as problem:
            raise CannotStart(
                "CANNOT_START", f"{self.name}: {problem.strerror}: {problem.filename}", self.name
            ) from None
        if spec["metrics"]:
            self._collect(spec)

    def _find_command(self, command: str) -> None:
        where = self.spec["env"].get("PATH", "")
        if "/" in command:
            found = os.path.join(self.spec["cwd"], command)
            if not os.path.isfile(found):
                raise CannotStart("COMMAND_NOT_FOUND", f"{self.name}: no such command: {command}", self.name)
            if not os.access(found, os.X_OK):
                raise CannotStart(
                    "COMMAND_NOT_FOUND", f"{self.name}: {command} is not executable (chmod +x)", self.name
                )
            self._command = found
            return
        known = _FOUND.get((where, command))
        for folder in () if known else where.split(":"):
            found = f"{folder or '.'}/{command}"
            if os.access(found, os.X_OK) and not os.path.isdir(found):
                known = _FOUND[where, command] = found
                break
        if known is not None and os.access(known, os.X_OK):
            self._command = known
            return
        _FOUND.pop((where, command), None)
        raise CannotStart(
            "COMMAND_NOT_FOUND",
            f"{self.name}: command not found: {command} (is it installed here? A file of the code folder is ./{command})",
            self.name,
        )

    def _make_cgroups(self) -> None:
        groups = self.spec.get("cgroups") or {}
        for folder in groups.get("folders", ()):
            os.makedirs(folder, exist_ok=True)
            self._made.append(folder)
        for path, value in groups.get("limits", ()):
            try:
                with open(path, "w") as file:
                    file.write(value)
            except OSError as problem:
                self.notes.append(f"limit {os.path.basename(path)} not set: {problem.strerror}")

    def _collect(self, spec: dict[str, Any]) -> None:
        from weft.runtime.collect import Collector

        self.collector = Collector(spec["metrics"], spec["logDir"], spec["metricsFile"])

    def start(self, devnull: int) -> None:
        spec = self.spec
        argv = spec["argv"]
        joins = (spec.get("cgroups") or {}).get("joins", ())
        if joins:
            argv = ["/bin/sh", "-c", JOIN_CGROUPS, self._refusal, str(len(joins)), *joins, *argv]
        try:
            self.pipe, write_end = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        except OSError as problem:
            raise CannotStart(
                "CANNOT_START", f"{self.name}: {problem.strerror} (ulimit -n)", self.name
            ) from None
        os.set_blocking(write_end, True)
        if spec["cpus"]:
            everything = os.sched_getaffinity(0)
            os.sched_setaffinity(0, spec["cpus"])
        try:
            os.chdir(spec["cwd"])  # inherited, as the CPUs are: a supervisor has no other thread to confuse
            self.pid = os.posix_spawn(
                "/bin/sh" if joins else self._command,
                argv,
                spec["env"],
                file_actions=(
                    (os.POSIX_SPAWN_DUP2, devnull, 0),
                    (os.POSIX_SPAWN_DUP2, write_end, 1),
                    (os.POSIX_SPAWN_DUP2, write_end, 2),
                ),
                setsid=True,
                scheduler=(os.SCHED_OTHER, os.sched_param(0)),  # not as its supervisor
                setsigmask=(),
                setsigdef=(signal.SIGPIPE, signal.SIGINT, signal.SIGXFSZ),
            )
        except (OSError, ValueError) as problem:
            raise CannotStart("CANNOT_START", f"{self.name}: {argv[0]}: {problem}", self.name) from None
        finally:
            os.close(write_end)
            os.chdir("/")
            if spec["cpus"]:
                os.sched_setaffinity(0, everything)
        try:
            self.pidfd = os.pidfd_open(self.pid)
        except OSError as problem:
            raise CannotStart(
                "CANNOT_START", f"{self.name}: {problem.strerror} (ulimit -n)", self.name
            ) from None

    def pump(self, now: float) -> bool:
        """Move what the task has printed into its log. False at the end of the output."""
        try:
            data = os.read(self.pipe, READ_SIZE)
        except BlockingIOError:
            return True
        if not data:
            return False
        assert self.log is not None
        self.allowance -= len(data)
        self.log.write(data, now)
        if self.collector is not None:
            self.collector.feed(data)
        return True

    def throttled(self, now: float) -> bool:
        """Whether the task has used up its share of log bytes for the moment; its writes then block."""
        rate = float(self.spec["log"]["rate"])
        if self.refilled:
            self.allowance = min(self.allowance + (now - self.refilled) * rate, rate * BURST_SECONDS)
        self.refilled = now
        return self.allowance < 0

    def collect(self, now: float) -> None:
        if self.collector is not None and now - self.collected >= COLLECT_INTERVAL:
            self.collected = now
            self.collector.poll()

    def reap(self) -> dict[str, Any]:
        """After the process ended: stop what it left running, drain its output, and say how it went."""
        _, status, usage = os.wait4(self.pid, 0)
        self._kill_rest()
        now = time.time()
        while self.pipe >= 0 and self._more():
            if not self.pump(now):
                break
        for argv in self.spec.get("cleanup", ()):
            try:
                subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, timeout=30, check=False)
            except (OSError, subprocess.TimeoutExpired) as problem:
                self.notes.append(f"clean-up {argv[0]}: {problem}")
        peak, oom = self._memory()
        cpu = self._grouped_cpu() or usage.ru_utime + usage.ru_stime
        if self.collector is not None:
            self.collector.close()
            self.notes += self.collector.notes
        if self.log is not None and self.log.dropped:
            self.notes.append(f"{self.log.dropped} bytes of log lost: no room on the disk")
        self.clean()
        return {
            "event": "exited",
            "task": self.name,
            "time": now,
            "code": os.WEXITSTATUS(status) if os.WIFEXITED(status) else None,
            "signal": os.WTERMSIG(status) if os.WIFSIGNALED(status) else None,
            "oom": oom,
            "unjoined": self._unjoined(),
            "peak": peak or usage.ru_maxrss * 1024,
            "grouped": peak > 0,
            "cpu": round(cpu, 3),
            "notes": self.notes,
        }

    def _more(self) -> bool:
        poller = select.poll()
        poller.register(self.pipe, select.POLLIN)
        return bool(poller.poll(0))

    def _kill_rest(self) -> None:
        try:
            os.killpg(self.pid, signal.SIGKILL)
        except (ProcessLookupError, PermissionError):
            pass
        for path in (self.spec.get("cgroups") or {}).get("joins", ()):
            try:
                with open(path) as file:
                    pids = [int(line) for line in file]
            except OSError:
                continue
            for pid in pids:
                try:
                    os.kill(pid, signal.SIGKILL)
                except ProcessLookupError:
                    pass

    def _memory(self) -> tuple[int, bool]:
        """The most bytes that counted against the limit, if a group has counted, and whether the kernel killed for going over it."""
        groups = self.spec.get("cgroups") or {}
        peak = _number(groups["peak"]) if groups.get("peak") else 0
        return peak, bool(groups.get("oom")) and _counter(groups["oom"], "oom_kill") > 0

    def _grouped_cpu(self) -> float:
        """Seconds, where a group is asked for them: nanoseconds in version 1, among others as microseconds in version 2."""
        place = (self.spec.get("cgroups") or {}).get("cpu")
        return (_number(place) / 1e9 or _counter(place, "usage_usec") / 1e6) if place else 0.0

    def _unjoined(self) -> str | None:
        """The group that would not take the task, which then never ran."""
        if not (self.spec.get("cgroups") or {}).get("joins"):
            return None
        try:
            with open(self._refusal) as file:
                refused = file.read().strip()
        except OSError:
            return None
        os.unlink(self._refusal)
        return refused

    def clean(self) -> None:
        """Leave nothing behind but the log."""
        for fd in (self.pipe, self.pidfd):
            if fd >= 0:
                os.close(fd)
        self.pipe = self.pidfd = -1
        if self.log is not None:
            self.log.close()
        for path in reversed(self._made):
            _remove_cgroup(path)
        self._made.clear()

    def kill(self) -> None:
        """Undo a start."""
        if self.pid > 0:
            self._kill_rest()
            os.waitpid(self.pid, 0)
        self.clean()


def _remove_cgroup(path: str) -> None:
    """With those below it that an engine left there."""
    for folder, _, _ in os.walk(path, topdown=False):
        _remove_group(folder)


def _remove_group(path: str) -> None:
    for _ in range(50):
        try:
            os.rmdir(path)
        except FileNotFoundError:
            return
        except OSError as problem:
            if problem.errno != errno.EBUSY:
                return
            time.sleep(0.01)  # the last process is still being taken down by the kernel
        else:
            return


def _number(path: str) -> int:
    try:
        with open(path) as file:
            return int(file.read())
    except (OSError, ValueError):
        return 0


def _counter(path: str, name: str) -> int:
    try:
        with open(path) as file:
            for line in file:
                key, _, value = line.partition(" ")
                if key == name:
                    return int(value)
    except (OSError, ValueError):
        pass
    return 0
