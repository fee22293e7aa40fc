"""Supervisors: the small processes that stand between the server and the tasks.

A supervisor starts the tasks of one launch together or not at all, keeps their logs and notes how each
ended, whether or not a server is alive to hear it: everything it does is first a line in the launch's
journal and then, if anyone listens, the same line on its socket. One *launcher* forks supervisors on
request (a fork costs under a millisecond, a fresh interpreter twenty); a supervisor whose launch is over
waits for the next one, so that a short task costs one spawn and no fork at all.

Run as a script with the standard library alone: `python -I -S supervisor.py FD`.
"""

from __future__ import annotations

import contextlib
import errno
import gc
import json
import os
import select
import shutil
import signal
import socket
import subprocess
import sys
import time
from typing import Any

JOIN_CGROUPS = (
    'n=$1; shift; while [ "$n" -gt 0 ]; do echo $$ > "$1" || exit 125; shift; n=$((n-1)); done; exec "$@"'
)
READ_SIZE = 1 << 18
COLLECT_INTERVAL = 1.0
INDEX_INTERVAL = 0.02
BURST_SECONDS = 1.0


class CannotStart(Exception):
    def __init__(self, code: str, message: str, task: str):
        super().__init__(message)
        self.code = code
        self.task = task


# ── the launcher ─────────────────────────────────────────────────────────────────────────────────


def launcher(control: socket.socket) -> None:
    """Fork a supervisor for every socket that arrives; end with the server that asked."""
    gc.freeze()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the kernel reaps supervisors that end
    while True:
        data, fds, _flags, _address = socket.recv_fds(control, 1, 1)
        if not data:
            return
        pid = os.fork()
        if pid == 0:
            control.close()
            os.set_inheritable(fds[0], False)  # a task that held it would hide its supervisor's death
            with socket.socket(fileno=fds[0]) as channel:
                try:
                    Supervisor(channel).run()
                finally:
                    os._exit(0)
        os.close(fds[0])


# ── logs ─────────────────────────────────────────────────────────────────────────────────────────


class TaskLog:
    """A task's output in segments named by their first offset; the oldest go when there are too many.

    Beside each segment an index notes (offset, time) pairs, so that the logs of several tasks can be
    merged by time long after they were written. Offsets count from the task's first byte for ever.
    """

    def __init__(self, folder: str, segment: int, keep: int):
        self.folder = folder
        self.segment = segment
        self.keep = keep
        self.dropped = 0
        self._starts = sorted(
            int(n[4:]) for n in os.listdir(folder) if n.startswith("log.") and n[4:].isdigit()
        )
        self._fd = -1
        self._index = -1
        self._indexed = 0.0
        self._start = self.offset = 0
        if self._starts:
            self._open(self._starts[-1])

    def _open(self, start: int) -> None:
        path = f"{self.folder}/log.{start:015d}"
        fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        index = os.open(f"{path}.index", os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        self.close()
        self._fd, self._index, self._start = fd, index, start
        self.offset = start + os.fstat(fd).st_size
        if start not in self._starts:
            self._starts.append(start)
        while len(self._starts) > self.keep:
            old = self._starts.pop(0)
            for name in (f"log.{old:015d}", f"log.{old:015d}.index"):
                _unlink(f"{self.folder}/{name}")

    def write(self, data: bytes, now: float) -> None:
        """Append; what a full disk refuses is dropped and counted, the task never suffers for it."""
        view = memoryview(data)
        try:
            if self._fd < 0 or self.offset - self._start >= self.segment:
                self._open(self.offset)
            if now - self._indexed >= INDEX_INTERVAL:
                os.write(self._index, b"%d %.3f\n" % (self.offset, now))
                self._indexed = now
            while view:
                written = os.write(self._fd, view)
                self.offset += written
                view = view[written:]
        except OSError:
            self.dropped += len(view)

    def close(self) -> None:
        for fd in (self._fd, self._index):
            if fd >= 0:
                os.close(fd)
        self._fd = self._index = -1


def _unlink(path: str) -> None:
    try:
        os.unlink(path)
    except FileNotFoundError:
        pass


# ── temporary folders ────────────────────────────────────────────────────────────────────────────


class TemporaryFolders:
    """A TMPDIR for each task, empty when it starts and emptied when it ends.

    A folder is kept for the next task: making and removing one costs as much as starting a process. The
    owner's id is in the name, so that a server can sweep those of a supervisor that was killed.
    """

    def __init__(self, owner: str):
        self._owner = owner
        self._free: list[str] = []
        self._made = 0

    def take(self, root: str) -> str:
        if self._free:
            return self._free.pop()
        self._made += 1
        path = f"{root}/{self._owner}-{self._made}"
        _make_folders([path])
        return path

    def give_back(self, path: str) -> None:
        for entry in os.scandir(path):
            if entry.is_dir(follow_symlinks=False):
                shutil.rmtree(entry.path, ignore_errors=True)
            else:
                _unlink(entry.path)
        self._free.append(path)

    def remove(self) -> None:
        for path in self._free:
            shutil.rmtree(path, ignore_errors=True)
        self._free.clear()


# ── one task ─────────────────────────────────────────────────────────────────────────────────────


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
        root = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
        if root not in sys.path:
            sys.path.append(root)
        from weft.runtime.collect import Collector

        self.collector = Collector(spec["metrics"], spec["logDir"], spec["metricsFile"])

    def start(self, devnull: int) -> None:
        spec = self.spec
        argv = spec["argv"]
        joins = (spec.get("cgroups") or {}).get("joins", ())
        if joins:
            argv = ["/bin/sh", "-c", JOIN_CGROUPS, "weft", str(len(joins)), *joins, *argv]
        self.pipe, write_end = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
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
        self.pidfd = os.pidfd_open(self.pid)

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
        peak, oom = self._memory(usage.ru_maxrss * 1024)
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
            "peak": peak,
            "cpu": round(usage.ru_utime + usage.ru_stime, 3),
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

    def _memory(self, peak: int) -> tuple[int, bool]:
        """Peak bytes, and whether the kernel killed for going over the limit."""
        groups = self.spec.get("cgroups") or {}
        oom = False
        if groups.get("peak"):
            peak = _number(groups["peak"]) or peak  # what counted against the limit
        if groups.get("oom"):
            oom = _counter(groups["oom"], "oom_kill") > 0
        return peak, oom

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


# ── the supervisor ───────────────────────────────────────────────────────────────────────────────


class Supervisor:
    """Carries out one launch after another until its server goes away and its last task has ended."""

    def __init__(self, channel: socket.socket):
        self.channel: socket.socket | None = channel
        self.buffer = b""
        self._outbox = b""
        self.tasks: list[TaskProcess] = []
        self.journal = -1
        self.devnull = os.open("/dev/null", os.O_RDWR | os.O_CLOEXEC)
        self.boot = boot_id()
        self.birth = start_time(os.getpid())
        self.temporary = TemporaryFolders(f"{os.getpid()}-{self.birth}")

    def run(self) -> None:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        os.umask(0o022)
        while self.channel is not None or self.tasks:
            self._wait()
            self._send()
        self.temporary.remove()

    # ── launching ──

    def launch(self, message: dict[str, Any]) -> None:
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        try:
            _make_folders(message["folders"])
            self.journal = os.open(message["journal"], flags, 0o600)  # whoever makes it owns the launch
        except FileExistsError:
            self._say({"event": "taken"})
            return
        except OSError as problem:
            self._say(_undone("CANNOT_START", f"{problem.strerror}: {problem.filename}", None))
            self._say({"event": "idle"})
            return
        self._write({"event": "claimed", "pid": os.getpid(), "birth": self.birth, "boot": self.boot})
        tasks = [TaskProcess(spec) for spec in message["tasks"]]
        try:
            for task in tasks:
                self._give_tmp(task, message["tmpRoot"])
                task.prepare()
            for task in tasks:
                task.start(self.devnull)
        except CannotStart as problem:
            for task in tasks:
                task.kill()
                self._take_tmp(task)
            self._note(_undone(problem.code, str(problem), problem.task))
            self._end_launch()
            return
        self.tasks = tasks
        pids = {task.name: [task.pid, start_time(task.pid)] for task in tasks}
        self._note({"event": "started", "time": time.time(), "pids": pids})

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
        self._say({"event": "idle"})

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
            data = self.channel.recv(1 << 16)
        except OSError:  # reset: the server was killed before it had read everything
            data = b""
        if not data:
            self.channel = None
            return
        self.buffer += data
        while b"\n" in self.buffer:
            line, self.buffer = self.buffer.split(b"\n", 1)
            self.launch(json.loads(line))

    # ── telling ──

    def _note(self, event: dict[str, Any]) -> None:
        """First on disk, then to whoever listens."""
        self._outbox += self._write(event)

    def _say(self, event: dict[str, Any]) -> None:
        """For the server alone; nobody else would miss it."""
        self._outbox += json.dumps(event).encode() + b"\n"

    def _write(self, event: dict[str, Any]) -> bytes:
        line = rest = json.dumps(event).encode() + b"\n"
        for _ in range(600):
            try:
                written = os.write(self.journal, rest)
            except OSError:  # a full disk: an exit code is worth waiting for
                written = 0
            if written == len(rest):
                break
            rest = b"\n" + line if written else rest  # readers skip the torn line
            time.sleep(0.1)
        return line

    def _send(self) -> None:
        lines, self._outbox = self._outbox, b""
        if lines and self.channel is not None:
            try:
                self.channel.sendall(lines)
            except OSError:
                self.channel = None


def _make_folders(paths: list[str]) -> None:
    for path in paths:
        try:
            os.mkdir(path)
        except FileExistsError:
            continue


def _undone(code: str, message: str, task: str | None) -> dict[str, Any]:
    return {"event": "undone", "code": code, "message": message, "task": task}


def start_time(pid: int) -> int:
    """When a process was born, in clock ticks since boot: with its id, its identity."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return int(file.read().rpartition(b")")[2].split()[19])
    except (OSError, IndexError, ValueError):
        return 0


def boot_id() -> str:
    try:
        with open("/proc/sys/kernel/random/boot_id") as file:
            return file.read().strip()
    except OSError:
        return ""


if __name__ == "__main__":
    launcher(socket.socket(fileno=int(sys.argv[1])))
