"""Following tasks by their agents: what they say comes in, folders go in and out, until the last file is here."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import logging
import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from weft.backends import stalls
from weft.backends.api import Assignment
from weft.backends.files import JobFiles
from weft.backends.kubernetes.agents import Agent, Told
from weft.backends.kubernetes.client import ApiError, Client
from weft.backends.kubernetes.pods import places
from weft.backends.kubernetes.received import Received
from weft.backends.kubernetes.settings import Settings
from weft.backends.kubernetes.shared import namespace_of
from weft.backends.kubernetes.tracked import TaskPod
from weft.backends.tasks import hosts_of

SYNC = 5.0
"""Checkpoints are fetched this often."""
FIRST_PAUSE, LONGEST_PAUSE = 0.1, 2.0
PATIENCE = 600.0
"""So long an agent that cannot be reached is asked for what its task left; its pod may be gone without a word."""
STACKS = 40.0
"""So long one agent may take to tell what its processes are doing."""
AT_ONCE = 32
MOST_NOTES = 5
NO_STACKS = "no Python stacks: py-spy is not in Weft's image (--image)"
log = logging.getLogger("weft.kubernetes")


class Following:
    def __init__(self, client: Client, settings: Settings, files: JobFiles, key: bytes):
        self._client = client
        self._settings = settings
        self._files = files
        self._key = key

    def token(self, uid: str) -> str:
        """What the agents of a job ask for; never stored, since it can be worked out again."""
        return hmac.new(self._key, uid.encode(), hashlib.sha256).hexdigest()

    async def follow(self, one: TaskPod, told: Callable[[Told], None], may_leave: Callable[[], bool]) -> None:
        """Until the task has ended and everything it left is here. `may_leave`: whether nobody needs its agent then."""
        folder = self._files.folder(one.job.uid)
        received = Received(folder, one.task, one.launch)
        agent = self._agent(one)
        seen: set[str] = set()
        syncing = asyncio.ensure_future(self._sync(one, agent, seen))
        pause = FIRST_PAUSE
        try:
            while one.told.state != "exited":
                try:
                    while one.pushes:
                        await self._push(one, agent, one.pushes[0])
                        one.pushes.pop(0)
                    async for said in agent.follow(received):
                        told(said)
                        pause = FIRST_PAUSE
                        if said.state == "exited":
                            break
                except (ApiError, OSError, ValueError) as problem:
                    quiet = isinstance(problem, ApiError)
                    log.log(logging.DEBUG if quiet else logging.WARNING, "%s: %s", one.name, problem)
                    await asyncio.sleep(pause)
                    pause = min(2 * pause, LONGEST_PAUSE)
            syncing.cancel()
            await self._bring_home(one, agent, Path(folder.root), seen, may_leave)
        finally:
            syncing.cancel()
            received.close()

    async def tell_hosts(self, one: TaskPod) -> None:
        """An elastic gang has another size: who reads its hosts file sees who is there."""
        try:
            await self._push(one, self._agent(one), "hosts")
        except ApiError as problem:
            log.info("%s: cannot be told its hosts: %s", one.name, problem)

    async def keep_stacks(self, job: Assignment, pods: Sequence[TaskPod], name: str) -> bool:
        """What the processes of these are doing, as a file among the results."""
        turn = asyncio.Semaphore(AT_ONCE)
        python = True

        async def ask(one: TaskPod) -> list[str]:
            nonlocal python
            try:
                async with turn, asyncio.timeout(STACKS):
                    told, has_python = await self._agent(one).stacks()
            except (ApiError, TimeoutError, ValueError) as problem:
                return [f"(its agent cannot be asked: {problem or 'no answer in time'})"]
            python = python and has_python
            return told

        told = await asyncio.gather(*map(ask, pods))
        by_task = {one.task: lines for one, lines in zip(pods, told, strict=True)}
        results = self._files.folder(job.uid).results
        try:
            os.makedirs(results, exist_ok=True)  # noqa: PTH103
            stalls.keep(results, name, stalls.page(job.name, "" if python else NO_STACKS, by_task))
        except OSError as problem:
            log.warning("job %s: cannot keep the stacks of its tasks: %s", job.name, problem)
            return False
        return bool(pods)

    def _agent(self, one: TaskPod) -> Agent:
        where = (namespace_of(one.job, self._settings), one.name, self._settings.agent_port)
        return Agent(self._client, *where, self.token(one.job.uid))

    async def _push(self, one: TaskPod, agent: Agent, what: str) -> None:
        if what == "hosts":
            await agent.tell_hosts(hosts_of(one.job, places(one.job, self._settings)))
        else:
            await agent.push(what, Path(self._files.folder(one.job.uid).root) / what)

    async def _bring_home(
        self, one: TaskPod, agent: Agent, root: Path, seen: set[str], may_leave: Callable[[], bool]
    ) -> None:
        """What the task left, then the agent's leave. If the pod is gone meanwhile, so is that."""
        pause, until = FIRST_PAUSE, time.monotonic() + PATIENCE
        while not one.stopped.is_set() and time.monotonic() < until:
            try:
                left_out = {
                    **await agent.pull("checkpoints", root / "checkpoints", seen, final=True),
                    **await agent.pull("results", root / "results", set(), final=True),
                }
                one.notes = _notes(left_out)
                for note in one.notes:
                    log.warning("%s: %s", one.name, note)
                if not one.told.desk and may_leave():
                    await agent.done()
            except (ApiError, OSError, ValueError) as problem:
                if isinstance(problem, ApiError) and problem.gone:
                    return
                log.info("%s: what it left is fetched again: %s", one.name, problem)
                await asyncio.sleep(pause)
                pause = min(2 * pause, LONGEST_PAUSE)
            else:
                return

    async def _sync(self, one: TaskPod, agent: Agent, seen: set[str]) -> None:
        """Checkpoints, while the task goes on: a lost node takes no more with it than the last few seconds."""
        target = Path(self._files.folder(one.job.uid).checkpoints)
        while True:
            await asyncio.sleep(SYNC)
            if one.told.state == "running":
                try:
                    await agent.pull("checkpoints", target, seen, final=False)
                except (ApiError, OSError, ValueError) as problem:
                    log.info("%s: its checkpoints cannot be fetched now: %s", one.name, problem)


def _notes(left_out: dict[str, str]) -> tuple[str, ...]:
    """What people are told of files that could not be fetched, not of each if there are many."""
    shown = [
        f"{path.encode(errors='backslashreplace').decode()} was not fetched: {why}"
        for path, why in list(left_out.items())[:MOST_NOTES]
    ]
    more = len(left_out) - len(shown)
    return (*shown, f"and {more} more files were not fetched") if more else tuple(shown)
