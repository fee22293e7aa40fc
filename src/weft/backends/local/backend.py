"""The local engine: this machine's nodes, and the tasks that run on them."""

from __future__ import annotations

import asyncio
import collections
import errno
import hashlib
import json
import logging
import os
import shutil
import signal
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pydantic_core import to_json

from weft.backends import stalls
from weft.backends.api import Assignment, Cached, Listener, Surroundings, TaskUsage, Tell
from weft.backends.files import JobFiles
from weft.backends.folders import replace_file
from weft.backends.local import cgroups, commands, machine, stacks, usage
from weft.backends.local.containergroups import ContainerGroups
from weft.backends.local.datasets import NodeData
from weft.backends.local.pinning import Pinning
from weft.backends.local.ports import Ports, places_of
from weft.backends.local.supervisors import ADOPTED_POLL, Adopted, Pool, is_over, processes_of
from weft.backends.tasks import (
    Gathering,
    gather,
    hosts_of,
    image_of,
    metrics_of,
    taking_part,
    task_command,
    task_environment,
    working_folder,
)
from weft.model.events import Exited, Launched, Lost, Undone
from weft.model.failures import Code, Failure, Permanent
from weft.model.gang import Gang, Task
from weft.model.node import Node
from weft.model.quantities import show_bytes
from weft.model.status import Exit, TaskState
from weft.runtime.announce import announced
from weft.runtime.identity import start_time

log = logging.getLogger("weft.local")
LOG_SEGMENT = 8 << 20
LOG_SEGMENTS_KEPT = 8
LOG_RATE = 32 << 20
RELAUNCH_DELAY = 1.0
SCARCE = {errno.EMFILE, errno.ENFILE, errno.EAGAIN, errno.ENOMEM}
"""No more open files, processes or memory just now."""
KILLED_IN_CONTAINER = 128 + signal.SIGKILL
FAILED_ENGINE = 125
"""What `podman run` and `docker run` exit with when they themselves, and not the task, went wrong."""
SLICE = 250
"""Tasks that are seen to in one turn of the event loop: about 20 ms."""

SecretReader = Callable[[str, str], str | None]
"""The value of a secret's key, or None."""


@dataclass(frozen=True, slots=True)
class Patience:
    """The tasks that were told to end together, and what happens to those left when it runs out."""

    left: set[str]
    timer: asyncio.TimerHandle

    def gone(self, task: str) -> None:
        self.left.discard(task)
        if not self.left:
            self.timer.cancel()


@dataclass(frozen=True, slots=True)
class Loss:
    """The tasks of a job that go with a node, and those of them that still run."""

    node: str
    tasks: tuple[str, ...]
    left: set[str]


class LocalBackend(JobFiles):
    name = "local"
    one_machine = True
    keeps_secrets = False

    def __init__(self, home: Path, shape: machine.Shape, secrets: SecretReader):
        super().__init__(home)
        self.home = str(home)
        self.data = f"{home}/data"
        self.tmp = f"{home}/tmp"
        self._nodes = machine.discover(shape)
        self._secrets = secrets
        self._ports = Ports()
        self._meter = usage.Meter()
        self._pinning = Pinning({node.name: node.cpu_ids for node in self._nodes}, usage.descendants)
        self._cgroups = cgroups.Cgroups()
        self._container_groups: ContainerGroups
        self._adopted: dict[tuple[str, int], Adopted] = {}
        self._births: dict[tuple[str, str], tuple[int, int]] = {}
        self._kills: dict[tuple[str, str, int], Patience] = {}
        self._losses: dict[tuple[str, str, int], Loss] = {}
        self._given_up: dict[tuple[str, str, int], Failure] = {}
        self._environment: Mapping[str, str] = {}
        self._datasets = NodeData(self.home, [node.name for node in self._nodes], shape.cache)
        self._pool: Pool
        self._listener: Listener
        self._loop: asyncio.AbstractEventLoop
        self._poller: asyncio.Task[None] | None = None

    # ── the machine ──

    def nodes(self) -> tuple[Node, ...]:
        return tuple(replace(node, holds=self._datasets.holds(node.name)) for node in self._nodes)

    def notes(self) -> tuple[str, ...]:
        return tuple(
            dict.fromkeys((*self._cgroups.notes(), *(note for node in self._nodes for note in node.notes)))
        )

    async def start(self, listener: Listener, surroundings: Surroundings) -> None:
        self._loop = asyncio.get_running_loop()
        self._listener = listener
        self._datasets.start(surroundings.lent, surroundings.nodes_changed)
        label = "weft-" + hashlib.sha256(self.home.encode()).hexdigest()[:12]
        self._cgroups = cgroups.discover(label)
        self._container_groups = ContainerGroups(label)
        for folder in (self.jobs, self.data, self.tmp):
            os.makedirs(folder, exist_ok=True)  # noqa: PTH103
        self._sweep_tmp()
        self._environment = commands.base_environment(os.environ, self._link_runtime())
        self._pool = Pool()
        self._pool.start(sum(node.cpu for node in self._nodes) // 1000)

    def _link_runtime(self) -> str:
        """A folder with this package alone in it, for interpreters in which Weft is not installed."""
        folder = Path(self.home) / "runtime"
        folder.mkdir(exist_ok=True)
        link = folder / "weft"
        package = Path(__file__).resolve().parents[2]
        if not link.is_symlink() or link.resolve() != package:
            link.unlink(missing_ok=True)
            link.symlink_to(package)
        return str(folder)

    def _sweep_tmp(self) -> None:
        """Remove the temporary folders of supervisors that no longer live."""
        for entry in os.scandir(self.tmp):
            pid, _, birth = entry.name.rpartition("-")[0].partition("-")
            if not pid.isdigit() or str(start_time(int(pid))) != birth:
                shutil.rmtree(entry.path, ignore_errors=True)

    async def stop_engine(self) -> None:
        if self._poller is not None:
            self._poller.cancel()
        for patience in self._kills.values():
            patience.timer.cancel()
        await self._datasets.close()
        self._pool.close()
        cgroups.forget(self._cgroups, self._is_over)
        self._container_groups.forget(self._is_over)

    def _is_over(self, group: str) -> bool:
        """Whether nobody watches the task any more for which a group was made: it is called by job, task and launch."""
        uid, _, task = group.removeprefix("weft-").partition("-")
        launch = task.rpartition("-")[2]
        return launch.isdigit() and is_over(self.folder(uid).journal(int(launch)))

    # ── a job's way to its start ──

    def counted(self, job: Assignment) -> Gang:
        return job.gang

    def provision(self, job: Assignment) -> None:
        problem = commands.unavailable(job)
        if problem is not None:
            raise Permanent(Code.ISOLATION_UNAVAILABLE, problem)

    async def fetch(self, job: Assignment, tell: Tell) -> None:
        await super().fetch(job, tell)
        if job.spec.datasets:
            await self._datasets.bring(job, self.folder(job.uid), tell)

    def launch(self, job: Assignment, launch: int, tasks: tuple[str, ...]) -> None:
        if (docker := commands.to_be_asked(job, self._container_groups)) is not None:
            self._pool.keep(asyncio.ensure_future(self._ask_and_launch(docker, job, launch, tasks)))
        else:
            self._in_turns(self._order(job, launch, frozenset(tasks)), len(tasks))

    async def _ask_and_launch(
        self, docker: str, job: Assignment, launch: int, tasks: tuple[str, ...]
    ) -> None:
        await self._container_groups.dockers.ask(docker)
        self._in_turns(self._order(job, launch, frozenset(tasks)), len(tasks))

    def _in_turns(self, turns: Iterator[None], tasks: int) -> None:
        """Do it now; for a wide gang, in turns with what else the event loop has to do."""
        if tasks > SLICE:
            self._pool.keep(asyncio.ensure_future(_one_by_one(turns)))
        else:
            collections.deque(turns, maxlen=0)

    def _order(self, job: Assignment, launch: int, tasks: frozenset[str]) -> Iterator[None]:
        """Make the launch's message and send it."""
        try:
            folder = self.folder(job.uid)
            ports = self._ports.take(job.uid, len(job.gang.tasks), folder.ports)
            places = places_of(job.gang, ports)
            gpus = {t.name: t.binding.gpus for t in job.status.tasks if t.binding is not None}
            shared = gather(job, launch, places, folder.hosts, gpus, self._resolve_secrets(job))
            if shared.hosts_file is not None:
                replace_file(shared.hosts_file, json.dumps(shared.hosts))
            chosen = [task for task in job.gang.tasks if task.name in tasks]
            encoded = []
            for first in range(0, len(chosen), SLICE):
                if first:
                    yield
                encoded += [
                    to_json(self._task_message(shared, task)) for task in chosen[first : first + SLICE]
                ]
        except Permanent as problem:
            self._listener(job.uid, Undone(launch, problem.failure))
            return
        except OSError as error:
            self._cannot_start(job, launch, error)
            return
        about = {
            "folders": folder.for_tasks([task.name for task in chosen]),
            "journal": folder.journal(launch),
            "tmpRoot": self.tmp,
        }
        message = to_json(about)[:-1] + b', "tasks": [' + b",".join(encoded) + b"]}\n"
        try:
            self._pool.launch(message, lambda line: self._heard(job, launch, line))
        except OSError as error:
            self._cannot_start(job, launch, error)

    def _cannot_start(self, job: Assignment, launch: int, error: OSError) -> None:
        undone = Undone(launch, Failure(Code.CANNOT_START, str(error)), temporary=error.errno in SCARCE)
        if undone.temporary:  # not at once: others have to end first
            self._loop.call_later(RELAUNCH_DELAY, self._listener, job.uid, undone)
        else:
            self._listener(job.uid, undone)

    def _task_message(self, shared: Gathering, task: Task) -> dict[str, Any]:
        job, launch = shared.job, shared.launch
        folder = self.folder(job.uid)
        binding = shared.statuses[task.name].binding
        assert binding is not None
        node = self._node(binding.node)
        if node is None:
            raise Permanent(
                Code.CANNOT_START, f"node {binding.node} is no longer part of this machine", task.name
            )
        groups, notes = self._cgroups.task(f"{job.uid}-{task.name}-{launch}", task.request)
        if image_of(job, task) is not None:  # its engine limits it
            groups, notes = None, ()
        reads_data = bool(job.spec.datasets)
        data = self._datasets.folder(folder, node.name) if reads_data else self.data
        paths = folder.paths(task.name, launch, data)
        message: dict[str, Any] = {
            "name": task.name,
            "argv": task_command(shared, task),
            "env": task_environment(self._environment, shared, task, paths, hide_gpus=bool(node.gpus)),
            "cwd": working_folder(job, folder.code),
            "dir": folder.task(task.name),
            "cpus": self._pinning.cpus_for(binding.node, binding.cpus),
            "cgroups": groups,
            "notes": list(notes),
            "log": {"segment": LOG_SEGMENT, "keep": LOG_SEGMENTS_KEPT, "rate": LOG_RATE},
            "logDir": folder.logs,
            "metricsFile": paths.metrics,
            "metrics": metrics_of(job, task, one_folder=True),
        }
        if reads_data:
            message["env"] |= self._datasets.environment(job, folder, node.name)
            message["reads"] = self._datasets.reads(folder, node.name)
        real = {gpu.index for gpu in node.gpus if not gpu.virtual}
        devices = [index for index in binding.gpus if index in real]
        isolated = commands.isolate(shared, folder, task, message, self.home, devices, self._container_groups)
        message["argv"], message["cleanup"] = isolated.argv, isolated.cleanup
        return message

    def _node(self, name: str) -> Node | None:
        return next((node for node in self._nodes if node.name == name), None)

    def _resolve_secrets(self, job: Assignment) -> dict[str, str]:
        values = {}
        for reference in job.spec.secrets:
            value = self._secrets(reference.name, reference.key)
            if value is None:
                raise Permanent(
                    Code.SECRET_MISSING,
                    f"secret {reference.name} has no key {reference.key} "
                    f"(weft secrets set {reference.name} {reference.key}=...)",
                )
            values[reference.env] = value
        return values

    # ── what supervisors say ──

    def _heard(self, job: Assignment, launch: int, line: dict[str, Any]) -> None:
        match line["event"]:
            case "started":
                pids = {task: pid for task, (pid, _birth) in line["pids"].items()}
                self._births.update(
                    ((job.uid, task), (pid, birth)) for task, (pid, birth) in line["pids"].items()
                )
                for task in job.status.tasks:
                    if task.binding is not None and task.name in pids:
                        own = (task.binding.node, task.binding.cpus, pids[task.name])
                        self._pinning.started((job.uid, task.name), *own)
                if self._losses:
                    self._kill(job.uid, [task for task in pids if (job.uid, task, launch) in self._losses])
                self._listener(job.uid, Launched(launch, tuple(pids.items()), line["time"]))
            case "undone":
                failure = Failure(Code(line["code"]), line["message"], line["task"])
                self._listener(job.uid, Undone(launch, failure))
            case "exited":
                self._ended(job.uid, Exited(line["task"], launch, self._exit(line, job), line["time"]))
            case "lost":
                self._supervisor_lost(job, launch)
            case "taken":
                self.adopt(job, launch)

    def _exit(self, line: dict[str, Any], job: Assignment) -> Exit:
        task = job.gang.task(line["task"])
        image = image_of(job, task)
        cause = self._cause(line, job, task, image) if line["code"] != 0 else None
        return Exit(
            code=line["code"],
            signal=line["signal"],
            failure=Failure(*cause, task.name) if cause else None,
            peak_memory=_peak(line, task, image),
            cpu_seconds=line["cpu"] if image is None or line.get("grouped") else None,
            notes=tuple(line["notes"]),
        )

    def _cause(
        self, line: dict[str, Any], job: Assignment, task: Task, image: str | None
    ) -> tuple[Code, str] | None:
        """What an exit code or a signal alone would not tell."""
        limit = show_bytes(task.request.memory) if task.request.memory else ""
        if line.get("unjoined"):
            return Code.CANNOT_START, (
                f"{task.name} could not be put under its limits, so it was not run: {line['unjoined']} refused it"
            )
        if image and line["code"] == FAILED_ENGINE:
            why = commands.engines_complaint(image, self.log_tail(job.uid, task.name))
            return (Code.CANNOT_START, f"{task.name}: {why}") if why else None
        peak = _peak(line, task, image)
        if image and limit and peak is None and line["code"] == KILLED_IN_CONTAINER:
            # the engine does not say why; nobody else kills a task that is not being stopped
            return Code.OUT_OF_MEMORY, (
                f"{task.name} was killed in its container, most likely at its memory limit of {limit}; "
                "ask for more with resources.memory"
            )
        if line["oom"] or (image and line["code"] == KILLED_IN_CONTAINER and peak == task.request.memory):
            return Code.OUT_OF_MEMORY, (
                f"{task.name} ran out of memory: it reached its limit{limit and f' of {limit}'} "
                f"(peak {show_bytes(peak or 0)}); ask for more with resources.memory"
            )
        return None

    def _supervisor_lost(self, job: Assignment, launch: int) -> None:
        """The supervisor died with work to do: end what it left, so that nothing runs unwatched."""
        self._kill(job.uid, [task.name for task in job.status.tasks if task.launch == launch])
        for pid in processes_of(job.uid, launch):
            _signal_quietly(pid, signal.SIGKILL)
        lost = Failure(
            Code.SUPERVISOR_LOST, "the process that watched it was killed; its exit code is unknown"
        )
        ours = [task for task in job.status.tasks if task.launch == launch]
        if any(task.state is TaskState.STARTING for task in ours):  # not at once: the cause may last
            undone = Undone(launch, lost, temporary=True)
            self._loop.call_later(RELAUNCH_DELAY, self._listener, job.uid, undone)
        for task in ours:
            if task.state is TaskState.RUNNING:
                self._ended(job.uid, Exited(task.name, launch, Exit(failure=lost)))

    def adopt(self, job: Assignment, launch: int) -> bool:
        folder = self.folder(job.uid)
        if not os.path.exists(folder.journal(launch)):  # noqa: PTH110
            return False
        if (job.uid, launch) not in self._adopted:
            if job.spec.datasets:
                self._datasets.adopt(job, folder)
            self._ports.take(job.uid, len(job.gang.tasks), folder.ports)
            adopted = Adopted(folder.journal(launch), lambda line: self._heard(job, launch, line))
            self._adopted[job.uid, launch] = adopted
            self._read_adopted(job.uid, launch)
            if self._poller is None:
                self._poller = self._loop.create_task(self._follow_adopted())
        return True

    def forbid(self, job: Assignment, launch: int) -> bool:
        journal = self.folder(job.uid).journal(launch)
        os.makedirs(os.path.dirname(journal), exist_ok=True)  # noqa: PTH103,PTH120
        try:
            os.close(os.open(journal, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
        except FileExistsError:
            return False
        return True

    def _read_adopted(self, uid: str, launch: int) -> None:
        adopted = self._adopted[uid, launch]
        adopted.read()
        if adopted.finished:
            self._adopted.pop((uid, launch), None)

    async def _follow_adopted(self) -> None:
        while True:
            for uid, launch in list(self._adopted):
                self._read_adopted(uid, launch)
            await asyncio.sleep(ADOPTED_POLL)

    # ── stopping ──

    def stop(self, job: Assignment, tasks: tuple[str, ...], grace: float) -> None:
        launches = {task.name: task.launch for task in job.status.tasks}
        new = [name for name in tasks if (job.uid, name, launches[name]) not in self._kills]
        if not new:
            return
        if not {task.name for task in taking_part(job)} & {*new}:
            self.regroup(job)
        self._in_turns(self._terminate(job, new), len(new))
        left = set(new)
        patience = Patience(left, self._loop.call_later(grace, self._kill, job.uid, left))
        self._kills.update(((job.uid, name, launches[name]), patience) for name in new)

    def regroup(self, job: Assignment) -> None:
        if not job.gang.elastic or not taking_part(job):
            return
        self._tell_hosts(job)
        if job.status.datasets:
            self._pool.keep(asyncio.ensure_future(self._datasets.rebalance(job, self.folder(job.uid))))

    def _tell_hosts(self, job: Assignment) -> None:
        """Who reads the gang's hosts file sees who is left."""
        folder = self.folder(job.uid)
        try:
            ports = self._ports.take(job.uid, len(job.gang.tasks), folder.ports)
            replace_file(folder.hosts, json.dumps(hosts_of(job, places_of(job.gang, ports))))
        except OSError as problem:
            log.warning("job %s: cannot write its hosts: %s", job.name, problem)

    def _terminate(self, job: Assignment, tasks: list[str]) -> Iterator[None]:
        for first in range(0, len(tasks), SLICE):
            if first:
                yield
            pids = self._all_alive(job.uid, tasks[first : first + SLICE])
            if job.spec.isolation == "sandbox":
                # bubblewrap would end its sandbox at once: tell the user's processes instead
                for inner in usage.descendants(pids).values():
                    for child in inner[1:] or inner:
                        _signal_quietly(child, signal.SIGTERM)
            else:
                for pid in pids:
                    _signal_group_quietly(pid, signal.SIGTERM)

    def _kill(self, uid: str, tasks: Iterable[str]) -> None:
        for pid, below in usage.descendants(self._all_alive(uid, tasks)).items():
            for child in below:
                _signal_quietly(child, signal.SIGKILL)
            _signal_group_quietly(pid, signal.SIGKILL)

    def _all_alive(self, uid: str, tasks: Iterable[str]) -> list[int]:
        return [pid for task in tasks if (pid := self._alive(uid, task)) is not None]

    def _alive(self, uid: str, task: str) -> int | None:
        """The task's process, if the one with this id is still the one that was started."""
        pid, birth = self._births.get((uid, task), (0, 0))
        return pid if pid and start_time(pid) == birth else None

    def lose(self, job: Assignment, node: str, tasks: tuple[str, ...]) -> None:
        if any(uid == job.uid and loss.node == node for (uid, _, _), loss in self._losses.items()):
            return  # they are dying already
        loss = Loss(node, tasks, {*tasks})
        launches = {task.name: task.launch for task in job.status.tasks}
        self._losses.update(((job.uid, name, launches[name]), loss) for name in tasks)
        self._kill(job.uid, tasks)

    def fail(self, job: Assignment, task: str, failure: Failure) -> None:
        self._given_up[job.uid, task, job.status.task(task).launch] = failure
        self._kill(job.uid, [task])

    def _ended(self, uid: str, exited: Exited) -> None:
        """Tell of an exit; or, of all that a job loses with a node, that it is lost, once the last has ended."""
        self._gone(uid, exited.task, exited.launch)
        failure = self._given_up.pop((uid, exited.task, exited.launch), None)
        if failure is not None and exited.exit.code != 0:
            exited = replace(exited, exit=replace(exited.exit, failure=failure))
        loss = self._losses.pop((uid, exited.task, exited.launch), None)
        if loss is None:
            self._listener(uid, exited)
            return
        loss.left.discard(exited.task)
        if not loss.left:
            self._listener(uid, Lost(loss.tasks, loss.node))

    def _gone(self, uid: str, task: str, launch: int) -> None:
        self._births.pop((uid, task), None)
        self._pinning.ended((uid, task))
        patience = self._kills.pop((uid, task, launch), None)
        if patience is not None:
            patience.gone(task)

    # ── what tasks say of themselves ──

    def heard(self, uid: str, tasks: Sequence[str]) -> dict[str, float]:
        return {task: self._last_heard(uid, task) for task in tasks}

    def _last_heard(self, uid: str, task: str) -> float:
        return max(
            _modified(self.metrics_file(uid, task)), _modified(self.log(uid, task).newest() or ""), 0.0
        )

    def active(self, uid: str, tasks: Sequence[str]) -> dict[str, float]:
        folder = self.folder(uid)
        return {task: _modified(folder.activity(task)) for task in tasks}

    def urls(self, job: Assignment) -> dict[str, str]:
        folder = self.folder(job.uid)
        running = [task for task in job.status.tasks if task.state is TaskState.RUNNING]
        found = {task.name: announced(folder.url(task.name, task.launch)) for task in running}
        return {task: url for task, url in found.items() if url is not None}

    def forwards(self, job: Assignment) -> dict[str, str]:
        return {}

    async def dump(self, job: Assignment, name: str) -> bool:
        births = {
            task.name: birth
            for task in job.status.tasks
            if (birth := self._births.get((job.uid, task.name))) is not None
        }
        stop = threading.Event()
        try:
            await asyncio.to_thread(self._dump, job, births, name, stop)
        except OSError as problem:
            log.warning("job %s: cannot keep the stacks of its tasks: %s", job.name, problem)
            return False
        finally:
            stop.set()
        return True

    def _dump(
        self, job: Assignment, births: dict[str, tuple[int, int]], name: str, stop: threading.Event
    ) -> None:
        roots = {task: pid for task, (pid, birth) in births.items() if start_time(pid) == birth}
        text = stacks.dump(job.name, job.uid, roots, stop)
        if not stop.is_set():
            stalls.keep(self.folder(job.uid).results, name, text)

    # ── afterwards ──

    def retire(self, job: Assignment) -> None:
        self._ports.release(job.uid)
        if (ending := self._datasets.release(job.uid)) is not None:
            self._pool.keep(ending)
        if job.status.started is None and job.status.launch == 1:
            self.remove(job.uid)  # it never ran: nothing of it is worth a folder
        elif len(job.gang.tasks) > 1:
            for record in (self.folder(job.uid).ports, self.folder(job.uid).hosts):
                Path(record).unlink(missing_ok=True)

    async def cached(self) -> list[Cached]:
        return await self._datasets.cached()

    async def warm(self, dataset: str, version: str, nodes: Sequence[str]) -> None:
        await self._datasets.warm(dataset, version, nodes)

    def usage(self, jobs: list[Assignment]) -> list[TaskUsage]:
        running = {
            (job.uid, t.name): t.pid for job in jobs for t in job.status.tasks if t.state.alive and t.pid
        }
        return self._meter.read(running)


def _peak(line: dict[str, Any], task: Task, image: str | None) -> int | None:
    """The most memory that a task used. Of a container only its group knows it: the process that was started is its engine's.
    What the kernel counts ahead, a few pages beyond the limit, was never used."""
    if image is None:
        return int(line["peak"])
    return min(int(line["peak"]), task.request.memory or int(line["peak"])) if line.get("grouped") else None


async def _one_by_one(turns: Iterator[None]) -> None:
    for _ in turns:
        await asyncio.sleep(0)


def _modified(path: str) -> float:
    try:
        return os.stat(path, follow_symlinks=False).st_mtime  # noqa: PTH116
    except OSError:
        return 0.0


def _signal_quietly(pid: int, number: signal.Signals) -> None:
    try:
        os.kill(pid, number)
    except (ProcessLookupError, PermissionError):
        return


def _signal_group_quietly(pid: int, number: signal.Signals) -> None:
    try:
        os.killpg(pid, number)
    except (ProcessLookupError, PermissionError):
        return
