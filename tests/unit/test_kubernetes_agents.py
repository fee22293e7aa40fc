"""Fetching what tasks leave, from real agents: of several pods of one job at the same time, into one folder."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest

from support.pod import TOKEN, Pod
from weft.backends.kubernetes.agents import Agent
from weft.backends.kubernetes.client import ApiError

OLD = 100.0
"""Files were last written so long ago: nobody writes to them any more."""


class Straight:
    """As a client whose API server passes everything on to the pods, which are on this machine."""

    def __init__(self, pods: dict[str, Pod]):
        self._ports = {name: pod.port for name, pod in pods.items()}

    @asynccontextmanager
    async def stream(
        self, method: str, path: str, query: Any = None, headers: Any = None, content: Any = None
    ) -> AsyncIterator[httpx2.Response]:
        before, _, after = path.partition("/proxy")
        name = before.rpartition("/")[2].partition(":")[0]
        address = f"http://127.0.0.1:{self._ports[name]}{after}"
        async with (
            httpx2.AsyncClient(trust_env=False, timeout=60) as client,
            client.stream(method, address, params=query, headers=headers, content=content) as answer,
        ):
            if answer.status_code >= 400:
                raise ApiError(answer.status_code, "refused")
            yield answer


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
    async def stream(
        self, method: str, path: str, query: Any = None, headers: Any = None, content: Any = None
    ) -> AsyncIterator[httpx2.Response]:
        async with super().stream(method, path, query, headers, content) as answer:
            if not path.endswith("/v1/files"):
                yield answer
                return
            files = json.loads(await answer.aread())["files"]
            known = [{key: file[key] for key in ("path", "size", "modified")} for file in files]
            yield httpx2.Response(200, json={"files": known})


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
