"""Following tasks by real agents: whatever goes wrong meanwhile, their end is told and what they left comes."""

from __future__ import annotations

import asyncio
import errno
import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from support.pod import TOKEN, Pod
from support.straight import Straight
from weft.backends.kubernetes import backend, following
from weft.backends.kubernetes.agents import Agent, Told
from weft.backends.kubernetes.backend import KubernetesBackend
from weft.backends.kubernetes.client import Document
from weft.backends.kubernetes.received import Received
from weft.backends.kubernetes.settings import Settings
from weft.backends.kubernetes.tracked import Launch, TaskPod
from weft.model.events import Exited, Launched
from weft.model.gang import Request

SETTINGS = Settings()


class Near(Straight):
    """A cluster of one pod, on this machine."""

    server = "near"

    def __init__(self, pod: Pod):
        super().__init__({"w-0": pod})
        self.deleted: list[str] = []

    async def get(self, kind: str, name: str, namespace: str) -> Document:
        return {"metadata": {"name": name}, "spec": {}, "status": {}}

    async def delete(self, kind: str, name: str, *_: Any) -> None:
        self.deleted.append(name)


class Story:
    """A launch of two tasks, the first of which has an agent."""

    def __init__(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
        self.pod = Pod(tmp_path)
        self.process: subprocess.Popen[bytes] = self.pod.agent()
        self.client: Any = Near(self.pod)
        self.told: list[Any] = []
        monkeypatch.setattr(
            following.Following, "_agent", lambda *_: Agent(self.client, "ns", "w-0", 8470, TOKEN)
        )
        monkeypatch.setattr(backend, "RETRY", 0.01)
        self.home = tmp_path / "home"

    def backend(self) -> KubernetesBackend:
        made = KubernetesBackend(self.home, self.client, SETTINGS, b"key")
        made._listener = lambda _, event: self.told.append(event)
        made._rooms = SimpleNamespace(keep=lambda _: None)  # type: ignore[assignment]
        made._loop = asyncio.get_running_loop()
        return made

    def task(self, name: str) -> TaskPod:
        job: Any = SimpleNamespace(uid="u", name="job", project=None, spec=SimpleNamespace(datasets=()))
        return TaskPod(job, name, 1, name, "n", Request(cpu=1), 0)

    def ends(self) -> None:
        (self.pod.task / "begun").write_text("\n")
        (self.pod.task / "exit").write_text("0 0\n")

    def results(self) -> list[str]:
        return sorted(os.listdir(self.home / "jobs/u/results"))


@pytest.fixture
def story(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Story]:
    made = Story(tmp_path, monkeypatch)
    yield made
    made.pod.close()


def failing_once(real: Callable[..., Any], problem: Exception) -> Callable[..., Any]:
    problems = [problem]

    def called(*arguments: Any) -> Any:
        if problems:
            raise problems.pop()
        return real(*arguments)

    return called


def followed(story: Story) -> TaskPod:
    async def whole() -> TaskPod:
        one = story.task("w-0")
        async with asyncio.timeout(30):
            await story.backend()._follow(one)
        return one

    return asyncio.run(whole())


@pytest.mark.parametrize(
    "problem",
    [
        OSError(errno.ENOSPC, "No space left on device"),
        ValueError("not what was expected"),
        KeyError("nobody thought of this"),
    ],
    ids=["full disk", "value", "anything"],
)
def test_what_goes_wrong_once_while_a_task_is_followed_does_not_keep_its_end(
    story: Story, monkeypatch: pytest.MonkeyPatch, problem: Exception
) -> None:
    monkeypatch.setattr(Received, "metrics", failing_once(Received.metrics, problem))
    (story.pod.task / "metrics.jsonl").write_text('{"loss": 1}\n')
    (story.pod.root / "results/model").write_text("m")
    story.ends()
    followed(story)
    assert [event.exit.code for event in story.told if isinstance(event, Exited)] == [0]
    assert story.results() == ["model"]


def test_what_could_not_be_fetched_is_told_with_the_end(story: Story) -> None:
    for number in range(7):
        with open(os.fsencode(story.pod.root / "results") + b"/%d-\xe9" % number, "w"):
            pass
    (story.pod.root / "results/model").write_text("m")
    story.ends()
    followed(story)
    notes = story.told[-1].exit.notes
    assert notes[0] == r"0-\udce9 was not fetched: its name is not UTF-8"
    assert notes[-1] == "and 2 more files were not fetched"
    assert story.results() == ["model"]
    assert story.process.wait(10) == 0, "the agent was let go"


def test_an_agent_stays_until_the_rest_of_its_gang_has_begun(story: Story) -> None:
    """The others wait for the name of its pod, which goes when the pod has ended."""
    story.ends()

    async def whole() -> None:
        engine = story.backend()
        pods = {name: story.task(name) for name in ("w-0", "w-1")}
        made = Launch(pods["w-0"].job, 1, pods, bound=True)
        engine._tracked.launches["u", 1] = made
        async with asyncio.timeout(30):
            await engine._follow(pods["w-0"])
        status, _ = await asyncio.to_thread(story.pod.ask, "GET", "/v1/files?folder=results")
        assert (status, story.told) == (200, [])
        engine._told(pods["w-1"], Told(state="running"))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert [type(event) for event in story.told] == [Launched, Exited]
        assert story.client.deleted == ["w-0"]

    asyncio.run(whole())
