"""Fetching what tasks leave, from real agents: of several pods of one job at the same time, into one folder."""

from __future__ import annotations

import asyncio
import io
import json
import os
import shutil
import tarfile
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from support.pod import TOKEN, Pod
from support.straight import Said, Straight
from weft.backends.kubernetes.agents import Agent, packed_code

OLD = 100.0
"""Files were last written so long ago: nobody writes to them any more."""


@pytest.fixture
def pods(tmp_path: Path) -> Iterator[dict[str, Pod]]:
    with ExitStack() as ends:
        made: dict[str, Pod] = {}
        for name in ("worker-0", "worker-1", "worker-2"):
            (tmp_path / name).mkdir()
            made[name] = Pod(tmp_path / name)
            made[name].agent()
            ends.callback(made[name].close)
        yield made


def agents(pods: dict[str, Pod]) -> dict[str, Agent]:
    client: Any = Straight(pods)
    return {name: Agent(client, "ns", name, 8470, TOKEN) for name in pods}


def saved(pod: Pod, path: str, content: bytes) -> None:
    place = pod.root / "checkpoints" / path
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_bytes(content)
    when = place.stat().st_mtime - OLD
    os.utime(place, (when, when))


@pytest.mark.slow
def test_pods_of_one_job_are_fetched_from_side_by_side(pods: dict[str, Pod], tmp_path: Path) -> None:
    target = tmp_path / "here"
    wanted: dict[str, bytes] = {}
    for name, pod in pods.items():
        for step in range(6):
            for part in range(3):
                path, content = f"{name}-{step}/part-{part}", f"{name} {step} {part} ".encode() * 20_000
                saved(pod, path, content)
                wanted[path] = content
        saved(pod, f"single-{name}", name.encode())
        wanted[f"single-{name}"] = name.encode()

    async def all_at_once() -> None:
        pulls = [agent.pull("checkpoints", target, set(), final=True) for agent in agents(pods).values()]
        await asyncio.gather(*pulls)

    asyncio.run(all_at_once())
    found = {str(path.relative_to(target)): path.read_bytes() for path in target.rglob("*") if path.is_file()}
    assert found == wanted
    assert not list(target.glob(".*"))


def test_what_a_pod_removed_goes_here_too_and_nothing_of_others(pods: dict[str, Pod], tmp_path: Path) -> None:
    target = tmp_path / "here"
    first, second = pods["worker-0"], pods["worker-1"]
    for step in ("1", "2"):
        saved(first, f"a{step}/x", b"x")
        saved(second, f"b{step}/x", b"x")

    async def story() -> None:
        asked, seen = agents(pods), {name: set[str]() for name in pods}
        for name in ("worker-0", "worker-1"):
            await asked[name].pull("checkpoints", target, seen[name], final=False)
        (first.root / "checkpoints/a1/x").unlink()
        await asked["worker-0"].pull("checkpoints", target, seen["worker-0"], final=False)

    asyncio.run(story())
    assert sorted(str(path.relative_to(target)) for path in target.rglob("x")) == ["a2/x", "b1/x", "b2/x"]


def test_a_file_that_is_replaced_all_the_time_is_fetched_and_one_that_is_being_written_is_not(
    pods: dict[str, Pod], tmp_path: Path
) -> None:
    """Who saves every second, each time under the same name, must not lose everything with its node."""
    target = tmp_path / "here"
    folder = pods["worker-0"].root / "checkpoints"
    folder.mkdir(exist_ok=True)

    def save(content: bytes) -> None:
        (folder / "model.new").write_bytes(content)
        (folder / "model.new").replace(folder / "model")
        with (folder / "log").open("ab") as file:
            file.write(content)

    def here() -> dict[str, bytes]:
        return {path.name: path.read_bytes() for path in target.rglob("*")}

    async def story() -> None:
        agent, seen = agents(pods)["worker-0"], set[str]()
        for number in range(4):
            save(b"%d" % number)
            await agent.pull("checkpoints", target, seen, final=False)
            assert here() == ({"model": b"%d" % (number - 1)} if number else {})
        await agent.pull("checkpoints", target, seen, final=True)

    asyncio.run(story())
    assert here() == {"model": b"3", "log": b"0123"}


def test_what_a_pod_was_given_and_has_not_changed_replaces_nothing_here(
    pods: dict[str, Pod], tmp_path: Path
) -> None:
    """All tasks of a job get its checkpoints when it goes on; the first one alone replaces and removes them."""
    target = tmp_path / "here"
    (target / "old").mkdir(parents=True)
    (target / "old/x").write_bytes(b"old")
    (target / "latest").write_bytes(b"before")
    for pod in pods.values():
        pod.close()
        shutil.rmtree(pod.root)
        pod.agent(pushes=["checkpoints"])

    async def story() -> None:
        asked, seen = agents(pods), {name: set[str]() for name in pods}
        for name in ("worker-0", "worker-1"):
            await asked[name].push("checkpoints", target)
            await asked[name].pull("checkpoints", target, seen[name], final=True)
        own = pods["worker-0"].root / "checkpoints"
        shutil.rmtree(own / "old")
        (own / "latest").write_bytes(b"after")
        for _ in range(2):
            for name in ("worker-0", "worker-1"):
                await asked[name].pull("checkpoints", target, seen[name], final=True)

    asyncio.run(story())
    found = {str(path.relative_to(target)): path.read_bytes() for path in target.rglob("*") if path.is_file()}
    assert found == {"latest": b"after"}


class Earlier(Straight):
    """To agents of a release that did not say how old files are."""

    @asynccontextmanager
    async def stream(self, method: str, path: str, query: Any = None, *rest: Any) -> AsyncIterator[Any]:
        async with super().stream(method, path, query, *rest) as answer:
            if not path.endswith("/v1/files"):
                yield answer
                return
            files = json.loads(await answer.read())["files"]
            known = [{key: file[key] for key in ("path", "size", "modified")} for file in files]
            yield Said({"files": known})


def test_a_pod_that_is_older_than_the_server_is_fetched_from_too(
    pods: dict[str, Pod], tmp_path: Path
) -> None:
    client: Any = Earlier(pods)
    saved(pods["worker-0"], "1/x", b"old")
    (pods["worker-0"].root / "checkpoints/2").write_bytes(b"being written")

    async def story() -> None:
        agent = Agent(client, "ns", "worker-0", 8470, TOKEN)
        await agent.pull("checkpoints", tmp_path / "here", set(), final=False)

    asyncio.run(story())
    found = [path for path in (tmp_path / "here").rglob("*") if path.is_file()]
    assert [path.read_bytes() for path in found] == [b"old"]


def left(pod: Pod, path: str, content: bytes = b"x") -> None:
    place = os.fsencode(pod.root / "results") + b"/" + os.fsencode(path)
    os.makedirs(os.path.dirname(place), exist_ok=True)
    with open(place, "wb") as file:
        file.write(content)


def brought(client: Any, pod: str, folder: str, target: Path) -> dict[str, str]:
    agent = Agent(client, "ns", pod, 8470, TOKEN)
    return asyncio.run(agent.pull(folder, target, set(), final=True))


def here(target: Path) -> list[str]:
    return sorted(str(path.relative_to(target)) for path in target.rglob("*") if path.is_file())


@pytest.mark.parametrize(
    "name", [os.fsdecode(b"caf\xe9"), ".incoming-mine", ".incoming/x"], ids=["no text", "ours", "our folder"]
)
def test_a_file_whose_name_cannot_be_taken_is_left_out_and_the_others_come(
    pods: dict[str, Pod], tmp_path: Path, name: str
) -> None:
    left(pods["worker-0"], name)
    left(pods["worker-0"], "model")
    left_out = brought(Straight(pods), "worker-0", "results", tmp_path / "here")
    assert here(tmp_path / "here") == ["model"]
    assert list(left_out) == [name]


def test_a_file_and_a_folder_of_one_name_do_not_keep_the_rest(pods: dict[str, Pod], tmp_path: Path) -> None:
    left(pods["worker-0"], "model")
    left(pods["worker-1"], "model/weights")
    left(pods["worker-1"], "other")
    left(pods["worker-2"], "model")
    client = Straight(pods)
    assert brought(client, "worker-0", "results", tmp_path / "here") == {}
    assert list(brought(client, "worker-1", "results", tmp_path / "here")) == ["model/weights"]
    assert here(tmp_path / "here") == ["model", "other"]
    (tmp_path / "here/model").unlink()
    brought(client, "worker-1", "results", tmp_path / "here")
    assert list(brought(client, "worker-2", "results", tmp_path / "here")) == ["model"]
    assert here(tmp_path / "here") == ["model/weights", "other"]


class Removing(Straight):
    """Files called `lost` are gone when they are asked for: as root an agent could read whatever there is."""

    def __init__(self, pods: dict[str, Pod]):
        super().__init__(pods)
        self._pods = pods

    @asynccontextmanager
    async def stream(self, method: str, path: str, query: Any = None, *rest: Any) -> AsyncIterator[Any]:
        if path.endswith("/v1/file") and query["path"].endswith("lost"):
            for pod in self._pods.values():
                (pod.root / query["folder"] / query["path"]).unlink(missing_ok=True)
        async with super().stream(method, path, query, *rest) as answer:
            yield answer


def test_a_file_that_its_agent_cannot_open_is_left_out_and_the_others_come(
    pods: dict[str, Pod], tmp_path: Path
) -> None:
    for path in ("a/lost", "a/x", "z"):
        left(pods["worker-0"], path)
    left_out = brought(Removing(pods), "worker-0", "results", tmp_path / "here")
    assert here(tmp_path / "here") == ["a/x", "z"]
    assert list(left_out) == ["a/lost"]


def test_of_a_checkpoint_a_part_is_worth_nothing_and_what_was_there_before_stays(
    pods: dict[str, Pod], tmp_path: Path
) -> None:
    target, seen = tmp_path / "here", set[str]()
    client: Any = Removing(pods)
    agent = Agent(client, "ns", "worker-0", 8470, TOKEN)
    saved(pods["worker-0"], "1/x", b"x")
    asyncio.run(agent.pull("checkpoints", target, seen, final=False))
    (pods["worker-0"].root / "checkpoints/1/x").unlink()
    for path in ("2/lost", "2/x", "3/x"):
        saved(pods["worker-0"], path, b"x")
    assert list(asyncio.run(agent.pull("checkpoints", target, seen, final=False))) == ["2/lost"]
    assert here(target) == ["1/x", "3/x"]
    asyncio.run(agent.pull("checkpoints", target, seen, final=False))
    assert here(target) == ["2/x", "3/x"]


def test_what_is_removed_while_a_folder_is_packed_is_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for path in ("a", "b/x", "c/x"):
        (tmp_path / path).parent.mkdir(exist_ok=True)
        (tmp_path / path).write_text(path)
    real = tarfile.TarFile.addfile

    def addfile(tar: tarfile.TarFile, info: tarfile.TarInfo, file: Any = None) -> None:
        real(tar, info, file)
        if info.name == "a":
            shutil.rmtree(tmp_path / "c")
        if info.name == "b":
            (tmp_path / "b/x").unlink()

    monkeypatch.setattr(tarfile.TarFile, "addfile", addfile)
    packed = packed_code(tmp_path, 1 << 20)
    assert packed is not None
    with tarfile.open(fileobj=io.BytesIO(packed)) as tar:
        assert tar.getnames() == ["a", "b"]


class Lying(Straight):
    """To an agent that says that its files are these."""

    def __init__(self, *listings: list[str]):
        super().__init__({})
        self._listings = list(listings)

    @asynccontextmanager
    async def stream(self, *_: Any) -> AsyncIterator[Any]:
        about = {"size": 1, "modified": 0.0, "age": 0.0, "given": True}
        files = [{"path": path, **about} for path in self._listings.pop(0)]
        yield Said({"files": files})


@pytest.mark.parametrize("path", ["../victim", "a/../../victim", ".incoming-other/x"])
def test_a_pod_cannot_have_anything_removed_that_is_not_its_own(tmp_path: Path, path: str) -> None:
    target = tmp_path / "here"
    victim = target / path
    (target / "a").mkdir(parents=True)
    victim.parent.mkdir(exist_ok=True)
    victim.write_text("x")
    client: Any = Lying([path], ["own"], ["own"])
    agent = Agent(client, "ns", "worker-0", 8470, TOKEN)

    async def story() -> None:
        seen = set[str]()
        await agent.pull("checkpoints", target, seen, final=False)
        for _ in range(2):
            await agent.pull("checkpoints", target, seen, final=True)

    asyncio.run(story())
    assert victim.exists()
