"""An engine in memory for tests of control: a world that goes on running while servers come and go.

`World` is the machine: its processes live on timers of the event loop, and every launch has a journal.
`SimulatedBackend` is one server's view of it. Killing the server detaches the view; the world stays.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from weft.backends.api import Assignment, Listener, Surroundings, TaskUsage, Tell
from weft.backends.local.backend import Loss
from weft.model.events import Event, Exited, Launched, Lost, Undone
from weft.model.failures import Code, Failure
from weft.model.gang import Gang
from weft.model.node import Node
from weft.model.status import Exit

SIGTERM, SIGKILL = 15, 9


@dataclass(frozen=True, slots=True)
class Run:
    """One start of a task: how long it runs and how it ends."""

    seconds: float = 1.0
    code: int | None = 0
    signal: int | None = None
    after_term: float | None = 0.0
    """Seconds from SIGTERM to its end; None: it ignores SIGTERM."""
    term_code: int | None = None
    """Its exit code after SIGTERM; None: killed by it."""
    speaks: float = 1e9
    """Seconds after its start until which it logs without a pause; then it is silent."""


@dataclass(frozen=True, slots=True)
class Refuse:
    """One launch that does not start, through this task."""

    code: Code = Code.COMMAND_NOT_FOUND
    message: str = "no such command"


FOREVER = Run(seconds=1e9)


@dataclass(slots=True)
class Process:
    uid: str
    task: str
    launch: int
    pid: int
    run: Run
    started: float
    timer: asyncio.TimerHandle | None = None
    kill: asyncio.TimerHandle | None = None
    termed: bool = False


@dataclass(slots=True)
class Journal:
    events: list[Event] = field(default_factory=list)
    follower: Callable[[Event], None] | None = None

    def note(self, event: Event) -> None:
        self.events.append(event)
        if self.follower is not None:
            self.follower(event)


class World:
    """Processes by (uid, task); scripts by job name and task; everything that ever started."""

    def __init__(self, nodes: Iterable[Node], folder: Path):
        self.nodes = tuple(nodes)
        self.folder = folder
        self.loop = asyncio.get_running_loop()
        self.journals: dict[tuple[str, int], Journal] = {}
        self.processes: dict[tuple[str, str], Process] = {}
        self.scripts: dict[tuple[str, str], list[Run | Refuse]] = {}
        self.fetches: dict[str, list[Exception | float]] = {}
        self.starts: list[tuple[float, str, str, int]] = []
        """(time, job, task, launch) of every process ever made."""
        self.signals: list[tuple[float, str, str]] = []
        """(time, task, signal's name) of every signal sent."""
        self.dumps: list[tuple[float, str, str, list[str]]] = []
        """(time, job, file, tasks) of every look into what tasks do."""
        self.dump_seconds = 0.0
        self.heartbeats: dict[tuple[str, str], float] = {}
        """The time of the last by uid and task."""
        self.activity: dict[tuple[str, str], float] = {}
        """When each task last said that it is in use, by uid and task."""
        self.folders: set[str] = set()
        self.saved: dict[str, float] = {}
        """When each job last wrote a checkpoint, by uid."""
        self.pid = 100

    def script(self, job: str, task: str = "worker-0", *runs: Run | Refuse) -> None:
        """What this task does at its first start, its second, and so on; the last one repeats."""
        self.scripts[job, task] = list(runs)

    def starts_of(self, job: str) -> list[tuple[float, str]]:
        return [(time, task) for time, name, task, _ in self.starts if name == job]

    # ── processes ──

    def launch(self, job: Assignment, launch: int, tasks: tuple[str, ...]) -> Journal:
        """Begin a launch, once: a second request for the same number finds the journal there."""
        journal = self.journals.get((job.uid, launch))
        if journal is not None:
            return journal
        journal = self.journals[job.uid, launch] = Journal()
        self.folders.add(job.uid)
        runs = {task: self._next_run(job.name, task) for task in tasks}
        for task, run in runs.items():
            if isinstance(run, Refuse):
                failure = Failure(run.code, f"{task}: {run.message}", task)
                self.loop.call_soon(journal.note, Undone(launch, failure))
                return journal
        self.loop.call_soon(self._start, job, launch, runs, journal)
        return journal

    def _next_run(self, job: str, task: str) -> Run | Refuse:
        script = self.scripts.get((job, task)) or [Run()]
        begun = sum(1 for _, name, t, _ in self.starts if (name, t) == (job, task))
        return script[min(begun, len(script) - 1)]

    def _start(self, job: Assignment, launch: int, runs: dict[str, Any], journal: Journal) -> None:
        pids = []
        for task, run in runs.items():
            assert (job.uid, task) not in self.processes, f"{job.name} {task} runs twice"
            self.pid += 1
            process = Process(job.uid, task, launch, self.pid, run, self.loop.time())
            self.processes[job.uid, task] = process
            self.starts.append((self.loop.time(), job.name, task, launch))
            exit = Exit(code=run.code, signal=run.signal)
            process.timer = self.loop.call_later(run.seconds, self._end, process, exit)
            pids.append((task, self.pid))
        journal.note(Launched(launch, tuple(pids)))

    def _end(self, process: Process, exit: Exit) -> None:
        for timer in (process.timer, process.kill):
            if timer is not None:
                timer.cancel()
        del self.processes[process.uid, process.task]
        self.journals[process.uid, process.launch].note(Exited(process.task, process.launch, exit))

    def terminate(self, uid: str, task: str, grace: float) -> None:
        process = self.processes.get((uid, task))
        if process is None or process.termed:
            return
        process.termed = True
        self.signals.append((self.loop.time(), task, "SIGTERM"))
        process.kill = self.loop.call_later(grace, self._kill, process)
        if process.run.after_term is not None:
            code = process.run.term_code
            exit = Exit(code=code) if code is not None else Exit(signal=SIGTERM)
            assert process.timer is not None
            process.timer.cancel()
            process.timer = self.loop.call_later(process.run.after_term, self._end, process, exit)

    def kill(self, uid: str, task: str) -> None:
        process = self.processes.get((uid, task))
        if process is not None:
            self._kill(process)

    def _kill(self, process: Process) -> None:
        self.signals.append((self.loop.time(), process.task, "SIGKILL"))
        self._end(process, Exit(signal=SIGKILL))


class SimulatedBackend:
    """One server's hold on the world. After `detach` it does and hears nothing, as a killed server would."""

    name = "simulated"
    one_machine = True
    keeps_secrets = False

    def __init__(self, world: World, touch: Callable[[str], bool] = lambda _: True):
        self.world = world
        self._touch = touch
        """Called before everything that has an effect outside; False: the server has just been killed."""
        self._listener: Listener | None = None
        self._followed: set[tuple[str, int]] = set()
        self._losses: dict[tuple[str, str, int], Loss] = {}
        self._given_up: dict[tuple[str, str, int], Failure] = {}
        self.retired: list[str] = []

    def nodes(self) -> tuple[Node, ...]:
        return self.world.nodes

    def notes(self) -> tuple[str, ...]:
        return ()

    async def start(self, listener: Listener, surroundings: Surroundings) -> None:
        self._listener = listener

    async def stop_engine(self) -> None:
        self.detach()

    def detach(self) -> None:
        self._listener = None
        for key in self._followed:
            self.world.journals[key].follower = None

    def counted(self, job: Assignment) -> Gang:
        return job.gang

    def provision(self, job: Assignment) -> None:
        self._touch("provision")

    async def fetch(self, job: Assignment, tell: Tell) -> None:
        script = self.world.fetches.get(job.name, [])
        step = script.pop(0) if script else 0.0
        if isinstance(step, Exception):
            raise step
        await asyncio.sleep(step)

    def launch(self, job: Assignment, launch: int, tasks: tuple[str, ...]) -> None:
        if self._listener is None or not self._touch("launch"):
            return
        known = (job.uid, launch) in self.world.journals
        self.world.launch(job, launch, tasks)
        self._follow(job, launch, replay=known)

    def adopt(self, job: Assignment, launch: int) -> bool:
        if (job.uid, launch) not in self.world.journals:
            return False
        self._follow(job, launch, replay=True)
        return True

    def forbid(self, job: Assignment, launch: int) -> bool:
        if (job.uid, launch) in self.world.journals:
            return False
        self.world.journals[job.uid, launch] = Journal()
        return True

    def _follow(self, job: Assignment, launch: int, *, replay: bool) -> None:
        key = (job.uid, launch)
        journal = self.world.journals[key]
        if key in self._followed:
            return
        self._followed.add(key)
        past = list(journal.events) if replay else []
        journal.follower = lambda event: self._say(job.uid, event)
        for event in past:
            self._say(job.uid, event)

    def lose(self, job: Assignment, node: str, tasks: tuple[str, ...]) -> None:
        if self._listener is None or not self._touch("lose"):
            return
        launches = {task.name: task.launch for task in job.status.tasks}
        loss = Loss(node, tasks, {*tasks})
        self._losses.update(((job.uid, name, launches[name]), loss) for name in tasks)
        for name in tasks:
            self.world.kill(job.uid, name)

    def heard(self, uid: str, tasks: Sequence[str]) -> dict[str, float]:
        return {task: self._last_heard(uid, task) for task in tasks}

    def _last_heard(self, uid: str, task: str) -> float:
        process = self.world.processes.get((uid, task))
        spoke = min(self.world.loop.time(), process.started + process.run.speaks) if process else 0.0
        return max(spoke, self.world.heartbeats.get((uid, task), 0.0))

    def active(self, uid: str, tasks: Sequence[str]) -> dict[str, float]:
        return {task: self.world.activity.get((uid, task), 0.0) for task in tasks}

    def urls(self, job: Assignment) -> dict[str, str]:
        return {}

    async def dump(self, job: Assignment, name: str) -> bool:
        tasks = sorted(task for uid, task in self.world.processes if uid == job.uid)
        self.world.dumps.append((self.world.loop.time(), job.name, name, tasks))
        await asyncio.sleep(self.world.dump_seconds)
        return True

    def fail(self, job: Assignment, task: str, failure: Failure) -> None:
        if self._listener is None or not self._touch("fail"):
            return
        self._given_up[job.uid, task, job.status.task(task).launch] = failure
        self.world.kill(job.uid, task)

    def _say(self, uid: str, event: Event) -> None:
        if isinstance(event, Exited) and (
            failure := self._given_up.pop((uid, event.task, event.launch), None)
        ):
            event = replace(event, exit=replace(event.exit, failure=failure))
        if isinstance(event, Exited) and (loss := self._losses.pop((uid, event.task, event.launch), None)):
            loss.left.discard(event.task)
            if loss.left:
                return
            event = Lost(loss.tasks, loss.node)
        if self._listener is not None and self._touch(type(event).__name__) and self._listener is not None:
            self._listener(uid, event)

    def stop(self, job: Assignment, tasks: tuple[str, ...], grace: float) -> None:
        if self._listener is None or not self._touch("stop"):
            return
        for task in tasks:
            self.world.terminate(job.uid, task, grace)

    def regroup(self, job: Assignment) -> None:
        """Its tasks ask nobody who is left."""

    def retire(self, job: Assignment) -> None:
        self.retired.append(job.name)

    def remove(self, uid: str) -> None:
        self.world.folders.discard(uid)

    def kept_folders(self) -> list[str]:
        return sorted(self.world.folders)

    def result_folder(self, uid: str) -> str:
        return str(self.world.folder / uid / "results")

    def checkpoint_folder(self, uid: str) -> str:
        return str(self.world.folder / uid / "checkpoints")

    def saved(self, uid: str) -> float | None:
        return self.world.saved.get(uid)

    def metrics_file(self, uid: str, task: str) -> str:
        return str(self.world.folder / uid / task / "metrics.jsonl")

    def usage_file(self, uid: str, task: str) -> str:
        return str(self.world.folder / uid / task / "usage.bin")

    async def cached(self) -> list[Any]:
        return []

    async def warm(self, dataset: str, version: str, nodes: Sequence[str]) -> None: ...

    def log(self, uid: str, task: str) -> Any:
        raise NotImplementedError

    def log_tail(self, uid: str, task: str) -> list[str]:
        return [f"last words of {task}"]

    def usage(self, jobs: list[Assignment]) -> list[TaskUsage]:
        return []
