"""The Kubernetes engine: a gang is a set of pods, made unscheduled, bound together, and watched.

Nothing is polled. Nodes and pods, also those of others, come by watches; what a task prints, measures and leaves
comes from the agent in its pod; and every sentence about a pod that does not get on is made in `reasons`.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import time
from collections.abc import Sequence
from dataclasses import replace
from math import ceil
from pathlib import Path
from urllib.parse import urlsplit

from weft.backends.api import Assignment, Cached, Listener, Surroundings, TaskUsage, Tell
from weft.backends.files import JobFiles
from weft.backends.kubernetes import reasons, shared
from weft.backends.kubernetes.agents import Told
from weft.backends.kubernetes.client import ApiError, Client, Document, insist
from weft.backends.kubernetes.clusterplaces import ClusterPlaces
from weft.backends.kubernetes.datasets import ClusterData
from weft.backends.kubernetes.errands import Errands
from weft.backends.kubernetes.exits import exit_of
from weft.backends.kubernetes.following import Following
from weft.backends.kubernetes.landscape import Landscape
from weft.backends.kubernetes.launching import Launching, NotBound, passing, refusal
from weft.backends.kubernetes.leftovers import sweep
from weft.backends.kubernetes.names import INSTANCE, base_name
from weft.backends.kubernetes.pods import pushes_of
from weft.backends.kubernetes.render import reads_hosts, unsupported
from weft.backends.kubernetes.requests import counted
from weft.backends.kubernetes.rooms import Rooms
from weft.backends.kubernetes.settings import Settings
from weft.backends.kubernetes.tracked import Launch, TaskPod, Tracked, key_of
from weft.backends.kubernetes.watch import Watch, all_synced
from weft.backends.tasks import taking_part
from weft.model.events import Disturbed, Exited, Hindered, Launched, Lost, Undone
from weft.model.failures import Code, Failure, Permanent
from weft.model.gang import Gang
from weft.model.node import Node
from weft.model.status import Exit, TaskState

DRAIN = 30
"""Seconds that a pod gets beyond the job's grace, for what it leaves to be fetched."""
RETRY = 1.0
"""A gang that a node did not take is placed anew after so long: what we did not know of has been told by then."""
TAKEN_BACK = 10.0
"""Seconds beyond its grace after which a pod that does not end is deleted whatever its node says."""
PULL_TRIES = 2
BIND_TRIES = 3
"""Times that it is tried at least when the API server does not let a pod be bound; more where other nodes would do."""
log = logging.getLogger("weft.kubernetes")


class KubernetesBackend(JobFiles):
    name = "kubernetes"
    one_machine = False
    keeps_secrets = True

    def __init__(self, home: Path, client: Client, settings: Settings, key: bytes):
        super().__init__(home)
        self.client = client
        self.settings = settings
        self._agents = Following(client, settings, self, key)
        self._landscape = Landscape(client, settings)
        self._tracked = Tracked(settings)
        self._launching = Launching(client, settings, self, self._agents, self._tracked)
        self._not_bound: dict[str, int] = {}
        """How many binds in a row were refused, by job."""
        self._clearing: dict[str, asyncio.Task[None]] = {}
        """Jobs that were over, and whose objects are being deleted: who is resumed waits for that."""
        self._errands = Errands()
        self._spawn = self._errands.begin
        self._data = ClusterData(client, settings, home / "datasets", self._agents.token, self._spawn)
        self._places = ClusterPlaces(settings.cluster, self._data, self._tracked, self._spawn, self._give_up)
        self._watches: list[Watch] = []
        self._listener: Listener
        self._rooms: Rooms
        self._loop: asyncio.AbstractEventLoop

    # ── the cluster ──

    def nodes(self) -> tuple[Node, ...]:
        return tuple(map(self._data.holding, self._landscape.nodes.values()))

    def notes(self) -> tuple[str, ...]:
        watches = [watch.problem for watch in self._watches if watch.problem]
        return tuple(dict.fromkeys([*watches, *self._data.notes()]))

    async def start(self, listener: Listener, surroundings: Surroundings) -> None:
        self._loop = asyncio.get_running_loop()
        self._listener, self._rooms = listener, Rooms(surroundings)
        self._places.begin(listener, self._rooms)
        os.makedirs(self.jobs, exist_ok=True)  # noqa: PTH103
        self._landscape.begin(surroundings)
        self._data.lent, self._data.changed = surroundings.lent, surroundings.nodes_changed
        ours = f"{INSTANCE}={self.settings.instance}"
        trouble = "type=Warning,involvedObject.kind=Pod"
        client = self.client
        self._watches = [
            *self._landscape.watches,
            Watch(client, "Pod", self._pod_changed, self._pod_gone, labels=ours),
            Watch(client, "Event", self._event, lambda _: None, fields=trouble),
            self._data.watch,
        ]
        for watch in self._watches:
            self._spawn(watch.run())
        await all_synced(self._watches, client.server)
        self._landscape.complete()
        self._spawn(sweep(self.client, self.settings, self._tracked, self._data.sweep))

    async def stop_engine(self) -> None:
        self._landscape.end()
        self._data.close()
        await self._errands.end()
        await self.client.close()

    # ── a job's way to its start ──

    def counted(self, job: Assignment) -> Gang:
        return counted(job, self.settings, self._landscape.images)

    def provision(self, job: Assignment) -> None:
        problem = unsupported(job)
        if problem is not None:
            raise Permanent(Code.ISOLATION_UNAVAILABLE, problem)

    async def fetch(self, job: Assignment, tell: Tell) -> None:
        await super().fetch(job, tell)
        if job.spec.datasets:
            self._tracked.jobs.add(job.uid)
            await self._data.bring(job, tell)

    def launch(self, job: Assignment, launch: int, tasks: tuple[str, ...]) -> None:
        if (job.uid, launch) in self._tracked.launches:
            return
        self._tracked.jobs.add(job.uid)
        if any(one.over for one in self._tracked.of(job.uid) if one.task in tasks):
            self._close_desk(job.uid)
        made = self._tracked.begin(job, launch, tasks)
        made.work = self._spawn(self._launch(made))
        for pod in self._tracked.orphans_of(job.uid, launch):  # there before us: it may have no more to tell
            self._loop.call_soon(self._pod_changed, pod)

    async def _launch(self, made: Launch) -> None:
        job = made.job
        try:
            if (clearing := self._clearing.get(job.uid)) is not None:
                await asyncio.wait({clearing})
            await self._launching.bring(made)
        except Permanent as problem:
            await self._undo(made, problem.failure)
        except NotBound as problem:
            tries = self._not_bound[job.uid] = self._not_bound.get(job.uid, 0) + 1
            self._landscape.shun(problem.node)
            others = self._landscape.open_to(job.gang, {one.request for one in made.tasks.values()})
            await self._undo(made, refusal(problem), temporary=tries < BIND_TRIES or others)
        except ApiError as problem:
            await self._undo(made, refusal(problem), temporary=passing(problem))
        except OSError as problem:
            await self._undo(made, Failure(Code.CANNOT_START, str(problem)))
        else:
            made.bound = True
            self._not_bound.pop(job.uid, None)
            if reads_hosts(job):
                self._tell_hosts(job)
            log.info("job %s: launch %d bound, %d pods", job.name, made.number, len(made.tasks))
            self._check_begun(made)

    def _check_begun(self, made: Launch) -> None:
        if made.bound and made.begun and not made.undoing:
            del self._tracked.launches[made.job.uid, made.number]
            begun = max(one.begun or 0.0 for one in made.tasks.values())
            for one in made.tasks.values():
                self._landscape.welcomed(one.node)
            self._listener(
                made.job.uid, Launched(made.number, tuple((task, 0) for task in made.tasks), begun)
            )
            for one in list(made.tasks.values()):
                if one.exit is not None:
                    self._tell_exit(one, one.exit)
                else:
                    self._look(one)

    def _give_up(self, made: Launch, failure: Failure, temporary: bool = False) -> None:
        if not made.undoing:
            made.undoing = True
            self._spawn(self._undo(made, failure, temporary=temporary))

    async def _undo(self, made: Launch, failure: Failure, *, temporary: bool = False) -> None:
        """A gang that cannot start is taken back whole; what is told is true when it is told."""
        made.undoing = True
        for one in made.tasks.values():
            one.over = one.stopping = True
            self._end_follower(one)
        if made.work is not None and made.work is not asyncio.current_task():
            made.work.cancel()
            await asyncio.wait({made.work})
        left = list(made.tasks.values())
        while left:
            await asyncio.gather(*map(self._take_back, left))
            left = [one for one in left if one.pod is not None and not one.stopped.is_set()]  # it came late
        for one in made.tasks.values():
            self._tracked.forget(one)
        if temporary:
            await asyncio.sleep(RETRY)
        self._tracked.launches.pop((made.job.uid, made.number), None)
        self._listener(made.job.uid, Undone(made.number, failure, temporary))

    async def _take_back(self, one: TaskPod) -> None:
        """Until nothing of it runs. On a node that is dead nobody is there to say so."""
        at_once = one.begun is None or self._landscape.trouble(one.node) is not None
        for grace in (0 if at_once else 1, 0):
            await self._delete(one, grace)
            if one.pod is None:
                return
            try:
                async with asyncio.timeout(grace + TAKEN_BACK):
                    await one.stopped.wait()
                    return
            except TimeoutError:
                log.warning("%s does not end; its node %s may be dead", one.name, one.node)
        one.stopped.set()

    # ── what pods tell ──

    def _pod_changed(self, pod: Document) -> None:
        one = self._tracked.find(key_of(pod))
        if one is None:
            self._tracked.orphan(pod)
            return
        self._tracked.claim(pod)
        one.pod = pod
        if reasons.stopped(pod):
            one.stopped.set()
        self._places.note(one, pod)
        self._look(one)

    def _pod_gone(self, pod: Document) -> None:
        self._tracked.claim(pod)
        self._rooms.free(pod)
        one = self._tracked.find(key_of(pod))
        if one is None:
            return
        if one.pod is None or one.pod["metadata"]["uid"] == pod["metadata"]["uid"]:
            one.stopped.set()
            if not one.over:
                self._put_out(one, reasons.disturbed(one.pod, "its pod was deleted"))
            if self._tracked.launch_of(one) is None:
                self._tracked.forget(one)

    def _event(self, event: Document) -> None:
        """Volumes that cannot be mounted are told by events alone."""
        if (found := reasons.cannot_mount(event)) is not None:
            for made, one in self._tracked.starting(event.get("involvedObject", {}).get("uid")):
                self._stuck(one, made, found)

    def _look(self, one: TaskPod) -> None:
        """What the pod's status means now."""
        pod = one.pod
        if pod is None:
            return
        if one.over:
            if one.stopped.is_set():
                self._rooms.free(pod)
            return
        made = self._tracked.launch_of(one)
        ended = reasons.over(pod)
        if ended is not None and (made is None or ended.reason):
            self._over(one, ended, made)
            return
        if made is not None:
            self._look_at_start(one, made, ended)
        elif "deletionTimestamp" in pod["metadata"] and not (one.stopping or one.disturbed):
            one.disturbed = True
            why = reasons.disturbed(pod, "its pod is being deleted by somebody")
            self._listener(one.job.uid, Disturbed(one.task, one.launch, why.message, why.code))
        if one.follower is None and reasons.reachable(pod):
            one.follower = self._spawn(self._follow(one))

    def _look_at_start(self, one: TaskPod, made: Launch, ended: reasons.Over | None) -> None:
        assert one.pod is not None
        if one.begun is None and (
            ended is not None or (reasons.running(one.pod) and not one.pod["status"].get("podIP"))
        ):
            one.begun = time.time()  # nobody to ask: it has no agent
            self._check_begun(made)
            return
        stuck = reasons.stuck(one.pod)
        if stuck is None:
            return
        if not stuck.certain:
            one.pulls_failed += reasons.pull_failed(one.pod)
            stuck = replace(stuck, certain=one.pulls_failed >= PULL_TRIES)
        self._stuck(one, made, stuck)

    def _stuck(self, one: TaskPod, made: Launch, found: reasons.Stuck) -> None:
        """What will never be is given up at once; what kubelet goes on trying is told meanwhile."""
        if found.certain:
            self._give_up(made, Failure(found.code, f"{one.task}: {found.message}", one.task))
        else:
            told = Hindered(one.launch, f"{one.task}: {found.message}", found.code)
            self._listener(one.job.uid, told)

    def _over(self, one: TaskPod, ended: reasons.Over, made: Launch | None) -> None:
        """The pod has ended, and its agent has not told how."""
        if ended.own and made is None:
            told = Failure(Code.EVICTED, f"{one.task} was {ended.reason}", one.task)
            self._tell_exit(one, Exit(signal=signal.SIGKILL, failure=told))
        elif ended.reason is not None and not one.stopping:
            if ended.not_there and one.job.spec.scheduling == "weft":
                self._landscape.shun(one.node)  # else it is not ours to choose another
            why = f"node {one.node} did not take it: {ended.reason}" if ended.refused else ended.reason
            self._put_out(one, reasons.Disturbance(ended.why, why))
        elif one.told.state != "exited":
            unknown = None
            if one.begun is None or one.follower is not None:
                unknown = Failure(Code.SUPERVISOR_LOST, "its pod ended without telling how", one.task)
            self._tell_exit(one, self._exit(one, ended.code, ended.oom, unknown))

    def _put_out(self, one: TaskPod, why: reasons.Disturbance) -> None:
        """The cluster has taken the task away."""
        one.over = True
        self._end_follower(one)
        made = self._tracked.launch_of(one)
        if made is not None:
            failure = Failure(why.code, f"{one.task}: {why.message}", one.task)
            self._give_up(made, failure, temporary=True)
            return
        self._spawn(self._delete(one, 0))
        if one.stopping:
            self._listener(
                one.job.uid, Exited(one.task, one.launch, Exit(signal=signal.SIGKILL, failure=one.failure))
            )
        else:
            self._rooms.hold(one)
            self._listener(one.job.uid, Lost((one.task,), one.node, why.message, why.code))

    # ── what agents tell ──

    async def _follow(self, one: TaskPod) -> None:
        """Whatever goes wrong here, the task goes on, and nobody else would tell of its end."""
        while not one.over:
            try:
                await self._follow_to_its_end(one)
                return
            except Exception:
                log.exception("%s: it is followed again", one.name)
            await asyncio.sleep(RETRY)

    async def _follow_to_its_end(self, one: TaskPod) -> None:
        """Until the task has ended and everything it left is here."""
        await self._agents.follow(
            one, lambda told: self._told(one, told), lambda: self._tracked.launch_of(one) is None
        )
        told = one.told
        pod = one.pod if one.stopping else await self._newest(one)
        if not one.stopping and (pod is None or reasons.cut_short(pod, told.code, told.ended)):
            self._put_out(one, reasons.disturbed(pod, "its pod was deleted by somebody"))
            return
        oom = told.oom or (one.pod is not None and reasons.oom_killed(one.pod))
        self._tell_exit(one, self._exit(one, reasons.KILLED if told.killed else told.code, oom))

    async def _newest(self, one: TaskPod) -> Document | None:
        """The pod as it is now, None if it is gone: its agent may tell of an end before the watch tells of its cause."""
        try:
            return await insist(self.client.get, "Pod", one.name, shared.namespace_of(one.job, self.settings))
        except ApiError as problem:
            return None if problem.missing else one.pod

    def _tell_hosts(self, job: Assignment) -> None:
        for one in self._tracked.of(job.uid):
            if one.follower is not None and not (one.over or one.stopping):
                self._spawn(self._agents.tell_hosts(one))

    def _told(self, one: TaskPod, told: Told) -> None:
        one.told = told
        if one.begun is None and told.state != "waiting":
            one.begun = told.begun or time.time()
            made = self._tracked.launch_of(one)
            if made is not None:
                self._check_begun(made)

    def _exit(self, one: TaskPod, status: int | None, oom: bool, unknown: Failure | None = None) -> Exit:
        return exit_of(one, status, oom, self.log_tail(one.job.uid, one.task), unknown)

    def _tell_exit(self, one: TaskPod, exit: Exit) -> None:
        one.exit = exit
        if one.over or self._tracked.launch_of(one) is not None:
            return  # told already, or the rest of its gang has not begun yet
        one.over = True
        self._end_follower(one)
        self._rooms.keep(one)
        self._listener(one.job.uid, Exited(one.task, one.launch, exit, one.told.ended))
        if not (one.told.desk and exit.code == 0):
            self._spawn(self._delete(one, 0))  # kubelet alone would take ten seconds to say that nothing runs

    def _close_desk(self, uid: str) -> None:
        """A pod whose task has ended well, and whose agent hands out shards, stays until nobody asks it any more."""
        for one in self._tracked.of(uid):
            if one.over and one.told.desk and not one.stopped.is_set():
                self._spawn(self._delete(one, 0))

    def _end_follower(self, one: TaskPod) -> None:
        if one.follower is not None and one.follower is not asyncio.current_task():
            one.follower.cancel()

    # ── stopping ──

    def stop(self, job: Assignment, tasks: tuple[str, ...], grace: float) -> None:
        for made in [m for (uid, _), m in self._tracked.launches.items() if uid == job.uid]:
            if not made.tasks.keys() <= {*tasks} and tasks:
                continue
            self._give_up(made, Failure(Code.CANCELLED, "stopped before it began"))
        for task in tasks:
            one = self._tracked.current(job, task)
            if one is not None and not one.over and not one.stopping:
                one.stopping = True
                short = grace < job.gang.grace
                self._spawn(self._delete(one, max(1, ceil(grace)) if short else ceil(grace) + DRAIN))
        self.regroup(job)

    def regroup(self, job: Assignment) -> None:
        if not job.gang.elastic or not taking_part(job):
            return
        self._tell_hosts(job)
        if job.status.datasets:
            self._data.rebalance(job)

    def lose(self, job: Assignment, node: str, tasks: tuple[str, ...]) -> None:
        gone = []
        for task in tasks:
            one = self._tracked.current(job, task)
            if one is None or not one.over:
                gone.append(task)
            if one is not None and not one.over:
                one.over = one.stopping = True
                self._end_follower(one)
                one.stopped.set()  # nobody is there to say so
                self._spawn(self._delete(one, 0))
        if gone:
            self._loop.call_soon(
                self._listener, job.uid, Lost(tuple(gone), node, self._landscape.trouble(node))
            )

    def fail(self, job: Assignment, task: str, failure: Failure) -> None:
        one = self._tracked.current(job, task)
        if one is not None:
            one.failure = failure
            one.stopping = True
            self._spawn(self._delete(one, 1))

    async def _delete(self, one: TaskPod, grace: int) -> None:
        namespace = shared.namespace_of(one.job, self.settings)
        await insist(self.client.delete, "Pod", one.name, namespace, grace, whatever=True)

    # ── after a restart ──

    def adopt(self, job: Assignment, launch: int) -> bool:
        if (job.uid, launch) in self._tracked.launches:
            return True
        self._tracked.jobs.add(job.uid)
        self._data.adopt(job)
        alive, there, bound = self._tracked.left_of(job, launch)
        starting = any(task.state is TaskState.STARTING for task in alive)
        if starting and not bound:
            return False  # made in part: what is missing is made, the rest is found to be there
        made = self._tracked.begin(job, launch, [task.name for task, _ in there])
        made.bound = True
        if not starting:
            del self._tracked.launches[job.uid, launch]
        for task, pod in there:
            one = made.tasks[task.name]
            self._tracked.claim(pod)
            one.pod = pod
            one.stopping = "deletionTimestamp" in pod["metadata"] and (task.leaving or task.again)
            self._places.note(one, pod)
            if task.state is TaskState.RUNNING:
                one.begun = task.started or time.time()
            else:
                one.pushes = pushes_of(pod)
            why = self._landscape.trouble(one.node)
            if why is None:
                self._loop.call_soon(self._look, one)
            else:
                self._loop.call_soon(self._put_out, one, reasons.Disturbance(Code.NODE_LOST, why))
        for task in alive:
            if task.name not in made.tasks and task.binding is not None:
                lost = Lost((task.name,), task.binding.node, "its pod is gone", Code.POD_DELETED)
                self._loop.call_soon(self._listener, job.uid, lost)
        return True

    def forbid(self, job: Assignment, launch: int) -> bool:
        pods = self._tracked.orphans_of(job.uid, launch)
        if not pods:
            return True
        tasks = [task.name for task in job.status.tasks if task.launch == launch and task.state.alive]
        made = self._tracked.begin(job, launch, tasks)
        for pod in pods:
            if (one := self._tracked.find(key_of(pod))) is not None:
                self._tracked.claim(pod)
                one.pod = pod
        self._give_up(made, Failure(Code.CANCELLED, "stopped before it began"))
        return False

    # ── what tasks say of themselves ──

    def heard(self, uid: str, tasks: Sequence[str]) -> dict[str, float]:
        return {task: told.heard for task, told in self._tracked.told(uid, tasks).items()}

    def active(self, uid: str, tasks: Sequence[str]) -> dict[str, float]:
        return {task: told.active for task, told in self._tracked.told(uid, tasks).items()}

    def urls(self, job: Assignment) -> dict[str, str]:
        told = self._tracked.told(job.uid, _running(job))
        return {task: each.url for task, each in told.items() if each.url}

    def forwards(self, job: Assignment) -> dict[str, str]:
        """What a task serves is on its pod's own loopback."""
        found, namespace = {}, shared.namespace_of(job, self.settings)
        for task, url in self.urls(job).items():
            one, port = self._tracked.current(job, task), port_of(url)
            if one is not None and port is not None:
                found[task] = f"kubectl -n {namespace} port-forward pod/{one.name} {port}"
        return found

    def usage(self, jobs: list[Assignment]) -> list[TaskUsage]:
        return [
            TaskUsage(job.uid, task, 0, told.cpu, told.memory)
            for job in jobs
            for task, told in self._tracked.told(job.uid, _running(job)).items()
        ]

    async def cached(self) -> list[Cached]:
        return self._data.cached()

    async def warm(self, dataset: str, version: str, nodes: Sequence[str]) -> None:
        await self._data.warm(dataset, version, nodes)

    async def dump(self, job: Assignment, name: str) -> bool:
        pods = [one for one in self._tracked.of(job.uid) if one.follower is not None and not one.over]
        return await self._agents.keep_stacks(job, pods, name)

    # ── afterwards ──

    def retire(self, job: Assignment) -> None:
        self._tracked.jobs.discard(job.uid)
        self._close_desk(job.uid)
        self._not_bound.pop(job.uid, None)
        self._data.release(job.uid)
        self._clearing[job.uid] = self._spawn(self._clear(job))

    async def _clear(self, job: Assignment) -> None:
        """Everything else of the job belongs to this object and goes with it."""
        try:
            base, namespace = base_name(job.name, job.uid), shared.namespace_of(job, self.settings)
            await insist(self.client.delete, "ConfigMap", base, namespace)
        finally:
            self._clearing.pop(job.uid, None)


def port_of(url: str) -> int | None:
    """Of what a task has said; it may say anything."""
    try:
        return urlsplit(url).port
    except ValueError:
        return None


def _running(job: Assignment) -> list[str]:
    return [task.name for task in job.status.tasks if task.state is TaskState.RUNNING]
