"""Jobs that run: what they hold, what it would cost to stop them, and who would have to give way to whom.

What the jobs of one priority, queue and level hold is summed up by node (a band), so that "would it fit if
all of these gave way" is an addition of arrays, however many jobs run.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

import numpy as np

from weft.model.gang import Gang, Request, Task
from weft.model.lazy import lazy
from weft.model.status import Binding
from weft.scheduler.cluster import Cluster, Ints
from weft.scheduler.history import Likeness, likeness
from weft.scheduler.policy import Policy
from weft.scheduler.queues import Amounts, amounts_of

Band = tuple[int, str, int]
"""Priority, queue, level: jobs of a lower priority, or of the same and a higher level, give way first."""
FIXED = -1
"""The level of a job that gives way to nobody of its own priority."""
GROWN = 1 << 20
"""The level of tasks beyond what their job asked for: given back to whoever asks."""
LOOKED_AT_ONCE = 200
"""So many jobs, and the others in the next cycle: no cycle takes long because thousands were started together."""


@dataclass
class Running:
    uid: str
    name: str
    gang: Gang
    priority: int
    queue: str
    owner: str
    started: float
    """Of this run."""
    tasks: dict[str, Binding]
    attained: float = 0.0
    """Seconds of earlier runs that were kept."""
    waited: float = 0.0
    """Seconds that it waited until now, in all its turns."""
    checkpoint: float | None = None
    """When it last saved what it did; None: never, so that a stop loses all of it; inf: it saves when told to stop."""
    left_alone: float = 0.0
    """Until when no job of its own priority may take its room."""
    settled: bool = False
    """It has waited so long that it is left alone to its end."""
    resized: float = 0.0
    leaving: bool = False
    """Told to stop; its room will be free soon."""
    shrinking: frozenset[str] = frozenset()
    """Tasks told to stop while the job goes on."""
    missing: tuple[str, ...] = ()
    """Tasks lost with their node, to be replaced."""
    broken: float = 0.0
    """Since when it misses them."""
    bands: dict[str, Band] = field(default_factory=dict)

    @lazy
    def like(self) -> Likeness:
        return likeness(self.owner, self.name, self.gang.gpus)

    @property
    def came(self) -> float:
        """When it was submitted, by what it has waited and run since."""
        return self.started - self.waited - self.attained

    @lazy
    def requests(self) -> dict[str, Request]:
        return {task.name: task.request for task in self.gang.tasks}

    @lazy
    def _roles(self) -> dict[str, str]:
        return {task.name: task.role for task in self.gang.tasks}

    def places(self) -> list[tuple[Binding, Request]]:
        return [(binding, self.requests[name]) for name, binding in self.tasks.items()]

    def held(self) -> Amounts:
        return amounts_of(self.requests[name] for name in self.tasks)

    def ran(self, now: float) -> float:
        return self.attained + max(0.0, now - self.started)

    def lost(self, now: float) -> float:
        """GPU seconds (or CPU seconds, where it has no GPU) that a stop would throw away."""
        return self.unsaved(now) * width(self.gang)

    def unsaved(self, now: float) -> float:
        """Seconds since it last saved, in this run."""
        since = self.started if self.checkpoint is None else max(self.started, self.checkpoint)
        return max(0.0, now - since)

    def spare(self) -> list[str]:
        """The tasks that the job can do without, the last first."""
        if not self.gang.elastic:
            return []
        staying = [name for name in self.tasks if name not in self.shrinking]
        here: dict[str, int] = {}
        for name in staying:
            here[self._roles[name]] = here.get(self._roles[name], 0) + 1
        spare: list[str] = []
        least = {span.role: span.minimum for span in self.gang.spans}
        for task in reversed(self.gang.tasks):
            if task.name not in self.tasks or task.name in self.shrinking or task.chief:
                continue
            if here[task.role] > least.get(task.role, here[task.role]):
                here[task.role] -= 1
                spare.append(task.name)
        return spare

    def addable(self) -> list[Task]:
        """The tasks that it may still grow by, as far as its roles allow."""
        left = {span.role: span.maximum for span in self.gang.spans}
        for name in self.tasks:
            if self._roles[name] in left:
                left[self._roles[name]] -= 1
        found = []
        for task in self.gang.tasks:
            if task.name not in self.tasks and left.get(task.role, 0) > 0:
                left[task.role] -= 1
                found.append(task)
        return found

    def beyond(self) -> list[str]:
        """Those of them that it has beyond what it asked for."""
        asked = {span.role: span.preferred for span in self.gang.spans}
        here: dict[str, int] = {}
        for name in self.tasks:
            here[self._roles[name]] = here.get(self._roles[name], 0) + 1
        extra = {
            role: count - asked[role] for role, count in here.items() if role in asked and count > asked[role]
        }
        found = []
        for name in self.spare():
            if extra.get(self._roles[name], 0) > 0:
                extra[self._roles[name]] -= 1
                found.append(name)
        return found


def width(gang: Gang) -> float:
    """How much of a cluster a job takes: GPUs, or an eighth of its CPUs where these count for more."""
    return max(gang.gpus, sum(task.request.cpu for task in gang.preferred) / 8000, 0.125)


def grow_after(gang: Gang, policy: Policy) -> float:
    """How long a job is left alone before it may grow."""
    return policy.grow_by_restart_after if gang.restart_to_resize else policy.grow_after


Level = Callable[[Running, float], int]
"""Of a job that has run for so many seconds."""


def level_of(rank: float, factor: float) -> int:
    """Ranks by factors: a job gives way to those at least a level below it."""
    return max(0, int(math.log2(rank) / math.log2(factor))) if rank > 1 else 0


class Occupancy:
    """All running jobs, by node and by band."""

    def __init__(self, cluster: Cluster):
        self._cluster = cluster
        self.jobs: dict[str, Running] = {}
        self.bands: dict[Band, Ints] = {}
        self.sums: dict[Band, list[int]] = {}
        """CPU, whole GPUs and tasks of each band."""
        self.broken: dict[str, None] = {}
        """Jobs with tasks to be replaced."""
        self.on_node: list[dict[tuple[str, str], None]] = [{} for _ in cluster.nodes]
        self.elastic: dict[str, None] = {}
        self.leaving: dict[str, None] = {}
        """Jobs that were told to stop, or some of whose tasks were."""
        self.settled = 0.0
        """How wide those are together who are left alone to their end."""
        self._looks: list[tuple[float, str, float]] = []
        """When a job's level may change next, with its start: a job that was started again has a new one."""

    def __contains__(self, uid: str) -> bool:
        return uid in self.jobs

    def __getitem__(self, uid: str) -> Running:
        return self.jobs[uid]

    def __iter__(self) -> Iterator[Running]:
        return iter(self.jobs.values())

    def __len__(self) -> int:
        return len(self.jobs)

    def as_large(self, gpus: float) -> list[Running]:
        """Those that have so many GPUs or more."""
        return [job for job in self.jobs.values() if job.gang.gpus >= gpus]

    def settles(self, gang: Gang, policy: Policy, settled: float | None = None) -> bool:
        """Whether one more may be left alone to its end: within the policy's part of the cluster, or as the only one."""
        settled = self.settled if settled is None else settled
        return not settled or settled + width(gang) <= policy.settled * self._cluster.width

    def onto(self, cluster: Cluster) -> Occupancy:
        """The same jobs, with the same levels, counted on other nodes."""
        twin = Occupancy(cluster)
        twin.jobs, twin.broken, twin.elastic, twin.leaving = (
            self.jobs,
            self.broken,
            self.elastic,
            self.leaving,
        )
        twin.settled, twin._looks = self.settled, self._looks
        for job in self.jobs.values():
            for name, binding in job.tasks.items():
                twin._book(job, binding, job.bands[name], 1)
        return twin

    # ── coming and going ──

    def add(self, job: Running, look: float | None = None) -> None:
        self.jobs[job.uid] = job
        if job.settled:
            self.settled += width(job.gang)
        if job.gang.elastic:
            self.elastic[job.uid] = None
        if job.missing:
            self.broken[job.uid] = None
        self.told(job)
        tasks, job.tasks = job.tasks, {}
        self.add_tasks(job, tasks.values())
        if look is not None:
            heapq.heappush(self._looks, (look, job.uid, job.started))

    def tell_to_leave(self, uid: str) -> None:
        self.jobs[uid].leaving = True
        self.told(self.jobs[uid])

    def told(self, job: Running) -> None:
        """What the job was told has changed."""
        if job.leaving or job.shrinking:
            self.leaving[job.uid] = None
        else:
            self.leaving.pop(job.uid, None)

    def add_tasks(self, job: Running, bindings: Iterable[Binding]) -> None:
        for binding in bindings:
            job.tasks[binding.task] = binding
        grown = {*job.beyond()} if job.gang.elastic else ()
        for binding in bindings:
            band = job.bands.get(binding.task)  # known already where books are copied
            if band is None:
                band = (job.priority, job.queue, GROWN if binding.task in grown else FIXED)
            self._book(job, binding, band, 1)

    def remove_tasks(self, job: Running, names: Iterable[str]) -> None:
        for name in names:
            binding = job.tasks[name]
            self._book(job, binding, job.bands[name], -1)
            del job.tasks[name], job.bands[name]
        if job.gang.elastic:
            self._unmark_grown(job)

    def _unmark_grown(self, job: Running) -> None:
        """A job that has become smaller may have nothing beyond its wish any more."""
        beyond = {*job.beyond()}
        for name, band in list(job.bands.items()):
            if band[2] == GROWN and name not in beyond:
                self._book(job, job.tasks[name], band, -1)
                self._book(job, job.tasks[name], (job.priority, job.queue, FIXED), 1)

    def resize(self, job: Running, gang: Gang) -> None:
        """A person has sized the job anew: what it has beyond that is anybody's."""
        job.gang = gang
        beyond = {*job.beyond()}
        for name, band in list(job.bands.items()):
            if (band[2] == GROWN) != (name in beyond):
                self._book(job, job.tasks[name], band, -1)
                level = GROWN if name in beyond else FIXED
                self._book(job, job.tasks[name], (job.priority, job.queue, level), 1)

    def remove(self, uid: str) -> Running:
        job = self.jobs.pop(uid)
        if job.settled:
            self.settled -= width(job.gang)
        self.elastic.pop(uid, None)
        self.broken.pop(uid, None)
        self.leaving.pop(uid, None)
        self.remove_tasks(job, list(job.tasks))
        return job

    def _book(self, job: Running, binding: Binding, band: Band, sign: int) -> None:
        node = self._cluster.index.get(binding.node)
        job.bands[binding.task] = band
        if node is None:
            return
        used = self.bands.get(band)
        if used is None:
            used = self.bands[band] = np.zeros_like(self._cluster.free)
            self.sums[band] = [0, 0, 0]
        request = job.requests[binding.task]
        amounts = self._cluster.amounts(binding, request)
        sums = self.sums[band]
        sums[0] += sign * request.cpu
        sums[1] += sign * (request.gpu or bool(request.gpu_share))
        sums[2] += sign
        if sign > 0:
            used[node] += amounts
            self.on_node[node][job.uid, binding.task] = None
        else:
            used[node] -= amounts
            del self.on_node[node][job.uid, binding.task]
            if not sums[2]:
                del self.bands[band], self.sums[band]

    # ── levels ──

    def saved(self, job: Running, when: float, now: float) -> None:
        """The job has written a checkpoint; from the first one on it may be asked to give way to its equals."""
        if job.checkpoint is None:
            heapq.heappush(self._looks, (max(now, job.left_alone), job.uid, job.started))
        job.checkpoint = when

    def next_look(self) -> float | None:
        return self._looks[0][0] if self._looks else None

    def relevel(self, now: float, policy: Policy, level: Level) -> bool:
        """Put jobs into the bands that they belong to by now. Only who can go on from a checkpoint has a level."""
        changed = False
        looked = 0
        while self._looks and self._looks[0][0] <= now and looked < LOOKED_AT_ONCE:
            looked += 1
            _, uid, started = heapq.heappop(self._looks)
            job = self.jobs.get(uid)
            if job is None or job.started != started:
                continue
            again = max(policy.quantum, 0.25 * job.ran(now))
            heapq.heappush(self._looks, (now + again, uid, started))
            changed = self.reband(job, now, level) or changed
        return changed

    def reband(self, job: Running, now: float, level: Level) -> bool:
        """Put a job into the band that it belongs to by now. True if it was in another."""
        own = FIXED
        if job.checkpoint is not None and not job.settled and now >= job.left_alone:
            own = level(job, job.ran(now))
        changed = False
        for name, band in list(job.bands.items()):
            if band[2] not in (own, GROWN):
                changed = True
                binding = job.tasks[name]
                self._book(job, binding, band, -1)
                self._book(job, binding, (job.priority, job.queue, own), 1)
        return changed
