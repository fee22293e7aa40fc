"""What would have been enough for a job: what its tasks used, by role, next to what they asked for.

A task counts if its peak was measured; of one that was restarted, its last run is known. The largest task of a role
decides, because all tasks of a role ask for the same.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from math import ceil

from weft.model.failures import Code
from weft.model.job import Resources, Role
from weft.model.quantities import MAX_MEMORY
from weft.model.sizes import Sizes, SizeSpec, find
from weft.model.status import JobStatus, TaskStatus

HEADROOM = 1.25
"""Memory suggested, as a multiple of the peak: too little ends a task, too much only waits longer."""
BUSY = 0.95
"""A task that used so much of its CPUs may have wanted more."""
SHORT = 30.0
MiB = 2**20


@dataclass(frozen=True, slots=True)
class Use:
    """What the largest of the measured tasks of a role used."""

    measured: int
    """So many of its tasks."""
    seconds: float
    """The longest run."""
    cpu: float
    """Thousandths of a CPU, on average over a run."""
    memory: int
    """The peak, in bytes."""


@dataclass(frozen=True, slots=True)
class Suggestion:
    """For one role. CPUs in thousandths, memory in bytes."""

    role: str
    tasks: int
    """So many of it ended with an exit that is known."""
    asked: Resources
    used: Use | None
    """None: nothing of it was measured, and nothing is suggested."""
    cpu: int | None = None
    memory: int | None = None
    size: str | None = None
    """The smallest declared size that would have done."""
    notes: tuple[str, ...] = ()

    @property
    def changes(self) -> bool:
        return self.used is not None and (self.cpu, self.memory) != (self.asked.cpu, self.asked.memory)


def suggest(roles: Mapping[str, Role], status: JobStatus, table: Sizes) -> list[Suggestion]:
    """For every role of a job that has ended."""
    return [_for_role(name, role, list(_of(name, status.tasks)), table) for name, role in roles.items()]


def _of(role: str, tasks: Iterable[TaskStatus]) -> Iterator[TaskStatus]:
    for task in tasks:
        if task.name.rpartition("-")[0] == role:
            yield task


def _for_role(name: str, role: Role, tasks: list[TaskStatus], table: Sizes) -> Suggestion:
    tasks = [task for task in tasks if task.exit is not None]
    asked, used = role.resources, _used(tasks)
    if used is None:
        return Suggestion(name, len(tasks), asked, None)
    cpu, memory = enough_cpu(used.cpu), enough_memory(used.memory)
    notes = tuple(_notes(asked, used, tasks))
    return Suggestion(name, len(tasks), asked, used, cpu, memory, smallest(cpu, memory, asked, table), notes)


def _used(tasks: list[TaskStatus]) -> Use | None:
    seconds: list[float] = []
    cpus: list[float] = []
    peaks: list[int] = []
    for task in tasks:
        end = task.exit
        if end is None or end.peak_memory is None or end.cpu_seconds is None:
            continue  # of a container only its client was seen
        if task.started is None or task.finished is None or task.finished <= task.started:
            continue
        seconds.append(task.finished - task.started)
        cpus.append(1000 * end.cpu_seconds / seconds[-1])
        peaks.append(end.peak_memory)
    return Use(len(seconds), max(seconds), max(cpus), max(peaks)) if seconds else None


def enough_cpu(used: float) -> int:
    """Tenths up to one CPU, whole CPUs from there on. A hundredth too much is how exactly a run is timed."""
    exact = used / 1.01
    step = 100 if exact <= 1000 else 1000
    return max(ceil(exact / step), 1) * step


def enough_memory(peak: int) -> int:
    """With headroom, in steps of an eighth or less of it, and at least 64 MiB: no number is more exact than a run."""
    wanted = max(peak * HEADROOM, 64 * MiB)
    step = 16 * MiB
    while step * 16 <= wanted:
        step *= 2
    return min(ceil(wanted / step) * step, MAX_MEMORY)


def smallest(cpu: int, memory: int, asked: Resources, table: Sizes) -> str | None:
    """The size with the same GPUs that has room for this, with the fewest CPUs and then the least memory."""
    gpus, kind = asked.gpu or 0, asked.gpu_type
    fitting = [
        (spec.cpu, spec.memory, name)
        for name, spec in _with(gpus, table)
        if (spec.gpu or 0) == gpus and spec.gpu_type == kind
        if spec.cpu is not None and spec.cpu >= cpu and spec.memory is not None and spec.memory >= memory
    ]
    return min(fitting)[2] if fitting else None


def _with(gpus: float, table: Sizes) -> Iterator[tuple[str, SizeSpec]]:
    """The sizes as jobs ask for them: of those per GPU, the one with so many."""
    for name, spec in table.items():
        wanted = f"{name}-{gpus:g}" if spec.per_gpu else name
        if (found := find(wanted, table)) is not None:
            yield wanted, found


def _notes(asked: Resources, used: Use, tasks: list[TaskStatus]) -> Iterator[str]:
    if any(t.exit and t.exit.failure and t.exit.failure.code is Code.OUT_OF_MEMORY for t in tasks):
        yield "a task was ended at its memory limit: what it would have needed is not known"
    if asked.cpu and used.cpu >= BUSY * asked.cpu:
        yield "all CPUs were busy: with more it may be faster"
    if asked.memory is None:
        yield "it had no memory limit: the peak is that of its largest process, not of all together"
    if used.seconds < SHORT:
        yield f"it ran for {used.seconds:.1f} s only: little was seen"
    if used.measured < len(tasks):
        yield f"{used.measured} of {len(tasks)} tasks were measured"
